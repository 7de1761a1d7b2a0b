"""Writes that go alone because something holds their row take turns: one of them waits in PostgreSQL, with a
connection, and the others here, without one. Else a dozen writes to a locked row would leave no
connection for any other request. One caller has three quarters of the turns, and of the places of those that wait.
"""

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from fencepost.server.fence.problem_types import DATABASE_BUSY
from fencepost.server.fence.problems import Problem
from fencepost.server.postgres.errors import UnavailableError
from fencepost.server.postgres.row_sql import Key
from fencepost.server.postgres.tables import Table
from fencepost.server.quota import ASKING, Shares, most_of, waiting_quota


@dataclass(slots=True)
class _Row:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    asked: int = 0


class Turns:
    """Whose turn it is, for each row (or scope). `at_once` writes of different rows go at the same time; `wait` is in
    seconds. `of_one_caller`: all are one's, who may have all turns.
    """

    def __init__(self, *, at_once: int, wait: float, most_waiting: int = 1000, of_one_caller: bool = False) -> None:
        self._rows: dict[Hashable, _Row] = {}
        self._room = asyncio.Semaphore(at_once)
        self._of_caller = Shares(at_once if of_one_caller else most_of(at_once))
        self._wait = wait
        self.waiting = waiting_quota(most_waiting)
        """Places of those that have their turn, or wait for it."""

    def __len__(self) -> int:
        """How many rows are waited for."""
        return len(self._rows)

    @asynccontextmanager
    async def of(self, row: Hashable) -> AsyncIterator[bool]:
        """Wait for the turn of a row; False: it did not come in time. UnavailableError: too many wait already."""
        caller = ASKING.get()
        with self.waiting.place(caller) as full, self._of_caller.of(caller) as own:
            if full is not None:
                raise UnavailableError(
                    f"no more writes may wait for locked rows: there are {full}. Nothing was written"
                )
            turn = self._rows.setdefault(row, _Row())
            turn.asked += 1
            taken: list[asyncio.Lock | asyncio.Semaphore] = []
            try:
                try:
                    async with asyncio.timeout(self._wait):
                        await self._come_in(turn.lock, own, taken)
                except TimeoutError:
                    yield False
                    return
                yield True
            finally:
                for each in taken:
                    each.release()
                turn.asked -= 1
                if not turn.asked:
                    self._rows.pop(row, None)

    async def _come_in(
        self, row: asyncio.Lock, own: asyncio.Semaphore, taken: "list[asyncio.Lock | asyncio.Semaphore]"
    ) -> None:
        """Take the row, one of the caller's turns and one of all. Those behind the caller's own writes keep others from
        no row meanwhile; those that wait for a row have no turn yet.
        """
        await row.acquire()
        order: list[asyncio.Lock | asyncio.Semaphore]
        if own.locked():
            row.release()
            order = [own, row, self._room]
        else:
            taken.append(row)
            order = [own, self._room]
        for each in order:
            await each.acquire()
            taken.append(each)


def busy(table: Table, key: Key) -> Problem:
    """The problem when the turn did not come."""
    what = f"{table.name}/{','.join(key)}" if key else f"What a row of {table.name} needs"
    return Problem(
        DATABASE_BUSY,
        f"{what} is locked, or too many other writes wait already: nothing was written.",
        code="55P03",
        retry_after=1,
    )
