"""The Protocol of leases over any lock service, the lines of those who wait, and releases that nobody waits for."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from fencepost.server.fence.token import Token
from fencepost.server.locks.source import Grant, SourceError
from fencepost.server.postgres.connection import Session
from fencepost.server.postgres.leases import Acquired, LeaseRow, LockRequest, LockRow, LostLease
from fencepost.server.times import Clock

# The Protocol of a token source's leases, and what its calls take and give. The gateway knows a source by this only.
#
# Two classes fulfil it, and name it as their base: `PostgresLocks` keeps locks and leases in the protected database
# (built-in source), `SourceLocks` keeps leases there on locks of a lock service.
#
# Every call raises StorageError when PostgreSQL could not be asked or its answer got lost; those of a lock service
# raise SourceError as well.

T = TypeVar("T")

Claim = Callable[[Session, Token, bool], Awaitable[Sequence[Any]]]
"""Raises the marks of what is claimed, in the grant's own transaction. Whatever it raises undoes the grant. The bool
means that the grant is a repeated one: the marks were raised then."""


class Overtaken(Exception):  # noqa: N818 - it is no error; the grant is tried anew
    """A claim's token was drawn, and a younger one got to the resource first: another lock covers it too."""


@dataclass(frozen=True, slots=True)
class LeaseLimits:
    """The most that a request may ask for."""

    ttl_ms: int = 3_600_000
    wait_ms: int = 300_000
    tokens: int = 1000


class Leases(Protocol):
    """The leases of one token source."""

    async def take(self, wanted: LockRequest, claim: Claim | None, gone: asyncio.Future[None]) -> Acquired:
        """Try, and wait in the queue for as long as is wanted, or until `gone` is done; claim with the grant.

        Raises Overtaken, Withdrawn, and what `claim` raises; the lock is not held then.
        """
        ...

    async def renew(self, lease_id: int, secret_hash: bytes, ttl_ms: int | None) -> LeaseRow | None:
        """Keep a lease alive, from now on for ttl_ms or as long as before. None: it is lost."""
        ...

    async def mint(self, lease_id: int, secret_hash: bytes, count: int) -> LeaseRow | None:
        """Draw more tokens. None: the lease is lost."""
        ...

    async def release(self, lease_id: int, secret_hash: bytes) -> bool:
        """Give the locks back; False: the lease is live, and this is not its secret."""
        ...

    async def inspect(self, lease_id: int) -> LeaseRow | None:
        """Look at a live lease; None: it is lost, or unknown."""
        ...

    async def find_ended(self, lease_id: int) -> LostLease | None:
        """Look at a lease that is over, as long as it is remembered."""
        ...

    async def states(
        self,
        names: Sequence[str] | None,
        after: str | None,
        limit: int,
        patterns: Sequence[str] | None = None,
    ) -> list[LockRow]:
        """List locks that are held or waited for, by name: those of these names, or `limit` after a name; only those
        that one of the patterns names, if there are any.
        """
        ...

    async def sweep(self, keep_seconds: float) -> None:
        """Remove what no lock needs any more, and forget leases that ended longer ago than that."""
        ...


# Requests of this process that wait for a lock of a service, first come first.
#
# 1. The first in line has the turn. It asks the service, and has this process's one place in the service's own queue.
#    It keeps the turn until its request is answered or given up, so that a try that came to nothing is followed by its
#    own next one.
# 2. Whoever leaves, for whatever reason, is taken out of the line, and the one that is first then is given the turn.
#    So there is no moment at which requests stand in line and none of them has the turn, or is about to.
# 3. Who is not first sleeps: it holds no connection, asks nobody, and its departure changes the line and nothing else.


@dataclass(eq=False, slots=True)
class Place:
    """The place of one request in the line for `lock`. `turn` is done when it has the turn, or may wait no longer."""

    lock: str
    turn: "asyncio.Future[None]"


class Lines:
    """The lines of one process for the locks of one source."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._of: dict[str, OrderedDict[Place, None]] = {}

    def has(self, lock: str) -> bool:
        """Whether there is a line for the lock."""
        return lock in self._of

    def join(self, lock: str) -> Place:
        """Take the last place. The caller leaves it, whatever happens."""
        place = Place(lock, asyncio.get_running_loop().create_future())
        self._of.setdefault(lock, OrderedDict())[place] = None
        self._give_turn(lock)
        return place

    def leave(self, place: Place) -> None:
        line = self._of[place.lock]
        del line[place]
        if line:
            self._give_turn(place.lock)
        else:
            del self._of[place.lock]

    def has_turn(self, place: Place) -> bool:
        return next(iter(self._of[place.lock])) is place

    async def wait(self, place: Place, seconds: float, gone: "asyncio.Future[None]") -> None:
        """Sleep until the place has the turn, so many seconds are over, `gone` is done, or all are sent away."""
        timer = self._clock.call_later(seconds, lambda: _wake(place))
        try:
            await asyncio.wait((place.turn, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()

    def send_away(self) -> None:
        """Wake all: the process stops."""
        for line in self._of.values():
            for place in line:
                _wake(place)

    def _give_turn(self, lock: str) -> None:
        _wake(next(iter(self._of[lock])))


def _wake(place: Place) -> None:
    if not place.turn.done():
        place.turn.set_result(None)


# What a request leaves behind that is cancelled, fails or gets no answer, and who gives it back.
#
# A request to a lock service that is under way cannot be called back: it may be carried out after a release that was
# sent behind it over another connection. So a cancelled acquire first waits for the answer, then releases, and only
# then is cancelled. Cancelled once more, the caller goes, and this goes on.


class ServiceReleases:
    """Tasks that outlive the requests they belong to."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Do this, whatever becomes of the caller."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def to_end(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.shield(self.begin(work))

    async def acquire_or_release(
        self, attempt: Coroutine[Any, Any, T], release: Callable[[Grant], Awaitable[None]]
    ) -> T:
        """Await an attempt to acquire. Cancelled, it ends all the same, and what it was granted is released."""
        task = self.begin(attempt)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await self.give_back(self._undo(task, release))
            raise

    def give_back(self, release: Awaitable[None]) -> "asyncio.Future[None]":
        """Release what may have been granted. Who does not wait for that need not await it. It raises no SourceError:
        what cannot be released expires, and the caller has an answer or an error of its own.
        """
        return asyncio.shield(self.begin(_tried(release)))

    async def drain(self, within: float | None = None) -> None:
        """Return once all is given back, or has failed to, or so many seconds are over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                while self._tasks:
                    await asyncio.wait(self._tasks)

    @staticmethod
    async def _undo(task: asyncio.Task[T], release: Callable[[Grant], Awaitable[None]]) -> None:
        (answer,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(answer, Grant):
            await release(answer)


async def _tried(release: Awaitable[None]) -> None:
    with suppress(SourceError):
        await release
