"""The built-in token source: locks, leases and tokens in the protected database itself (R9).

A grant and the claims that go with it are one transaction: from the moment the lock is granted its old holder is
fenced, before the new one's first write. Order and clock are the database's; see migrations/schema/leases.sql.
"""

import asyncio
import functools
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from contextvars import Context
from dataclasses import replace
from typing import Final, TypeVar
from uuid import UUID, uuid4

from fencepost.server.locks.leases import Claim, LeaseLimits, Leases, Overtaken
from fencepost.server.postgres import leases
from fencepost.server.postgres.connection import Session
from fencepost.server.postgres.database import Database, run_write
from fencepost.server.postgres.errors import (
    LOCK_NOT_AVAILABLE,
    OutcomeUnknownError,
    RefusedError,
    StorageError,
    UnavailableError,
)
from fencepost.server.postgres.leases import (
    Acquired,
    Granted,
    Held,
    LeaseRow,
    LockRequest,
    LockRow,
    LostLease,
    Withdrawal,
)
from fencepost.server.times import TIMES, Clock, Timer, Times

# Waiting for locks, across gateways: first come, first served, and no waiter is woken in vain.
#
# The queue itself is in the database: a waiter's ticket is drawn under the rows of its locks. This is one gateway's
# side.
#
# 1. A waiter tries; `fencepost.acquire` grants, or gives it a place. Then it sleeps, holding no connection.
# 2. A client that releases a lock, or leaves its queue, wakes the lock's first waiter, which tries again: by NOTIFY to
#    its gateway, or directly when it waits at the same one.
# 3. There is no notification when a lease expires, when a notification is lost, or when the gateway of the first waiter
#    dies. So each gateway that has waiters beats once a second: the statement keeps its waiters counting, and returns
#    those that are first, with the time until their lock expires, and those whose place got lost. A gateway silent for
#    three seconds is passed over.
# 4. A waiter that goes away leaves. Where PostgreSQL could not be reached for that, or an answer got lost and
#    PostgreSQL may still be giving it a place, the next beats send it again.

T = TypeVar("T")

LEAVING_REPEATS: Final = 30
"""Beats that repeat who has left where that is in doubt: longer than a statement may run."""


