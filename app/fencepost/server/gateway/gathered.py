"""Questions that requests ask together: what came of queued writes, and reads of one row."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

from fencepost.server.fence.caller import Caller
from fencepost.server.fence.problem_types import DATABASE_UNAVAILABLE
from fencepost.server.fence.problems import Problem
from fencepost.server.gateway.group_commit import ALONE, Alone, BatchQueue, GroupCommit, RoleQueues
from fencepost.server.postgres.connection import Session
from fencepost.server.postgres.database import Database
from fencepost.server.postgres.errors import StorageError, UnavailableError
from fencepost.server.postgres.keyed import FencedRow, Recorded
from fencepost.server.postgres.pool import Limiter
from fencepost.server.postgres.query import Select
from fencepost.server.postgres.reading import UNREAD, keyed_reads, shown
from fencepost.server.postgres.row_sql import Key
from fencepost.server.postgres.tables import ProtectedTable, Table, is_canonical
from fencepost.server.quota import UNKNOWN, Quota
from fencepost.server.times import TIMES, Times, wait_until_set

# What becomes of queued writes, and who waits for that: one question at a time, for all that are waited for here.
#
# The record of a write's result is there as soon as its effect is (R16), so it is asked for again and again: soon
# after a request waits, and five times a second later. A NOTIFY with each effect would make commits wait for each
# other. A request that waits has no connection.

State = Literal["applied", "refused", "failed"]
"""applied: as a synchronous write that succeeded. refused: the fence refused the token that the client gave. failed:
everything else that does not pass by waiting; the message is a dead letter.
"""
STATES: Final[tuple[State, ...]] = get_args(State)
STATE_HEADER: Final = "fencepost-state"
"""The header of a kept answer that has the state."""
LETTER_HEADER: Final = "fencepost-letter"
"""The header of a kept answer that says what became of the write's dead letter (queue_close in queue_results.sql):
IN_HAND, DROPPED, or RETRIED_AS and the id of the write that it was appended as. No such header: the letter is there, or
will be.
"""
IN_HAND: Final = "in hand"
"""A retry of it has begun: it is there still."""
DROPPED: Final = "dropped"
RETRIED_AS: Final = "retried as "

CALLER_HEADER: Final = "fencepost-caller"
"""The header of a kept answer that says whose write it was (`whose`); none where its caller had no role."""
CLAIMED_HEADER: Final = "fencepost-claimed"
"""The same, of a message whose caller was not proven, or not looked at."""

RETRY_AFTER: Final = 1


class AskedWrite(NamedTuple):
    """A write that is asked for, and by whom (`whose`): to others than its caller it is not there."""

    write_id: str
    whose: str


Look: TypeAlias = Callable[[Sequence[AskedWrite]], Awaitable[Mapping[AskedWrite, Recorded]]]
"""Asks for the results of writes, and returns those that are there."""


def whose(caller: Caller | None) -> str:
    """Say whose a queued write is, and whose it is to be for one who asks; empty: of callers without a role."""
    return "" if caller is None or caller.role is None else json.dumps([caller.role, caller.name])


def of_caller(answer: Recorded, caller: Caller | None, *, proven: bool) -> Recorded:
    """Give an answer as it is kept for this caller's write. One that has a proven caller keeps it."""
    owner = whose(caller)
    if not owner or any(name == CALLER_HEADER for name, _ in answer.headers):
        return answer
    header = CALLER_HEADER if proven else CLAIMED_HEADER
    return Recorded(answer.status, (*answer.headers, (header, owner)), answer.body)


def is_for(answer: Recorded, owner: str, *, same_id: bool) -> bool:
    """Whether a kept answer is that of a write of `whose`. `same_id`: it was recorded under the id that is asked for;
    else a message at another offset has the same nonce. That counts only where its caller is proven: anybody who can
    read a log, and append to it, could otherwise show one that has failed in place of the write.
    """
    named = dict(answer.headers)
    if CLAIMED_HEADER in named:
        return same_id and named[CLAIMED_HEADER] == owner
    return named.get(CALLER_HEADER, "") == owner


