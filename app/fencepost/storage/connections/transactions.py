"""Parts of a transaction that are undone, and whole ones that are repeated."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from fencepost.storage.connections.connection import Connection
from fencepost.storage.errors import RETRIED, RefusedError

T = TypeVar("T")

RETRIES: Final = 10
"""How often a deadlock or serialization failure is tried again inside before the caller gets the error."""


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
