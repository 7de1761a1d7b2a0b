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
6. A write that goes ALONE is decided from the start on a connection and in a transaction of its own (perform.py):
   it may wait, and its answer is the same as without group commit.
7. A connection that breaks under a batch leaves all of its writes unknown (R15): each gets BROKEN, with the connection
   whose backend has to be ended before it can be known what landed.

One caller has three quarters of the connections (callers.py). What has to wait for that waits in its queue, without a
task, until a place of one of those who wait in the queue is free.

A queue of a role has its connection act as that for as long as it has it: taken in one statement, given back in one
(roles.py). So that these are few, it keeps the connection for a moment after an answer, unless another queue
wants one: those that were answered write again, often. A privilege that the role lacks for the statement as such is the
answer to each write of the batch, at once.

Reads of single rows gather so, too (gateway/gathered_reads.py). Others want their connections: a batch gives its back.

Callers wait for a future each. One that goes away leaves its write in the batch and its neighbours alone. Where
`most_waiting` writes wait already, or three quarters of that of one caller, one more is refused at once (those that
are counted elsewhere are not `counted`: a batch's lines, reads), and one that waited for `wait_at_most` seconds is
taken out: what has not been sent has not happened, so both are 503.
"""

import asyncio
import math
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from fencepost.server.postgres.batches.batch_queue import AGAIN, ALONE, HELD, Alone, BatchQueue, Broken, Waiting
from fencepost.server.postgres.batches.callers import MOST_AT_ONCE, Place, Places
from fencepost.server.postgres.connections.connection import Connection, GatewayConnection, gateway_connection
from fencepost.server.postgres.connections.engine import Database
from fencepost.server.postgres.errors import OutcomeUnknownError, RefusedError, UnavailableError
from fencepost.server.quota import ASKING, waiting_quota
from fencepost.server.times import TIMES, Times

if TYPE_CHECKING:
    from fencepost.server.clock import Timer

W = TypeVar("W")
R = TypeVar("R")
Lend = Callable[[BatchQueue[Any, Any]], AbstractAsyncContextManager[Connection]]

TRIES: Final = 3
"""How often a write is carried before it goes alone."""
LOCKED: Final = "55P03"
LOCK_WAITS: Final = frozenset({LOCKED, "57014"})
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
        read_connection: Lend | None = None,
        times: Times = TIMES,
    ) -> None:
        """`on_setup_error` is called now and then for batches that cannot work, though each of their writes may.
        `read_connection`: batches are of reads, on connections that it lends, which wait for locks as long as others.
        """
        self._reads = read_connection is not None
        self._lend: Lend = read_connection or (lambda queue: database.batch_connection(queue.caller))
        self._accepts = database.is_accepted if read_connection is None else (lambda _connection: True)
        self._unsent = "it was not read" if self._reads else "nothing was written"
        self._on_setup_error = on_setup_error
        self._times, self._clock = times.batches, times.clock
        self._reported = -math.inf
        self._wait_at_most = wait_at_most
        self._queues: set[BatchQueue[Any, Any]] = set()
        self._lingering: dict[BatchQueue[Any, Any], Place] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        # Whose turn it is to read is found by those who lend (gathered_reads.py).
        self._places = Places(sys.maxsize if self._reads else database.most_batches_of_caller)
        self._parked: dict[BatchQueue[Any, Any], None] = {}
        """Those in which somebody waits for a place."""
        self._wanting = 0
        self._waiting = waiting_quota(most_waiting)
        self._sweeper: Timer | None = None

    async def write(
        self, queue: BatchQueue[W, R], write: W, *, counted: bool = True, whose: str | None = None
    ) -> R | Alone | Broken:
        """Have a write carried by the queue's next batch; never AGAIN. `whose`: of another one than asks.
        UnavailableError: it was not sent.
        """
        asking = ASKING.get() if whose is None else whose
        if counted and (full := self._waiting.take(asking)) is not None:
            raise UnavailableError(
                f"requests are being worked on, and no more taken in: there are {full}. Nothing was written"
            )
        try:
            for _ in range(TRIES):
                answer = await self._queued(queue, write, asking)
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

    def _queued(self, queue: BatchQueue[W, R], write: W, whose: str) -> "asyncio.Future[R | Alone | Broken]":
        answer: asyncio.Future[R | Alone | Broken] = asyncio.get_running_loop().create_future()
        queue.add(Waiting(write, answer, self._clock.monotonic() + self._wait_at_most, whose))
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

    def _give_back(self, queue: BatchQueue[Any, Any], place: Place) -> None:
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

    async def _drain(self, queue: BatchQueue[Any, Any], place: Place | None) -> None:
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

    async def _on_a_connection(self, queue: BatchQueue[Any, Any], place: Place) -> None:
        """Send batches on one connection for as long as it serves and no other queue wants one."""
        batch: list[Waiting[Any, Any]] = []
        behind: GatewayConnection | None = None
        wanting = 1
        self._wanting += 1  # those that have one give it back after a batch
        for each in tuple(self._lingering):
            each.wake()
        try:
            async with self._lend(queue) as connection:
                self._wanting -= 1
                wanting = 0
                behind = gateway_connection(connection)
                while (
                    (queue.pending or await self._linger(queue, place))
                    and not behind.is_closed()
                    and self._accepts(connection)
                ):
                    if not self._places.move(queue, place):
                        return
                    batch = queue.take(self._places.left_out(queue, place))
                    queue.sent = self._clock.monotonic()
                    if batch:
                        await _run_batch(queue, connection, behind, batch)
                    batch = []
                    if self._reads or queue.is_part or self._is_wanted(place):
                        return
        except Exception as error:  # noqa: BLE001 - those that wait get it
            self._failed(queue, batch or queue.take(), error, behind)
        finally:
            self._wanting -= wanting

    def _is_wanted(self, place: Place) -> bool:
        """Whether another queue wants a connection, or a place of this caller."""
        return bool(self._wanting or (self._parked and self._places.is_wanted(place)))

    async def _linger(self, queue: BatchQueue[Any, Any], place: Place) -> bool:
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
        behind: GatewayConnection | None,
    ) -> None:
        # Out of memory, of space: where a connection was there, that is about one of its writes, too.
        refused = isinstance(error, RefusedError) or (isinstance(error, UnavailableError) and behind is not None)
        of_a_role = queue.caller.role is not None
        if (
            isinstance(error, RefusedError)
            and error.sqlstate in SETUP_ERRORS
            and not (of_a_role and _is_a_callers_lack(error))
        ):
            self._report(error)
        match error:
            case RefusedError() if of_a_role and error.lacks_privilege:
                _raise_to(batch, error)
            case RefusedError(sqlstate=state) if self._reads and state == LOCKED:
                _raise_to(batch, error)  # a read waits for its table only: each of them would wait as long
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
    queue: BatchQueue[Any, Any], connection: Connection, behind: GatewayConnection, batch: "list[Waiting[Any, Any]]"
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
