"""Writes of the gateway's own, parts of a transaction that are undone, and whole ones that are repeated."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from fencepost.storage.connections.connection import Connection, gateway_connection
from fencepost.storage.connections.engine import Database
from fencepost.storage.errors import RETRIED, RefusedError, map_errors

T = TypeVar("T")

RETRIES: Final = 10
"""How often a deadlock or serialization failure is tried again inside before the caller gets the error."""


async def run_write(
    database: Database, work: Callable[[Connection], Awaitable[T]], *, repeatable: bool = False, upkeep: bool = False
) -> T:
    """Do a write of the gateway's own as a whole: again after a conflict with others (R4), and with an answer only when
    it is as safe as PostgreSQL makes commits (R19). Raises StorageError.

    `repeatable`: it is done again when it is not known to have landed. So a connection that breaks is an
    UnavailableError, and it does not matter whether a wait for a standby was cancelled.
    `upkeep`: it keeps leases alive, or their queues, on a connection that is not to wait for requests.
    """

    async def attempt() -> T:
        lend = database.lease_connection if upkeep else database.connection
        async with lend(writing=True) as connection:
            with map_errors(writing=not repeatable):
                answer = await work(connection)
            if not repeatable:
                gateway_connection(connection).require_replicated()
            return answer

    return await retry_conflicts(attempt)


@asynccontextmanager
async def savepoint(connection: Connection) -> AsyncIterator[None]:
    """Undo a statement that fails, and only that, when it is part of a transaction: the transaction goes on."""
    if not connection.is_in_transaction():
        yield
        return
    async with connection.transaction():
        yield


async def retry_conflicts(attempt: Callable[[], Awaitable[T]]) -> T:
    """Run `attempt` again after a deadlock or serialization failure, verdict and all; neither is answered as stale
    (R4).
    """
    for number in range(RETRIES):
        try:
            return await attempt()
        except RefusedError as error:
            if error.sqlstate not in RETRIED:
                raise
            await asyncio.sleep(random.uniform(0, 0.002 * 2**number))  # noqa: S311 - jitter, so that the two part ways
    return await attempt()
