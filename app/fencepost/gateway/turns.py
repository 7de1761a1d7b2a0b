"""Writes that go alone because something holds their row take turns: one of them waits in PostgreSQL, with a
connection, and the others here, without one. Else a dozen writes to a locked row would leave no
connection for any other request.
"""

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from fencepost.fencing.database_problem_types import DATABASE_BUSY
from fencepost.fencing.problems import Problem
from fencepost.storage.errors import UnavailableError
from fencepost.storage.statements.parameters import Key
from fencepost.storage.tables.catalog import Table


@dataclass(slots=True)
class _Row:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    asked: int = 0


class Turns:
    """Whose turn it is, for each row (or scope). `at_once` writes of different rows go at the same time; `wait` is in
    seconds.
    """

    def __init__(self, *, at_once: int, wait: float, most_waiting: int = 1000) -> None:
        self._rows: dict[Hashable, _Row] = {}
        self._room = asyncio.Semaphore(at_once)
        self._wait = wait
        self._most_waiting = most_waiting
        self.waiting = 0
        """How many have their turn, or wait for it."""

    def __len__(self) -> int:
        """How many rows are waited for."""
        return len(self._rows)

    @asynccontextmanager
    async def of(self, row: Hashable) -> AsyncIterator[bool]:
        """Wait for the turn of a row; False: it did not come in time. UnavailableError: too many wait already."""
        if self.waiting >= self._most_waiting:
            raise UnavailableError(
                f"{self.waiting} writes wait for locked rows, and more are not taken in"
                " (FENCEPOST_MAX_WAITING): nothing was written"
            )
        self.waiting += 1
        turn = self._rows.setdefault(row, _Row())
        turn.asked += 1
        holds = room = False
        try:
            try:
                async with asyncio.timeout(self._wait):
                    holds = await turn.lock.acquire()
                    room = await self._room.acquire()
            except TimeoutError:
                yield False
                return
            yield True
        finally:
            if room:
                self._room.release()
            if holds:
                turn.lock.release()
            self.waiting -= 1
            turn.asked -= 1
            if not turn.asked:
                self._rows.pop(row, None)


def busy(table: Table, key: Key) -> Problem:
    """The problem when the turn did not come."""
    what = f"{table.name}/{','.join(key)}" if key else f"What a row of {table.name} needs"
    return Problem(
        DATABASE_BUSY,
        f"{what} is locked, or too many other writes wait already: nothing was written.",
        code="55P03",
        retry_after=1,
    )