def state_of(answer: Recorded) -> State:
    """Read the state of a kept answer."""
    found = next((value for name, value in answer.headers if name == STATE_HEADER), None)
    for state in STATES:
        if state == found:
            return state
    raise ValueError(f"no state of a queued write: {found!r}")


def letter_of(answer: Recorded) -> str | None:
    """Read from a kept answer what became of the dead letter; None: nothing yet."""
    return next((value for name, value in answer.headers if name == LETTER_HEADER), None)


class Results:
    """Those who wait at this process."""

    def __init__(self, quota: Quota, times: Times = TIMES) -> None:
        self._quota = quota
        self._times, self._clock = times.watches, times.clock
        self._waiting: dict[AskedWrite, list[asyncio.Future[Recorded | Problem]]] = {}
        self._newest = 0.0
        self._poller: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._stopped = False

    @property
    def count(self) -> int:
        return self._quota.count

    async def wait(
        self, look: Look, asked: AskedWrite, within: float, caller: str = UNKNOWN
    ) -> Recorded | Problem | None:
        """Wait for the result of a write. None: there was none within so many seconds. A Problem: the database cannot
        be asked, the gateway is stopping, or too many wait here.
        """
        if self._stopped:
            return _stopping()
        with self._quota.place(caller) as full:
            return await self._wait(look, asked, within) if full is None else _too_many(full)

    async def _wait(self, look: Look, asked: AskedWrite, within: float) -> Recorded | Problem | None:
        news: asyncio.Future[Recorded | Problem] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(asked, []).append(news)
        self._newest = self._clock.monotonic()
        self._wake.set()
        if self._poller is None or self._poller.done():
            self._poller = asyncio.create_task(self._poll(look))
        try:
            async with asyncio.timeout(within):
                return await news
        except TimeoutError:
            return None
        finally:
            self._leave(asked, news)

    def stop(self) -> None:
        """Send away all who wait, and all who will."""
        self._stopped = True
        self._answer(self._waiting, _stopping())

    def _leave(self, asked: AskedWrite, news: "asyncio.Future[Recorded | Problem]") -> None:
        others = self._waiting[asked]
        others.remove(news)
        if not others:
            del self._waiting[asked]

    async def _poll(self, look: Look) -> None:
        within = self._times.look_within
        while self._waiting:
            asked = list(self._waiting)
            self._wake.clear()
            try:
                async with asyncio.timeout(within):
                    found = await look(asked)
            except TimeoutError:
                self._answer(asked, results_unavailable(f"PostgreSQL did not answer within {within:g} s"))
            except StorageError as error:
                self._answer(asked, results_unavailable(str(error)))
            else:
                for each, answer in found.items():
                    self._answer([each], answer)
            await self._pause()

    async def _pause(self) -> None:
        if self._clock.monotonic() - self._newest < self._times.results_new_for:
            await self._clock.sleep(self._times.results_soon)
        else:
            await wait_until_set(self._wake, self._times.results_every, self._clock)

    def _answer(self, asked: Iterable[AskedWrite], news: Recorded | Problem) -> None:
        for each in asked:
            for waiting in self._waiting.get(each, ()):
                if not waiting.done():
                    waiting.set_result(news)


def _too_many(full: str) -> Problem:
    detail = f"No more requests may wait for queued writes at this gateway: there are {full}."
    return Problem(
        DATABASE_UNAVAILABLE, detail, hint="Ask without ?wait=, or ask another gateway.", retry_after=RETRY_AFTER
    )


def _stopping() -> Problem:
    return Problem(DATABASE_UNAVAILABLE, "The gateway is stopping.", retry_after=RETRY_AFTER)


def results_unavailable(reason: str) -> Problem:
    """The problem when results cannot be asked for."""
    return Problem(
        DATABASE_UNAVAILABLE, f"What became of the write cannot be looked up: {reason}", retry_after=RETRY_AFTER
    )


