"""Leases on the locks of a source: the source decides who holds a lock, PostgreSQL keeps the lease and judges tokens.

Order of a grant (R12), with the state of the source's tokens read before the number is asked for:

    1 state: generation, highest token issued      2 the source grants, and its owner mints
    3 record: the number must be above 1's         4 claims, in a transaction of their own

A grant that waited for long is renewed and minted for once more after 1 was read anew: so what was handed out while it
waited counts too. For a source without numbers of its own, tokens are drawn here, and then the source is asked whether
the lock is still held: if so, it was held when they were drawn.

A crash between two steps leaves a hold whose handle no process knows. It expires.

Of the requests at one process that wait for a lock, the first asks the source; the others stand in line behind it,
and cost the service nothing.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, Literal, TypeVar

from fencepost.server.fence.caller import ASKING
from fencepost.server.fence.token import GENERATION_BITS, Token
from fencepost.server.locks.leases import Claim, LeaseLimits, Leases, Lines, Overtaken, Place, ServiceReleases
from fencepost.server.locks.source import (
    MOST_NATIVE,
    REQUEST_TIMEOUT,
    Grant,
    Holder,
    Source,
    SourceError,
    SourceQuarantinedError,
)
from fencepost.server.postgres import sources
from fencepost.server.postgres.connection import Session
from fencepost.server.postgres.database import Database, in_transaction, run_write
from fencepost.server.postgres.errors import (
    OutcomeUnknownError,
    RefusedError,
    StorageError,
    UnavailableError,
    UncommittedError,
)
from fencepost.server.postgres.leases import (
    Acquired,
    EndedBy,
    Granted,
    Held,
    LeaseRow,
    LockRequest,
    LockRow,
    LostLease,
    Mismatch,
)
from fencepost.server.postgres.pool import Limiter
from fencepost.server.postgres.sources import GrantRecord, SourceLease, SourceState
from fencepost.server.times import TIMES, Times

# How a grant of a source becomes tokens, and a record of it, in the order above.

T = TypeVar("T")

STOPPING: Final = "this gateway is stopping"


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
        self.pending = ServiceReleases()
        self.stopping = asyncio.Event()

    async def grant(
        self, wanted: LockRequest, before: SourceState, wait_s: float, gone: "asyncio.Future[None]"
    ) -> GrantRecord | Holder | None:
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
                return GrantRecord(grant.handle, before.compose(_small(self.name, grant.tokens)), before, since)
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
        return GrantRecord(grant.handle, tokens, before, since)

    async def _ask_for_lock(self, wanted: LockRequest, wait_s: float, gone: "asyncio.Future[None]") -> Grant | Holder:
        """Ask the source for the lock, and stop asking when the client has gone. UnavailableError: the gateway stops,
        and nobody waits on.
        """
        asking = asyncio.ensure_future(
            self.source.acquire(
                wanted.names[0],
                owner=wanted.owner,
                ttl_ms=self.ttl(wanted.ttl_ms),
                tokens=wanted.tokens + bool(wanted.claims),
                wait_s=wait_s,
            )
        )
        stopping = asyncio.ensure_future(self.stopping.wait())
        try:
            ends = (gone, stopping) if wait_s else (gone,)
            await asyncio.wait((asking, *ends), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            asking.cancel()
            await asyncio.wait((asking,))
            if not asking.cancelled() and asking.exception() is None:
                granted = asking.result()
                if isinstance(granted, Grant):
                    await self.give_back(wanted.names[0], granted.handle)
            raise
        finally:
            stopping.cancel()
        if not asking.done():
            asking.cancel()
            await asyncio.wait((asking,))
        if asking.cancelled():
            if not gone.done():
                raise UnavailableError(STOPPING)
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

    async def record(self, wanted: LockRequest, held: GrantRecord) -> SourceLease | None:
        """Record a grant; None: it is void. Raises SourceQuarantinedError, Withdrawn."""
        lock, elapsed_ms = wanted.names[0], self.ms_since(held.since)
        verdict, lease = "void", None
        try:
            if elapsed_ms < wanted.ttl_ms:
                verdict, lease = await self.ask(lambda c: sources.record_grant(c, self.name, wanted, held, elapsed_ms))
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
        found = await self.ask(lambda c: sources.state(c, self.name, lock))
        if just_now and found.quarantined is not None:
            self._quarantined(found.quarantined)
        return self._quarantined_error(found.quarantined or "its generation has just been raised")

    def _quarantined_error(self, reason: str) -> SourceQuarantinedError:
        return SourceQuarantinedError(f"the source {self.name} is quarantined: {reason}")

    def ttl(self, ttl_ms: int) -> int:
        """Lengthen a TTL to what the source can do; the lease's own is what counts for the tokens."""
        return max(ttl_ms, self.source.capabilities.least_ttl_ms)

    async def ask(self, statement: Callable[[Session], Awaitable[T]]) -> T:
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


