"""A queue of group_commit.py: the writes that one statement can carry, their waiting callers, and their answers."""

from asyncio import Future
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Generic, TypeVar

from fencepost.server.fence.caller import EVERYBODY, Caller
from fencepost.server.postgres.connections.connection import Connection, GatewayConnection
from fencepost.server.postgres.errors import OutcomeUnknownError

W = TypeVar("W")
R = TypeVar("R")

MOST_LANES: Final = 256
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
    connection: GatewayConnection


@dataclass(slots=True)
class Waiting(Generic[W, R]):
    """One write, and the future of its caller."""

    write: W
    answer: Future[R | Alone | Broken]
    deadline: float
    caller: str


def _nothing(_write: Any) -> Iterable[Hashable]:
    return ()


@dataclass(eq=False)
class BatchQueue(Generic[W, R]):
    """The writes that one statement can carry, and those that wait for it.

    `run` carries a batch out, and commits it before it returns an answer for each write, in the order given; a
    RefusedError means that all of it was undone.
    """

    run: Callable[[Connection, Sequence[W]], Awaitable[Sequence[R | Alone]]]
    order: Callable[[W], Any]
    size: Callable[[W], int]
    """About how many bytes a write sends."""
    clashes: Callable[[W], Iterable[Hashable]] = _nothing
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
    """Whose places these have (callers.py)."""
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
        part = BatchQueue(self.run, self.order, self.size, self.clashes, self.most, self.caller, is_part=True)
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
            if clashes := tuple(self.clashes(waiting.write)):
                if not seen.isdisjoint(clashes):
                    left.append(waiting)
                    continue
                seen.update(clashes)
            taken.append(waiting)
            size += self.size(waiting.write)
        if left or len(pending) > 1:
            self._put_back(turns, left)
        order = self.order
        taken.sort(key=lambda waiting: order(waiting.write))
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
            if len(self.queues) >= MOST_LANES:
                self.queues.clear()  # those go on until nothing waits in them
            lane = EVERYBODY if caller.role is None else Caller("", role=caller.role)
            queue = self.queues[caller.role] = self.make(lane)
        return queue
