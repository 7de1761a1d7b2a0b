"""The client's keys and values: read back by the gateway's own reader, as JSON; and what importing the client loads."""

import json
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.client.answers import canonical, resource_of, row_path
from fencepost.client.http import dumps, loads
from fencepost.server.fence.resource import decode_key, decode_segment, parse_resource

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
keys = st.lists(texts, min_size=1, max_size=3).map(tuple).filter(lambda key: key not in ((".",), ("..",)))


@given(texts.filter(lambda table: table not in (".", "..")), keys)
def test_the_gateway_reads_back_what_was_meant(table: str, key: tuple[str, ...]) -> None:
    sent = httpx.Request("GET", httpx.URL("http://gateway/fence").join(row_path(table, key))).url.raw_path
    assert sent == row_path(table, key).encode(), "httpx tidied the path up"
    raw_table, _, raw_key = sent.removeprefix(b"/v1/data/").partition(b"/")
    assert decode_segment(raw_table) == table
    assert decode_key(raw_key) == key
    assert parse_resource(resource_of(table, key)).key == key
    assert canonical(resource_of(table, key)) == resource_of(table, key)


@pytest.mark.parametrize("key", ["", ".", ".."])
def test_a_key_that_a_path_cannot_carry_is_refused_with_advice(key: str) -> None:
    with pytest.raises(ValueError, match="by a filter"):
        row_path("orders", key)


@pytest.mark.parametrize("value", [True, None, 1.5, b"a"])
def test_a_value_that_no_key_is_made_of_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="a key is made of str, int or UUID"):
        row_path("orders", ("a", value))  # type: ignore[arg-type]


def test_values_that_json_lacks_go_as_text() -> None:
    sent = json.loads(dumps([datetime(2026, 1, 2, 3, tzinfo=UTC), date(2026, 1, 2), UUID(int=1), "ä", None, 1.5]))
    assert sent == [
        "2026-01-02T03:00:00+00:00", "2026-01-02", str(UUID(int=1)), "ä", None, 1.5,
    ]  # fmt: skip
    with pytest.raises(ValueError, match="JSON compliant"):
        dumps(float("nan"))
    with pytest.raises(TypeError, match="object"):
        dumps(object())


def modules_after(statement: str) -> set[str]:
    script = f"{statement}\nimport sys; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


# Not click: httpx itself imports it for its own command line, where it is installed.
SERVER = (
    {"fastapi", "starlette", "uvicorn", "asyncpg", "sqlalchemy", "alembic", "orjson", "pydantic", "pydantic_settings"}
    | {"structlog", "prometheus_client"}
)  # fmt: skip


def test_importing_the_client_loads_no_server() -> None:
    loaded = modules_after("from fencepost import Client, SyncClient, StaleToken, LeaseLost, LockHeld")
    assert "httpx" in loaded
    assert loaded & SERVER == set()
    ours = {name.split(".")[1] for name in loaded if name.startswith("fencepost.")}
    assert ours == {"client"}


NUMBERS = [
    "-0", "-0.0", "1.50", "12345678901234567890.12345678901234567890", "1E+400", "1E-30", '[-0.10,{"a":2.0}]',
    "9" * 5000,
]  # fmt: skip


@pytest.mark.parametrize("text", NUMBERS, ids=lambda text: text[:20])
def test_with_decimals_each_number_is_sent_as_it_was_read(text: str) -> None:
    assert dumps(loads(text.encode(), decimals=True)).decode() == text


def test_without_decimals_only_what_no_float_holds_is_one() -> None:
    assert dumps(loads(b"[-0,1.5,-1E+400,7]")).decode() == "[-0.0,1.5,-1E+400,7]"


def test_strings_are_strings() -> None:
    given = {"1.5": Decimal("1.5"), "a": "1.5", "b": Decimal("NaN"), "c": '"5"'}
    assert json.loads(dumps(given), parse_float=Decimal) == given | {"b": "NaN"}


@pytest.mark.parametrize(
    ("given", "written"), [(timedelta(1, 2, 3), "P1DT2.000003S"), (timedelta(microseconds=-1), "P-1DT86399.999999S")]
)
def test_a_timedelta_is_a_duration(given: timedelta, written: str) -> None:
    assert loads(dumps(given)) == written
