"""What the client makes of answers and failures: errors, retries, values, and how long it waits."""

import asyncio
import contextlib
import inspect
import json
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.client.transports import GRANT, Mock, problem
from tests.support.manual_clock import Hurried
from tests.unit.test_observe import CONTRACT, OF_POSTGRESQL

from fencepost.client import (
    ApiError,
    BadRequest,
    Client,
    LeaseLost,
    OutcomeUnknown,
    Problem,
    Retry,
    SpentToken,
    StaleToken,
    Unavailable,
)
from fencepost.client.answers import GrantAnswer, canonical, resource_of, row_path
from fencepost.client.errors import error_of
from fencepost.client.http import Call, dumps, foreign_errors, loads
from fencepost.client.lease import acquire, make_acquire_request, release_call
from fencepost.server.fence.problem_types import PROBLEM_TYPES
from fencepost.server.fence.problems import Problem as ServersProblem
from fencepost.server.fence.resource import decode_key, decode_segment, parse_resource
from fencepost.testing.servers.processes import PATIENCE

# Errors: every problem and every failure of the transport has one.

FOREIGN = sorted(
    (
        kind
        for _, kind in inspect.getmembers(httpx, inspect.isclass)
        if issubclass(kind, Exception) and kind.__module__ == "httpx"
    ),
    key=lambda kind: kind.__name__,
)


def raised_by_httpx(kind: type[Exception]) -> Exception:
    error = kind.__new__(kind)
    error.args = ("as it happened",)
    return error


def test_every_error_of_httpx_becomes_one_of_ours() -> None:
    assert len(FOREIGN) >= 28
    read = Call(method="GET", path="/v1/data/orders")
    for kind in FOREIGN:
        with pytest.raises(Unavailable) as raised, foreign_errors(read):
            raise raised_by_httpx(kind)
        assert isinstance(raised.value.__cause__, kind)


def test_a_write_that_was_sent_has_an_unknown_outcome() -> None:
    never_sent = {
        "ConnectError", "ConnectTimeout", "PoolTimeout",
        "UnsupportedProtocol", "InvalidURL", "CookieConflict",
    }  # fmt: skip
    write = Call(method="PATCH", path="/v1/data/orders/1", writes=True, resource="orders/1", token=34)
    for kind in FOREIGN:
        expected = Unavailable if kind.__name__ in never_sent else OutcomeUnknown
        with pytest.raises(expected) as raised, foreign_errors(write):
            raise raised_by_httpx(kind)
        if expected is OutcomeUnknown:
            assert (raised.value.resource, raised.value.presented_token) == ("orders/1", 34), kind


def test_every_problem_of_the_gateway_has_its_error() -> None:
    kinds = {kind.slug: kind for kind in PROBLEM_TYPES}
    for code, (_, slug, raised) in (CONTRACT | OF_POSTGRESQL).items():
        kind = kinds[slug]
        answer = ServersProblem(kind, "It happened.", code=code, hint="Do this.")
        error = error_of(Problem(answer.body(), answer.http_status), writes=True)
        assert type(error) is raised, f"client/errors.py: _BY_STATUS or _BY_CODE has another of {slug}"
        made = (error.code, error.status, error.detail, error.hint)
        assert made == (answer.name, answer.http_status, answer.detail, answer.hint)
        assert error.type == f"/problems/{kind.slug}"
        assert error.retryable is kind.retryable


def test_a_proxys_failure_is_unknown_for_writes_only() -> None:
    for status in (500, 502, 503, 504):
        assert type(error_of(Problem({}, status))) is Unavailable
        assert type(error_of(Problem({}, status), writes=True)) is OutcomeUnknown


@pytest.mark.parametrize(("data", "why"), [("{", "is not JSON: {"), ("[7]", r"is not an object: \[7\]")])
async def test_an_event_that_cannot_be_read(data: str, why: str) -> None:
    mock = httpx.MockTransport(lambda _: httpx.Response(200, text=f": a comment\ndata: {data}\n\n"))
    async with Client("http://x", transport=mock, retry=Retry(patience=0)) as client:
        with pytest.raises(Unavailable, match=f"an event of an election {why}"):
            await anext(client.leaders("scheduler"))