class Visit:
    """One request that waits. `woken` is set when it is to try again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.id = uuid4()
        self.woken = asyncio.Event()
        self.in_doubt = False
        """Whether an answer got lost, so that PostgreSQL may still be at work on an earlier try."""
        self.has_left = False
        """Whether its last try took it out of the queue."""
        self._timer: Timer | None = None

    def wake_in(self, seconds: float) -> None:
        """Wake it later, unless something else does before."""
        self.cancel_timer()
        self._timer = self._clock.call_later(seconds, self.woken.set)

    def cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def wait(self, seconds: float, gone: "asyncio.Future[None]") -> None:
        """Sleep until woken, until the caller has gone, or for this long."""
        waking = asyncio.ensure_future(self.woken.wait())
        timer = self._clock.call_later(seconds, self.woken.set)
        try:
            await asyncio.wait((waking, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            waking.cancel()
        self.woken.clear()


class Queue:
    """The waiters of one gateway process."""

    def __init__(
        self,
        database: Database,
        failed: Callable[[str], None],
        times: Times = TIMES,
    ) -> None:
        self.times = times
        self.gateway = uuid4()
        self.channel = f"fencepost_{self.gateway.hex}"
        self._database = database
        self._failed = failed
        self._visits: dict[UUID, Visit] = {}
        self._beating: asyncio.Task[None] | None = None
        self._registered = False
        self._left: dict[UUID, int] = {}
        self._departing: set[UUID] = set()
        self._strays: set[UUID] = set()
        self._leaving = asyncio.Lock()
        self._last = 0.0
        self.stopping = False

    @property
    def has_waiters(self) -> bool:
        """Whether anybody waits for a lock at this gateway, or the gateway stops, so that nobody may."""
        return bool(self._visits) or self.stopping

    async def arrive(self) -> Visit:
        """Let a request in. UnavailableError when the database cannot be reached."""
        if self.stopping:
            raise UnavailableError("this gateway is stopping")
        visit = Visit(self.times.clock)
        self._visits[visit.id] = visit
        try:
            if not self._registered:  # before the first ticket, or it would not count
                await self._beat()
        except BaseException:
            del self._visits[visit.id]
            raise
        if self._beating is None:
            # In no request's name: whose waiters have all connections that one may have would keep all from beating.
            self._beating = asyncio.create_task(self._beat_on(), context=Context())
        return visit

    async def depart(self, visit: Visit, *, queued: bool, keep: bool) -> None:
        """See a request off. `queued`: it may have a place in the queue, which goes, or is kept for a while."""
        visit.cancel_timer()
        del self._visits[visit.id]
        self._last = self.times.clock.monotonic()
        if visit.in_doubt and not keep:
            self._left[visit.id] = LEAVING_REPEATS
        if queued:
            self._departing.add(visit.id)
            try:
                await self._leave(visit.id, int(self.times.queue.keep_place * 1000) if keep else 0)
            except StorageError as error:
                self._left[visit.id] = LEAVING_REPEATS
                self._failed(f"a waiter could not leave its queue; the next heartbeat repeats it: {error}")
            finally:
                self._departing.discard(visit.id)

    async def _leave(self, visit: UUID, keep_ms: int) -> None:
        # One at a time: when a thousand leave at once, renewals find a connection all the same.
        async with self._leaving:
            await self._write(lambda connection: leases.leave(connection, visit, keep_ms))

    async def _write(self, statement: Callable[[Session], Awaitable[T]]) -> T:
        return await run_write(self._database.for_leases, statement, repeatable=True)

    def wake(self, visits: Iterable[UUID]) -> None:
        for visit_id in visits:
            if (visit := self._visits.get(visit_id)) is not None:
                visit.woken.set()

    def on_notify(self, payload: str) -> None:
        # Every role may NOTIFY any text.
        with suppress(ValueError):
            self.wake([UUID(payload)])

    def on_listening(self) -> None:
        """Notifications may have been missed: all waiters look."""
        for visit in self._visits.values():
            visit.woken.set()

    def stop(self) -> None:
        """Send all waiters away, with their places kept for another gateway; take no more."""
        self.stopping = True
        for visit in self._visits.values():
            visit.woken.set()

    async def close(self) -> None:
        """End the heartbeat, and take what is left of this gateway out of the queues."""
        self.stopping = True
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
        if self._registered:
            try:
                await self._write(lambda connection: leases.retire(connection, self.gateway))
            except StorageError as error:
                self._failed(f"this gateway's waiters could not be taken out of their queues: {error}")

    async def _beat(self) -> None:
        left = list(self._left)
        due = await self._write(lambda connection: leases.beat(connection, self.gateway, list(self._visits), left))
        self._registered = True
        for visit_id in left:
            self._left[visit_id] -= 1
            if not self._left[visit_id]:
                del self._left[visit_id]
        # A crash of PostgreSQL may bring the places of those back that had left.
        strays = {visit_id for visit_id, _ in due} - self._visits.keys() - self._departing
        for visit_id in strays & self._strays:  # twice: the statement may be older than the departure
            self._left.setdefault(visit_id, 1)
        self._strays = strays
        for visit_id, due_ms in due:
            if (visit := self._visits.get(visit_id)) is not None:
                if due_ms > 0:
                    visit.wake_in(due_ms / 1000)
                else:
                    visit.woken.set()

    def _beats_on(self) -> bool:
        return self.times.clock.monotonic() < self._last + self.times.queue.beats_on_for

    async def _beat_on(self) -> None:
        try:
            while self._visits or self._left or self._beats_on():
                await self.times.clock.sleep(self.times.queue.beat_every)
                try:
                    await self._beat()
                except StorageError as error:
                    self._failed(f"waiters cannot be kept in their queues: {error}")
        finally:
            self._registered = False
            self._beating = None


SWEPT_AT_ONCE: Final = 200
"""How many idle locks `fencepost.sweep` removes at most; after so many there may be more."""
TRY_REPEATS: Final = 3
"""How often a try whose connection broke is repeated: under its secret, a grant that landed is found again."""
BUSY: Final = frozenset({LOCK_NOT_AVAILABLE, "57014"})
"""A lock or time limit: another client's claim waits for a row, for example. A waiting request waits on."""
OVERTAKEN: Final = 10
"""How often a grant is tried anew whose claim a younger token got ahead of."""


class _Busy(Exception):  # noqa: N818 - it is no error; the waiter tries again
    """Another grant is under way for a lock, and takes its time."""


