"""What is sent again, and what never. The transport is a mock that fails as the test sets it; time stands still."""

import json
from typing import Any

import httpx
import pytest
from tests.client.counting import GRANT, Mock, problem
from tests.support.manual_clock import Hurried

from fencepost.client import (
    ApiError,
    BadRequest,
    Client,
    LeaseLost,
    OutcomeUnknown,
    Retry,
    SpentToken,
    StaleToken,
    Unavailable,
)
from fencepost.client.answers import GrantAnswer

REFUSED = httpx.ConnectError("refused")
CUT = httpx.ReadError("cut")
AWAY = problem(503, "FP010", retryable=True)
BUSY = problem(503, "55P03", retryable=True)
UNKNOWN = problem(503, "FP009", retryable=True)
STALE = problem(409, "FP001", retryable=False)
IN_FLIGHT = problem(409, "FP013", retryable=True)


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
        (STALE, StaleToken),
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


NO_ROW = problem(404, "FP006", retryable=False)
TAKEN = problem(409, "23505", retryable=False)


@pytest.mark.parametrize(("first", "refusal"), [(CUT, NO_ROW), (UNKNOWN, TAKEN)])
async def test_a_refusal_after_an_attempt_that_may_still_land_is_no_certainty(first: Any, refusal: Any) -> None:
    """Unless it is stale: a mark never falls, and the first attempt is as stale as the second, wherever it is."""
    async with client(Mock(first, refusal)) as c:
        with pytest.raises(OutcomeUnknown) as unknown:
            await c.patch("orders", 1, {"status": "x"}, token=34)
    assert isinstance(unknown.value.__cause__, ApiError)
    assert unknown.value.__cause__.code in ("FP006", "23505")
    async with client(Mock(first, STALE)) as c:
        with pytest.raises(StaleToken):
            await c.patch("orders", 1, {"status": "x"}, token=34)


@pytest.mark.parametrize("first", [REFUSED, AWAY, IN_FLIGHT])
async def test_a_refusal_after_an_attempt_that_did_nothing_is_a_refusal(first: Any) -> None:
    async with client(Mock(first, TAKEN)) as c:
        with pytest.raises(ApiError) as refused:
            await c.patch("orders", 1, {"status": "x"}, token=34)
    assert refused.value.code == "23505"
