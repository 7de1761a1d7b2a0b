"""Group commit: writes that come at the same time share one transaction, one round trip and one flush of the log.

The protocol of one queue (the writes that one statement can carry: a table, a verb, a set of columns, a role):

1. Nothing is in flight, or only what is slow (BatchTimes): a write is sent at once. An idle gateway adds no wait,
   and a slow statement keeps only its own batch waiting.
2. While a batch is in flight, writes gather. When it is answered, all that have gathered are the next one, up to
   `most` of them and MOST_BYTES, of one caller after the other a write, and those that clash (the same
   Idempotency-Key, the same scope) one after the other in batches of their own.
3. A batch is sorted by key, so that two batches never wait for each other in a circle, and runs as one transaction:
   Bind/Execute for each write and one Sync. Every write carries its number, for only accepted ones come back. A row
   twice in a batch is two statements, one after the other, each judged by what the one before has left.
4. No statement of a batch waits for a row: one that a foreign transaction holds is skipped, and its write has to
   come AGAIN, and in the end to go ALONE. What else can be waited for (a unique index entry, a parent's row) is given
   up after `lock_wait` (BatchTimes).
5. A batch that PostgreSQL refuses is undone as a whole, and its halves are tried again, each in a transaction of its
   own beside the queue's next batch; a write that fails by itself gets ALONE. So a caller's bad value, or wait, costs
   its neighbours a few round trips, and no verdict. An answer that is too large for a batch fails it, too (answers.py).
6. A write that goes ALONE is decided from the start on a connection and in a transaction of its own (alone.py):
   it may wait, and its answer is the same as without group commit.
7. A connection that breaks under a batch leaves all of its writes unknown (R15): each gets BROKEN, with the connection
   whose backend has to be ended before it can be known what landed.

One caller has three quarters of the connections. What has to wait for that waits in its queue, without a
task, until a place of one of those who wait in the queue is free.

A queue of a role has its connection act as that for as long as it has it: taken in one statement, given back in one
(database.py). So that these are few, it keeps the connection for a moment after an answer, unless another queue
wants one: those that were answered write again, often. A privilege that the role lacks for the statement as such is the
answer to each write of the batch, at once.

Reads of single rows gather so, too (gateway/read.py). Others want their connections: a batch gives its back.

Callers wait for a future each. One that goes away leaves its write in the batch and its neighbours alone. Where
`most_waiting` writes wait already, or three quarters of that of one caller, one more is refused at once (the lines of a
batch are not `counted`), and one that waited for `wait_at_most` seconds is
taken out: what has not been sent has not happened, so both are 503.
"""

import asyncio
import math
import sys
from asyncio import Future
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from fencepost.server.fence.caller import ASKING, EVERYBODY, UNKNOWN, Caller
from fencepost.server.locks.builtin import PostgresLocks, Queue
from fencepost.server.locks.leases import LeaseLimits
from fencepost.server.postgres.connection import Key, Session
from fencepost.server.postgres.database import Database
from fencepost.server.postgres.errors import LOCK_NOT_AVAILABLE, OutcomeUnknownError, RefusedError, UnavailableError
from fencepost.server.postgres.leases import (
    Acquired,
    LockRequest,
    Release,
    Withdrawn,
    release_each,
    try_each,
)
from fencepost.server.postgres.pool import most_of, waiting_quota
from fencepost.server.times import TIMES, Times

if TYPE_CHECKING:
    from fencepost.server.times import Timer

# One queue: the writes that one statement can carry, their waiting callers, and their answers.

W = TypeVar("W")
R = TypeVar("R")

MOST_ROLES: Final = 256
"""How many roles have queues of one kind at a time."""
MOST_BYTES: Final = 1_000_000
"""A batch that has grown so large takes in no more writes."""


