"""A queue of group_commit.py: the writes that one statement can carry, their waiting callers, and their answers."""

from asyncio import Future
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Generic, TypeVar

from fencepost.fencing.caller import EVERYBODY, Caller
from fencepost.storage.connections.connection import Connection, GatewayConnection
from fencepost.storage.errors import OutcomeUnknownError

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
    pending: "deque[Waiting[W, R]]" = field(default_factory=deque)
    running: int = 0
    """How many send its batches: one, unless one of them is slow."""
    sent: float = 0.0
    """When the last batch was sent (loop time)."""
    lingering: "Future[None] | None" = None
    """Done when one that has a connection, and waits for the next write, need wait no longer."""

    def wake(self) -> None:
        """Have it wait no longer."""
        if self.lingering is not None and not self.lingering.done():
            self.lingering.set_result(None)

    def take(self) -> "list[Waiting[W, R]]":
        """Take the next batch, sorted. Those whose caller has gone before they were sent are dropped."""
        taken: list[Waiting[W, R]] = []
        seen: set[Hashable] = set()
        left: list[Waiting[W, R]] = []
        pending = self.pending
        size = 0
        while pending and len(taken) < self.most and size < MOST_BYTES:
            waiting = pending.popleft()
            if waiting.answer.done():
                continue
            clashes = tuple(self.clashes(waiting.write))
            if not seen.isdisjoint(clashes):
                left.append(waiting)
                continue
            seen.update(clashes)
            taken.append(waiting)
            size += self.size(waiting.write)
        pending.extendleft(reversed(left))
        order = self.order
        taken.sort(key=lambda waiting: order(waiting.write))
        return taken


@dataclass(eq=False)
class RoleQueues(Generic[W, R]):
    """Queues of one kind, one for each role: PostgreSQL judges a statement by the role that runs it."""

    make: Callable[[Caller], BatchQueue[W, R]]
    queues: dict[str | None, BatchQueue[W, R]] = field(default_factory=dict)

    def of(self, caller: Caller) -> BatchQueue[W, R]:
        """Find the queue of a caller's role."""
        queue = self.queues.get(caller.role)
        if queue is None:
            if len(self.queues) >= MOST_LANES:
                self.queues.clear()  # those go on until nothing waits in them
            lane = EVERYBODY if caller.role is None else Caller("", role=caller.role)
            queue = self.queues[caller.role] = self.make(lane)
        return queue
