"""Messages of a log, the writes that they carry (docs/schemas says the same), and their consumer without a log."""

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fencepost.server.consuming.applying import of_problem, reason_of
from fencepost.server.consuming.consumer import Backoff, InHand, KeyQueues, size_of
from fencepost.server.consuming.deciding import Progress, noted_reason
from fencepost.server.fence.caller import Caller
from fencepost.server.fence.problems import Problem, bad_request
from fencepost.server.fence.resource import Resource
from fencepost.server.fence.seal import SealKeys, encoded
from fencepost.server.fence.token import MAX_TOKEN, Token
from fencepost.server.gateway.idempotency import read_record
from fencepost.server.postgres.queues import KnownPartition, KnownQueue
from fencepost.server.queues.log import MOST_OFFSET, Headers, Message, Position, Received
from fencepost.server.queues.message import (
    KNOWN,
    METHODS,
    MalformedMessageError,
    MalformedWriteIdError,
    WriteId,
    WriteMessage,
    claimed,
    hash_of,
    message_of,
    nonce_of,
    parse_write_id,
    read_message,
    sign,
    verify,
)
from fencepost.server.queues.redis import from_url, seconds_of
from fencepost.server.queues.registry import look_at_queue
from fencepost.server.times import ConsumingTimes
from fencepost.testing.servers.processes import PATIENCE, free_port

KEY = b"orders/order-123"
NONCE = "0123456789abcdef"


def _message(*headers: tuple[str, bytes], key: bytes = KEY, method: bytes = b"PATCH") -> Message:
    return Message(key, b"{}", (("method", method), *headers))


def test_a_write_comes_back_as_it_was_put_into_a_message() -> None:
    full = WriteMessage(
        "orders/order-123",
        "PATCH",
        b'{"status": "shipped"}',
        b"select=id",
        b"return=minimal",
        b"application/json",
        b"application/json; charset=utf-8",
        b"key-1",
        Token(34),
        NONCE,
        (("X-Request-Id", b"7"), ("traceparent", b"00-1"), ("baggage", b"a=b")),
        b"k1.e30." + b"q" * 43,
    )
    message = message_of(full)
    assert message.key == KEY
    assert tuple(name for name, _ in message.headers if name in KNOWN) == KNOWN
    assert read_message(message) == full


def test_only_the_method_is_needed() -> None:
    message = message_of(WriteMessage("orders/order-123", "DELETE", None))
    assert message == Message(KEY, None, (("method", b"DELETE"),))
    read = read_message(message)
    assert (read.method, read.body, read.query, read.token, read.nonce) == ("DELETE", None, b"", None, None)


def test_names_of_headers_are_read_in_any_case_and_headers_of_others_stay() -> None:
    read = read_message(Message(KEY, b"{}", (("Method", b"PUT"), ("X-Trace", b"1"), ("tracestate", b"s"))))
    assert read.method == "PUT"
    assert read.others == (("X-Trace", b"1"), ("tracestate", b"s"))


@pytest.mark.parametrize(
    ("headers", "named"),
    [
        ((), "header method: missing"),
        ((("method", b"GET"),), "header method: GET"),
        ((("method", b"patch"),), "header method: patch"),
        ((("method", b"PATCH"), ("method", b"PUT")), "header method: it stands there twice"),
        ((("method", b"PATCH"), ("Method", b"PATCH")), "header method: it stands there twice"),
        ((("method", b"PATCH"), ("if-match", b"1")), "header if-match: unknown"),
        ((("method", b"PATCH"), ("fence_token", b"1")), "header fence_token: unknown"),
        ((("method", b"PATCH"), ("fence-token", b"034")), "header fence-token: 034"),
        ((("method", b"PATCH"), ("fence-token", b"")), "header fence-token"),
        ((("method", b"PATCH"), ("X-Fence-Token", b"34")), "header x-fence-token: the token of a message is in"),
        ((("method", b"PATCH"), ("caller", b"web")), "header caller: it is no key"),
        ((("method", b"PATCH"), ("write-nonce", b"0123")), "header write-nonce: 0123"),
        ((("method", b"PATCH"), ("write-nonce", NONCE.upper().encode())), "header write-nonce"),
    ],
)
def test_a_header_that_is_wrong_is_refused_by_name(headers: Headers, named: str) -> None:
    with pytest.raises(MalformedMessageError, match=rf"^{named}"):
        read_message(Message(KEY, b"{}", headers))


@pytest.mark.parametrize("key", [b"", b"orders/\xff"])
def test_a_key_that_is_no_text_is_refused(key: bytes) -> None:
    with pytest.raises(MalformedMessageError, match=r"^key: "):
        read_message(_message(key=key))