# Ends holds that live by this process's session (Capabilities.ttl_from_server is False) when their leases are over.
#
# The lease's record has the time: any gateway may have renewed it, or released it. So the record is read when a lease
# is due by what this process knows of it, and every few seconds. Should PostgreSQL not be there to be asked, the hold
# stays: a lock that is kept for too long delays others, and does no other harm.

Ask = Callable[[Callable[[Session], Awaitable[Any]]], Awaitable[Any]]
"""Runs a statement on a connection to PostgreSQL."""


class HoldWatch:
    """The holds of one source that this process acquired."""

    def __init__(
        self,
        source: Source,
        ask: Ask,
        failed: Callable[[str], None],
        times: Times = TIMES,
    ) -> None:
        self._source, self._ask, self._failed = source, ask, failed
        self._times, self._clock = times.sources, times.clock
        self._holds: dict[int, tuple[str, str]] = {}
        self._next_look = math.inf
        self._watching: asyncio.Task[None] | None = None
        self._resting: asyncio.Task[None] | None = None

    def keep(self, lease_id: int, lock: str, handle: str, remaining_ms: int) -> None:
        """Watch over a hold from now on, whose lease is over in `remaining_ms` unless it is renewed."""
        self._holds[lease_id] = (lock, handle)
        self.due(lease_id, remaining_ms)
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch())

    def due(self, lease_id: int, remaining_ms: int) -> None:
        """A lease is over in `remaining_ms`: look then, if no look is due before that."""
        at = self._clock.monotonic() + min(remaining_ms / 1000, self._times.look_at_least_every)
        if lease_id in self._holds and at < self._next_look:
            self._next_look = at
            if self._resting is not None:
                self._resting.cancel()

    def forget(self, lease_id: int) -> None:
        """The hold has been ended elsewhere."""
        self._holds.pop(lease_id, None)

    async def close(self, within: float) -> None:
        """Release all of them at once, for at most `within` seconds. Those that could not be released are reported with
        their locks: they end with this process's session.
        """
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        endings = [asyncio.create_task(self._end(lease_id)) for lease_id in self._holds]
        if endings:
            _, late = await asyncio.wait(endings, timeout=within)
            for ending in late:
                ending.cancel()
            await asyncio.gather(*endings, return_exceptions=True)
        if self._holds:
            locks = ", ".join(sorted(lock for lock, _ in self._holds.values()))
            self._failed(
                f"at its end this process could not release {len(self._holds)} of its locks, which stay held until its"
                f" session has ended: {locks}"
            )

    async def _watch(self) -> None:
        while self._holds:
            if (left := self._next_look - self._clock.monotonic()) > 0:
                await self._rest(left)
                continue
            self._next_look = math.inf  # what becomes due during the look lowers it again
            pause = await self._look()
            self._next_look = min(self._next_look, self._clock.monotonic() + pause)
        self._next_look = math.inf

    async def _rest(self, seconds: float) -> None:
        self._resting = asyncio.ensure_future(self._clock.sleep(seconds))
        try:
            await asyncio.wait((self._resting,))
        finally:
            self._resting.cancel()
            self._resting = None

    async def _look(self) -> float:
        """End the holds whose leases are over. Returns in how many seconds to look again."""
        try:
            due: dict[int, int] = await self._ask(lambda c: sources.due_in(c, list(self._holds)))
        except StorageError as error:
            self._failed(f"which leases are over cannot be asked: {error}")
            return self._times.look_again
        over = [lease_id for lease_id, due_ms in due.items() if due_ms == 0]
        ended = await asyncio.gather(*(self._end(lease_id) for lease_id in over), return_exceptions=True)
        pause = min([self._times.look_at_least_every, *(due_ms / 1000 for due_ms in due.values() if due_ms > 0)])
        for failure in ended:  # one hold that cannot be ended keeps no other
            if failure is not None:
                self._failed(f"a hold whose lease is over could not be ended yet: {failure!r}")
                pause = min(pause, self._times.look_again)
        return pause

    async def _end(self, lease_id: int) -> None:
        lock, handle = self._holds.get(lease_id, (None, None))
        if lock is None or handle is None:
            return
        await self._source.release(lock, handle)
        self.forget(lease_id)
        await self._ask(lambda c: sources.end(c, lease_id, by=None))


