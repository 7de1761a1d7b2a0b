"""Who stands in line at this process for the next row of a table, and who looks for them (gateway/next_rows.py).

Those who ask the same stand in one line, first come first. While somebody stands in it, one task looks for all of them.
Who does not wait, or has waited for as long as it wanted, is answered by the first look that began after it came.
Others sleep until a NOTIFY says that the table was written to (`protect --work`), or for a beat.
"""

import asyncio
import math
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass, field, replace
from typing import Final, Protocol
from uuid import UUID, uuid4

from fencepost.server.fence.caller import ASKING, Caller
from fencepost.server.fence.problems import Problem
from fencepost.server.postgres.errors import StorageError, UnavailableError
from fencepost.server.postgres.leases import Granted, LockRequest
from fencepost.server.postgres.next_rows import NextRow
from fencepost.server.postgres.pool import Quota
from fencepost.server.postgres.query import Filter, OrderTerm
from fencepost.server.times import Times

LOOK_MOST: Final = 64
"""Rows that one look finds at most."""


@dataclass(frozen=True, slots=True)
class Question:
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
    deadline: float
    answer: "asyncio.Future[list[TakenRow] | Problem]"
    is_kept: bool = False
    """Whether it has gone, and can come back with its secret for what it is granted."""

    def request(self, row: NextRow) -> LockRequest:
        """Give what it asks for once the row is known. Each of several leases has a secret of its own."""
        secret = self.wanted.secret if self.limit == 1 else secrets.token_urlsafe(32)
        return replace(self.wanted, names=(row.name,), claims=(row.name,), secret=secret)


@dataclass(slots=True)
class Served:
    """What a look has found for each of those it was for."""

    rows: list[list[TakenRow]]
    problems: dict[int, Problem] = field(default_factory=dict)
    more: bool = False
    """Whether there may be more than it has found."""

    def wanted(self, looking: Sequence[Taker]) -> list[int]:
        """Name who wants another row, once for each row."""
        missing = [0 if n in self.problems else taker.limit - len(self.rows[n]) for n, taker in enumerate(looking)]
        return [number for number, rows in enumerate(missing) for _ in range(rows)]


class Looks(Protocol):
    """Looks for those of one line."""

    oid: int
    """The table's; 0: not known yet."""

    async def look(self, looking: Sequence[Taker]) -> Served:
        """Find, grant and claim rows for them, in one transaction. Raises StorageError, and what claims raise."""
        ...

    async def watch(self, line: UUID) -> None:
        """Note that the line waits, so that who writes to the table says so. Raises StorageError."""
        ...

    async def unwatch(self, line: UUID) -> None:
        """Note that it waits no more. Raises StorageError."""
        ...

    async def release(self, taken: TakenRow, *, unless_kept: bool) -> None:
        """Release what was granted to one who has gone. `unless_kept`: only if the secret was withdrawn. Raises
        StorageError.
        """
        ...


# The lines.


class NextRows:
    """The lines of this process."""

    def __init__(self, times: Times, waiting: Quota, failed: Callable[[str], object]) -> None:
        """`waiting`: how many may stand in line, of one caller and in all; `failed` is told what could not be done."""
        self.times, self.failed = times, failed
        self._waiting = waiting
        self._lines: dict[Question, _Line] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.stopping = False

    async def take(
        self, question: Question, looks: Looks, taker: Taker, gone: "asyncio.Future[None]"
    ) -> list[TakenRow] | Problem | None:
        """Stand in line until answered, or until `gone` is done: None. Raises StorageError, and what claims raise."""
        if self.stopping:
            raise UnavailableError("this gateway is stopping")
        asking = ASKING.get()
        if (full := self._waiting.take(asking)) is not None:
            raise UnavailableError(f"requests stand in line for rows, and no more are taken in: there are {full}")
        line = self._lines.get(question)
        if line is None:
            line = self._lines[question] = _Line(self, looks, question)
            task = asyncio.create_task(self._run(line), context=Context())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        line.standing.append(taker)
        line.woken.set()
        try:
            await asyncio.wait((taker.answer, gone), return_when=asyncio.FIRST_COMPLETED)
            return taker.answer.result() if taker.answer.done() else None
        finally:
            self._waiting.give_back(asking)
            if not taker.answer.done():
                taker.answer.cancel()
                line.standing.remove(taker)

    async def _run(self, line: "_Line") -> None:
        try:
            await line.run()
        finally:
            del self._lines[line.question]  # before anything is awaited: who comes now has another line
            line.leave()
        await line.unwatch()

    def on_notify(self, payload: str) -> None:
        """A table was written to: the payload is its oid. Every role may NOTIFY any text."""
        for line in self._lines.values():
            if str(line.looks.oid) == payload:
                line.woken.set()

    def on_listening(self) -> None:
        """Notifications may have been missed: all look."""
        for line in self._lines.values():
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


