"""A consumer of a queue: it takes messages, keeps each resource's in order, has them decided, and says what is done."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from fencepost.server.consuming.applying import Checked, Later, Ledger, QueueNow
from fencepost.server.consuming.deciding import Decider, Progress, Reports, Settled, noted_reason
from fencepost.server.postgres.errors import StorageError
from fencepost.server.queues.log import Consumer, Log, LogChangedError, LogError, Received
from fencepost.server.times import TIMES, ConsumingTimes

if TYPE_CHECKING:
    from fencepost.server.fence.problems import Problem

# What a consumer waits for: before it tries again what could not be done, and while nothing goes on.


@dataclass(slots=True)
class Backoff:
    """Twice as long each time, until something succeeds."""

    times: ConsumingTimes
    seconds: float = 0.0

    def next(self) -> float:
        """Give the next pause, in seconds."""
        self.seconds = min(max(self.seconds * 2, self.times.pause), self.times.longest_pause)
        return self.seconds

    def reset(self) -> None:
        self.seconds = 0.0


@dataclass(slots=True)
class Pause:
    """Why nothing is decided, or nothing is taken, for now; None: it goes on."""

    reports: Reports
    reason: str | None = None

    def begin(self, reason: str) -> None:
        if self.reason is None:
            self.reports.paused(reason)
        self.reason = reason

    def end(self) -> None:
        if self.reason is not None:
            self.reason = None
            self.reports.resumed()


async def wait_for(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event, that long at most; whether it is set."""
    if event.is_set():
        return True
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


# How many messages a consumer has in hand: taken, and not said to be done.

_REFILLED_AT = 0.75
"""More are taken when no more than this part is in hand: few at a time would make small batches of writes."""


def size_of(received: Received) -> int:
    """Count about how many bytes a message has."""
    message = received.message
    return 200 + len(message.key) + len(message.value or b"") + sum(len(value) for _, value in message.headers)


class InHand:
    """Counts them, and says for how many there is room. Of bytes there may be more than `most_bytes` by what one `take`
    gives (TAKEN_BYTES).
    """

    def __init__(self, messages: int, most_bytes: int) -> None:
        self._most = messages
        self._most_bytes = most_bytes
        self.count = 0
        self.bytes = 0

    def add(self, received: Sequence[Received]) -> None:
        self.count += len(received)
        self.bytes += sum(size_of(each) for each in received)

    def remove(self, received: Sequence[Received]) -> None:
        self.count -= len(received)
        self.bytes -= sum(size_of(each) for each in received)

    def room(self) -> int:
        """Say how many to take now; 0: none yet."""
        if self.count > self._most * _REFILLED_AT or self.bytes > self._most_bytes * _REFILLED_AT:
            return 0
        return self._most - self.count


# Messages of one resource one after the other, those of different resources at once: a lane is a resource's messages,
# in the order in which they were taken, and the task that decides them.

Decide = Callable[[Received], Awaitable[None]]
"""Decides a message, however long it takes. Raises nothing."""


