"""docs/schemas says of a message what queues/message.py says, for good ones and for bad ones."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fencepost.fencing.token import MAX_TOKEN
from fencepost.queues.log import Message
from fencepost.queues.message import KNOWN, METHODS, MalformedMessageError, read_message

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "queue-messages.md").read_text("utf-8")


def schema(name: str) -> Any:
    found = json.loads((DOCS / "schemas" / name).read_text("utf-8"))
    jsonschema_rs.meta.validate(found)
    return found


HEADERS_SCHEMA = schema("queue-headers.json")
HEADERS = jsonschema_rs.Draft202012Validator(HEADERS_SCHEMA)
VALUE = jsonschema_rs.Draft202012Validator(schema("queue-value.json"))

METHOD = st.sampled_from([*(method.decode() for method in METHODS), "GET", "patch", ""])
TOKEN = st.one_of(st.integers(-1, MAX_TOKEN).map(str), st.sampled_from(["", "01", "1_0", "+1", " 1", "1e3", "٣"]))
NONCE = st.one_of(st.text("0123456789abcdef", min_size=15, max_size=17), st.just("0123456789ABCDEF"))
TEXT = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20)
OTHERS = st.sampled_from(["x-a", "X-Request-Id", "x", "traceparent", "Trace-Id", "baggage", "if-match", "fence_token"])
MESSAGES = st.builds(
    lambda known, others: {**others, **known},
    st.fixed_dictionaries(
        {},
        optional={
            name: {"method": METHOD, "fence-token": TOKEN, "write-nonce": NONCE}.get(name, TEXT) for name in KNOWN
        },
    ),
    st.dictionaries(OTHERS, TEXT, max_size=2),
)


def is_read(headers: dict[str, str]) -> bool:
    encoded = tuple((name, value.encode()) for name, value in headers.items())
    try:
        read_message(Message(b"orders/order-123", None, encoded))
    except MalformedMessageError:
        return False
    return True


@given(MESSAGES)
@example({"method": "PATCH", "fence-token": str(MAX_TOKEN), "write-nonce": "0123456789abcdef", "x-a": ""})
@example({"method": "PATCH", "unknown": "1"})
@example({"query": "select=order_id"})
def test_headers_fit_the_schema_if_and_only_if_they_are_read(headers: dict[str, str]) -> None:
    assert HEADERS.is_valid(headers) == is_read(headers)


EXAMPLES = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("text", EXAMPLES)
def test_an_example_of_the_page_fits_the_schemas_and_is_read(text: str) -> None:
    message = json.loads(text)
    HEADERS.validate(message["headers"])
    if message["headers"]["method"] == "DELETE":
        assert "value" not in message
    else:
        VALUE.validate(message["value"])
    encoded = tuple((name, value.encode()) for name, value in message["headers"].items())
    read = read_message(Message(message["key"].encode(), None, encoded))
    assert read.named.table == "orders"