class PostgresLocks(Leases):
    """Acquires, renews, mints, releases. Every call is one statement, or with claims one transaction."""

    def __init__(self, database: Database, queue: Queue, limits: LeaseLimits | None = None) -> None:
        self._database = database
        self._withdrawing = asyncio.Lock()
        self.queue = queue
        self.limits = limits or LeaseLimits()

    async def close(self) -> None:
        """End what runs beside requests."""
        await self.queue.close()

    async def take(self, wanted: LockRequest, claim: Claim | None, gone: "asyncio.Future[None]") -> Acquired:
        """Try, and wait in the queue for as long as is wanted, or until `gone` is done.

        `queued` at the end means that the time is up, and the place in the queue kept for a moment. Raises
        UnavailableError when the database could not be asked, OutcomeUnknownError when its last answer got lost (the
        same secret finds out), Overtaken, Withdrawn, and what `claim` raises.
        """
        arrived = self.queue.times.clock.monotonic()
        simple = len(wanted.names) == 1 and not (wanted.claims or wanted.writes)
        # Who would wait where others wait already most likely must, and asks for that at once.
        if simple and not (wanted.wait_ms and self.queue.has_waiters):
            tried = await self._try_with_others(wanted)
            if tried is not None and not (wanted.wait_ms and isinstance(tried, Held)):
                return tried
        if wanted.wait_ms == 0:
            return await self._take_or_queue(wanted, claim, None, 0)
        visit = await self.queue.arrive()
        queued = True  # as long as an answer may have got lost, we may be
        try:
            taken = await self._wait_in_queue(wanted, claim, visit, gone, arrived)
            queued = taken.verdict != "granted" and not visit.has_left
            return taken
        finally:
            keep = (wanted.keep_place or self.queue.stopping) and wanted.chosen and not gone.done()
            await asyncio.shield(self.queue.depart(visit, queued=queued, keep=keep))

    async def _try_with_others(self, _wanted: LockRequest) -> Acquired | None:
        """Try once for one lock without claims, in a transaction that others of the same moment share. None: nothing is
        decided, as it always is here; see BatchedLocks (gateway/group_commit.py).
        """
        return None

    async def _wait_in_queue(
        self, wanted: LockRequest, claim: Claim | None, visit: Visit, gone: "asyncio.Future[None]", arrived: float
    ) -> Acquired:
        clock, pause = self.queue.times.clock, self.queue.times.queue.pause
        deadline = arrived + wanted.wait_ms / 1000
        while True:
            began = clock.monotonic()
            visit.woken.clear()  # this try is what it was to be woken for
            left_ms = max(math.ceil((deadline - began) * 1000), 0)
            try:
                # Who keeps its place stays queued at the end; for others the last try also leaves.
                wait_ms = left_ms or int(wanted.keep_place)
                taken = await self._take_or_queue(wanted, claim, visit, wait_ms)
            except StorageError as error:
                if isinstance(error, RefusedError) and error.sqlstate not in BUSY:
                    raise
                if clock.monotonic() + pause > deadline or gone.done() or self.queue.stopping:
                    raise
                await visit.wait(pause, gone)
                if gone.done():
                    raise
                continue
            if isinstance(taken, Granted):
                return replace(taken, waited_ms=int((began - arrived) * 1000))
            if taken.verdict != "queued" or left_ms == 0 or gone.done():
                visit.has_left = taken.verdict == "held" and not taken.busy
                return taken
            if self.queue.stopping:
                raise UnavailableError("this gateway is stopping; the place in the queue is kept for a moment")
            if taken.first and taken.due_ms is not None:
                visit.wake_in(taken.due_ms / 1000)
            await visit.wait(deadline - clock.monotonic(), gone)
            if gone.done():  # no more tries: no client would get the grant, and a repeat may have taken the place over
                return taken

    async def _take_or_queue(
        self, wanted: LockRequest, claim: Claim | None, visit: Visit | None, wait_ms: int
    ) -> Acquired:
        async def take(connection: Session) -> Acquired:
            return await self._take_and_claim(connection, wanted, claim, visit, wait_ms)

        unknown = overtaken = 0
        while True:
            try:
                return await run_write(self._database.for_grants, take)
            except _Busy:
                return Held(verdict="queued" if wait_ms else "held", lock=wanted.names[0], due_ms=1000, busy=True)
            except OutcomeUnknownError:
                if visit is not None:
                    visit.in_doubt = True
                unknown += 1
                if unknown == TRY_REPEATS:
                    raise
            except Overtaken:
                overtaken += 1
                if overtaken == OVERTAKEN:
                    raise

    async def _take_and_claim(
        self, connection: Session, wanted: LockRequest, claim: Claim | None, visit: Visit | None, wait_ms: int
    ) -> Acquired:
        async def ask() -> Acquired:
            gateway, visit_id = (None, None) if visit is None else (self.queue.gateway, visit.id)
            try:
                return await leases.try_locks(connection, wanted, gateway, visit_id, wait_ms)
            except RefusedError as error:
                if error.sqlstate == LOCK_NOT_AVAILABLE:
                    raise _Busy from error
                raise

        if claim is None:
            return await ask()
        async with connection.transaction():
            taken = await ask()
            if not isinstance(taken, Granted) or taken.claim_token is None:
                return taken
            read, lease = self.queue.times.clock.monotonic(), taken.lease
            claims = await claim(connection, taken.claim_token, taken.verdict == "repeated")
            late_ms = self.queue.times.queue.late_share * wanted.ttl_ms
            if taken.verdict == "granted" and self._ms_since(read) > late_ms:
                read = self.queue.times.clock.monotonic()
                granted_at, expires_at = await leases.begin_now(connection, lease.lease_id)
                lease = replace(lease, granted_at=granted_at, expires_at=expires_at)
        lease = replace(lease, remaining_ms=max(lease.remaining_ms - self._ms_since(read), 0))
        return replace(taken, lease=lease, claims=claims)

    def _ms_since(self, moment: float) -> int:
        return math.ceil((self.queue.times.clock.monotonic() - moment) * 1000)

    async def renew(self, lease_id: int, secret_hash: bytes, ttl_ms: int | None) -> LeaseRow | None:
        return await self._ask(
            lambda c: leases.extend(c, lease_id, secret_hash, ttl_ms=-1 if ttl_ms is None else ttl_ms), writing=True
        )

    async def mint(self, lease_id: int, secret_hash: bytes, count: int) -> LeaseRow | None:
        return await self._ask(lambda c: leases.extend(c, lease_id, secret_hash, tokens=count), writing=True)

    async def release(self, lease_id: int, secret_hash: bytes) -> bool:
        gateway = self.queue.gateway
        woken = await self._ask(lambda c: leases.release(c, lease_id, secret_hash, gateway), writing=True)
        if woken is None:
            return False
        self.queue.wake(woken)
        return True

    async def withdraw(self, secret_hash: bytes) -> Withdrawal:
        """Let no lease of any source be granted under this secret any more."""
        return await self._withdrawing_one(lambda c: leases.withdraw(c, secret_hash))

    async def is_withdrawn(self, secret_hash: bytes) -> bool:
        return await self._withdrawing_one(lambda c: leases.is_withdrawn(c, secret_hash))

    async def _withdrawing_one(self, statement: Callable[[Session], Awaitable[T]]) -> T:
        # Not as grants, which may wait for rows; and one at a time, so that renewals find a connection all the same.
        async with self._withdrawing:
            return await self._ask(statement, writing=True)

    async def inspect(self, lease_id: int) -> LeaseRow | None:
        return await self._ask(lambda c: leases.inspect(c, lease_id))

    async def find_ended(self, lease_id: int) -> LostLease | None:
        return await self._ask(lambda c: leases.find_ended(c, lease_id))

    async def states(
        self,
        names: Sequence[str] | None,
        after: str | None,
        limit: int,
        patterns: Sequence[str] | None = None,
    ) -> list[LockRow]:
        return await self._ask(lambda c: leases.lock_states(c, names, after, limit, patterns))

    async def counts(self) -> tuple[int, int]:
        """Count (locks held, requests that wait), over all gateways."""
        return await self._ask(leases.lock_counts)

    async def sweep(self, keep_seconds: float) -> None:
        while await self._ask(leases.sweep, writing=True) >= SWEPT_AT_ONCE:
            pass
        position: int | None = 0
        while position is not None:
            position = await self._ask(functools.partial(_forget, keep_seconds, position), writing=True)

    async def _ask(self, statement: Callable[[Session], Awaitable[T]], *, writing: bool = False) -> T:
        if writing:
            return await run_write(self._database.for_leases, statement)
        # What others read, a list of all locks say, is no reason for renewals to wait.
        async with self._database.connection() as connection:
            return await statement(connection)


async def _forget(keep_seconds: float, after: int, connection: Session) -> int | None:
    return await leases.forget(connection, keep_seconds, after)