def test_a_409_shows_everything_that_it_knows() -> None:
    stale = {
        "code": "FP001",
        "detail": "Token 33 is stale.",
        "resource": "orders/1",
        "presented_token": "33",
        "current_token": "9223372036854775807",
        "superseded_by": {
            "holder": "other",
            "lease_id": "7",
            "token": "34",
            "locks": ["orders/1"],
            "granted_at": "2026-01-02T03:04:05.678Z",
            "issued_at": None,
            "source": "builtin",
        },
    }
    error = error_of(Problem(stale, 409))
    assert isinstance(error, StaleToken)
    assert (error.resource, error.presented_token, error.current_token) == ("orders/1", 33, 2**63 - 1)
    assert error.superseded_by is not None
    assert error.superseded_by.holder == "other"
    assert error.superseded_by.granted_at == datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
    assert error.superseded_by.locks == ("orders/1",)
    assert error.members is stale
    assert str(error) == "Token 33 is stale. (FP001)"


# What is sent again, and what never. The transport is a mock that fails as the test sets it; time stands still.

REFUSED = httpx.ConnectError("refused")
CUT = httpx.ReadError("cut")
AWAY = problem(503, "FP010", retryable=True)
BUSY = problem(503, "55P03", retryable=True)
UNKNOWN = problem(503, "FP009", retryable=True)
STALE_ANSWER = problem(409, "FP001", retryable=False)


def ok() -> httpx.Response:
    return httpx.Response(200, json={"order_id": "1"})


def client(mock: Mock, retry: Retry | None = None) -> Client:
    return Client("http://mock", transport=mock, clock=Hurried(), retry=retry or Retry())


@pytest.mark.parametrize("failure", [REFUSED, CUT, AWAY, BUSY, lambda: httpx.Response(502)])
async def test_a_read_is_tried_again_after_any_failure(failure: Exception) -> None:
    mock = Mock(failure, failure, failure, ok)
    async with client(mock) as c:
        assert await c.get("orders", 1) == {"order_id": "1"}
    assert len(mock.requests) == 4


@pytest.mark.parametrize("failure", [REFUSED, httpx.ConnectTimeout(""), httpx.PoolTimeout(""), AWAY, BUSY])
async def test_a_write_is_tried_again_when_nothing_was_done(failure: Exception) -> None:
    mock = Mock(failure, failure, ok)
    async with client(mock) as c:
        await c.patch("orders", 1, {"status": "x"}, token=34)
    assert [request.headers["X-Fence-Token"] for request in mock.requests] == ["34"] * 3


@pytest.mark.parametrize(
    "failure",
    [CUT, httpx.ReadTimeout(""), httpx.WriteError(""), httpx.RemoteProtocolError(""), UNKNOWN,
     lambda: httpx.Response(502), lambda: httpx.Response(200, text="<html>")],
)  # fmt: skip
async def test_a_write_that_may_have_landed_is_repeated_under_its_key_and_token(failure: Exception) -> None:
    mock = Mock(failure, failure, ok)
    async with client(mock) as c:
        await c.patch("orders", 1, {"status": "x"}, token=34)
        await c.patch("orders", 1, {"status": "x"}, token=35)
    sent = [(request.headers["X-Fence-Token"], request.headers["Idempotency-Key"]) for request in mock.requests]
    assert len(sent) == 4
    assert len(set(sent[:3])) == 1
    assert sent[3][1] != sent[0][1], "every write has a key of its own"


async def test_an_outcome_stays_unknown_when_later_attempts_cannot_be_sent() -> None:
    mock = Mock(CUT, *[httpx.ConnectError("")] * 20)
    async with client(mock) as c:
        with pytest.raises(OutcomeUnknown):
            await c.patch("orders", 1, {"status": "x"}, token=34)


async def test_a_key_of_ones_own_is_sent_as_it_is() -> None:
    mock = Mock(ok)
    async with client(mock) as c:
        await c.patch("orders", 1, {"status": "x"}, token=34, idempotency_key='pay "7"')
        with pytest.raises(ValueError, match="visible ASCII"):
            await c.patch("orders", 1, {"status": "x"}, token=34, idempotency_key="naïve")
    assert mock.requests[0].headers["Idempotency-Key"] == r'"pay \"7\""'


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [
        (STALE_ANSWER, StaleToken),
        (problem(409, "FP002", retryable=False), SpentToken),
        (problem(400, "FP016", retryable=False), BadRequest),
        (problem(503, "FP015", retryable=False), ApiError),
    ],
)
async def test_a_refusal_is_never_tried_again(refusal: Exception, kind: type[ApiError]) -> None:
    mock = Mock(refusal)
    async with client(mock) as c:
        with pytest.raises(kind):
            await c.patch("orders", 1, {"status": "x"}, token=34)
        with pytest.raises(kind):
            await c.get("orders", 1)
    assert len(mock.requests) == 2