class _Line:
    """Those who ask one question, and the task that looks for them."""

    def __init__(self, room: NextRows, looks: Looks, question: Question) -> None:
        self.question, self.looks = question, looks
        self.standing: list[Taker] = []
        self.woken = asyncio.Event()
        self._room = room
        self._id: UUID = uuid4()
        self._watched = -math.inf
        """When it was noted last that this line waits."""

    async def run(self) -> None:
        """Look until nobody stands in line any more."""
        while self._remain():
            self.woken.clear()
            present = list(self.standing)
            looking = _first_of(present)
            try:
                await self._watch()
                served = await self.looks.look(looking)
            except Exception as error:  # noqa: BLE001 - those that stand in line get it
                self._on_error(present, error)
            else:
                await self._answer(looking, served)
                if served.more:
                    continue
                now = self._room.times.clock.monotonic()
                for taker in present:  # nothing is left for those behind either
                    if taker.deadline <= now and not taker.answer.done():
                        taker.answer.set_result([])
            if self._remain():
                await self._sleep()

    def leave(self) -> None:
        """Answer those who stand there still: the line has failed."""
        for each in self.standing:
            if not each.answer.done():
                each.answer.set_exception(RuntimeError("the line for the next row has failed"))

    def _remain(self) -> bool:
        self.standing = [each for each in self.standing if not each.answer.done()]
        if self._room.stopping:
            for each in self.standing:
                each.answer.set_exception(UnavailableError("this gateway is stopping"))
            self.standing = []
        return bool(self.standing)

    async def _sleep(self) -> None:
        """Sleep until woken, for a beat, or until somebody's time is up."""
        times = self._room.times
        first = min(each.deadline for each in self.standing) - times.clock.monotonic()
        timer = times.clock.call_later(max(min(first, times.queue.beat_every), 0), self.woken.set)
        try:
            await self.woken.wait()
        finally:
            timer.cancel()

    async def _watch(self) -> None:
        """Note that somebody waits; before the look, which would miss what was committed in between."""
        now = self._room.times.clock.monotonic()
        waits = any(each.deadline > now for each in self.standing)
        if waits and now >= self._watched + self._room.times.queue.beat_every:
            await self.looks.watch(self._id)
            self._watched = now

    async def unwatch(self) -> None:
        """Note that nobody waits any more."""
        if self._watched > -math.inf:
            with suppress(StorageError):  # it counts for a few seconds only
                await self.looks.unwatch(self._id)

    def _on_error(self, present: Sequence[Taker], error: Exception) -> None:
        """Give an error to those in line; where PostgreSQL could not be asked, only to those who wait no longer."""
        now = self._room.times.clock.monotonic()
        passing = isinstance(error, UnavailableError) and not self._room.stopping
        for taker in present:
            if not taker.answer.done() and not (passing and taker.deadline > now):
                taker.answer.set_exception(error)

    async def _answer(self, looking: Sequence[Taker], served: Served) -> None:
        """Answer those for whom something was found; release what was granted to those who have gone meanwhile."""
        for number, taker in enumerate(looking):
            answer = served.problems.get(number) or served.rows[number]
            if answer and not taker.answer.done():
                taker.answer.set_result(answer)
            elif not isinstance(answer, Problem):
                for each in answer:
                    await self._release_for_nobody(taker, each)

    async def _release_for_nobody(self, taker: Taker, taken: TakenRow) -> None:
        try:
            await self.looks.release(taken, unless_kept=taker.is_kept)
        except StorageError as error:  # the lease's time will run out
            self._room.failed(f"the lease of a row whose taker has gone could not be released: {error}")


def _first_of(present: Sequence[Taker]) -> list[Taker]:
    """Give the first in line for whom one look is enough."""
    looking: list[Taker] = []
    rows = 0
    for taker in present:
        rows += taker.limit
        if looking and rows > LOOK_MOST:
            break
        looking.append(taker)
    return looking
