"""Reads of rows have most of the connections, never all: a read may hold one for as long as PostgreSQL takes to look
through a large value, which no time limit interrupts. Writes and grants need one meanwhile. And one caller has most of
what reads have, never all.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field

from fencepost.fencing.caller import Caller
from fencepost.quota import UNKNOWN, Quota, most_of
from fencepost.storage.connections.connection import Connection
from fencepost.storage.connections.engine import Database
from fencepost.storage.errors import UnavailableError


@dataclass
class _Caller:
    room: asyncio.Semaphore
    reads: int = field(default=0)
    """How many it has, or waits for."""


class Reads:
    """The reads of a gateway: `at_once` of them have a connection, `most_waiting` wait for one, for `wait` seconds."""

    def __init__(self, at_once: int, wait: float, most_waiting: int = 1000) -> None:
        self._room = asyncio.Semaphore(at_once)
        self._at_once, self._wait = at_once, wait
        self.waiting = Quota(
            most_waiting, most_of(most_waiting), "FENCEPOST_MAX_WAITING", "three quarters of FENCEPOST_MAX_WAITING"
        )
        """Places of those that wait for a connection, or for a statement that they share."""
        self._callers: dict[str, _Caller] = {}

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
        asked = database.connection(caller=acting, runs_code=runs_code)
        async with self.place(caller, counted=counted), asked as connection:
            yield connection

    @asynccontextmanager
    async def place(self, caller: str, *, counted: bool = False) -> AsyncIterator[None]:
        """Have a place of a read for the block, which asks for a connection itself. Raises UnavailableError."""
        of = self._callers.get(caller)
        if of is None:
            of = self._callers[caller] = _Caller(asyncio.Semaphore(most_of(self._at_once)))
        of.reads += 1
        try:
            await self._come_in(of.room, caller, counted=counted)
            try:
                yield
            finally:
                self._room.release()
                of.room.release()
        finally:
            of.reads -= 1
            if not of.reads:
                del self._callers[caller]

    def has_room(self, caller: str) -> bool:
        """Whether a caller has fewer connections than it may have."""
        of = self._callers.get(caller)
        return of is None or not of.room.locked()

    async def _come_in(self, own: asyncio.Semaphore, caller: str, *, counted: bool) -> None:
        """Wait for a place among the caller's own, and then among all: so who has many waits behind itself."""
        if not own.locked() and not self._room.locked():
            await own.acquire()
            await self._room.acquire()
            return
        with nullcontext() if counted else self.waiting.place(caller) as full:
            if full is not None:
                raise UnavailableError(f"no more reads may wait for a connection: there are {full}")
            held = False
            try:
                async with asyncio.timeout(self._wait):
                    held = await own.acquire()
                    await self._room.acquire()
            except BaseException as error:
                if held:
                    own.release()
                if isinstance(error, TimeoutError):
                    raise self._too_late(caller, among_its_own=not held) from None
                raise

    def _too_late(self, caller: str, *, among_its_own: bool) -> UnavailableError:
        who = f"as many reads of {caller} as it may have" if among_its_own else f"{self._at_once} reads"
        return UnavailableError(
            f"no connection for a read within {self._wait:g} s: {who} have one, the rest is for others, for leases and"
            " writes (FENCEPOST_POOL_SIZE)"
        )