async def test_trying_ends_and_the_last_error_is_reported() -> None:
    mock = Mock(REFUSED)
    clock = Hurried()
    async with Client("http://mock", transport=mock, clock=clock) as c:
        with pytest.raises(Unavailable, match=r"GET /v1/data/orders/1 could not be sent: ConnectError: refused"):
            await c.get("orders", 1)
    assert clock.now() == pytest.approx(1005.0), "the last try begins when patience ends"


async def test_waits_double_with_jitter_and_obey_retry_after() -> None:
    clock = Hurried()
    mock = Mock(*[REFUSED] * 6, problem(503, "FP010", retryable=True, **{"Retry-After": "7"}), ok)
    async with Client("http://mock", transport=mock, clock=clock, retry=Retry(patience=60)) as c:
        await c.get("orders", 1)
    steps = [0.1, 0.2, 0.4, 0.8, 1.6, 2.0]
    assert all(step / 2 <= slept <= step for slept, step in zip(clock.slept, steps, strict=False))
    assert clock.slept[6:] == [7.0]
    assert len({Retry().delay(3) for _ in range(10)}) > 1


@pytest.mark.parametrize(
    "arguments", [{"patience": -1.0}, {"patience": float("nan")}, {"first": -1.0}, {"first": 3.0, "longest": 2.0}]
)
def test_a_retry_that_makes_no_sense_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="patience is at least 0"):
        Retry(**arguments)


HELD = problem(423, "FP011", retryable=True, **{"Retry-After": "9"})


def granted(status: int) -> httpx.Response:
    return httpx.Response(status, json=GRANT)


async def test_an_acquire_is_repeated_with_the_same_secret_and_a_repeated_grant_is_renewed_before_it_is_trusted() -> (
    None
):
    """The answer to the first request was lost for 40 s: its lease may be over."""
    clock = Hurried()
    mock = Mock(CUT, lambda: granted(200), lambda: httpx.Response(200, json={}), lambda: httpx.Response(204))
    async with Client("http://mock", transport=mock, clock=clock) as c, c.lock("a") as lease:
        assert lease.trusted
    assert [request.url.path for request in mock.requests] == [
        "/v1/leases", "/v1/leases", "/v1/leases/7/renew", "/v1/leases/7",
    ]  # fmt: skip
    assert len({request.headers["X-Lease-Secret"] for request in mock.requests}) == 1


@pytest.mark.parametrize(("late", "renewals"), [(0.0, 0), (19.0, 0), (21.0, 1), (29.9, 1), (50.0, 1)])
async def test_a_grant_whose_answer_comes_late_is_renewed_before_it_is_handed_out(late: float, renewals: int) -> None:
    clock = Hurried()

    def granted_late() -> httpx.Response:
        clock._now += late  # noqa: SLF001 - the mock's time passes here
        return granted(201)

    mock = Mock(granted_late, lambda: httpx.Response(200, json={}))
    async with Client("http://mock", transport=mock, clock=clock, retry=Retry(patience=0)) as c:
        lease = await c.lock("a").__aenter__()
        assert [request.url.path for request in mock.requests[1:]] == ["/v1/leases/7/renew"] * renewals
        assert lease.trust.until == pytest.approx(1000.0 + (late if renewals else 0.0) + 28.5)


@pytest.mark.parametrize(("waited", "counted"), [(0, 0.0), (20_000, 20.0), (25_000, 25.0), (25_001, 0.0), (90_000, 0)])
def test_trust_counts_from_the_end_of_the_queue_if_that_can_be_true(waited: int, counted: float) -> None:
    """The request took 25 s in all: a longer wait in the gateway was measured by a clock that jumped."""
    grant = GrantAnswer.read({**GRANT, "waited_ms": waited}, sent=100.0, received=125.0, repeated=False)
    assert grant.started == 100.0 + counted


async def test_a_write_is_not_sent_again_when_trust_ends_between_two_attempts() -> None:
    clock = Hurried()
    away = problem(503, "FP010", retryable=True, **{"Retry-After": "20"})
    mock = Mock(lambda: granted(201), away)
    async with Client("http://mock", transport=mock, clock=clock, retry=Retry(patience=60)) as c:
        lease = await c.lock("a").__aenter__()
        with pytest.raises(LeaseLost):
            await c.patch("orders", 1, {"status": "x"}, lease=lease)
    assert [request.method for request in mock.requests].count("PATCH") == 2, "at 0 s and 20 s, not at 40 s"


