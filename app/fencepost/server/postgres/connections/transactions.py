"""How writes are run: whole ones, again after conflicts; all or nothing; parts of a transaction that are undone."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, TypeVar

from fencepost.server.fence.problems import Problem
from fencepost.server.postgres.connections.connection import Connection, gateway_connection
from fencepost.server.postgres.errors import (
    RETRIED,
    OutcomeUnknownError,
    RefusedError,
    UnavailableError,
    UncommittedError,
    map_errors,
)

T = TypeVar("T")

RETRIES: Final = 10
"""How often a deadlock or serialization failure is tried again inside before the caller gets the error."""


async def run_write(
    lend: Callable[[], AbstractAsyncContextManager[Connection]],
    work: Callable[[Connection], Awaitable[T]],
    *,
    repeatable: bool = False,
) -> T:
    """Do a write as a whole, on a connection that is lent for writing: again from the start after a conflict with
    others (R4), and with an answer only when it is as safe as PostgreSQL makes commits (R19). Raises StorageError.

    All that the gateway writes, for others and of its own, goes through here or, in batches, through group_commit.py.
    `repeatable`: it is done again when it is not known to have landed. So what else is an OutcomeUnknownError is an
    UnavailableError.
    """

    async def attempt() -> T:
        async with lend() as connection:
            with map_errors(writing=not repeatable):
                answer = await work(connection)
            try:
                gateway_connection(connection).require_replicated()
            except OutcomeUnknownError as error:
                if repeatable:
                    raise UnavailableError(str(error)) from error
                raise
            return answer

    return await _retry_conflicts(attempt)


async def in_transaction(connection: Connection, work: Callable[[], Awaitable[T]]) -> T:
    """Do all of it or nothing: an answer that is a Problem, or an error, undoes it. UncommittedError: the connection
    broke before COMMIT was sent. OutcomeUnknownError: it broke after that.
    """
    committing = False
    try:
        with map_errors(writing=True):
            async with connection.transaction():
                answer = await work()
                if isinstance(answer, Problem):
                    raise _Refused  # noqa: TRY301 - leaving the block is what undoes it
                committing = True
    except _Refused:
        return answer
    except OutcomeUnknownError as error:
        if committing:
            raise
        raise UncommittedError(str(error)) from error
    return answer


class _Refused(Exception):  # noqa: N818 - it is not an error; it rolls a transaction back
    pass


@asynccontextmanager
async def savepoint(connection: Connection) -> AsyncIterator[None]:
    """Undo a statement that fails, and only that, when it is part of a transaction: the transaction goes on."""
    if not connection.is_in_transaction():
        yield
        return
    async with connection.transaction():
        yield


async def _retry_conflicts(attempt: Callable[[], Awaitable[T]]) -> T:
    """Run it again after a deadlock or serialization failure, verdict and all; neither is answered as stale (R4)."""
    for number in range(RETRIES):
        try:
            return await attempt()
        except RefusedError as error:
            if error.sqlstate not in RETRIED:
                raise
            await asyncio.sleep(random.uniform(0, 0.002 * 2**number))  # noqa: S311 - jitter, so that the two part ways
    return await attempt()