class Alone(Enum):
    """A write that its batch could not decide: for this one time, or at all."""

    AGAIN = "it goes into another batch, a few times: what was in its way is likely to be over by then"
    HELD = "it is decided by itself, and will have to wait for another transaction"
    ALONE = "it is decided by itself"


AGAIN: Final = Alone.AGAIN
HELD: Final = Alone.HELD
ALONE: Final = Alone.ALONE


@dataclass(frozen=True, slots=True)
class Broken:
    """A write whose batch broke: it may have landed (R15)."""

    error: OutcomeUnknownError
    connection: Session


@dataclass(slots=True)
class Waiting(Generic[W, R]):
    """One write, and the future of its caller. In a batch it stands by its `key`, and sends about `size` bytes."""

    write: W
    key: Key
    size: int
    answer: Future[R | Alone | Broken]
    deadline: float
    caller: str


_by_key: Final = attrgetter("key")


@dataclass(eq=False)
class BatchQueue(Generic[W, R]):
    """The writes that one statement can carry, and those that wait for it.

    `run` carries a batch out, and commits it before it returns an answer for each write, in the order given; a
    RefusedError means that all of it was undone.
    """

    run: Callable[[Session, Sequence[W]], Awaitable[Sequence[R | Alone]]]
    clashes: Callable[[W], Iterable[Hashable]] | None = None
    """What no two writes of a batch may share."""
    most: int = 256
    caller: Caller = EVERYBODY
    """As whom its batches run: a role, and no claims, for the writes are those of several callers."""
    is_part: bool = False
    """Whether it is a part of a batch that was refused: nothing more comes."""
    pending: "dict[str, deque[Waiting[W, R]]]" = field(default_factory=dict)
    """What waits, of each caller who has something there."""
    running: int = 0
    """How many send its batches: one, unless one of them is slow."""
    places: list[str] = field(default_factory=list)
    """Whose `Places` these have."""
    sent: float = 0.0
    """When the last batch was sent (loop time)."""
    lingering: "Future[None] | None" = None
    """Done when one that has a connection, and waits for the next write, need wait no longer."""

    def wake(self) -> None:
        if self.lingering is not None and not self.lingering.done():
            self.lingering.set_result(None)

    def add(self, waiting: "Waiting[W, R]") -> None:
        """Have a write wait, behind the others of its caller."""
        line = self.pending.get(waiting.caller)
        if line is None:
            self.pending[waiting.caller] = deque((waiting,))
        else:
            line.append(waiting)

    def part(self, batch: "Sequence[Waiting[W, R]]", deadline: float) -> "BatchQueue[W, R]":
        part = BatchQueue(self.run, self.clashes, self.most, self.caller, is_part=True)
        for waiting in batch:
            waiting.deadline = deadline
            part.add(waiting)
        return part

    def late(self, now: float) -> "list[Waiting[W, R]]":
        """Take out what has waited too long. Each line is in the order of its deadlines."""
        late: list[Waiting[W, R]] = []
        for caller, line in tuple(self.pending.items()):
            while line and (line[0].deadline <= now or line[0].answer.done()):
                late.append(line.popleft())
            if not line:
                del self.pending[caller]
        return late

    def take(self, left_out: Collection[str] = ()) -> "list[Waiting[W, R]]":
        """Take the next batch, sorted: of one caller after the other a write, but of those who are `left_out`. Those
        whose caller has gone before they were sent are dropped.
        """
        taken: list[Waiting[W, R]] = []
        seen: set[Hashable] = set()
        left: list[Waiting[W, R]] = []
        pending = self.pending
        size = 0
        turns = deque(pending.items())
        if left_out:
            turns = deque(each for each in turns if each[0] not in left_out)
        while turns and len(taken) < self.most and size < MOST_BYTES:
            caller, line = turns[0]
            waiting = line.popleft()
            if not line:
                turns.popleft()
                del pending[caller]
            elif len(turns) > 1:
                turns.rotate(-1)
            if waiting.answer.done():
                continue
            if self.clashes is not None and (clashes := tuple(self.clashes(waiting.write))):
                if not seen.isdisjoint(clashes):
                    left.append(waiting)
                    continue
                seen.update(clashes)
            taken.append(waiting)
            size += waiting.size
        if left or len(pending) > 1:
            self._put_back(turns, left)
        taken.sort(key=_by_key)
        return taken

    def _put_back(self, turns: "Iterable[tuple[str, deque[Waiting[W, R]]]]", left: "list[Waiting[W, R]]") -> None:
        """Put back what clashes, and have those be the first next time whose turn has not come."""
        for caller, line in turns:
            del self.pending[caller]
            self.pending[caller] = line
        for waiting in reversed(left):
            self.pending.setdefault(waiting.caller, deque()).appendleft(waiting)


