"""Whose the connections are: no caller ever has all of them, and reads never have all, either.

A read may hold a connection for as long as PostgreSQL takes to look through a large value, which no time limit
interrupts; a write by a filter for as long as it takes to find no row. Others, and grants, need connections meanwhile.
So one caller has three quarters of the pool at most, with all that it asks for; reads have three quarters of it, and
one caller's reads three quarters of that. Who has its share waits behind itself.

Writes that share transactions (group_commit.py), and the lines of batches (batches.py), have connections of their own.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext

from fencepost.server.fence.caller import Caller
from fencepost.server.postgres.connection import Connection
from fencepost.server.postgres.database import Database
from fencepost.server.postgres.errors import UnavailableError
from fencepost.server.quota import UNKNOWN, Shares, most_of, waiting_quota


class CallerShares:
    """One caller has three quarters of `connections`. Who waits does so for `wait` seconds; so many may at once."""

    def __init__(self, connections: int, wait: float, most_waiting: int = 1000) -> None:
        self._shares = Shares(most_of(connections))
        self._wait = wait
        self.waiting = waiting_quota(most_waiting)
        """Places of those that wait for a connection, or for a statement that they share."""

    def of(self, caller: str) -> AbstractContextManager[asyncio.Semaphore]:
        return self._shares.of(caller)

    def has_room(self, caller: str) -> bool:
        """Whether a caller has a place free."""
        return self._shares.has_room(caller)

    @asynccontextmanager
    async def place(self, caller: str) -> AsyncIterator[None]:
        """Take one of a caller's places for a write that goes alone. UnavailableError: none was free in time."""
        with self.of(caller) as own:
            await self.come_in((own,), caller, "writes")
            try:
                yield
            finally:
                own.release()

    async def come_in(
        self, places: Sequence[asyncio.Semaphore], caller: str, what: str, *, counted: bool = False
    ) -> None:
        """Take a place of each, in this order: who has many so waits behind itself. `counted`: those that it is for
        are counted as waiting already. UnavailableError: they were not free in time.
        """
        if not any(each.locked() for each in places):
            for each in places:
                await each.acquire()
            return
        with nullcontext() if counted else self.waiting.place(caller) as full:
            if full is not None:
                raise UnavailableError(f"no more {what} may wait for a connection: there are {full}")
            taken: list[asyncio.Semaphore] = []
            try:
                async with asyncio.timeout(self._wait):
                    for each in places:
                        await each.acquire()
                        taken.append(each)
            except BaseException as error:
                for each in taken:
                    each.release()
                if not isinstance(error, TimeoutError):
                    raise
                among_its_own = len(taken) < len(places) - 1 or len(places) == 1
                who = f"{caller} has as many as one may have" if among_its_own else f"{what} have all that are theirs"
                raise UnavailableError(
                    f"no connection for {what} within {self._wait:g} s: {who}, the rest is for others"
                    " (FENCEPOST_POOL_SIZE)"
                ) from None


class Reads:
    """The reads of a gateway: `at_once` of them have a connection."""

    def __init__(self, at_once: int, shares: CallerShares) -> None:
        self._room, self._own, self._shares = asyncio.Semaphore(at_once), Shares(most_of(at_once)), shares
        self.waiting = shares.waiting

    @asynccontextmanager
    async def connection(
        self,
        database: Database,
        acting: Caller,
        caller: str = UNKNOWN,
        *,
        counted: bool = False,
        runs_code: bool = False,
    ) -> AsyncIterator[Connection]:
        """Lend a connection for a read of rows, which acts as the role of `acting`. `caller`: whose place it takes.
        `counted`: those it is for are counted as waiting already. `runs_code`: see Database.connection. Raises
        UnavailableError, RoleError.
        """
        with self._own.of(caller) as own, self._shares.of(caller) as every:
            places = (own, every, self._room)
            await self._shares.come_in(places, caller, "reads", counted=counted)
            try:
                async with database.connection(caller=acting, runs_code=runs_code) as connection:
                    yield connection
            finally:
                for each in places:
                    each.release()

    def has_room(self, caller: str) -> bool:
        """Whether a caller has fewer connections than it may have."""
        return self._own.has_room(caller) and self._shares.has_room(caller)
