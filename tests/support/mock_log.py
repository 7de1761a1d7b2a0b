"""A log in memory, for tests of what surrounds one: a mock, that says what a real one may say."""

from collections.abc import Callable, Sequence

from tests.support.queue_mock import MockDeadLetters

from fencepost.server.queues.log import (
    Consumer,
    DeadLetters,
    LogError,
    LogState,
    Message,
    Position,
    Received,
    partition_of,
)

PARTITIONS = 4


class MockLog:
    """Keeps what is appended, and fails with the error that a test puts into `fails`."""

    def __init__(self) -> None:
        self.partitions: list[list[Message]] = [[] for _ in range(PARTITIONS)]
        self.fails: LogError | None = None
        self.decided_below = [0] * PARTITIONS
        self.reads_positions = False

    @property
    def messages(self) -> list[Message]:
        """All of them."""
        return [message for partition in self.partitions for message in partition]

    @property
    def dead(self) -> DeadLetters:
        """There are none."""
        return MockDeadLetters()

    async def open(self) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""

    async def append(self, message: Message) -> Position:
        self._fail()
        number = partition_of(message.key, PARTITIONS)
        self.partitions[number].append(message)
        return Position(number, len(self.partitions[number]) - 1)

    async def state(self) -> LogState:
        self._fail()
        return LogState("mock", tuple(len(each) for each in self.partitions))

    async def decided(self) -> Sequence[int]:
        self._fail()
        return self.decided_below

    async def oldest(self) -> Sequence[float | None]:
        return [None] * PARTITIONS

    async def waiting(self, position: Position) -> Sequence[Received] | None:
        self._fail()
        if not self.reads_positions:
            return None
        below = self.decided_below[position.partition]
        at = self.partitions[position.partition][position.offset]
        return [] if position.offset < below else [Received(position, at, 1000.0)]

    def consumer(self, member: str, lost: Callable[[frozenset[int]], None]) -> Consumer:
        raise NotImplementedError

    async def advice(self) -> list[str]:
        return []

    def _fail(self) -> None:
        if self.fails is not None:
            raise self.fails
