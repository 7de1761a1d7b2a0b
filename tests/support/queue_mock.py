"""A log in memory, and what a consumer asks of the database, in memory: mocks, for tests of the consumer itself."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from fencepost.server.consuming.applying import Checked, Kept, QueueNow, Result
from fencepost.server.postgres.keyed import Recorded
from fencepost.server.postgres.queues import PartitionProgress
from fencepost.server.queues.log import DeadLetter, LogError, LogState, Message, Position, Received, partition_of
from fencepost.server.queues.message import MessageName

PARTITIONS = 2
WAITS = 0.01
"""Seconds, at most, for which a mock waits for messages: a consumer that is stopped waits for the answer."""


def message(resource: str, value: bytes = b"{}", **headers: bytes) -> Message:
    given = {"method": b"PATCH", **{name.replace("_", "-"): each for name, each in headers.items()}}
    return Message(resource.encode(), value, tuple(given.items()))


class MockDeadLetters:
    """Dead letters in a dict, by id."""

    def __init__(self) -> None:
        self.letters: dict[str, DeadLetter] = {}
        self.failing: LogError | None = None

    async def put(self, letter: DeadLetter) -> None:
        if self.failing is not None:
            raise self.failing
        self.letters.setdefault(letter.id, letter)

    async def list(self, most: int) -> Sequence[DeadLetter]:
        return list(self.letters.values())[:most]

    async def get(self, letter_id: str) -> DeadLetter | None:
        return self.letters.get(letter_id)

    async def drop(self, letter_id: str) -> bool:
        return self.letters.pop(letter_id, None) is not None

    async def count(self) -> dict[int, int]:
        return dict(Counter(each.position.partition for each in self.letters.values()))


class MockLog:
    """A log in a list. One consumer at a time takes from it; what is not done comes again to the next one."""

    def __init__(self) -> None:
        self.dead = MockDeadLetters()
        self.messages: list[Received] = []
        self.done: list[Received] = []
        self.arrived = asyncio.Event()
        self.incarnation = "first"
        self.asked: list[int] = []
        """The `most` of each take."""
        self.consumers: list[MockConsumer] = []
        self.failing: dict[str, Exception] = {}
        """By method, what it raises."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def append(self, message: Message) -> Position:
        position = Position(partition_of(message.key, PARTITIONS), len(self.messages))
        self.messages.append(Received(position, message, 1000.0 + len(self.messages)))
        self.arrived.set()
        return position

    async def state(self) -> LogState:
        self.raise_for("state")
        return LogState(self.incarnation, (len(self.messages),) * PARTITIONS)

    async def decided(self) -> Sequence[int]:
        self.raise_for("decided")
        return [0] * PARTITIONS

    async def oldest(self) -> Sequence[float | None]:
        return [None] * PARTITIONS

    async def waiting(self, position: Position) -> Sequence[Received] | None:
        return [each for each in self.messages if each.position == position and each not in self.done]

    async def advice(self) -> list[str]:
        return []

    def consumer(self, member: str, lost: Callable[[frozenset[int]], None]) -> "MockConsumer":
        self.consumers.append(MockConsumer(self, member, lost))
        return self.consumers[-1]

    def raise_for(self, method: str) -> None:
        if method in self.failing:
            raise self.failing[method]


class MockConsumer:
    """Takes all that is not done, once."""

    def __init__(self, log: MockLog, member: str, lost: Callable[[frozenset[int]], None]) -> None:
        self.log = log
        self.member = member
        self.lost = lost
        self.partitions = frozenset(range(PARTITIONS))
        self.taken: list[Received] = []
        self.closed = False

    def begin(self, generation: int) -> None:
        """Nothing to do: the mock loses nothing by itself."""

    async def take(self, most: int, wait_s: float) -> Sequence[Received]:
        self.log.asked.append(most)
        await asyncio.sleep(0)
        self.log.raise_for("take")
        found = self._left()[:most]
        if not found and wait_s:
            self.log.arrived.clear()
            try:
                async with asyncio.timeout(min(wait_s, WAITS)):
                    await self.log.arrived.wait()
            except TimeoutError:
                return []
            found = self._left()[:most]
        self.taken += found
        return found

    def _left(self) -> list[Received]:
        return [each for each in self.log.messages if each not in self.taken and each not in self.log.done]

    async def done(self, received: Sequence[Received]) -> None:
        await asyncio.sleep(0)
        self.log.raise_for("done")
        self.log.done += received

    async def close(self) -> None:
        self.closed = True


