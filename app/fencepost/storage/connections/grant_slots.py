"""Connections for grants of locks, which may wait for rows: all of those for leases but two, which renewals need."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

from fencepost.storage.connections.connection import Connection
from fencepost.storage.errors import UnavailableError
from fencepost.times import Times

_FOR_OTHERS: Final = 2


class GrantSlots:
    """Lends connections for leases, of which there are `connections`, to so many grants at a time."""

    def __init__(
        self, for_leases: Callable[[], AbstractAsyncContextManager[Connection]], connections: int, times: Times
    ) -> None:
        self._for_leases = for_leases
        self._slots = asyncio.Semaphore(max(connections - _FOR_OTHERS, 1))
        self._within = times.queue.slot_within

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[Connection]:
        """Lend `run_write` a connection. UnavailableError when other grants keep this one waiting for too long."""
        try:
            async with asyncio.timeout(self._within if self._slots.locked() else None):
                await self._slots.acquire()
        except TimeoutError as error:
            raise UnavailableError(
                f"other requests for locks kept this one from PostgreSQL for {self._within:g} s"
            ) from error
        try:
            async with self._for_leases() as connection:
                yield connection
        finally:
            self._slots.release()
