"""How callers share the connections for leases: one has most of them at a time, and most of the places in line, never
all. Who asks about very many leases, or made-up ones, waits behind oneself, and others' renewals find a connection.

Grants of locks, which may wait for rows, have their own bound (grant_slots.py). What the gateway asks for itself, as
heartbeats and sweeps, takes no share.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fencepost.quota import UNKNOWN, Quota, most_of
from fencepost.storage.errors import UnavailableError


@dataclass
class _Share:
    room: asyncio.Semaphore
    requests: int = 0
    """How many have a connection of the share, or wait for one."""


class LeaseShares:
    """Shares of `connections`. `most_waiting` requests wait for a place in theirs, each for `within` seconds."""

    def __init__(self, connections: int, most_waiting: int, within: float) -> None:
        self._most, self._within = most_of(connections), within
        self._waiting = Quota(
            most_waiting, most_of(most_waiting), "FENCEPOST_MAX_WAITING", "three quarters of FENCEPOST_MAX_WAITING"
        )
        self._shares: dict[str, _Share] = {}

    @asynccontextmanager
    async def place(self, whose: str) -> AsyncIterator[None]:
        """Have a place in the share of a caller for the block; UNKNOWN needs none. Raises UnavailableError."""
        if whose == UNKNOWN:
            yield
            return
        share = self._shares.setdefault(whose, _Share(asyncio.Semaphore(self._most)))
        share.requests += 1
        try:
            await self._come_in(share.room, whose)
            try:
                yield
            finally:
                share.room.release()
        finally:
            share.requests -= 1
            if not share.requests:
                del self._shares[whose]

    async def _come_in(self, room: asyncio.Semaphore, whose: str) -> None:
        if not room.locked():
            await room.acquire()
            return
        with self._waiting.place(whose) as full:
            if full is not None:
                raise UnavailableError(f"no more requests about leases may wait for a connection: there are {full}")
            try:
                async with asyncio.timeout(self._within):
                    await room.acquire()
            except TimeoutError:
                raise UnavailableError(
                    f"no connection for a lease within {self._within:g} s: as many requests of {whose} as it may have"
                    " have one (FENCEPOST_LEASE_POOL_SIZE)"
                ) from None
