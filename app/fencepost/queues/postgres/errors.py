"""A statement of this log: its connection, its time limit, and what can go wrong, as a log's errors."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

from fencepost.queues.log import LogError, LogUnavailableError, LogUnknownError
from fencepost.storage.connections.connection import Connection
from fencepost.storage.connections.engine import Database
from fencepost.storage.errors import OutcomeUnknownError, RefusedError, StorageError, map_errors

ANSWERS_WITHIN: Final = 10.0
"""Seconds within which PostgreSQL answers, or counts as unavailable: it may be paused, and keep its connections."""

# What PostgreSQL refuses because of what it was given: class 22, and 54, what is too large for a row.
_OF_THE_MESSAGE: Final = ("22", "54")


@asynccontextmanager
async def connection_of(database: Database, *, writing: bool = False) -> AsyncIterator[Connection]:
    """Lend a connection for one statement. `writing`: what was asked for may have been done although it was not
    answered. Raises a log's errors.
    """
    with _map_storage_errors():
        async with database.connection(writing=writing) as connection:
            with map_errors(writing=writing):
                async with asyncio.timeout(ANSWERS_WITHIN):
                    yield connection


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
