"""How a grant of a source becomes tokens, and a record of it: the order of R12 (see leases.py)."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from fencepost.server.locks.pending_releases import PendingReleases
from fencepost.server.locks.source import MOST_NATIVE, Grant, Holder, Source, SourceError, SourceQuarantinedError
from fencepost.server.postgres.connections.connection import Connection
from fencepost.server.postgres.connections.engine import Database
from fencepost.server.postgres.connections.transactions import run_write
from fencepost.server.postgres.leases import source_leases, sources
from fencepost.server.postgres.leases.lock_request import LockRequest
from fencepost.server.postgres.leases.source_leases import GrantRecord, SourceLease
from fencepost.server.postgres.leases.sources import SourceState
from fencepost.server.times import TIMES, Times

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Held:
    """A hold with its tokens, not recorded yet. `since`: by the clock; the TTL runs from there."""

    handle: str
    tokens: tuple[int, ...]
    before: SourceState
    since: float


class Grants:
    """Gets holds and tokens from one source, and records them."""

    def __init__(
        self,
        name: str,
        source: Source,
        database: Database,
        failed: Callable[[str], None],
        quarantined: Callable[[str], None],
        times: Times = TIMES,
    ) -> None:
        self.name, self.source = name, source
        self._database, self._failed, self._quarantined = database, failed, quarantined
        self.times, self.clock = times.sources, times.clock
        self.pending = PendingReleases()

    async def grant(
        self, wanted: LockRequest, before: SourceState, wait_s: float, gone: "asyncio.Future[None]"
    ) -> Held | Holder | None:
        """Get the lock from the source, with tokens; None: it was ours, and is lost again. `before` was just read."""
        self.require_sound(before)
        lock, count = wanted.names[0], wanted.tokens + bool(wanted.claims)
        since = self.clock.monotonic()
        grant = await self._ask_for_lock(wanted, wait_s, gone)
        if isinstance(grant, Holder):
            return grant
        try:
            numbered = self.source.capabilities.order != "database"
            if numbered and self.clock.monotonic() - since < self.times.fresh:
                return Held(grant.handle, before.compose(_small(self.name, grant.tokens)), before, since)
            since = self.clock.monotonic()
            if numbered and not await self.source.renew(lock, grant.handle, self.ttl(wanted.ttl_ms)):
                return None
            before = await self.state(lock)
            tokens = await self.draw(lock, grant.handle, wanted.ttl_ms, count, before)
        except BaseException:
            await self.give_back(lock, grant.handle)
            raise
        if tokens is None:  # lost; or still held, and its generation was raised
            await self.give_back(lock, grant.handle)
            return None
        return Held(grant.handle, tokens, before, since)

    async def _ask_for_lock(self, wanted: LockRequest, wait_s: float, gone: "asyncio.Future[None]") -> Grant | Holder:
        """Ask the source for the lock, and stop asking when the client has gone."""
        asking = asyncio.ensure_future(
            self.source.acquire(
                wanted.names[0],
                owner=wanted.owner,
                ttl_ms=self.ttl(wanted.ttl_ms),
                tokens=wanted.tokens + bool(wanted.claims),
                wait_s=wait_s,
            )
        )
        try:
            await asyncio.wait((asking, gone), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            asking.cancel()
            await asyncio.wait((asking,))
            if not asking.cancelled() and asking.exception() is None:
                granted = asking.result()
                if isinstance(granted, Grant):
                    await self.give_back(wanted.names[0], granted.handle)
            raise
        if not asking.done():
            asking.cancel()
            await asyncio.wait((asking,))
        if asking.cancelled():
            return Holder()
        return asking.result()

    async def draw(
        self, lock: str, handle: str, ttl_ms: int, count: int, before: SourceState
    ) -> tuple[int, ...] | None:
        """Draw tokens while the lock is held; None: it is not."""
        if self.source.capabilities.order == "database":
            drawn = await self.ask(lambda c: sources.draw(c, self.name, before.generation, count))
            # After the draw: who holds the lock now held it then.
            return drawn if drawn and await self.source.renew(lock, handle, self.ttl(ttl_ms)) else None
        numbers = await self.source.mint(lock, handle, count)
        return None if numbers is None else before.compose(_small(self.name, numbers))

    async def record(self, wanted: LockRequest, held: Held) -> SourceLease | None:
        """Record a grant; None: it is void. Raises SourceQuarantinedError, Withdrawn."""
        lock = wanted.names[0]
        record = GrantRecord(held.handle, held.tokens, held.before, self.ms_since(held.since))
        verdict, lease = "void", None
        try:
            if record.elapsed_ms < wanted.ttl_ms:
                verdict, lease = await self.ask(lambda c: source_leases.record_grant(c, self.name, wanted, record))
        finally:
            if lease is None:
                await self.give_back(lock, held.handle)
        if verdict in ("backwards", "quarantined"):
            raise await self.quarantine_error(lock, just_now=verdict == "backwards")
        return lease

    async def give_back(self, lock: str, handle: str) -> None:
        """Release a hold that comes to nothing, even if the caller is cancelled meanwhile."""

        async def release() -> None:
            try:
                await self.source.release(lock, handle)
            except SourceError as error:
                self._failed(f"a lock of {self.name} could not be given back, and has to expire: {error}")

        await self.pending.to_end(release())

    async def state(self, lock: str) -> SourceState:
        """Look where the source's tokens are. Raises SourceQuarantinedError."""
        found = await self.ask(lambda c: sources.state(c, self.name, lock))
        self.require_sound(found)
        return found

    def require_sound(self, state: SourceState) -> None:
        """Raise SourceQuarantinedError where nothing is taken from the source."""
        if state.quarantined is not None:
            raise self._quarantined_error(state.quarantined)

    async def quarantine_error(self, lock: str, *, just_now: bool) -> SourceQuarantinedError:
        """Make the error that gives the reason why the source is quarantined."""
        found = await self.ask(lambda c: sources.state(c, self.name, lock))
        if just_now and found.quarantined is not None:
            self._quarantined(found.quarantined)
        return self._quarantined_error(found.quarantined or "its generation has just been raised")

    def _quarantined_error(self, reason: str) -> SourceQuarantinedError:
        return SourceQuarantinedError(f"the source {self.name} is quarantined: {reason}")

    def ttl(self, ttl_ms: int) -> int:
        """Lengthen a TTL to what the source can do; the lease's own is what counts for the tokens."""
        return max(ttl_ms, self.source.capabilities.least_ttl_ms)

    async def ask(self, statement: Callable[[Connection], Awaitable[T]]) -> T:
        """Run a statement about sources or their leases, which is its own transaction. Raises StorageError."""
        return await run_write(self._database.for_leases, statement)

    def ms_since(self, moment: float) -> int:
        """How many ms have gone since a moment of the clock, rounded up."""
        return int((self.clock.monotonic() - moment) * 1000) + 1


def _small(name: str, numbers: Sequence[int]) -> Sequence[int]:
    """Refuse numbers that leave no room for the generation, before they are handed out as tokens."""
    if numbers and not 0 < numbers[0] <= numbers[-1] <= MOST_NATIVE:
        raise SourceError(f"the source {name} counts to {numbers[-1]}, and a token has room for {MOST_NATIVE}")
    return numbers
