"""Connections that are lent one after the other: who gets which, when there is none to be had, and what is done with
one that comes back.

- The one that came back last is lent first, so that what is not needed falls idle and is closed.
- When none is idle, callers wait in line, and as many connections are being opened as callers wait, up to `size` in
  all. One that is open, or comes back, goes to the first in line: a slow connect keeps no caller from a connection that
  comes back. A connect that fails is the answer for the first in line.
- PostgreSQL may have fewer connections left than the pool wants (53300: `max_connections`, or a limit of the role or
  the database). That fails no caller as long as others of this pool are open: it waits in line for one of these. For
  a while no more are asked for, and it is reported once.
- Giving back decides nothing any more about the request: it awaits nothing and raises nothing. A connection whose last
  statement was interrupted, whose transaction is open, which has a caller's role still, or what users' code has set,
  or that is to be replaced, is closed in the background. asyncpg waits there until the statement is cancelled, for a
  few seconds at most; what goes wrong is reported.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import asyncpg

from fencepost.server.fence.caller import UNKNOWN
from fencepost.server.postgres.connection import Session
from fencepost.server.postgres.errors import UnavailableError
from fencepost.server.times import TIMES, Times

if TYPE_CHECKING:
    from fencepost.server.times import Timer


# How many may wait, in all and for each caller, so that one who asks for very many leaves room for others; and who of
# them has a turn.


def most_of(size: int) -> int:
    """Give three quarters, and one at least: so many of `size` may be taken, so that the rest is left to others."""
    return max(1, size - max(1, size // 4))


def waiting_quota(most: int) -> "Quota":
    """Count those that wait for PostgreSQL: FENCEPOST_MAX_WAITING, and of one caller three quarters of it."""
    return Quota(most, most_of(most), "FENCEPOST_MAX_WAITING", "three quarters of FENCEPOST_MAX_WAITING")


class Quota:
    """`most` of something at once, and `most_per_caller` of one caller. `setting`: the name of the first one's
    variable, for those who are refused; `per_caller` that of the other one.
    """

    def __init__(self, most: int, most_per_caller: int, setting: str, per_caller: str | None = None) -> None:
        self._most, self._most_per_caller, self._setting = most, most_per_caller, setting
        self._per_caller = per_caller or f"{setting}_PER_CALLER"
        self._of: dict[str, int] = {}
        self.count = 0
        """How many there are."""

    @contextmanager
    def place(self, caller: str) -> Iterator[str | None]:
        """Take a place for the block; a text instead says why there is none."""
        full = self.take(caller)
        try:
            yield full
        finally:
            if full is None:
                self.give_back(caller)

    def take(self, caller: str, number: int = 1) -> str | None:
        """Take so many places; a text instead says why there are not so many."""
        own = self._of.get(caller, 0) + number
        if own > self._most_per_caller:
            return f"{own - number} of {caller} already ({self._per_caller})"
        if self.count + number > self._most:
            return f"{self.count} already ({self._setting})"
        self.count += number
        self._of[caller] = own
        return None

    def give_back(self, caller: str, number: int = 1) -> None:
        self.count -= number
        if left := self._of[caller] - number:
            self._of[caller] = left
        else:
            del self._of[caller]


class AskedFor(NamedTuple):
    """Who asks what the gateway has to ask for a request: it is one of all who wait, and has no share of its own."""

    caller: str

    def __str__(self) -> str:
        return self.caller


class Limiter:
    """`most` places; one caller has `per_caller` of them at most. What is AskedFor, and what the gateway asks for
    itself (UNKNOWN), is bound by `most` alone.

    Who finds none waits in line for `wait` seconds, or without an end where that is None. A place that is given back
    goes to whoever may have it: of one caller after the other the first in line. So who has many waits behind itself,
    and nobody in line could have a place. `what`: what they are places for, in sentences; `waiting` counts the line.
    """

    def __init__(self, most: int, per_caller: int, wait: float | None, what: str, waiting: Quota | None = None) -> None:
        self._most, self._per_caller, self._wait, self._what = most, per_caller, wait, what
        self.waiting = waiting
        self._taken = 0
        self._of: dict[Hashable, int] = {}
        self._line: dict[Hashable, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def place(self, caller: Hashable, *, patient: bool = False, counted: bool = True) -> AsyncIterator[None]:
        """Have a place for the block. See `enter`."""
        await self.enter(caller, patient=patient, counted=counted)
        try:
            yield
        finally:
            self.leave(caller)

    def has_room(self, caller: Hashable) -> bool:
        """Whether this caller would have a place at once."""
        return self._taken < self._most and not self.is_at_its_most(caller)

    def is_at_its_most(self, caller: Hashable) -> bool:
        """Whether this caller has as many as one may have."""
        return self._of.get(caller, 0) >= self._per_caller and not (caller == UNKNOWN or isinstance(caller, AskedFor))

    async def enter(self, caller: Hashable, *, patient: bool = False, counted: bool = True) -> None:
        """Take a place. UnavailableError: there was none in time, or too many wait. `patient`: as long as it takes;
        then, and where it is not `counted`, those who wait are bounded elsewhere.
        """
        if self.has_room(caller):
            self._take(caller)
        elif patient:
            await self._wait_in_line(caller, None)
        elif self.waiting is None or not counted:
            await self._wait_in_line(caller, self._wait)
        else:
            with self.waiting.place(str(caller)) as full:
                if full is not None:
                    raise UnavailableError(f"no more may wait for a {self._what}: there are {full}")
                await self._wait_in_line(caller, self._wait)

    def leave(self, caller: Hashable) -> None:
        """Give a place back."""
        self._taken -= 1
        if left := self._of[caller] - 1:
            self._of[caller] = left
        else:
            del self._of[caller]
        for each in tuple(self._line):
            line = self._line[each]
            while line and line[0].done():  # it has given up, and is about to leave the line
                line.popleft()
            if line and not self.has_room(each):
                continue
            del self._line[each]
            if line:
                waiting = line.popleft()
                if line:
                    self._line[each] = line  # behind all others
                self._take(each)
                waiting.set_result(None)
                return

    def _take(self, caller: Hashable) -> None:
        self._taken += 1
        self._of[caller] = self._of.get(caller, 0) + 1

    async def _wait_in_line(self, caller: Hashable, wait: float | None) -> None:
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.setdefault(caller, deque()).append(place)
        try:
            async with asyncio.timeout(wait):
                await place
        except BaseException as error:
            if place.done() and not place.cancelled():  # it came at the same moment
                self.leave(caller)
            else:
                self._leave_line(caller, place)
            if not isinstance(error, TimeoutError):
                raise
            its_own = self.is_at_its_most(caller)
            who = f"{caller} has as many as one may have, the rest is for others" if its_own else "all are in use"
            raise UnavailableError(f"no {self._what} within {wait:g} s: {who}") from None

    def _leave_line(self, caller: Hashable, place: "asyncio.Future[None]") -> None:
        line = self._line.get(caller, deque())
        with suppress(ValueError):  # who gave a place back has taken it out of the line
            line.remove(place)
        if not line:
            self._line.pop(caller, None)


NO_MORE: Final = (asyncpg.TooManyConnectionsError,)


class ClosedError(Exception):
    """The pool is closed, or about to be."""


class Pool:
    """Up to `size` connections. `connect` opens one; `report` gets what concerns no caller, in a sentence."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Session]],
        size: int,
        report: Callable[[str], None],
        times: Times = TIMES,
    ) -> None:
        self._connect = connect
        self._size = size
        self._report = report
        self._times, self._clock = times.connections, times.clock
        self._idle: deque[tuple[Session, float]] = deque()
        self._lent: set[Session] = set()
        self._outdated: set[Session] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._line: deque[asyncio.Future[Session]] = deque()
        self._generation = 0
        self._given_back = asyncio.Event()
        self._full_until = 0.0
        self._closing: dict[asyncio.Task[None], Session] = {}
        self._closed = self._ended = False
        self._trimmer: Timer | None = None

    @property
    def size(self) -> int:
        return len(self._lent) + len(self._idle)

    @property
    def idle(self) -> int:
        return len(self._idle)

    def lend_idle(self) -> Session | None:
        """Lend one that is idle; None: there is none, or others wait. Raises ClosedError."""
        if self._closed:
            raise ClosedError
        if self._line:
            return None
        while self._idle:
            session, _ = self._idle.pop()
            if not session.is_closed():
                self._lent.add(session)
                return session
            self._close(session)
        return None

    async def lend(self) -> Session:
        """Lend a connection; waits as long as there is none. Raises what `connect` does, and ClosedError."""
        if (idle := self.lend_idle()) is not None:
            return idle
        waiting: asyncio.Future[Session] = asyncio.get_running_loop().create_future()
        self._line.append(waiting)
        self._open_for_waiters()
        try:
            return await waiting
        except asyncio.CancelledError:
            if waiting.cancelled():
                with suppress(ValueError):  # the one that came to serve it has taken it out of the line
                    self._line.remove(waiting)
            elif waiting.exception() is None:  # it came at the same moment
                self.give_back(waiting.result())
            raise

    def give_back(self, connection: Session, *, spoilt: bool = False) -> None:
        """Take a connection back. `spoilt`: it is not lent again."""
        self._lent.discard(connection)
        self._given_back.set()
        if spoilt or self._closed or self._is_useless(connection):
            self._close(connection)
            self._open_for_waiters()
        else:
            self._hand_over(connection)

    def _hand_over(self, connection: Session) -> None:
        """Give a connection to the first in line, or let it rest."""
        while self._line:
            waiting = self._line.popleft()
            if not waiting.done():
                self._lent.add(connection)
                waiting.set_result(connection)
                return
        self._idle.append((connection, self._clock.monotonic()))
        if self._trimmer is None:
            self._trimmer = self._clock.call_later(self._times.trim_every, self._trim)

    def expire(self) -> None:
        """Have all connections made anew: those that are idle now, others as they come back."""
        self._generation += 1
        while self._idle:
            self._close(self._idle.pop()[0])
        self._outdated.update(self._lent)

    async def close(self) -> None:
        """Wait for connections that are lent, then close all. Who waits in line gets ClosedError."""
        self._closed = True
        self._refuse(ClosedError(), most=len(self._line))
        if self._trimmer is not None:
            self._trimmer.cancel()
        for task in self._opening:
            task.cancel()
        self.expire()
        while self._lent:
            self._given_back.clear()
            await self._given_back.wait()
        while tasks := self._opening | self._closing.keys():
            await asyncio.wait(tasks)

    def end(self) -> None:
        """Wait for nothing any more: statements under way break, nothing is lent again. `close` is due all the same."""
        self._closed = self._ended = True
        self._refuse(ClosedError(), most=len(self._line))
        for connection in (*self._lent, *self._closing.values()):
            connection.terminate()

    def _open_for_waiters(self) -> None:
        # With none open there is none to wait for.
        full = self.size > 0 and self._clock.monotonic() < self._full_until
        while not (self._closed or full or self.size + len(self._opening) >= self._size):
            if len(self._opening) >= len(self._line):
                break
            task = asyncio.create_task(self._open_one(self._generation))
            self._opening.add(task)
            task.add_done_callback(self._on_opened)

    def _on_opened(self, task: asyncio.Task[None]) -> None:
        self._opening.discard(task)
        self._open_for_waiters()

    async def _open_one(self, generation: int) -> None:
        """Open one more, for the first in line or the next to come."""
        try:
            async with asyncio.timeout(self._times.open_within):
                connection = await self._connect()
        except NO_MORE as error:
            if self.size:
                self._is_full(error)
            else:
                self._refuse(error)
        except Exception as error:  # noqa: BLE001 - it is the caller's to judge
            self._refuse(error)
        else:
            if generation != self._generation:
                self._outdated.add(connection)
            if self._closed:
                self._close(connection)
            else:
                self._hand_over(connection)

    def _refuse(self, error: Exception, most: int = 1) -> None:
        """Raise this to the first in line."""
        while self._line and most:
            waiting = self._line.popleft()
            if not waiting.done():
                waiting.set_exception(error)
                most -= 1

    def _is_full(self, error: asyncpg.PostgresError) -> None:
        now = self._clock.monotonic()
        if now < self._full_until:
            return
        self._full_until = now + self._times.full_for
        self._clock.call_later(self._times.full_for, self._open_for_waiters)
        self._report(
            f"PostgreSQL has no connection left for this gateway beside the {self.size} that are open here, of"
            f" {self._size} that it may have: {error}. Requests wait for those"
        )

    def _is_useless(self, connection: Session) -> bool:
        return (
            connection in self._outdated
            or connection.is_closed()
            or connection.is_in_transaction()
            or connection.acting  # as a caller: no other may get it
            or connection.code_ran
        )

    def _close(self, connection: Session) -> None:
        self._outdated.discard(connection)
        task = asyncio.get_running_loop().create_task(self._on_closed(connection))
        self._closing[task] = connection
        task.add_done_callback(self._closing.pop)

    async def _on_closed(self, connection: Session) -> None:
        try:
            if not (self._ended or connection.is_closed()):
                await connection.close(timeout=self._times.close_within)
        except Exception as error:  # noqa: BLE001 - no caller waits for it
            reason = str(error) or type(error).__name__
            self._report(f"a connection to PostgreSQL could not be closed in order: {reason}")
        finally:
            connection.terminate()

    def _trim(self) -> None:
        """Close what has been idle for long. The oldest come first."""
        before = self._clock.monotonic() - self._times.idle_for
        while self._idle and self.size > 1 and self._idle[0][1] < before:
            self._close(self._idle.popleft()[0])
        self._trimmer = self._clock.call_later(self._times.trim_every, self._trim) if self._idle else None