@pytest.mark.parametrize("key", [b"orders", b"/1", b"orders/%zz"])
def test_a_key_that_names_no_resource_is_refused_when_it_is_asked_for(key: bytes) -> None:
    read = read_message(_message(key=key))
    with pytest.raises(MalformedMessageError, match=r"^key: "):
        _ = read.named


def test_the_resource_is_read_from_the_key() -> None:
    assert read_message(_message(key=b"lines/a%2Cb,7")).named == Resource("lines", ("a,b", "7"))


def test_the_nonce_of_a_malformed_message_is_found_where_it_is_one() -> None:
    assert nonce_of(_message(("write-nonce", NONCE.encode()), ("what", b"?"))) == NONCE
    assert nonce_of(_message(("write-nonce", b"\xff"))) is None
    assert nonce_of(_message()) is None


DOCS = Path(__file__).parents[2] / "docs"


def schema(name: str) -> Any:
    found = json.loads((DOCS / "schemas" / name).read_text("utf-8"))
    jsonschema_rs.meta.validate(found)
    return found


HEADERS_SCHEMA = schema("queue-headers.json")
HEADERS = jsonschema_rs.Draft202012Validator(HEADERS_SCHEMA)
VALUE = jsonschema_rs.Draft202012Validator(schema("queue-value.json"))

METHOD = st.sampled_from([*(method.decode() for method in METHODS), "GET", "patch", ""])
TOKEN = st.one_of(st.integers(-1, MAX_TOKEN).map(str), st.sampled_from(["", "01", "1_0", "+1", " 1", "1e3", "٣"]))
NONCES = st.one_of(st.text("0123456789abcdef", min_size=15, max_size=17), st.just("0123456789ABCDEF"))
TEXT = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20)
OTHERS = st.sampled_from(["x-a", "X-Request-Id", "x", "traceparent", "Trace-Id", "baggage", "if-match", "fence_token"])
MESSAGES = st.builds(
    lambda known, others: {**others, **known},
    st.fixed_dictionaries(
        {},
        optional={
            name: {"method": METHOD, "fence-token": TOKEN, "write-nonce": NONCES}.get(name, TEXT) for name in KNOWN
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
@example({"method": "PATCH", "fence-token": f"34.2026-07.{'e' * 8100}.{'q' * 43}"})
@example({"method": "PATCH", "fence-token": f"34.2026-07.{'e' * 8200}.{'q' * 43}"})
@example({"method": "PATCH", "fence-token": f"34.2026-07.eyJz.{'q' * 42}"})
@example({"method": "PATCH", "unknown": "1"})
@example({"method": "PATCH", "caller": f"2026-07.e30.{'q' * 43}"})
@example({"query": "select=order_id"})
def test_headers_fit_the_schema_if_and_only_if_they_are_read(headers: dict[str, str]) -> None:
    assert HEADERS.is_valid(headers) == is_read(headers)


@pytest.mark.parametrize(
    "text", re.findall(r"```json\n(.*?)```", (DOCS / "queue-messages.md").read_text("utf-8"), re.DOTALL)
)
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


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (WriteId("postgres:default", Position(3, 17), NONCE), f"postgres:default.3.17.{NONCE}"),
        (WriteId("kafka:orders", Position(0, 0)), "kafka:orders.0.0"),
        (WriteId("kafka:orders.v2.1", Position(4, 5), NONCE), f"kafka:orders.v2.1.4.5.{NONCE}"),
        (WriteId("kafka:orders.1.2", Position(3, 4)), "kafka:orders.1.2.3.4"),
    ],
)
def test_an_id_is_read_as_it_was_made(made: WriteId, text: str) -> None:
    assert str(made) == text
    assert parse_write_id(text) == made


def test_sixteen_digits_at_the_end_are_a_nonce_and_no_offset() -> None:
    digits = "1234567890123456"
    assert parse_write_id(f"kafka:a.1.2.{digits}") == WriteId("kafka:a", Position(1, 2), digits)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "postgres:default.01.2",
        "postgres:default.1.-2",
        f"postgres:default.1.2.{NONCE.upper()}",
        f"postgres:default.1.{MOST_OFFSET + 1}",
        "nats:default.1.2",
        "postgres:default.1.2\n",
        "postgres:default.١.2",  # noqa: RUF001 - digits of another script are no digits here
    ],
)
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(MalformedWriteIdError, match="is no id of a write"):
        parse_write_id(text)


def received(
    at: float = 1.0, key: bytes = b"t/a", value: bytes | None = b"{}", *headers: tuple[str, bytes]
) -> Received:
    return Received(Position(1, 2), Message(key, value, headers), at)


def test_the_hash_of_a_message_is_a_last_part_and_the_same_each_time() -> None:
    assert hash_of("kafka:a", received()) == hash_of("kafka:a", received())
    assert parse_write_id(f"kafka:a.1.2.{hash_of('kafka:a', received())}").nonce == hash_of("kafka:a", received())


