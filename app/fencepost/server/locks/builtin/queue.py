"""Waiting for locks, across gateways: first come, first served, and no waiter is woken in vain.

The queue itself is in the database: a waiter's ticket is drawn under the rows of its locks. This is one gateway's side.

1. A waiter tries; `fencepost.acquire` grants, or gives it a place. Then it sleeps, holding no connection.
2. A client that releases a lock, or leaves its queue, wakes the lock's first waiter, which tries again: by NOTIFY to
   its gateway, or directly when it waits at the same one.
3. There is no notification when a lease expires, when a notification is lost, or when the gateway of the first waiter
   dies. So each gateway that has waiters beats once a second: the statement keeps its waiters counting, and returns
   those that are first, with the time until their lock expires, and those whose place got lost. A gateway silent for
   three seconds is passed over.
4. A waiter that goes away leaves. Where PostgreSQL could not be reached for that, or an answer got lost and PostgreSQL
   may still be giving it a place, the next beats send it again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Final, TypeVar
from uuid import UUID, uuid4

from fencepost.server.clock import Clock, Timer
from fencepost.server.postgres.connections.connection import Connection
from fencepost.server.postgres.connections.engine import Database
from fencepost.server.postgres.connections.transactions import run_write
from fencepost.server.postgres.errors import StorageError, UnavailableError
from fencepost.server.postgres.leases import builtin as leases
from fencepost.server.times import TIMES, Times

T = TypeVar("T")

REPEATS: Final = 30
"""Beats that repeat who has left where that is in doubt: longer than a statement may run."""


class Visit:
    """One request that waits. `woken` is set when it is to try again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.id = uuid4()
        self.woken = asyncio.Event()
        self.in_doubt = False
        """Whether an answer got lost, so that PostgreSQL may still be at work on an earlier try."""
        self._timer: Timer | None = None

    def wake_in(self, seconds: float) -> None:
        """Wake it later, unless something else does before."""
        self.cancel_timer()
        self._timer = self._clock.call_later(seconds, self.woken.set)

    def cancel_timer(self) -> None:
        """Forget about waking it later."""
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
        self._leaving = asyncio.Lock()
        self._last = 0.0
        self.stopping = False

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
            self._beating = asyncio.create_task(self._beat_on())
        return visit

    async def depart(self, visit: Visit, *, queued: bool, keep: bool) -> None:
        """See a request off. `queued`: it may have a place in the queue, which goes, or is kept for a while."""
        visit.cancel_timer()
        del self._visits[visit.id]
        self._last = self.times.clock.monotonic()
        if visit.in_doubt and not keep:
            self._left[visit.id] = REPEATS
        if queued:
            try:
                await self._leave(visit.id, int(self.times.queue.keep_place * 1000) if keep else 0)
            except StorageError as error:
                self._left[visit.id] = REPEATS
                self._failed(f"a waiter could not leave its queue; the next heartbeat repeats it: {error}")

    async def _leave(self, visit: UUID, keep_ms: int) -> None:
        # One at a time: when a thousand leave at once, renewals find a connection all the same.
        async with self._leaving:
            await self._write(lambda connection: leases.leave(connection, visit, keep_ms))

    async def _write(self, statement: Callable[[Connection], Awaitable[T]]) -> T:
        return await run_write(self._database.for_leases, statement, repeatable=True)

    def wake(self, visits: Iterable[UUID]) -> None:
        """Let these try again, as far as they still wait here."""
        for visit_id in visits:
            if (visit := self._visits.get(visit_id)) is not None:
                visit.woken.set()

    def on_notify(self, payload: str) -> None:
        """Wake the waiter that a release elsewhere has named."""
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