class KeyQueues:
    """The lanes of a consumer."""

    def __init__(self, decide: Decide) -> None:
        self._decide: Final = decide
        self._lanes: dict[bytes, deque[Received]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, received: Received) -> None:
        """Put a message at the end of its resource's lane."""
        key = received.message.key
        lane = self._lanes.get(key)
        if lane is not None:
            lane.append(received)
            return
        lane = self._lanes[key] = deque((received,))
        task = asyncio.get_running_loop().create_task(self._run(key, lane))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, key: bytes, lane: deque[Received]) -> None:
        try:
            while lane:
                await self._decide(lane[0])
                lane.popleft()
        finally:
            del self._lanes[key]

    def leave_out(self, partitions: frozenset[int] | None = None) -> list[Received]:
        """Take out the messages that have not begun: of these partitions, or all. Returns them."""
        left: list[Received] = []
        for lane in self._lanes.values():
            first, *others = lane
            kept = [each for each in others if partitions is not None and each.position.partition not in partitions]
            left += [each for each in others if partitions is None or each.position.partition in partitions]
            lane.clear()
            lane.extend((first, *kept))  # a key may be in another partition, too: one where it does not belong
        return left

    def __len__(self) -> int:
        return len(self._lanes)

    async def end(self, within: float) -> None:
        """Wait for those that have begun, and give up the others after `within` seconds."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=within)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


class Finisher:
    """Says to the log which messages of one member are decided, many at once. `said`: called with messages once the log
    has noted that they are done.
    """

    def __init__(
        self, consumer: Consumer, said: Callable[[Sequence[Received]], None], reports: Reports, times: ConsumingTimes
    ) -> None:
        self._times = times
        self._consumer = consumer
        self._said = said
        self._reports = reports
        self._decided: list[Received] = []
        self._some_decided = asyncio.Event()

    def add(self, received: Received) -> None:
        self._decided.append(received)
        self._some_decided.set()

    async def run(self) -> None:
        """Say what is decided, again and again, until this is cancelled."""
        backoff = Backoff(self._times)
        while True:
            await self._some_decided.wait()
            self._some_decided.clear()
            try:
                await self.say()
            except LogError:
                await asyncio.sleep(backoff.next())
            except Exception as error:  # noqa: BLE001 - without this task the room would run out, and nothing say why
                self._reports.fault(error)
                await asyncio.sleep(backoff.next())
            else:
                backoff.reset()

    async def say(self) -> None:
        """Say what is decided, once. Raises LogUnavailableError: it is said again the next time."""
        decided, self._decided = self._decided, []
        try:
            await self._consumer.done(decided)
        except BaseException:
            self._decided = decided + self._decided
            self._some_decided.set()
            raise
        self._said(decided)


# From the moment at which a consumer joins the others of its queue to the one at which it leaves them.
#
# 1. The generation of the queue is read, and then `take` gives messages. Their log is looked at after that, and before
#    anything of them is written: so what was taken came from the log that was recorded (R12). Then they go into the
#    lanes of their resources (`KeyQueues`).
# 2. A bounded number of messages is in hand: taken, and not said to be done (`InHand`).
# 3. What cannot be decided now is tried again after a pause; if that takes long, it is reported. Where the reason
#    concerns everything (the database is away, the source is quarantined), nothing more is taken, and all lanes wait
#    until the log has been looked at again. Meanwhile `take` is called with 0, so that this member stays one.
# 4. A generation that was raised ends the membership: what is in hand may be of another log, and is left out. The next
#    membership takes from where the log's consumers are.
# 5. What is decided is said to be done, many at once (`Finisher`). After a crash before that they come again
#    (deciding.py).
# 6. Partitions that are lost: what has not begun of them is left out. What has begun may still land: then the next
#    member's write is refused or replayed, or this one is.
# 7. At the end nothing more is taken. What has begun is decided and said to be done, the rest is left to others.


@dataclass(frozen=True, slots=True)
class ConsumerLimits:
    """How much is in hand at most, and how many seconds the end may take."""

    messages: int = 1000
    bytes: int = 32 * 2**20
    drain: float = 20.0


@dataclass(frozen=True, slots=True)
class MembershipParts:
    """What a membership works with."""

    log: Log
    member: str
    ledger: Ledger
    decider: Decider
    reports: Reports
    limits: ConsumerLimits
    pause: Pause
    times: ConsumingTimes
    progress: Progress = field(default_factory=Progress)


class Membership:
    """One of them. `over` ends it."""

    def __init__(self, parts: MembershipParts) -> None:
        self._parts = parts
        self._hand = InHand(parts.limits.messages, parts.limits.bytes)
        self._lanes = KeyQueues(self._decide)
        self._standing: QueueNow | None = None
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
        self._doubtful = False
        """Whether nothing was decided since everything had to wait: then nothing more is taken."""
        self._looking: asyncio.Task[Checked | Later] | None = None
        self.consumer: Consumer = parts.log.consumer(parts.member, self._lost)
        self._finisher = Finisher(self.consumer, self._release, parts.reports, parts.times)

    async def run(self) -> None:
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
        the end of the membership: what is not decided by then is left out.
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
        standing = QueueNow(checked.generation, checked.partitions)
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
        """Have a message decided, however long it takes; when the membership is over, it is left out instead."""
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


# A consumer of a queue: one `Session` after the other, and once a second it notes how far it got. Now and then it asks
# the log, too, what that has committed: records of such messages may be forgotten.

_OF_BEFORE: Final = "what a former process of this member has noted"


class QueueConsumer:
    """One member of those who consume a queue. `run` returns when `stop` was called, and leaves nothing half done.
    Where a message can never be decided here (it has a caller, and there are no keys) it leaves all to others, and is
    paused.
    """

    def __init__(
        self, log: Log, member: str, ledger: Ledger, decider: Decider, reports: Reports, limits: ConsumerLimits,
        times: ConsumingTimes = TIMES.consuming,
    ) -> None:  # fmt: skip
        self._log = log
        self._ledger = ledger
        self._reports = reports
        self._progress = Progress()
        self._pause = Pause(reports)
        self._parts = MembershipParts(log, member, ledger, decider, reports, limits, self._pause, times, self._progress)
        self._times = times
        self._stopping = asyncio.Event()
        self._membership: Membership | None = None
        self._noted_pause: str | None = _OF_BEFORE
        self._committed: tuple[int, list[int]] | None = None
        """What was noted last: the generation, and by partition below which offset all is committed."""

    @property
    def partitions(self) -> frozenset[int]:
        return self._membership.consumer.partitions if self._membership is not None else frozenset()

    @property
    def paused_because(self) -> str | None:
        """Why nothing is decided, or taken, now; None: it goes on."""
        return self._pause.reason

    async def run(self) -> None:
        noting = [
            asyncio.create_task(self._again_and_again(self._times.note_every, self._note)),
            asyncio.create_task(
                self._again_and_again(self._times.note_every, lambda: self._note_pause(self.paused_because))
            ),
            asyncio.create_task(self._again_and_again(self._times.committed_every, self._note_committed)),
        ]
        try:
            while not self._stopping.is_set():
                self._membership = membership = Membership(self._parts)
                await membership.run()
                if membership.left_because is not None:
                    # Others that can go on have its partitions now. Were it to stay, its hand would fill in silence.
                    self._membership = None
                    self._pause.begin(membership.left_because)
                    await self._stopping.wait()
        finally:
            self._membership = None
            for task in noting:
                task.cancel()
            await asyncio.wait(noting)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._times.end_within):
                    await self._note()
                    await self._note_pause(None)

    def stop(self) -> None:
        """Have `run` return when what has begun is decided."""
        self._stopping.set()
        if self._membership is not None:
            self._membership.over.set()

    async def stopped(self, within: float) -> bool:
        """Wait so many seconds for `stop` to be called; whether it was."""
        return await wait_for(self._stopping, within)

    async def _again_and_again(self, every: float, do: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(every)
            try:
                await do()
            except Exception as error:  # noqa: BLE001 - it is done again, and the fault is not silent
                self._reports.fault(error)

    async def _note_committed(self) -> None:
        """Ask the log what it has committed, and note that when it has changed; and the look itself."""
        generation = self._progress.generation
        if generation is None:
            return
        with suppress(LogError, StorageError):  # the log is asked again
            at = await self._ledger.now()
            committed = (generation, list(await self._log.decided()))
            state = await self._log.state()
            if committed != self._committed:
                await self._ledger.note_committed(committed[1], generation)
                self._committed = committed
            await self._ledger.note_look(at, committed[1], state, generation)

    async def _note(self) -> None:
        collected, generation = self._progress.collect(asyncio.get_running_loop().time()), self._progress.generation
        if not collected or generation is None:
            return
        try:
            await self._ledger.note(collected, generation)
        except StorageError:
            self._progress.put_back(collected)

    async def _note_pause(self, reason: str | None) -> None:
        """Note for those who look elsewhere why nothing goes on, while that is so; None: it goes on, or is over."""
        if reason is None and self._noted_pause is None:
            return
        with suppress(StorageError):  # it is noted the next time
            await self._ledger.note_pause(self._parts.member, reason and noted_reason(reason))
            self._noted_pause = reason
