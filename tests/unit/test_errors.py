"""Foreign errors become ours, all of them, in one place."""

import asyncio

import asyncpg
import pytest
from asyncpg.exceptions import _base

from fencepost.server.postgres.errors import (
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


def becomes(sqlstate: str, *, writing: bool) -> type[StorageError]:
    if sqlstate.startswith(("08", "57P")):
        return OutcomeUnknownError if writing else UnavailableError
    if sqlstate == "25006":
        return ReadOnlyError
    if sqlstate.startswith("53"):
        return UnavailableError
    return SessionError if sqlstate in ("26000", "42P05") else RefusedError


@pytest.mark.parametrize("writing", [True, False])
def test_every_error_of_the_server_is_translated(writing: bool) -> None:
    kinds = server_errors()
    assert len(kinds) > 200
    for kind in kinds:
        with pytest.raises(StorageError) as caught, map_errors(writing=writing):
            raise kind("what it said")
        expected = becomes(str(kind.sqlstate), writing=writing)
        if expected is RefusedError:
            assert isinstance(caught.value, RefusedError), kind
            assert caught.value.sqlstate == kind.sqlstate
        else:
            assert type(caught.value) is expected, kind


@pytest.mark.parametrize("sqlstate", ["26000", "42P05"])
def test_of_prepared_statements_only_what_postgresql_said_is_shown(sqlstate: str) -> None:
    error = asyncpg.PostgresError.new({"C": sqlstate, "M": 'prepared statement "s1" does not exist'})
    assert "asyncpg" in str(error), "what is taken out"
    with (
        pytest.raises(SessionError, match='nothing was done: prepared statement "s1" does not exist') as caught,
        map_errors(writing=True),
    ):
        raise error
    assert "asyncpg" not in str(caught.value)


@pytest.mark.parametrize("writing", [True, False])
def test_a_broken_connection_is_unknown_after_a_write_and_unavailable_before(writing: bool) -> None:
    for error in (
        OSError("no route"), ConnectionResetError(), ConnectionRefusedError(), BrokenPipeError(), TimeoutError(),
        ConnectionAbortedError(),
        asyncpg.InterfaceError("closed"), asyncpg.InternalClientError("oops"), asyncpg.exceptions.ProtocolError("odd"),
        asyncpg.exceptions.ConnectionDoesNotExistError("gone"), _base.ClientConfigurationError("bad"),
    ):  # fmt: skip
        with pytest.raises(OutcomeUnknownError if writing else UnavailableError) as caught, map_errors(writing=writing):
            raise error
        assert str(caught.value), repr(error)


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