@pytest.mark.parametrize(
    "other", [received(1.0, b"t/b"), received(1.0, b"t/a{", b"}"), received(1.0, b"t/a", b"{}", ("method", b"PUT"))]
)
def test_another_message_has_another_hash(other: Received) -> None:
    assert hash_of("kafka:a", other) != hash_of("kafka:a", received())


# Whose write a message carries: signed by a gateway, and of no use on any other message.

QUEUE = "kafka:orders"
KEYS = SealKeys({"new": b"n" * 32, "old": b"o" * 32})
WEB = Caller("jwt:|worker-a", "web", '{"tenant": "Zoë"}', locks=("orders/*",))
PLAIN = message_of(
    WriteMessage("orders/k1", "PATCH", b'{"n":1}', prefer=b"return=minimal", idempotency_key=b"a", nonce="0" * 16)
)
SIGNED = sign(PLAIN, QUEUE, KEYS, WEB, 1000.0)
OTHER = sign(replace(PLAIN, key=b"orders/k2"), QUEUE, KEYS, replace(WEB, role="other"), 1000.0)


def verified(message: Message, *, queue: str = QUEUE, keys: SealKeys = KEYS) -> Caller:
    return verify(message, queue, keys).caller


def with_header(name: str, value: bytes) -> Message:
    return replace(SIGNED, headers=tuple((each, value if each == name else old) for each, old in SIGNED.headers))


def forged(role: str) -> bytes:
    """Make up a header with all but the key."""
    key, _, mac = SIGNED.headers[0][1].split(b".")
    return b".".join((key, encoded(f'{{"n":"x","r":"{role}","t":1000}}'.encode()).encode(), mac))


def test_the_caller_is_who_signed_and_the_rest_stays() -> None:
    for found in (verified(SIGNED), claimed(SIGNED)):
        assert found is not None
        assert (found.name, found.role, found.claims, found.locks) == (WEB.name, WEB.role, WEB.claims, WEB.locks)
    assert replace(read_message(SIGNED), caller=None) == read_message(PLAIN)
    assert claimed(PLAIN) is None
    assert claimed(with_header("caller", b"?")) is None


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda: replace(SIGNED, key=b"orders/k2"), id="another row"),
        pytest.param(lambda: replace(SIGNED, value=b'{"n":2}'), id="another body"),
        pytest.param(lambda: with_header("method", b"PUT"), id="another method"),
        pytest.param(lambda: with_header("prefer", b"return=representation"), id="another answer"),
        pytest.param(lambda: with_header("idempotency-key", b"b"), id="another Idempotency-Key"),
        pytest.param(lambda: with_header("write-nonce", b"1" * 16), id="another nonce"),
        pytest.param(
            lambda: replace(SIGNED, headers=(OTHER.headers[0], *SIGNED.headers[1:])), id="another one's header"
        ),
        pytest.param(lambda: with_header("caller", forged("owner")), id="another role"),
        pytest.param(lambda: with_header("caller", SIGNED.headers[0][1].rpartition(b".")[0]), id="no signature"),
        pytest.param(lambda: with_header("caller", b""), id="nothing"),
        # The write is the same, and a copy would not be known by its content.
        pytest.param(lambda: replace(SIGNED, headers=(*SIGNED.headers, ("x-a", b"1"))), id="a header of others"),
        pytest.param(lambda: replace(SIGNED, headers=(SIGNED.headers[0], *SIGNED.headers[:0:-1])), id="another order"),
        pytest.param(lambda: replace(SIGNED, headers=(*SIGNED.headers[1:], SIGNED.headers[0])), id="the caller last"),
        pytest.param(
            lambda: replace(SIGNED, headers=(("Caller", SIGNED.headers[0][1]), *SIGNED.headers[1:])), id="a capital"
        ),
    ],
)
def test_a_header_is_of_no_use_on_another_message(change: Callable[[], Message]) -> None:
    with pytest.raises(MalformedMessageError, match=r"^header caller: "):
        verified(change())


def test_a_header_is_of_one_queue_and_of_a_key_that_is_there() -> None:
    with pytest.raises(MalformedMessageError, match="no gateway with the key new has signed it"):
        verified(SIGNED, queue="kafka:payments")
    with pytest.raises(MalformedMessageError, match="signed with the key 'new', which is not here"):
        verified(SIGNED, keys=SealKeys({"old": b"o" * 32}))
    with pytest.raises(MalformedMessageError, match="no gateway"):
        verified(SIGNED, keys=SealKeys({"new": b"x" * 32}))
    assert verified(SIGNED, keys=SealKeys({"newer": b"x" * 32, **KEYS.keys})).role == "web"