@dataclass(eq=False)
class RoleQueues(Generic[W, R]):
    """Queues of one kind, one for each role: PostgreSQL judges a statement by the role that runs it."""

    make: Callable[[Caller], BatchQueue[W, R]]
    queues: dict[str | None, BatchQueue[W, R]] = field(default_factory=dict)

    def of(self, caller: Caller) -> BatchQueue[W, R]:
        queue = self.queues.get(caller.role)
        if queue is None:
            if len(self.queues) >= MOST_ROLES:
                self.queues.clear()  # those go on until nothing waits in them
            asking = EVERYBODY if caller.role is None else Caller("", role=caller.role)
            queue = self.queues[caller.role] = self.make(asking)
        return queue


# Whose the connections of batches are: no caller ever has all of them, nor all that one queue may have at once.
#
# A batch takes a place of one of those whom it is for: of those who may have one more, whoever has the most. The
# writes of those who may not are left out of it, and wait for their own: so nobody's slow writes are in all that is in
# flight, and nobody waits for the places of another one.

MOST_AT_ONCE: Final = 3
"""How many batches of a queue may be in flight when they are slow."""
MOST_OF_CALLER: Final = most_of(MOST_AT_ONCE)
"""How many of these may have a place of one caller."""


@dataclass(slots=True)
class CallerPlace:
    """What one that sends batches of a queue has taken."""

    caller: str


