"""Errors: every problem and every failure of the transport has one."""

import inspect
from datetime import UTC, datetime

import httpx
import pytest
from tests.unit.test_problems import CONTRACT, OF_POSTGRESQL

from fencepost.client import (
    Client,
    OutcomeUnknown,
    Problem,
    Retry,
    StaleToken,
    Unavailable,
)
from fencepost.client.errors import error_of
from fencepost.client.http import Call, foreign_errors
from fencepost.server.fence.problem_types import PROBLEM_TYPES
from fencepost.server.fence.problems import Problem as ServersProblem

READ = Call(method="GET", path="/v1/data/orders")
WRITE = Call(method="PATCH", path="/v1/data/orders/1", writes=True, resource="orders/1", token=34)

FOREIGN = sorted(
    (
        kind
        for _, kind in inspect.getmembers(httpx, inspect.isclass)
        if issubclass(kind, Exception) and kind.__module__ == "httpx"
    ),
    key=lambda kind: kind.__name__,
)
NEVER_SENT = {
    "ConnectError", "ConnectTimeout", "PoolTimeout",
    "UnsupportedProtocol", "InvalidURL", "CookieConflict",
}  # fmt: skip


def raised_by_httpx(kind: type[Exception]) -> Exception:
    error = kind.__new__(kind)
    error.args = ("as it happened",)
    return error


def test_every_error_of_httpx_becomes_one_of_ours() -> None:
    assert len(FOREIGN) >= 28
    for kind in FOREIGN:
        with pytest.raises(Unavailable) as raised, foreign_errors(READ):
            raise raised_by_httpx(kind)
        assert isinstance(raised.value.__cause__, kind)


def test_a_write_that_was_sent_has_an_unknown_outcome() -> None:
    for kind in FOREIGN:
        expected = Unavailable if kind.__name__ in NEVER_SENT else OutcomeUnknown
        with pytest.raises(expected) as raised, foreign_errors(WRITE):
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


STALE = {
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


def test_a_409_shows_everything_that_it_knows() -> None:
    error = error_of(Problem(STALE, 409))
    assert isinstance(error, StaleToken)
    assert (error.resource, error.presented_token, error.current_token) == ("orders/1", 33, 2**63 - 1)
    assert error.superseded_by is not None
    assert error.superseded_by.holder == "other"
    assert error.superseded_by.granted_at == datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
    assert error.superseded_by.locks == ("orders/1",)
    assert error.members is STALE
    assert str(error) == "Token 33 is stale. (FP001)"
