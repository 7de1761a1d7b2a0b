"""What a use case answers, what is kept for a repetition, and how callers share what there is of the gateway."""

import asyncio
import sys
from collections.abc import AsyncIterator, Hashable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal, NamedTuple

from fencepost.server.fence.caller import ASKING, Caller
from fencepost.server.fence.problem_types import DATABASE_BUSY
from fencepost.server.fence.problems import Problem
from fencepost.server.postgres.connection import Key, Session
from fencepost.server.postgres.database import users_code
from fencepost.server.postgres.errors import (
    LOCK_NOT_AVAILABLE,
    RETRIED,
    OutcomeUnknownError,
    RefusedError,
    UnavailableError,
)
from fencepost.server.postgres.pool import Limiter, most_of, waiting_quota
from fencepost.server.postgres.tables import Table
from fencepost.server.times import SYSTEM_CLOCK, Clock


@dataclass(slots=True)
class Done:
    """The result of a use case: rows as JSON texts, and the mark of a single protected row."""

    rows: Sequence[str]
    mark: int | None = None
    created: bool = False
    total: int | None = None
    """How many rows match in all, when it was asked for (`Prefer: count=exact`)."""
    resource: str = ""
    """The full name of the one resource that was claimed or made."""
    resources: Sequence[str] | None = None
    """The names of all resources that were written; None where they were not asked for."""
    scope: str = ""
    """The name of the one scope that was written to or claimed (R8)."""
    version: int | None = None
    """The mark of a row that was read, where each write gives the row another one: it is the row's ETag."""

    @property
    def count(self) -> int:
        """How many rows were written or read."""
        return len(self.rows)


Outcome = Done | Problem


# How many bytes of answers' rows a process has kept under Idempotency-Keys (R16), and under the ids of queued writes.
#
# The record of a write is always made: that a write is done once does not depend on how large its answer is. What is
# bounded are the rows in it. Of an answer that is too large, or one too many, the record has what the write would have
# been answered under `Prefer: return=minimal`, and says so to those who repeat it.
#
#     up to SMALL_KEPT  kept: the record itself has a tenth of that
#     above MOST_KEPT   never kept
#     between them      as long as the caller has not had kept a quarter of `most`, and all have not had kept `most`
#
# What was counted is forgotten evenly over the retention, as the records are later. So twice `most` is there in the
# end at most, of a caller half of `most`. Nothing is asked of the database for it.

SMALL_KEPT: Final = 2_000
"""Bytes that PostgreSQL keeps in a row, without a place of their own."""
MOST_KEPT: Final = 65_536
_SHARE: Final = 4
"""A caller has the fourth part."""
_MOST_CALLERS: Final = 1_000
"""Callers that are counted; one more, and the shares of all begin anew, within that of all."""


class KeptAnswers:
    """`most` bytes in `retention` seconds."""

    def __init__(self, most: int, retention: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self._all = _Bucket(most, retention, clock)
        self._callers: dict[str, _Bucket] = {}
        self._new = partial(_Bucket, most // _SHARE, retention, clock)

    def takes(self, caller: str, size: int) -> bool:
        """Whether so many bytes of a caller's answer are kept, which are counted then."""
        if size <= SMALL_KEPT:
            return True
        if size > MOST_KEPT:
            return False
        own = self._bucket(caller)
        if not (own.has_room(size) and self._all.has_room(size)):
            return False
        own.level += size
        self._all.level += size
        return True

    def _bucket(self, caller: str) -> "_Bucket":
        found = self._callers.get(caller)
        if found is None:
            if len(self._callers) >= _MOST_CALLERS:
                self._callers.clear()
            found = self._callers[caller] = self._new()
        return found


class _Bucket:
    """Bytes that were counted, and are forgotten evenly."""

    def __init__(self, most: int, retention: float, clock: Clock) -> None:
        self.most, self._rate, self._clock = most, most / retention, clock
        self.level, self._at = 0.0, clock.monotonic()

    def has_room(self, size: int) -> bool:
        now = self._clock.monotonic()
        self.level, self._at = max(self.level - (now - self._at) * self._rate, 0.0), now
        return self.level + size <= self.most


# The transaction that several writes and claims are parts of (gateway/atomic.py).

NOTHING: Final = "nothing was written: {}"


Why = Literal["catalog", "answer", "session"]


class Doubt(NamedTuple):
    """Why a request may have failed for nothing: the picture of a table, or a session's query plans, are outdated."""

    name: str
    """What the request calls the table; empty: it is no table's."""
    table: Table | None
    why: Why
    """answer: the picture may be outdated, and where PostgreSQL cannot be asked the answer stands all the same."""


@dataclass(slots=True)
class Together:
    """The transaction."""

    connection: Session
    failed: RefusedError | None = None
    """A deadlock, a serialization failure or an old query plan: for this all of it starts over."""
    doubts: "list[Doubt]" = field(default_factory=list)
    """What may be outdated: a part of it was refused, maybe for that."""

    @asynccontextmanager
    async def part(self, caller: Caller, *, runs_code: bool) -> AsyncIterator[Session]:
        """Decide a part of it. `runs_code`: of users', which may change the session: what comes next finds it as it
        was. UnavailableError: the connection has broken, and nothing was written.
        """
        try:
            async with users_code(self.connection, caller, runs=runs_code, local=False):
                yield self.connection
        except RefusedError as error:
            if error.sqlstate in RETRIED or error.of_an_old_query_plan:
                self.failed = error
            raise
        except OutcomeUnknownError as error:  # before the COMMIT
            raise UnavailableError(NOTHING.format(error)) from error


# Writes that go alone because something holds their row take turns: one of them waits in PostgreSQL, with a
# connection, and the others here, without one. Else a dozen writes to a locked row would leave no
# connection for any other request. One caller has three quarters of the turns, and of the places of those that wait.


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
        most = at_once if of_one_caller else most_of(at_once)
        self._of_caller = Limiter(sys.maxsize, most, None, "turn at a locked row")
        self._room = Limiter(at_once, at_once, None, "turn at a locked row")
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
        with self.waiting.place(caller) as full:
            if full is not None:
                raise UnavailableError(
                    f"no more writes may wait for locked rows: there are {full}. Nothing was written"
                )
            turn = self._rows.setdefault(row, _Row())
            turn.asked += 1
            try:
                async with AsyncExitStack() as taken:
                    try:
                        async with asyncio.timeout(self._wait):
                            await self._come_in(turn.lock, caller, taken)
                    except TimeoutError:
                        yield False
                        return
                    yield True
            finally:
                turn.asked -= 1
                if not turn.asked:
                    self._rows.pop(row, None)

    async def _come_in(self, row: asyncio.Lock, caller: str, taken: AsyncExitStack) -> None:
        """Take the row, one of the caller's turns and one of all. Those behind the caller's own writes keep others from
        no row meanwhile; those that wait for a row have none of all turns yet.
        """
        await row.acquire()
        if self._of_caller.is_at_its_most(caller):
            row.release()
            await taken.enter_async_context(self._of_caller.place(caller, patient=True))
            await taken.enter_async_context(row)
        else:
            taken.callback(row.release)
            await taken.enter_async_context(self._of_caller.place(caller, patient=True))
        await taken.enter_async_context(self._room.place(caller, patient=True))


def busy(table: Table, key: Key) -> Problem:
    """The problem when the turn did not come."""
    what = f"{table.name}/{','.join(key)}" if key else f"What a row of {table.name} needs"
    return Problem(
        DATABASE_BUSY,
        f"{what} is locked, or too many other writes wait already: nothing was written.",
        code=LOCK_NOT_AVAILABLE,
    )
