"""From the moment at which a consumer joins the others of its queue to the one at which it leaves them.

1. The generation of the queue is read, and then `take` gives messages. Their log is looked at after that, and before
   anything of them is written: so what was taken came from the log that was recorded (R12). Then they go into the lanes
   of their resources (lanes.py).
2. A bounded number of messages is in hand: taken, and not said to be done (in_hand.py).
3. What cannot be decided now is tried again after a pause; if that takes long, it is reported. Where the reason
   concerns everything (the database is away, the source is quarantined), nothing more is taken, and all lanes wait
   until the log has been looked at again. Meanwhile `take` is called with 0, so that this member stays one.
4. A generation that was raised ends the session: what is in hand may be of another log, and is left out. The next
   session takes from where the log's consumers are.
5. What is decided is said to be done, many at once (finishing.py). After a crash before that they come again
   (deciding.py).
6. Partitions that are lost: what has not begun of them is left out. What has begun may still land: then the next
   member's write is refused or replayed, or this one is.
7. At the end nothing more is taken. What has begun is decided and said to be done, the rest is left to others.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Protocol

from fencepost.server.consuming.applying import Standing
from fencepost.server.consuming.deciding import Settled
from fencepost.server.consuming.finishing import Finisher
from fencepost.server.consuming.in_hand import InHand
from fencepost.server.consuming.lanes import Lanes
from fencepost.server.consuming.ledger import Checked, Ledger
from fencepost.server.consuming.outcome import Later
from fencepost.server.consuming.progress import Progress
from fencepost.server.consuming.reports import Reports
from fencepost.server.consuming.waiting import Backoff, Pause, wait_for
from fencepost.server.fence.problems import Problem
from fencepost.server.postgres.errors import StorageError
from fencepost.server.queues.log import Consumer, Log, LogChangedError, LogError, Received
from fencepost.server.times import ConsumingTimes


class Decides(Protocol):
    """Decides messages (deciding.py)."""

    stopped: dict[str, str]

    def decide(
        self, received: Received, standing: Standing, faults: int, too_slow: Problem | None
    ) -> Awaitable[Settled | Later]:
        """Decide a message, as far as that is possible now."""
        ...


@dataclass(frozen=True, slots=True)
class ConsumerLimits:
    """How much is in hand at most, and how many seconds the end may take."""

    messages: int = 1000
    bytes: int = 32 * 2**20
    drain: float = 20.0


@dataclass(frozen=True, slots=True)
class SessionParts:
    """What a session works with."""

    log: Log
    member: str
    ledger: Ledger
    decider: Decides
    reports: Reports
    limits: ConsumerLimits
    pause: Pause
    times: ConsumingTimes
    progress: Progress = field(default_factory=Progress)


class Session:
    """One of them. `over` ends it."""

    def __init__(self, parts: SessionParts) -> None:
        self._parts = parts
        self._hand = InHand(parts.limits.messages, parts.limits.bytes)
        self._lanes = Lanes(self._decide)
        self._standing: Standing | None = None
        self._unchecked: list[Received] = []
        self.over = asyncio.Event()
        self.left_because: str | None = None
        """Why this process is to take nothing any more; None: it may."""
        self._going_on = asyncio.Event()
        self._going_on.set()
        self._room_made = asyncio.Event()
        self._times = parts.times
        self._backoff = Backoff(parts.times)
        self._look_at = 0.0
        self._decided = 0
        """How many messages were decided."""
        self._doubtful = False
        """Whether nothing was decided since everything had to wait: then nothing more is taken."""
        self._looking: asyncio.Task[Checked | Later] | None = None
        self.consumer: Consumer = parts.log.consumer(parts.member, self._lost)
        self._finisher = Finisher(self.consumer, self._release, parts.reports, parts.times)

    async def run(self) -> None:
        """Consume until it is over."""
        finishing = asyncio.create_task(self._finisher.run())
        try:
            while not self.over.is_set():
                await self._step()
        finally:
            await self._end(finishing)

    async def _step(self) -> None:
        most = 0 if self._must_look or self._doubtful else self._hand.room()
        try:
            taken = await self.consumer.take(most, self._times.take_for if most else 0.0)
        except LogError as error:
            await self._log_trouble(error)
            return
        if taken:
            self._hand.add(taken)
            self._parts.progress.taken(taken)
            self._unchecked += taken
        if self._must_look:
            await self._look()
        elif most == 0:
            await wait_for(self._room_made, self._times.alive_every)
            self._room_made.clear()
        elif self._parts.pause.reason is not None:
            self._sure()

    @property
    def _must_look(self) -> bool:
        """Whether nothing can be taken before the log has been looked at."""
        return bool(self._unchecked) or self._standing is None or not self._going_on.is_set()

    @property
    def _generation(self) -> int | None:
        return self._standing.generation if self._standing is not None else None

    async def _log_trouble(self, error: LogError) -> None:
        """The log gives nothing. What is in hand goes on, unless it may be of another log."""
        if isinstance(error, LogChangedError):
            with suppress(StorageError):  # then the log will say it again
                await self._parts.ledger.quarantine(str(error), self._generation)
            if self._going_on.is_set():  # it says so at each `take`, which must not put the look off each time
                self._wait_all(str(error))
            await self._look()
            return
        self._parts.pause.begin(str(error))
        await wait_for(self.over, self._backoff.next())

    # Looking at the log

    async def _look(self) -> None:
        """Look at the log, for a moment; what was taken goes into the lanes when it is the one that was recorded."""
        loop = asyncio.get_running_loop()
        if self._looking is None:
            early = self._look_at - loop.time()
            if early > 0:
                await wait_for(self.over, min(early, self._times.alive_every))
                return
            self._looking = loop.create_task(self._ask())
        await asyncio.wait([self._looking], timeout=self._times.alive_every)
        if not self._looking.done():
            return
        answer, self._looking = self._looking.result(), None
        if isinstance(answer, Later):
            self._wait_all(answer.reason)
            return
        if answer.quarantined is not None:
            self._wait_all(answer.quarantined)
            return
        self._go_on(answer)

    async def _ask(self) -> Checked | Later:
        parts = self._parts
        stopped = set(parts.decider.stopped)
        generation = self._generation
        try:
            try:
                checked = await parts.ledger.check(parts.log.state, generation)
            except LogChangedError as error:
                await parts.ledger.quarantine(str(error), generation)
                return Later(str(error))
        except (LogError, StorageError) as error:
            return Later(str(error))
        # A resource that was stopped here meanwhile may not be in the answer.
        meanwhile = {name: at for name, at in parts.decider.stopped.items() if name not in stopped}
        return replace(checked, stopped={**checked.stopped, **meanwhile})

    def _wait_all(self, reason: str) -> None:
        """Nothing can be decided: all messages wait until the log has been looked at again. That is no more done after
        the end of the session: what is not decided by then is left out.
        """
        if self.over.is_set():
            return
        if self._going_on.is_set() or self._looking is None:
            self._look_at = asyncio.get_running_loop().time() + self._backoff.next()
        self._going_on.clear()
        self._doubtful = True
        self._room_made.set()
        self._parts.pause.begin(reason)

    def _go_on(self, checked: Checked) -> None:
        standing = Standing(checked.generation, checked.partitions)
        if self._standing is not None and self._standing != standing:
            self.over.set()
            return
        if self._standing is None:
            self.consumer.begin(standing.generation)
        self._standing = standing
        self._parts.progress.generation = standing.generation
        self._parts.decider.stopped = dict(checked.stopped)
        self._going_on.set()
        if not self._lanes:
            self._sure()
        unchecked, self._unchecked = self._unchecked, []
        for received in unchecked:
            self._lanes.add(received)

    def _sure(self) -> None:
        """Something was decided, or nothing is there to be decided."""
        self._doubtful = False
        self._backoff.reset()
        self._parts.pause.end()

    # Deciding

    async def _decide(self, received: Received) -> None:
        """Have a message decided, however long it takes; when the session is over, it is left out instead."""
        parts, backoff, faults, reported = self._parts, Backoff(self._times), 0, False
        too_slow: Problem | None = None
        began = asyncio.get_running_loop().time()
        while True:
            await self._going_on.wait()
            if self.over.is_set() or self._standing is None:
                self._release([received])
                return
            try:
                others = self._decided
                settled = await parts.decider.decide(received, self._standing, faults, too_slow)
            except Exception as error:  # noqa: BLE001 - one message must not end the others' consumer
                faults += 1
                parts.reports.fault(error)
                settled = Later("the gateway failed")
            if isinstance(settled, Settled):
                break
            if settled.by_others:
                self.left_because = settled.reason
                self.over.set()
                continue
            # Where nothing else is decided either, it is PostgreSQL that is slow.
            if settled.too_slow is not None and self._decided > others:
                faults, too_slow = faults + 1, settled.too_slow
            if settled.everything:
                self._wait_all(settled.reason)
                continue
            if asyncio.get_running_loop().time() - began >= self._times.blocked_after:
                parts.progress.blocked(received, settled.reason, began)
                if not reported:
                    parts.reports.blocked(received, settled.reason)
                reported = True
            await wait_for(self.over, backoff.next())
        self._settled(received, settled)

    def _settled(self, received: Received, settled: Settled) -> None:
        parts = self._parts
        self._decided += 1
        if self._doubtful:
            self._sure()
        parts.progress.decided(received, settled.state, before=settled.before)
        if settled.reason:
            parts.reports.dead_letter(received, settled.reason)
        self._finisher.add(received)

    def _release(self, received: Sequence[Received]) -> None:
        """These are in hand no more: the log has noted that they are done, or they are left to others."""
        self._hand.remove(received)
        self._parts.progress.done(received)
        self._room_made.set()

    def _lost(self, partitions: frozenset[int]) -> None:
        unchecked = [each for each in self._unchecked if each.position.partition in partitions]
        self._unchecked = [each for each in self._unchecked if each.position.partition not in partitions]
        self._release([*unchecked, *self._lanes.leave_out(partitions)])
        self._parts.progress.lost(partitions)

    async def _end(self, finishing: asyncio.Task[None]) -> None:
        """Decide what has begun, say what is done, and leave."""
        self.over.set()
        self._going_on.set()
        self._release([*self._unchecked, *self._lanes.leave_out()])
        self._unchecked = []
        await self._lanes.end(self._parts.limits.drain)
        for task in (finishing, self._looking):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        try:
            with suppress(LogError):
                await self._finisher.say()
        finally:
            await self.consumer.close()
