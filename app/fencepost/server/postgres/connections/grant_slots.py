"""Connections for grants of locks, which may wait for rows: all of those for leases but two, which renewals need. One
caller's grants have three quarters of them: what they claim may be locked for long.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

from fencepost.server.postgres.connections.connection import Connection
from fencepost.server.postgres.errors import UnavailableError
from fencepost.server.quota import ASKING, Shares, most_of
from fencepost.server.times import Times

_FOR_OTHERS: Final = 2


class GrantSlots:
    """Lends connections for leases, of which there are `connections`, to so many grants at a time."""

    def __init__(
        self, for_leases: Callable[[], AbstractAsyncContextManager[Connection]], connections: int, times: Times
    ) -> None:
        self._for_leases = for_leases
        slots = max(connections - _FOR_OTHERS, 1)
        self.most_of_caller = most_of(slots)
        """How many one caller may have."""
        self._slots, self._of_caller = asyncio.Semaphore(slots), Shares(self.most_of_caller)
        self._within = times.queue.slot_within

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[Connection]:
        """Lend `run_write` a connection. UnavailableError when other grants keep this one waiting for too long."""
        with self._of_caller.of(ASKING.get()) as own:
            async with self._in_time(own), self._in_time(self._slots), self._for_leases() as connection:
                yield connection

    @asynccontextmanager
    async def _in_time(self, slots: asyncio.Semaphore) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._within if slots.locked() else None):
                await slots.acquire()
        except TimeoutError as error:
            raise UnavailableError(
                f"other requests for locks kept this one from PostgreSQL for {self._within:g} s"
            ) from error
        try:
            yield
        finally:
            slots.release()