async def test_long_waits_are_sliced_and_keep_their_place() -> None:
    clock = Hurried()

    def waited(seconds: float) -> httpx.Response:
        clock._now += seconds  # noqa: SLF001 - the mock's time passes here
        return HELD()

    mock = Mock(lambda: waited(25), lambda: waited(25), lambda: waited(10))
    async with Client("http://mock", transport=mock, clock=clock) as c:
        with pytest.raises(ApiError):
            await c.lock("a", wait=60).__aenter__()
    bodies = [json.loads(request.content) for request in mock.requests]
    assert [(body["wait_ms"], body["keep_place"]) for body in bodies] == [(25000, True), (25000, True), (10000, False)]
    assert clock.slept == []


async def test_a_gateway_that_lets_no_request_wait_is_not_stormed() -> None:
    clock = Hurried()
    mock = Mock(HELD)
    async with Client("http://mock", transport=mock, clock=clock) as c:
        with pytest.raises(ApiError):
            await c.lock("a", wait=60).__aenter__()
    assert 30 <= len(mock.requests) <= 40


async def test_a_wait_that_fits_one_request_ends_when_the_gateway_ends_it() -> None:
    mock = Mock(HELD)
    async with Client("http://mock", transport=mock, clock=Hurried()) as c:
        with pytest.raises(ApiError):
            await c.lock("a", wait=25).__aenter__()
    assert len(mock.requests) == 1


async def test_exactly_one_of_lease_and_token() -> None:
    mock = Mock(ok)
    async with client(mock) as c:
        with pytest.raises(TypeError, match="exactly one"):
            await c.patch("orders", 1, {"status": "x"})
        for token in (0, -1, 2**63):
            with pytest.raises(ValueError, match="a token is from 1"):
                await c.patch("orders", 1, {"status": "x"}, token=token)
        with pytest.raises(ValueError, match="whole table"):
            await c.delete_where("orders", {}, token=34)
    assert mock.requests == []


@pytest.mark.parametrize(
    ("url", "why"),
    [("", ""), ("localhost:8080", ""), ("ftp://host", ""), ("http://", ""), ("http://[::", ""),
     ("http://host:65536", "a port is at most 65535"), ("http://host/?x=1", "no query"), ("http://h#", "no frag")],
)  # fmt: skip
def test_a_url_that_is_none_is_refused(url: str, why: str) -> None:
    with pytest.raises(ValueError, match=f"url .*{why}"):
        Client(url)


async def test_a_closed_client_reports_it() -> None:
    mock = Mock(ok)
    async with client(mock) as c:
        pass
    with pytest.raises(Unavailable, match="closed"):
        await c.get("orders", 1)
    assert mock.requests == []


TAKEN = problem(409, "23505", retryable=False)


@pytest.mark.parametrize(("first", "refusal"), [(CUT, problem(404, "FP006", retryable=False)), (UNKNOWN, TAKEN)])
async def test_a_refusal_after_an_attempt_that_may_still_land_is_no_certainty(first: Any, refusal: Any) -> None:
    """Unless it is stale: a mark never falls, and the first attempt is as stale as the second, wherever it is."""
    async with client(Mock(first, refusal)) as c:
        with pytest.raises(OutcomeUnknown) as unknown:
            await c.patch("orders", 1, {"status": "x"}, token=34)
    assert isinstance(unknown.value.__cause__, ApiError)
    assert unknown.value.__cause__.code in ("FP006", "23505")
    async with client(Mock(first, STALE_ANSWER)) as c:
        with pytest.raises(StaleToken):
            await c.patch("orders", 1, {"status": "x"}, token=34)


@pytest.mark.parametrize("first", [REFUSED, AWAY, problem(409, "FP013", retryable=True)])
async def test_a_refusal_after_an_attempt_that_did_nothing_is_a_refusal(first: Any) -> None:
    async with client(Mock(first, TAKEN)) as c:
        with pytest.raises(ApiError) as refused:
            await c.patch("orders", 1, {"status": "x"}, token=34)
    assert refused.value.code == "23505"


# The client's keys and values: read back by the gateway's own reader, as JSON; and what importing the client loads.

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