# Reads of one row by its key that come at the same time share a statement, as writes do (gateway/group_commit.py).
#
# An idle gateway sends a read at once. While a statement is under way, reads of the same columns gather, and are the
# next one. That is sent after they came, so each sees all that was committed before it was asked. What could keep
# others waiting, or fail for all of them, goes alone: tables with partitions (a statement locks all of them), views,
# row security, casts, code of users', large rows, keys that may be none.
#
# A statement takes a connection as one of those whom it is for, who has one left: else a caller whose reads are slow
# would take those of all.

MOST_READS: Final = 64
"""Reads in a statement."""

ReadQueue = BatchQueue[Key, FencedRow | None]


@dataclass(frozen=True, slots=True)
class ReadQueues:
    """The queues of reads that show the same columns of a table."""

    table: Table
    own_types: bool
    """Whether they show a type of the user's, or an extension's: it may have a cast to JSON that looks at who calls."""
    queues: RoleQueues[Key, FencedRow | None]

    def of(self, caller: Caller, key: Key) -> ReadQueue | None:
        """Find the queue of a caller's reads; None: this one goes alone."""
        if self.own_types and caller.role is not None:
            return None
        if not is_canonical(self.table, key) or any("\0" in text for text in key):
            return None
        return self.queues.of(caller)


def read_queues(table: Table, select: Select, most_answer_bytes: int) -> ReadQueues | None:
    """Make the queues of such reads; None: they go alone. `most_answer_bytes`: what the answer to one may have."""
    columns = shown(table, select)
    # A protected table has a key, and takes no part in inheritance.
    if columns is None or not isinstance(table, ProtectedTable) or table.kind != "table":
        return None
    if table.row_security or table.reads_run_code:
        return None
    own_types = any("." in table.columns[name].base_type for name in columns)
    reads = keyed_reads(table, select, columns, most_answer_bytes)

    async def run(connection: Session, batch: Sequence[Key]) -> "list[FencedRow | Alone | None]":
        rows = await reads.run(connection, batch)
        return [ALONE] * len(batch) if rows is None else [ALONE if row is UNREAD else row for row in rows]

    def make(caller: Caller) -> ReadQueue:
        return BatchQueue(run, most=MOST_READS, caller=caller)

    return ReadQueues(table, own_types, RoleQueues(make))


class GatheredReads:
    """All of them, of a gateway process, on connections that are for reads."""

    def __init__(
        self,
        database: Database,
        reads: Limiter,
        *,
        wait_at_most: float = 5.0,
        times: Times = TIMES,
    ) -> None:
        self._database, self._reads = database, reads
        self._group = GroupCommit(
            database,
            wait_at_most=wait_at_most,
            times=times,
            read_connection=self._lend,
        )

    @asynccontextmanager
    async def _lend(self, queue: BatchQueue[Any, Any]) -> AsyncIterator[Session]:
        whose = self._whose_turn(queue)
        lent = self._database.connection(caller=queue.caller, whose=whose, patient=True)
        async with self._reads.place(whose, patient=True), lent as session:
            yield session

    def _whose_turn(self, queue: BatchQueue[Any, Any]) -> str:
        """Find who has a connection left, of those that wait first; if nobody has, whoever is first."""
        waiting = list(islice(queue.pending, MOST_READS))
        return next((whose for whose in waiting if self._has_room(whose)), waiting[0] if waiting else UNKNOWN)

    def _has_room(self, whose: str) -> bool:
        return self._reads.has_room(whose) and self._database.requests.has_room(whose)

    async def read(
        self, queues: ReadQueues, caller: Caller, key: Key, whose: str = UNKNOWN
    ) -> "FencedRow | Alone | None":
        """Read a row; ALONE: it has to be read alone. `whose`: the place that it takes. Raises RefusedError,
        UnavailableError, RoleError.
        """
        queue = queues.of(caller, key)
        if queue is None:
            return ALONE
        with self._database.waiting.place(whose) as full:
            if full is not None:
                raise UnavailableError(f"no more reads may wait for a connection: there are {full}")
            answer = await self._group.write(queue, key, key, sum(map(len, key)), counted=False, whose=whose)
        return answer if answer is None or isinstance(answer, FencedRow) else ALONE

    async def close(self) -> None:
        await self._group.close()
