"""A statement of this log: its connection, its time limit, and what can go wrong, as a log's errors."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from fencepost.server.postgres.connections.connection import Connection
from fencepost.server.postgres.connections.engine import Database
from fencepost.server.postgres.connections.transactions import run_write
from fencepost.server.postgres.errors import OutcomeUnknownError, RefusedError, StorageError
from fencepost.server.queues.log import LogError, LogUnavailableError, LogUnknownError

T = TypeVar("T")

ANSWERS_WITHIN: Final = 10.0
"""Seconds within which PostgreSQL answers, or counts as unavailable: it may be paused, and keep its connections."""

# What PostgreSQL refuses because of what it was given: class 22, and 54, what is too large for a row.
_OF_THE_MESSAGE: Final = ("22", "54")


async def ask(database: Database, question: Callable[[Connection], Awaitable[T]]) -> T:
    """Ask what changes nothing. Raises a log's errors."""
    with _map_storage_errors():
        async with database.connection() as connection, asyncio.timeout(ANSWERS_WITHIN):
            return await question(connection)


async def write(database: Database, work: Callable[[Connection], Awaitable[T]], *, repeatable: bool = False) -> T:
    """Write, as a transaction; LogUnknownError: it may have been done, unless it is `repeatable`. Raises a log's
    errors.
    """

    async def in_time(connection: Connection) -> T:
        async with asyncio.timeout(ANSWERS_WITHIN):
            return await work(connection)

    with _map_storage_errors():
        return await run_write(database.for_writing, in_time, repeatable=repeatable)


@contextmanager
def _map_storage_errors() -> Iterator[None]:
    try:
        yield
    except OutcomeUnknownError as error:
        raise LogUnknownError(str(error)) from error
    except RefusedError as error:
        if error.sqlstate.startswith(_OF_THE_MESSAGE):
            raise LogError(f"PostgreSQL does not take this message: {error}") from error
        raise LogUnavailableError(f"PostgreSQL refused: {error}") from error
    except StorageError as error:
        raise LogUnavailableError(str(error)) from error