class Places:
    """`most` connections of each caller. What the gateway asks for itself has no bound here."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._of: dict[str, int] = {}
        self._full: set[str] = set()

    def take(self, queue: BatchQueue[Any, Any]) -> CallerPlace | None:
        """Take a place for batches of a queue. None: nobody who waits in it may have one more."""
        caller = self._choose(queue)
        if caller is None:
            return None
        self._add(queue, caller)
        return CallerPlace(caller)

    def move(self, queue: BatchQueue[Any, Any], place: CallerPlace) -> bool:
        """Have it be of one whom the next batch is for; False: nobody who waits may have one more."""
        if len(queue.pending) == 1 and place.caller in queue.pending:
            return True
        self.give_back(queue, place)
        caller = self._choose(queue)
        if caller is not None:
            place.caller = caller
        self._add(queue, place.caller)
        return caller is not None

    def give_back(self, queue: BatchQueue[Any, Any], place: CallerPlace) -> None:
        caller = place.caller
        queue.places.remove(caller)
        self._full.discard(caller)
        if left := self._of[caller] - 1:
            self._of[caller] = left
        else:
            del self._of[caller]

    def left_out(self, queue: BatchQueue[Any, Any], place: CallerPlace) -> Collection[str]:
        """Say whose writes the next batch leaves out."""
        if not self._full and len(queue.places) < MOST_AT_ONCE:
            return ()
        return {each for each in queue.pending if each != place.caller and not self._may_have_more(queue, each)}

    def is_wanted(self, place: CallerPlace) -> bool:
        """Whether whose it is has as many as one may have: if another queue waits for one, this one would do."""
        return place.caller in self._full

    def waits_for_one(self, queue: BatchQueue[Any, Any]) -> bool:
        """Whether somebody who waits in a queue has as many as one may have."""
        return not self._full.isdisjoint(queue.pending)

    def _choose(self, queue: BatchQueue[Any, Any]) -> str | None:
        if not self._of:
            return next(iter(queue.pending), None)
        chosen, most = None, -1
        for caller in queue.pending:
            has = self._of.get(caller, 0)
            if has > most and self._may_have_more(queue, caller):
                chosen, most = caller, has
        return chosen

    def _may_have_more(self, queue: BatchQueue[Any, Any], caller: str) -> bool:
        places = queue.places
        if not places:
            return caller not in self._full
        return caller == UNKNOWN or (caller not in self._full and places.count(caller) < MOST_OF_CALLER)

    def _add(self, queue: BatchQueue[Any, Any], caller: str) -> None:
        queue.places.append(caller)
        has = self._of[caller] = self._of.get(caller, 0) + 1
        if has >= self._most and caller != UNKNOWN:
            self._full.add(caller)


# The protocol: batches are sent, answered, and split where they fail.

TRIES: Final = 3
"""How often a write is carried before it goes alone."""
LOCK_WAITS: Final = frozenset({LOCK_NOT_AVAILABLE, "57014"})
"""SQLSTATEs of a wait that was given up."""
INSUFFICIENT_PRIVILEGE: Final = "42501"
SETUP_ERRORS: Final = frozenset({INSUFFICIENT_PRIVILEGE, "42883"})
"""SQLSTATEs of a role that lacks a privilege, or a schema that lacks a function: all batches of the queue will fail."""


class GroupCommit:
    """All queues of a gateway process, over the connections that are kept for them."""

    def __init__(
        self,
        database: Database,
        *,
        most_waiting: int = 1000,
        wait_at_most: float = 5.0,
        on_setup_error: Callable[[str], None] = lambda _reason: None,
        reads: bool = False,
        leases: bool = False,
        times: Times = TIMES,
    ) -> None:
        """`on_setup_error` is called now and then for batches that cannot work, though each of their writes may.
        `reads`: batches are of reads, on connections that are for reads, which wait for locks as long as others.
        `leases`: they are of grants and releases, on connections for leases, for which no write waits.
        """
        self._database, self._reads, self._leases = database, reads, leases
        self._unsent = "it was not read" if self._reads else "nothing was written"
        self._on_setup_error = on_setup_error
        self._times, self._clock = times.batches, times.clock
        self._reported = -math.inf
        self._wait_at_most = wait_at_most
        self._queues: set[BatchQueue[Any, Any]] = set()
        self._lingering: dict[BatchQueue[Any, Any], CallerPlace] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        # Whose turn it is to read is found when a connection is lent.
        self._places = Places(sys.maxsize if self._reads else database.most_batches_of_caller)
        self._parked: dict[BatchQueue[Any, Any], None] = {}
        """Those in which somebody waits for a place."""
        self._wanting = 0
        self._waiting = database.waiting if reads else waiting_quota(most_waiting)
        self._sweeper: Timer | None = None

    async def write(
        self, queue: BatchQueue[W, R], write: W, key: Key, size: int, *, counted: bool = True, whose: str | None = None
    ) -> R | Alone | Broken:
        """Have a write carried by the queue's next batch; never AGAIN. `whose`: of another one than asks.
        UnavailableError: it was not sent.
        """
        asking = ASKING.get() if whose is None else whose
        if counted and (full := self._waiting.take(asking)) is not None:
            raise UnavailableError(
                f"requests are being worked on, and no more taken in: there are {full}: {self._unsent}"
            )
        try:
            for _ in range(TRIES):
                answer = await self._queued(queue, write, key, size, asking)
                if answer is not AGAIN:
                    return answer
            return HELD
        finally:
            if counted:
                self._waiting.give_back(asking)

    @property
    def waiting(self) -> int:
        """How many writes are in queues or in flight, of those that are counted."""
        return self._waiting.count

    def _queued(
        self, queue: BatchQueue[W, R], write: W, key: Key, size: int, whose: str
    ) -> "asyncio.Future[R | Alone | Broken]":
        answer: asyncio.Future[R | Alone | Broken] = asyncio.get_running_loop().create_future()
        queue.add(Waiting(write, key, size, answer, self._clock.monotonic() + self._wait_at_most, whose))
        queue.wake()
        if not queue.running or self._is_slow(queue):
            self._send(queue)
        if self._sweeper is None:
            self._sweeper = self._clock.call_later(self._times.sweep_every, self._sweep)
        return answer

    def _is_slow(self, queue: BatchQueue[Any, Any]) -> bool:
        """Whether what is in flight has been for so long that more may be sent beside it."""
        if queue.running >= MOST_AT_ONCE or queue.is_part:
            return False
        return self._clock.monotonic() - queue.sent > self._times.slow

    def _send(self, queue: BatchQueue[Any, Any]) -> None:
        """Begin to send what waits, beside what is in flight, or when a place is free for it."""
        self._queues.add(queue)
        place = self._places.take(queue)
        if place is None:
            self._park(queue)
            return
        queue.running += 1
        queue.sent = self._clock.monotonic()
        self._start(self._drain(queue, place))

    def _park(self, queue: BatchQueue[Any, Any]) -> None:
        """Have what waits for a place go on when there is one. If it waits for those of the queue, these go on."""
        if self._places.waits_for_one(queue):
            self._parked[queue] = None
            for each, place in tuple(self._lingering.items()):
                if self._places.is_wanted(place):
                    each.wake()

    def _give_back(self, queue: BatchQueue[Any, Any], place: CallerPlace) -> None:
        """Give a place back. Those that wait for one are before this queue."""
        self._places.give_back(queue, place)
        if self._parked:
            parked, self._parked = self._parked, {}
            for each in parked:
                if each.pending and (not each.running or self._is_slow(each)):
                    self._send(each)

    async def close(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)
        if self._sweeper is not None:
            self._sweeper.cancel()

    def _start(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _drain(self, queue: BatchQueue[Any, Any], place: CallerPlace | None) -> None:
        """Send batches until nothing waits, or nobody who waits may have a place."""
        try:
            while place is not None:
                try:
                    await self._on_a_connection(queue, place)
                finally:
                    self._give_back(queue, place)
                place = self._places.take(queue) if queue.pending else None
        finally:
            queue.running -= 1
            if queue.pending:
                self._park(queue)
            elif not queue.running:
                self._queues.discard(queue)

    async def _on_a_connection(self, queue: BatchQueue[Any, Any], place: CallerPlace) -> None:
        """Send batches on one connection for as long as it serves and no other queue wants one."""
        batch: list[Waiting[Any, Any]] = []
        behind: Session | None = None
        wanting = 1
        self._wanting += 1  # those that have one give it back after a batch
        for each in tuple(self._lingering):
            each.wake()
        try:
            async with self._lend(queue) as connection:
                self._wanting -= 1
                wanting = 0
                behind = connection
                while (
                    (queue.pending or await self._linger(queue, place))
                    and not behind.is_closed()
                    and (self._reads or self._database.is_accepted(connection))
                ):
                    if not self._places.move(queue, place):
                        return
                    batch = queue.take(self._places.left_out(queue, place))
                    queue.sent = self._clock.monotonic()
                    if batch:
                        await _run_batch(queue, connection, behind, batch)
                    batch = []
                    if self._reads or queue.is_part or connection.code_ran or self._is_wanted(place):
                        return  # what users' code has set is undone before the next batch
        except Exception as error:  # noqa: BLE001 - those that wait get it
            self._failed(queue, batch or queue.take(), error, behind)
        finally:
            self._wanting -= wanting

    def _lend(self, queue: BatchQueue[Any, Any]) -> AbstractAsyncContextManager[Session]:
        if self._reads:
            return self._database.for_reads(caller=queue.caller, whose=self._whose_turn(queue), counted=False)
        return self._database.lease_connection() if self._leases else self._database.batch_connection(queue.caller)

    def _whose_turn(self, queue: BatchQueue[Any, Any]) -> str:
        """Find who has a connection for reads left, of those that wait first; if nobody has, whoever is first. Else a
        caller whose reads are slow would take those of all.
        """
        waiting = list(islice(queue.pending, queue.most))
        if len(waiting) > 1:
            return next((whose for whose in waiting if self._database.has_room_for_reads(whose)), waiting[0])
        return waiting[0] if waiting else UNKNOWN

    def _is_wanted(self, place: CallerPlace) -> bool:
        """Whether another queue wants a connection, or a place of this caller."""
        return bool(self._wanting or (self._parked and self._places.is_wanted(place)))

    async def _linger(self, queue: BatchQueue[Any, Any], place: CallerPlace) -> bool:
        """Wait a moment for the next write of a queue of a role, on one of its connections. Whether something came."""
        if queue.caller.role is None or queue.is_part or queue in self._lingering or self._is_wanted(place):
            return False
        queue.lingering = asyncio.get_running_loop().create_future()
        self._lingering[queue] = place
        timer = self._clock.call_later(self._times.linger, queue.wake)
        try:
            await queue.lingering
        finally:
            timer.cancel()
            del self._lingering[queue]
        return bool(queue.pending)

    def _failed(
        self,
        queue: BatchQueue[Any, Any],
        batch: "list[Waiting[Any, Any]]",
        error: Exception,
        behind: Session | None,
    ) -> None:
        # Out of memory, of space: where a connection was there, that is about one of its writes, too.
        refused = isinstance(error, RefusedError) or (isinstance(error, UnavailableError) and behind is not None)
        of_a_role = queue.caller.role is not None
        if (
            isinstance(error, RefusedError)
            and error.sqlstate in SETUP_ERRORS
            and not error.of_a_policy
            and not (of_a_role and _is_a_callers_lack(error))
        ):
            self._report(error)
        match error:
            case RefusedError() if of_a_role and error.lacks_privilege:
                _raise_to(batch, error)
            case RefusedError(sqlstate=state) if self._reads and state == LOCK_NOT_AVAILABLE:
                _raise_to(batch, error)  # a read waits for its table only: each of them would wait as long
            case RefusedError(constraint="draws_pkey"):
                _raise_to(batch, error)  # the sequence of tokens is behind: another try may only pass the fault by
            case _ if refused and self._reads:
                _set_answers(batch, ALONE)
            case _ if refused and len(batch) > 1:
                middle = len(batch) // 2
                deadline = self._clock.monotonic() + self._wait_at_most
                for half in (batch[:middle], batch[middle:]):
                    self._send(queue.part(half, deadline))
            case RefusedError(sqlstate=state) if state in LOCK_WAITS:
                _set_answers(batch, HELD)
            case _ if refused:
                _set_answers(batch, ALONE)
            case OutcomeUnknownError() if behind is not None:
                _set_answers(batch, Broken(error, behind))
            case _:
                _raise_to(batch, error)

    def _report(self, error: RefusedError) -> None:
        now = self._clock.monotonic()
        if now - self._reported >= self._times.report_every:
            self._reported = now
            self._on_setup_error(str(error))

    def _sweep(self) -> None:
        """Take out what has waited too long."""
        now = self._clock.monotonic()
        for queue in tuple(self._queues):
            if queue.pending and (not queue.running or self._is_slow(queue)):
                self._send(queue)
            for late in queue.late(now):
                if not late.answer.done():
                    error = f"the request was not sent within {self._wait_at_most:g} s: {self._unsent}"
                    late.answer.set_exception(UnavailableError(error))
            if not queue.running and not queue.pending:
                self._queues.discard(queue)
        self._sweeper = self._clock.call_later(self._times.sweep_every, self._sweep) if self._queues else None


async def _run_batch(
    queue: BatchQueue[Any, Any], connection: Session, behind: Session, batch: "list[Waiting[Any, Any]]"
) -> None:
    answers = await queue.run(connection, [waiting.write for waiting in batch])
    behind.require_replicated()
    for waiting, answer in zip(batch, answers, strict=True):
        if not waiting.answer.done():
            waiting.answer.set_result(answer)


def _is_a_callers_lack(error: RefusedError) -> bool:
    """Whether a role lacks what its grants would have to give it, and not the gateway what `migrate` grants it."""
    return error.sqlstate == INSUFFICIENT_PRIVILEGE and not error.of_the_gateway


def _raise_to(batch: "list[Waiting[Any, Any]]", error: Exception) -> None:
    for waiting in batch:
        if not waiting.answer.done():
            waiting.answer.set_exception(error)


def _set_answers(batch: "list[Waiting[Any, Any]]", answer: Alone | Broken) -> None:
    for waiting in batch:
        if not waiting.answer.done():
            waiting.answer.set_result(answer)


# Leases of the built-in source, in batches.


class BatchedLocks(PostgresLocks):
    """The built-in source, where grants of one lock each without claims share transactions, and so do releases. No
    batch waits for what another transaction has locked: whom that concerns is answered by a transaction of its own.
    """

    def __init__(
        self, database: Database, queue: Queue, limits: LeaseLimits, grants: GroupCommit, releases: GroupCommit
    ) -> None:
        """Each has batches of its own, so that no release is refused because very many wait for grants."""
        super().__init__(database, queue, limits)
        self._groups = self._of_grants, self._of_releases = grants, releases
        self._grants = BatchQueue[LockRequest, Acquired | Withdrawn](_grant_each)
        self._releases = BatchQueue[Release, bool](self._release_each)

    async def _try_with_others(self, wanted: LockRequest) -> Acquired | None:
        try:
            taken = await self._of_grants.write(self._grants, wanted, wanted.names, 0)
        except UnavailableError:
            if wanted.wait_ms:
                return None  # it may wait
            raise
        if isinstance(taken, Withdrawn):
            raise taken
        if isinstance(taken, Broken) and not wanted.wait_ms:
            with _as_unknown(taken):
                return await self._take_or_queue(wanted, None, None, 0)
        return None if isinstance(taken, Alone | Broken) else taken

    async def release(self, lease_id: int, secret_hash: bytes) -> bool:
        released = await self._of_releases.write(self._releases, Release(lease_id, secret_hash), (), 0)
        if not isinstance(released, Alone | Broken):
            return released
        with _as_unknown(released):
            return await super().release(lease_id, secret_hash)

    async def close(self) -> None:
        await super().close()
        for group in self._groups:
            await group.close()

    async def _release_each(self, connection: Session, batch: Sequence[Release]) -> list[bool | Alone]:
        released = await release_each(connection, batch, self.queue.gateway)
        for _busy, woken in released:  # here, and not by who asked: that one may have gone
            self.queue.wake(woken or ())
        return [HELD if busy else woken is not None for busy, woken in released]


@contextmanager
def _as_unknown(before: Alone | Broken) -> Iterator[None]:
    """What may have landed in a batch that broke stays unknown where PostgreSQL cannot be asked again (R15)."""
    try:
        yield
    except UnavailableError as error:
        if isinstance(before, Broken):
            raise before.error from error
        raise


async def _grant_each(connection: Session, batch: Sequence[LockRequest]) -> list[Acquired | Withdrawn | Alone]:
    return [HELD if taken is None else taken for taken in await try_each(connection, batch)]
