"""Who stands in line at this process for the next row of a table. Those who ask the same stand in one line, first come
first; one task looks for all of them (gateway/next_rows.py).
"""

import asyncio
import math
import secrets
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from uuid import UUID, uuid4

from fencepost.server.fence.caller import Caller
from fencepost.server.fence.problems import Problem
from fencepost.server.postgres.leases import Granted, LockRequest
from fencepost.server.postgres.next_rows import NextRow, Shape
from fencepost.server.postgres.pool import Quota
from fencepost.server.postgres.query import Filter, OrderTerm
from fencepost.server.times import Times

LOOK_MOST: Final = 64
"""Rows that one look finds at most."""
LOOKS_IN_A_BEAT: Final = 64
"""How often all lines of a process look together in one beat, where nothing wakes them."""


@dataclass(frozen=True, slots=True)
class Sought:
    """What those of one line ask. `writes`: what their tokens are sealed for, beside the row."""

    table: str
    where: tuple[Filter, ...]
    order: tuple[OrderTerm, ...]
    writes: tuple[str, ...]
    caller: Caller
    """As whom rows are found and claimed: where it has no role, only the patterns of its locks count."""


@dataclass(frozen=True, slots=True)
class TakenRow:
    """A row that was taken: its lease, whose only claim is the row, and the request with the lease's secret."""

    wanted: LockRequest
    granted: Granted


@dataclass(eq=False, slots=True)
class Taker:
    """A request in line. Its `answer` is what it is granted: none where there was nothing."""

    wanted: LockRequest
    limit: int
    arrived: float
    deadline: float
    """Until when it waits; both on the gateway's clock."""
    answer: "asyncio.Future[list[TakenRow] | Problem]"
    is_kept: bool = False
    """Whether it has gone, and can come back with its secret for what it is granted."""

    def request(self, row: NextRow) -> LockRequest:
        """Give what it asks for once the row is known. Each of several leases has a secret of its own."""
        secret = self.wanted.secret if self.limit == 1 else secrets.token_urlsafe(32)
        return replace(self.wanted, names=(row.name,), claims=(row.name,), secret=secret)


@dataclass(slots=True)
class Found:
    """What a look has found for each of those it was for."""

    rows: list[list[TakenRow]]
    problems: dict[int, Problem] = field(default_factory=dict)
    more: bool = False
    """Whether there may be more than it has found."""
    aside: list[tuple[str, int]] = field(default_factory=list)
    """Rows that were put aside: their names, and how often each was taken."""
    refused: list[Exception] = field(default_factory=list)
    """Why rows were passed by that cannot be taken."""
    bytes: Counter[int] = field(default_factory=Counter)
    full: set[int] = field(default_factory=set)
    """Bytes of the rows of each; and for whom one more would be too many."""

    def wanted(self, looking: Sequence[Taker]) -> list[int]:
        """Name who wants another row, once for each row."""
        over = self.problems.keys() | self.full
        missing = [0 if n in over else taker.limit - len(self.rows[n]) for n, taker in enumerate(looking)]
        return [number for number, rows in enumerate(missing) for _ in range(rows)]


# The lines.


class NextRows:
    """The lines of this process."""

    def __init__(self, times: Times, places: Quota) -> None:
        """`places`: how many may stand in line, of one caller and in all."""
        self.times, self.places = times, places
        self.lines: dict[Sought, LineForRows] = {}
        self.noted: dict[tuple[int, Shape], float] = {}
        """The questions, by table, that this process has noted for `doctor`, and when it did last."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.stopping = False

    def stand(
        self, question: Sought, taker: Taker, run: Callable[["LineForRows"], Coroutine[Any, Any, None]]
    ) -> "LineForRows":
        """Stand in line, in a new one if there is none: `run` looks for those who stand in it, until nobody does."""
        line = self.lines.get(question)
        if line is None:
            line = self.lines[question] = LineForRows(question, self)
            task = asyncio.create_task(run(line))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        line.standing.append(taker)
        line.woken.set()
        return line

    def on_notify(self, payload: str) -> None:
        """A table was written to: the payload is its oid. Every role may NOTIFY any text."""
        for line in self.lines.values():
            if str(line.oid) == payload:
                line.woken.set()

    def on_listening(self) -> None:
        """Notifications may have been missed: all look."""
        for line in self.lines.values():
            line.woken.set()

    def stop(self) -> None:
        """Send all away who wait; take no more in."""
        self.stopping = True
        self.on_listening()

    async def close(self) -> None:
        """Wait until all have been answered."""
        self.stop()
        while self._tasks:
            await asyncio.wait(self._tasks)


class LineForRows:
    """Those who ask one question."""

    def __init__(self, question: Sought, room: NextRows) -> None:
        self.question, self._room = question, room
        self.id: UUID = uuid4()
        self.oid = 0
        """The table's; 0: not known yet."""
        self.standing: list[Taker] = []
        self.woken = asyncio.Event()
        self.watched = -math.inf
        """When it was noted last that it waits (`fencepost.watch`)."""

    def remaining(self) -> list[Taker]:
        """Give those who have not been answered, and have not gone."""
        self.standing = [each for each in self.standing if not each.answer.done()]
        return list(self.standing)

    def fail(self, error: Exception) -> None:
        """Give an error to all."""
        for each in self.remaining():
            each.answer.set_exception(error)

    def leave(self, taker: Taker) -> None:
        """Go without an answer."""
        taker.answer.cancel()
        if taker in self.standing:
            self.standing.remove(taker)

    async def sleep(self) -> None:
        """Sleep until woken, for a beat, or until somebody's time is up. A beat is longer where there are very many
        lines: together they look so often in one.
        """
        times = self._room.times
        beat = times.queue.beat_every * max(1.0, len(self._room.lines) / LOOKS_IN_A_BEAT)
        first = min(each.deadline for each in self.standing) - times.clock.monotonic()
        timer = times.clock.call_later(max(min(first, beat), 0), self.woken.set)
        try:
            await self.woken.wait()
        finally:
            timer.cancel()


def first_of(present: Sequence[Taker]) -> list[Taker]:
    """Give the first in line for whom one look is enough."""
    looking: list[Taker] = []
    rows = 0
    for taker in present:
        rows += taker.limit
        if looking and rows > LOOK_MOST:
            break
        looking.append(taker)
    return looking