def test_importing_the_client_loads_no_server() -> None:
    statement = "from fencepost import Client, SyncClient, StaleToken, LeaseLost, LockHeld"
    script = f"{statement}\nimport sys; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "httpx" in loaded
    # Not click: httpx itself imports it for its own command line, where it is installed.
    server = (
        {"fastapi", "starlette", "uvicorn", "asyncpg", "sqlalchemy", "alembic", "orjson", "pydantic"}
        | {"pydantic_settings", "structlog", "prometheus_client"}
    )  # fmt: skip
    assert loaded & server == set()
    ours = {name.split(".")[1] for name in loaded if name.startswith("fencepost.")}
    assert ours == {"client"}


@pytest.mark.parametrize("text", [
    "-0", "-0.0", "1.50", "12345678901234567890.12345678901234567890", "1E+400", "1E-30", '[-0.10,{"a":2.0}]',
    "9" * 5000,
], ids=lambda text: text[:20])  # fmt: skip
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


# For how long a request is tried: until a time has passed, whatever each try takes. The transport is a mock, and time
# passes as it says.


class Silent(httpx.AsyncBaseTransport):
    """A mock: each try lasts until its own limit, and has no answer; after some tries there is one."""

    def __init__(self, clock: Hurried, *, tries: int = 1000) -> None:
        self.clock, self.tries = clock, tries
        self.requests: list[httpx.Request] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if len(self.requests) > self.tries:
            return ok()
        self.clock._now += request.extensions["timeout"]["read"]  # noqa: SLF001 - the mock's time passes here
        raise httpx.ReadTimeout("")


@pytest.mark.parametrize(("wait", "seconds"), [(0, 15), (3, 18), (24, 39), (None, 40)])
async def test_a_gateway_that_is_silent_is_given_up_after_a_known_time(wait: float | None, seconds: float) -> None:
    """An answer is waited for 10 s beyond the wait, of which 25 s are asked for at once; patience is 5 s."""
    clock = Hurried()
    mock = Silent(clock)
    async with Client("http://mock", transport=mock, clock=clock) as c:
        with pytest.raises(Unavailable, match="was not answered"):
            await acquire(c._exchange, make_acquire_request("a", ttl=30, wait=wait, claim=False, owner="", tokens=1))  # noqa: SLF001
    assert clock.now() == pytest.approx(1000 + seconds)


async def test_a_write_without_an_answer_is_given_up_after_its_timeout_and_patience() -> None:
    clock = Hurried()
    async with Client("http://mock", transport=Silent(clock), clock=clock, timeout=30) as c:
        with pytest.raises(OutcomeUnknown):
            await c.patch("orders", 1, {"status": "x"}, token=34)
    assert clock.now() == pytest.approx(1035)


async def test_what_is_tried_again_soon_may_take_as_long_as_the_first_try() -> None:
    clock = Hurried()
    mock = Mock(REFUSED, ok)
    async with Client("http://mock", transport=mock, clock=clock, timeout=30) as c:
        await c.patch("orders", 1, {"status": "x"}, token=34)
    assert [request.extensions["timeout"]["read"] for request in mock.requests] == [30, 30]


async def test_an_acquire_that_met_a_failure_waits_on_after_a_short_slice() -> None:
    """So the next failure is a first one, and the gateway may restart as often as it likes meanwhile."""
    mock = Mock(REFUSED, HELD, lambda: httpx.Response(201, json=GRANT), lambda: httpx.Response(204))
    async with Client("http://mock", transport=mock, clock=Hurried()) as c, c.lock("a", wait=20):
        pass
    first, second, third = (json.loads(request.content) for request in mock.requests[:3])
    assert [(body["wait_ms"], body["keep_place"]) for body in (first, second)] == [(20000, False), (2000, True)]
    assert third["wait_ms"] > 15000
    assert not third["keep_place"]


async def test_the_gateway_is_not_waited_for_longer_than_patience() -> None:
    later = problem(503, "FP010", retryable=True, **{"Retry-After": "7"})
    mock = Mock(later, ok)
    async with Client("http://mock", transport=mock, clock=Hurried()) as c:
        with pytest.raises(Unavailable) as raised:
            await c.get("orders", 1)
    assert (raised.value.retry_after, len(mock.requests)) == (7.0, 1)


async def test_an_answer_of_upkeep_that_comes_drop_by_drop_is_given_up_too() -> None:
    left = asyncio.Event()

    async def drip(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        with contextlib.suppress(OSError):
            while True:
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.01)
        writer.close()
        left.set()

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, Client(url, timeout=0.5, retry=Retry(patience=0)) as c:
        with pytest.raises(Unavailable, match="no answer in time"):
            async with asyncio.timeout(PATIENCE):
                await c._exchange.once(release_call("7", "secret"))  # noqa: SLF001
        await left.wait()