def test_a_message_that_may_have_been_there_before_and_is_forgotten_is_refused() -> None:
    signed = verify(SIGNED, QUEUE, KEYS)
    signed.require_in_time(1060.0, 60.0)
    with pytest.raises(MalformedMessageError, match="100 s after it was signed"):
        signed.require_in_time(1100.0, 60.0)


# Parts of the consumer of a queue that need no log. What it does with one: tests/integration/test_consumer.py.


def received_at(partition: int, offset: int, value: bytes = b"") -> Received:
    return Received(Position(partition, offset), Message(b"t/a", value), 1.0)


def test_no_more_is_taken_while_many_bytes_are_in_hand() -> None:
    hand, large, small = (
        InHand(1000, 100_000),
        [received_at(0, n, b"x" * 10_000) for n in range(8)],
        [received_at(0, 9)],
    )
    hand.add(small)
    assert hand.room() == 999
    hand.add(large)
    assert hand.bytes == sum(map(size_of, large + small)) > 75_000
    assert hand.room() == 0, "until a quarter of the bytes is free"
    hand.remove(large[:1])
    assert hand.room() == 1000 - 8


async def test_what_a_key_has_in_another_partition_than_the_lost_one_goes_on() -> None:
    begun: list[Position] = []
    go_on = asyncio.Event()

    async def decide(received: Received) -> None:
        begun.append(received.position)
        await go_on.wait()

    lanes = KeyQueues(decide)
    here, astray, there = (received_at(partition, offset) for partition, offset in ((0, 1), (1, 1), (0, 2)))
    for each in (here, astray, there):
        lanes.add(each)
    await asyncio.sleep(0)
    assert lanes.leave_out(frozenset({0})) == [there]
    go_on.set()
    await lanes.end(10)
    assert begun == [here.position, astray.position]


def test_pauses_grow_up_to_the_longest_and_begin_anew_after_a_success() -> None:
    backoff = Backoff(ConsumingTimes(pause=0.5, longest_pause=3.0))
    assert [backoff.next() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    backoff.reset()
    assert backoff.next() == 0.5


def test_a_reason_that_is_noted_is_not_long_and_has_no_character_that_no_text_in_postgresql_has() -> None:
    assert noted_reason("\0" + "x" * 5000) == "x" * 499


def test_a_kept_problem_has_its_state_and_its_reason() -> None:
    decided = of_problem("failed", bad_request("there is no column x"))
    assert decided.came_to is not None
    problem = read_record(decided.came_to)
    assert isinstance(problem, Problem)
    assert (problem.http_status, decided.state) == (400, "failed")
    assert problem.body()["detail"] == "there is no column x"
    assert reason_of(decided.came_to) == "FP016: there is no column x"


# How queues stand, by what was noted where logs do not answer. Where they do: integration/test_commands.py.


def known(*partitions: KnownPartition) -> KnownQueue:
    return KnownQueue("kafka:q", "kafka", 0, None, None, "x", 0, partitions)


def noted(number: int, decided: int | None, oldest_s: float | None, noted_s: float) -> KnownPartition:
    return KnownPartition(number, 9, decided, oldest_s, 0, 0, 0, 0, noted_s)


@pytest.mark.parametrize(
    ("partitions", "lags", "ages"),
    [
        ([noted(0, 9, None, 1.0)], (0,), (0.0,)),
        ([noted(0, 9, None, 3600.0)], (0,), (None,)),
        ([noted(0, 4, 3700.0, 3600.0)], (5,), (3700.0,)),
        ([noted(0, None, None, 1.0), noted(1, 4, 12.0, 1.0)], (None, 5), (None, 12.0)),
        ([noted(1, 4, -2.0, 1.0)], (None, 5), (None, None)),
    ],
    ids=["none waits", "none did an hour ago", "one waits since", "of another partition", "from a time to come"],
)
async def test_what_was_noted_has_to_do_where_the_log_does_not_answer(
    partitions: list[KnownPartition], lags: tuple[int | None, ...], ages: tuple[float | None, ...]
) -> None:
    away = from_url(f"redis://127.0.0.1:{free_port()}/q")
    for log in (away, None):
        status = await look_at_queue(known(*partitions), log, 5000.0, PATIENCE)
        assert (status.lags, status.ages, status.lag) == (lags, ages, lags[-1])
    await away.close()


@pytest.mark.parametrize("content", [b"nan", b"inf", b"-1", b"1e300", b"soon"])
def test_a_time_that_is_none_is_not_known(content: bytes) -> None:
    assert (seconds_of(content), seconds_of(b"12.5")) == (0.0, 12.5)
    progress = Progress()
    progress.taken([Received(Position(0, 0), Message(b"t/a", None), seconds_of(content))])
    assert [each.oldest for each in progress.collect(5000.0)] == [None]