OVERTAKEN_TRIES: Final = 10
"""How often claims are made anew that a younger token got ahead of."""
VOID_TRIES: Final = 5
"""How often a grant that came to nothing is tried anew."""
_FOR_GOOD: Final = frozenset({"FP400", "42501"})
"""SQLSTATEs of a registration that an operator has to mend."""
FORGOTTEN_AT_ONCE: Final = 500


class SourceLocks(Leases):
    """The leases of one configured source: every verb, in the order that stands above.

    The claims that go with a grant are made in a transaction of their own, once, under tokens that pass (R7). A crash
    between grant and claims leaves a lease whose claims are not made; its request, repeated, makes them. Of two that
    are under way at once the second waits, and reads again what the first has claimed.
    """

    def __init__(
        self,
        name: str,
        kind: str,
        source: Source,
        database: Database,
        *,
        limits: LeaseLimits | None = None,
        failed: Callable[[str], None] = lambda _reason: None,
        quarantined: Callable[[str], None] = lambda _reason: None,
        times: Times = TIMES,
    ) -> None:
        self.name = name
        self.kind = kind
        self._registered = False
        self._failed = failed
        self.source = source
        self.limits = limits or LeaseLimits()
        self._database = database
        self._grants = Grants(name, source, database, failed, quarantined, times)
        self._watch = HoldWatch(source, self._grants.ask, failed, times)
        self._lines = Lines(times.clock)
        self._inspecting: dict[str, asyncio.Task[Holder | None]] = {}
        # When a thousand come or leave at once, renewals find a connection all the same.
        self._looks = Limiter(2, 2, times.queue.slot_within, "look for the lease of a request that waits")

    async def open(self) -> None:
        """Register the source, and get it ready. The service need not be there, nor need the database take writes: then
        it is registered when the first lock is asked for. Raises RefusedError: the name is another kind's.
        """
        try:
            await self._register()
        except RefusedError as error:
            if error.sqlstate in _FOR_GOOD:
                raise
            self._failed(f"it is not registered yet: {error}")
        except StorageError as error:
            self._failed(f"it is not registered yet: {error}")
        await self.source.open()

    async def _register(self) -> None:
        can = self.source.capabilities
        await self._grants.ask(lambda c: sources.register(c, self.name, self.kind, can.order, verifies=can.verifies))
        self._registered = True

    async def close(self, within: float = 2 * REQUEST_TIMEOUT) -> None:
        """End what lives by this process's session, and close the connections to the service, in `within` seconds: half
        of them for what is being given back and for the holds one by one, the rest for their session, with which they
        end as well.
        """
        deadline = asyncio.get_running_loop().time() + within
        await asyncio.gather(self._grants.pending.drain(within / 2), self._watch.close(within / 2))
        try:
            async with asyncio.timeout_at(deadline):
                await self.source.close()
        except TimeoutError:
            self._failed(f"it did not answer, so its connections are left to end by themselves ({within:g} s are over)")

    def stop(self) -> None:
        """Send all away who wait for a lock, and those who come to wait."""
        self._grants.stopping.set()
        self._lines.send_away()

    async def take(self, wanted: LockRequest, claim: Claim | None, gone: "asyncio.Future[None]") -> Acquired:
        """Take a lock, wait for it as long as is wanted or until `gone` is done, and claim.

        Raises StorageError, SourceError, Overtaken, Withdrawn, and what `claim` raises; no hold remains then.
        """
        if not self._registered:
            await self._register()
        began = self._grants.clock.monotonic()
        (lock,) = wanted.names
        overtakes = not wanted.wait_ms and not (self.source.capabilities.fair and self._lines.has(lock))
        if overtakes:
            return await self._take(wanted, claim, gone, began)
        place = self._lines.join(lock)
        try:
            if not self._lines.has_turn(place) and (held := await self._stand_in_line(wanted, place, gone, began)):
                return held
            return await self._take(wanted, claim, gone, began)
        finally:
            self._lines.leave(place)

    async def _stand_in_line(
        self, wanted: LockRequest, place: Place, gone: "asyncio.Future[None]", began: float
    ) -> Held | None:
        """Wait for the turn; None: it came, or the secret has a lease. UnavailableError: the gateway stops.
        SourceQuarantinedError: nothing is taken from the source.
        """
        before, known = await self._look(wanted)
        if known is not None:
            return None
        self._grants.require_sound(before)
        left = began + wanted.wait_ms / 1000 - self._grants.clock.monotonic()
        if not self._grants.stopping.is_set():
            await self._lines.wait(place, left, gone)
        if gone.done():  # nobody is left to be answered
            return Held(verdict="held", lock=place.lock)
        if self._grants.stopping.is_set():
            raise UnavailableError(STOPPING)
        if self._lines.has_turn(place):
            return None
        _, known = await self._look(wanted)  # the holder may be this very request, sent twice
        if known is not None:
            return None
        holder = await self._inspect(place.lock)
        return Held(verdict="held", lock=place.lock, owner=holder.owner, due_ms=holder.expires_ms)

    async def _look(self, wanted: LockRequest) -> tuple[SourceState, SourceLease | None]:
        async with self._looks.place(ASKING.get()):
            return await self._look_up(wanted)

    async def _inspect(self, lock: str) -> Holder:
        """Ask the service who has a lock: one question for all whose time is up together."""
        if lock not in self._inspecting:
            self._inspecting[lock] = self._grants.pending.begin(self.source.inspect(lock))
            self._inspecting[lock].add_done_callback(lambda _asked: self._inspecting.pop(lock))
        return await asyncio.shield(self._inspecting[lock]) or Holder()

    async def _take(
        self, wanted: LockRequest, claim: Claim | None, gone: "asyncio.Future[None]", began: float
    ) -> Acquired:
        """Try until a grant is good, and that is mostly once."""
        for _ in range(VOID_TRIES):
            taken = await self._take_once(wanted, claim, gone, began)
            if taken is not None:
                return taken
        return Held(verdict="held", lock=wanted.names[0])

    async def _take_once(
        self, wanted: LockRequest, claim: Claim | None, gone: "asyncio.Future[None]", began: float
    ) -> Acquired | None:
        """Try once; None: what was granted came to nothing, and another try may do."""
        before, known = await self._look_up(wanted)
        if known is None:
            left = max(began + wanted.wait_ms / 1000 - self._grants.clock.monotonic(), 0)
            held = await self._grants.grant(wanted, before, left, gone)
            if not isinstance(held, Holder):
                lease = None if held is None else await self._record(wanted, held)
                if held is None or lease is None:
                    return None
                waited_ms = int((held.since - began) * 1000)
                return await self._claim_and_answer(lease, wanted, claim, waited_ms, repeated=False)
            _, known = await self._look_up(wanted)  # the holder may be this very request, sent twice
            if known is None:
                return Held(verdict="held", lock=wanted.names[0], owner=held.owner, due_ms=held.expires_ms)
        if (known.id.source, known.lock, known.claims, known.writes) != (
            self.name,
            wanted.names[0],
            wanted.claims,
            wanted.writes,
        ):
            return Mismatch()
        still = await self._renew_hold(known, wanted.secret_hash)
        if still is None:
            return None
        return await self._claim_and_answer(still, wanted, claim, 0, repeated=True)

    async def _look_up(self, wanted: LockRequest) -> tuple[SourceState, SourceLease | None]:
        return await self._grants.ask(
            lambda c: sources.find_by_secret(c, self.name, wanted.names[0], wanted.secret_hash)
        )

    async def renew(self, lease_id: int, secret_hash: bytes, ttl_ms: int | None) -> LeaseRow | None:
        lease = await self._grants.ask(lambda c: sources.lease(c, self.name, lease_id, secret_hash))
        if lease is None:
            return None
        ttl_ms = lease.ttl_ms if ttl_ms is None else ttl_ms
        since = self._grants.clock.monotonic()
        if not await self.source.renew(lease.lock, lease.handle, self._grants.ttl(ttl_ms)):
            await self.over(lease_id)
            return None
        renewed = await self._grants.ask(
            lambda c: sources.record_renewal(c, self.name, lease_id, secret_hash, ttl_ms, self._grants.ms_since(since))
        )
        if renewed is None:  # over by our record meanwhile: the hold belongs to no lease
            await self._grants.give_back(lease.lock, lease.handle)
            return None
        self._watch.due(lease_id, renewed.remaining_ms)  # a renewal may have shortened it
        return replace(renewed, tokens=())

    async def mint(self, lease_id: int, secret_hash: bytes, count: int) -> LeaseRow | None:
        """Draw more tokens. None: the lease is lost. Raises SourceQuarantinedError."""
        found = await self._grants.ask(lambda c: sources.find_held(c, self.name, lease_id, secret_hash))
        if found is None:
            return None
        before, lease = found
        self._grants.require_sound(before)
        tokens = await self._grants.draw(lease.lock, lease.handle, lease.ttl_ms, count, before)
        if tokens is None:  # lost; or still held, and its generation was raised
            await self._grants.give_back(lease.lock, lease.handle)
            await self.over(lease_id)
            return None
        match await self._grants.ask(lambda c: sources.record_minted(c, lease_id, secret_hash, tokens, before)):
            case "minted":
                return replace(lease, tokens=tuple(map(Token, tokens)))
            case "lost":
                return None
            case verdict:
                raise await self._grants.quarantine_error(lease.lock, just_now=verdict == "backwards")

    async def release(self, lease_id: int, secret_hash: bytes) -> bool:
        found = await self._grants.ask(lambda c: sources.hold(c, self.name, lease_id, secret_hash))
        if found is None:
            return await self.inspect(lease_id) is None
        # Also where it is over by our record: the service may hold it for longer.
        await self.source.release(*found)
        self._watch.forget(lease_id)
        await self._grants.ask(lambda c: sources.end(c, lease_id, by="holder"))
        return True

    async def inspect(self, lease_id: int) -> LeaseRow | None:
        return await self._grants.ask(lambda c: sources.lease(c, self.name, lease_id, None))

    async def find_ended(self, lease_id: int) -> LostLease | None:
        return await self._grants.ask(lambda c: sources.find_ended(c, self.name, lease_id))

    async def states(
        self,
        names: Sequence[str] | None,
        after: str | None,
        limit: int,
        patterns: Sequence[str] | None = None,
    ) -> list[LockRow]:
        return await self._grants.ask(lambda c: sources.lock_states(c, self.name, names, after, limit, patterns))

    async def verify(self, token: int) -> bool:
        """Ask the source whether it has issued a token that is above all that are known, and note that (--verify)."""
        if not self.source.capabilities.verifies:
            return False
        before = await self._grants.state("")
        number = token - (before.generation << GENERATION_BITS)
        if not 0 < number <= MOST_NATIVE or not await self.source.issued(number):
            return False
        await self._grants.ask(lambda c: sources.record_verified(c, self.name, token))
        return True

    async def sweep(self, keep_seconds: float) -> None:
        gone = FORGOTTEN_AT_ONCE
        while gone == FORGOTTEN_AT_ONCE:
            gone = await self._grants.ask(lambda c: sources.forget(c, keep_seconds, FORGOTTEN_AT_ONCE))

    async def _record(self, wanted: LockRequest, held: GrantRecord) -> SourceLease | None:
        lease = await self._grants.record(wanted, held)
        if lease is not None and not self.source.capabilities.ttl_from_server:
            self._watch.keep(lease.lease_id, lease.lock, lease.handle, lease.remaining_ms)
        return lease

    async def _claim_and_answer(
        self, lease: SourceLease, wanted: LockRequest, claim: Claim | None, waited_ms: int, *, repeated: bool
    ) -> Granted | None:
        """Make the claims of a recorded grant, unless they are made, and answer. None: the lease was lost over that."""
        asked = self._grants.clock.monotonic()
        claims: Sequence[Any] = ()
        if claim is not None:
            claimed = await self._claimed(lease, wanted.secret_hash, claim)
            if claimed is None:
                return None
            claims, lease = claimed
        remaining_ms = max(lease.remaining_ms - self._grants.ms_since(asked), 0)
        shown = replace(lease, remaining_ms=remaining_ms, tokens=lease.tokens[bool(wanted.claims) :])
        verdict: Literal["granted", "repeated"] = "repeated" if repeated else "granted"
        return Granted(lease=shown, verdict=verdict, claims=claims, waited_ms=waited_ms)

    async def _claimed(
        self, lease: SourceLease, secret_hash: bytes, claim: Claim
    ) -> tuple[Sequence[Any], SourceLease] | None:
        """Make the claims; a lease that can make none is given back. None: it was lost meanwhile."""
        clock = self._grants.clock
        asked = clock.monotonic()
        try:
            made = await self._newest(lease, secret_hash, claim)
            if made is not None and clock.monotonic() - asked > self._grants.times.late_share * lease.ttl_ms / 1000:
                late = await self.renew(lease.lease_id, secret_hash, None)
                if late is None:
                    made = None
                else:
                    left_ms = late.remaining_ms + self._grants.ms_since(asked)
                    made = made[0], replace(made[1], expires_at=late.expires_at, remaining_ms=left_ms)
        except UncommittedError as error:
            if await self._grants.pending.to_end(self._abandon(lease)):
                return None
            raise UnavailableError(f"no claim was made: {error}") from error
        except OutcomeUnknownError:
            raise  # repeated with the same secret, it finds the lease, and whether its claims were made
        except Exception:
            if await self._grants.pending.to_end(self._abandon(lease)):
                return None
            raise
        except BaseException:
            await self._grants.pending.to_end(self._abandon(lease))
            raise
        if made is None:
            await self._abandon(lease)
        return made

    async def _abandon(self, lease: SourceLease) -> bool:
        """Give a lease back; True: it was over before."""
        lost = await self.inspect(lease.lease_id) is None
        await self._grants.give_back(lease.lock, lease.handle)
        await self.over(lease.lease_id, "holder")
        return lost

    async def _newest(
        self, lease: SourceLease, secret_hash: bytes, claim: Claim
    ) -> tuple[Sequence[Any], SourceLease] | None:
        """Claim, with newer tokens where a younger one was there first: those that are older are worth nothing then."""
        tokens = lease.tokens
        for _ in range(OVERTAKEN_TRIES):
            with suppress(Overtaken):
                return await self._claim_once(lease, claim, tokens)
            more = await self.mint(lease.lease_id, secret_hash, len(lease.tokens))
            if more is None:
                return None
            tokens = more.tokens
        raise Overtaken

    async def _claim_once(
        self, lease: SourceLease, claim: Claim, tokens: tuple[Token, ...]
    ) -> tuple[Sequence[Any], SourceLease] | None:
        async def make(session: Session) -> tuple[Sequence[Any], SourceLease] | None:
            now = await sources.lock_claims(session, lease.lease_id)
            if now is None:
                return None
            made, used = now[0], now[1] if now[0] else tokens
            claims = await claim(session, used[0], made)
            if not made and not await sources.record_claims(session, lease.lease_id, used):
                raise Overtaken
            return claims, replace(lease, tokens=used)

        return await run_write(
            self._database.for_grants, lambda session: in_transaction(session, lambda: make(session))
        )

    async def _renew_hold(self, lease: SourceLease, secret_hash: bytes) -> SourceLease | None:
        """Renew the hold of a lease, and return the lease as it is then. None: it is lost, and ended in our record."""
        given, number = 0, lease.lease_id
        while lease.remaining_ms > given:  # it may be renewed for longer meanwhile
            given = max(lease.remaining_ms, lease.ttl_ms)
            if not await self.source.renew(lease.lock, lease.handle, self._grants.ttl(given)):
                await self.over(number)
                return None
            now = await self._grants.ask(lambda c: sources.lease(c, self.name, number, secret_hash))
            if now is None:  # over by our record meanwhile: the hold belongs to no lease
                await self._grants.give_back(lease.lock, lease.handle)
                return None
            lease = now
        return lease

    async def over(self, lease_id: int, by: EndedBy = "service") -> None:
        self._watch.forget(lease_id)
        await self._grants.ask(lambda c: sources.end(c, lease_id, by=by))