@dataclass
class MockLedger:
    """What the database would know. `failing` is raised by every method."""

    known_generation: int = 1
    quarantined: str | None = None
    stopped: dict[str, str] = field(default_factory=dict)
    kept: dict[str, Recorded] = field(default_factory=dict)
    contents: dict[str, bytes] = field(default_factory=dict)
    """By id, what the message said; an id that is in `kept` only is of a message with any content."""
    noted: list[PartitionProgress] = field(default_factory=list)
    failing: Exception | None = None
    checks: int = 0
    below: int = 0
    """The offset below which the log gives no message again, in all partitions."""
    noted_pauses: list[str | None] = field(default_factory=list)
    noted_committed: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)

    def _raise(self) -> None:
        if self.failing is not None:
            raise self.failing

    async def check(self, ask: Callable[[], Awaitable[LogState]], generation: int | None) -> Checked:
        del generation
        self.checks += 1
        self._raise()
        state = await ask()
        return Checked(self.known_generation, state.partitions, self.quarantined, dict(self.stopped))

    async def quarantine(self, reason: str, generation: int | None) -> None:
        self._raise()
        if generation in {None, self.known_generation}:
            self.quarantined = reason

    async def generation(self) -> int:
        self._raise()
        return self.known_generation

    async def result(self, name: MessageName) -> Kept | None:
        self._raise()
        copies = (
            each
            for each, content in self.contents.items()
            if (each[-16:], content) == (name.id[-16:], name.content) and each in self.kept
        )
        found = name.id if name.id in self.kept else next(copies, None)
        return None if found is None else Kept(found, self.kept[found])

    async def committed(self, position: Position, generation: int) -> bool:
        self._raise()
        return generation == self.known_generation and position.offset < self.below

    async def keep(self, name: MessageName, answer: Recorded, letter_bytes: int | None = None) -> Kept | None:
        del letter_bytes
        found = await self.result(name)
        if found is None:
            self.kept[name.id], self.contents[name.id] = answer, name.content
        return found

    async def stop(self, resource: str, write_id: str) -> None:
        self._raise()
        self.stopped.setdefault(resource, write_id)

    async def go_on(self, resource: str, write_id: str) -> None:
        self._raise()
        if self.stopped.get(resource) == write_id:
            del self.stopped[resource]

    async def note(self, partitions: Sequence[PartitionProgress], generation: int) -> None:
        del generation
        self._raise()
        self.noted += partitions

    async def note_pause(self, member: str, because: str | None) -> None:
        del member
        self._raise()
        self.noted_pauses.append(because)

    async def note_committed(self, offsets: Sequence[int], generation: int) -> None:
        self._raise()
        self.noted_committed.append((generation, tuple(offsets)))

    async def now(self) -> float:
        return 0.0

    async def note_look(self, at: float, decided: Sequence[int], state: LogState, generation: int) -> None:
        """Nothing is forgotten here."""


class MockReports:
    """Keeps what is reported."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.faults: list[Exception] = []

    def paused(self, reason: str) -> None:
        self.events.append(f"paused: {reason}")

    def resumed(self) -> None:
        self.events.append("resumed")

    def dead_letter(self, received: Received, reason: str) -> None:
        self.events.append(f"dead: {received.position.offset}: {reason}")

    def blocked(self, received: Received, reason: str) -> None:
        self.events.append(f"blocked: {received.position.offset}: {reason}")

    def fault(self, error: Exception) -> None:
        self.faults.append(error)


class Applying:
    """Applies messages by what the test says; keeps what it was asked for, in order."""

    def __init__(self, come_to: Callable[[Received, QueueNow], Result]) -> None:
        self.come_to = come_to
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.held: dict[bytes, asyncio.Event] = {}
        """Messages of these keys wait for their event."""

    async def __call__(self, received: Received, standing: QueueNow, name: MessageName) -> Result:
        del name
        self.begun.append(received.position.offset)
        await asyncio.sleep(0)
        if (held := self.held.get(received.message.key)) is not None:
            await held.wait()
        result = self.come_to(received, standing)
        self.ended.append(received.position.offset)
        return result
