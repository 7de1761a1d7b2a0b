"""Foreign errors become ours, all of them, in one place."""

import asyncio

import asyncpg
import pytest
from asyncpg.exceptions import _base

from fencepost.storage.errors import (
    OutcomeUnknownError,
    ReadOnlyError,
    RefusedError,
    SessionError,
    StorageError,
    UnavailableError,
    map_errors,
)


def server_errors() -> list[type[asyncpg.PostgresError]]:
    """Every class of error that asyncpg can raise for an SQLSTATE."""
    found: set[type[asyncpg.PostgresError]] = set()
    todo: list[type[asyncpg.PostgresError]] = [asyncpg.PostgresError]
    while todo:
        kind = todo.pop()
        found.add(kind)
        todo += kind.__subclasses__()
    return sorted((kind for kind in found if getattr(kind, "sqlstate", None)), key=lambda kind: kind.__name__)


def client_errors() -> list[BaseException]:
    return [
        OSError("no route"), ConnectionResetError(), ConnectionRefusedError(), BrokenPipeError(), TimeoutError(),
        ConnectionAbortedError(),
        asyncpg.InterfaceError("closed"), asyncpg.InternalClientError("oops"), asyncpg.exceptions.ProtocolError("odd"),
        asyncpg.exceptions.ConnectionDoesNotExistError("gone"), _base.ClientConfigurationError("bad"),
    ]  # fmt: skip


@pytest.mark.parametrize("writing", [True, False])
@pytest.mark.parametrize("kind", server_errors(), ids=lambda kind: kind.__name__)
def test_every_error_of_the_server_is_translated(kind: type[asyncpg.PostgresError], writing: bool) -> None:
    with pytest.raises(StorageError) as caught, map_errors(writing=writing):
        raise kind("what it said")
    sqlstate = str(kind.sqlstate)
    if sqlstate.startswith(("08", "57P")):
        assert type(caught.value) is (OutcomeUnknownError if writing else UnavailableError)
    elif sqlstate == "25006":
        assert type(caught.value) is ReadOnlyError
    elif sqlstate.startswith("53"):
        assert type(caught.value) is UnavailableError
    elif sqlstate in ("26000", "42P05"):
        assert type(caught.value) is SessionError
    else:
        assert isinstance(caught.value, RefusedError)
        assert caught.value.sqlstate == sqlstate


@pytest.mark.parametrize("writing", [True, False])
@pytest.mark.parametrize("error", client_errors(), ids=lambda error: type(error).__name__)
def test_a_broken_connection_is_unknown_after_a_write_and_unavailable_before(
    error: BaseException, writing: bool
) -> None:
    with pytest.raises(OutcomeUnknownError if writing else UnavailableError) as caught, map_errors(writing=writing):
        raise error
    assert str(caught.value)


@pytest.mark.parametrize(
    "error", [ValueError("a bug"), KeyError("a bug"), asyncio.CancelledError(), StorageError("ours")]
)
def test_what_is_not_foreign_passes(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, map_errors(writing=True):
        raise error
    assert caught.value is error


FUNCTION_GONE = "cache lookup failed for function 20838"


@pytest.mark.parametrize(
    ("error", "of_an_old_query_plan"),
    [
        (asyncpg.InternalServerError(FUNCTION_GONE), True),
        (asyncpg.InternalServerError(f"trigger: {FUNCTION_GONE}"), False),
        (asyncpg.InternalServerError("could not open relation with OID 20838"), False),
        (asyncpg.DataCorruptedError(FUNCTION_GONE), False),
        (asyncpg.RaiseError(FUNCTION_GONE), False),
    ],
    ids=lambda each: f"{each}",
)
def test_a_function_that_was_dropped_makes_a_session_new(
    error: asyncpg.PostgresError, of_an_old_query_plan: bool
) -> None:
    """Only PostgreSQL's own words for it, which it does not translate."""
    with pytest.raises(RefusedError) as caught, map_errors(writing=True):
        raise error
    assert caught.value.of_an_old_query_plan is of_an_old_query_plan
