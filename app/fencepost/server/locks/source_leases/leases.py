"""Leases on the locks of a source: the source decides who holds a lock, PostgreSQL keeps the lease and judges tokens.

Order of a grant (R12), with the state of the source's tokens read before the number is asked for:

    1 state: generation, highest token issued      2 the source grants, and its owner mints
    3 record: the number must be above 1's         4 claims, in a transaction of their own

A grant that waited for long is renewed and minted for once more after 1 was read anew: so what was handed out while it
waited counts too. For a source without numbers of its own, tokens are drawn here, and then the source is asked whether
the lock is still held: if so, it was held when they were drawn.

A crash between two steps leaves a hold whose handle no process knows. It expires.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from fencepost.server.fence.token import GENERATION_BITS
from fencepost.server.locks.leases import Claim, LeaseLimits, Leases, TakeResult
from fencepost.server.locks.source import MOST_NATIVE, REQUEST_TIMEOUT, Holder, Source
from fencepost.server.locks.source_leases.answers import granted, not_granted, public
from fencepost.server.locks.source_leases.claims import SourceClaims
from fencepost.server.locks.source_leases.grants import Grants, Held
from fencepost.server.locks.source_leases.hold_watch import HoldWatch
from fencepost.server.postgres.connections.engine import Database
from fencepost.server.postgres.errors import RefusedError, StorageError
from fencepost.server.postgres.leases import source_leases, sources
from fencepost.server.postgres.leases.builtin import EndedBy, Lease, LockState, LostLease
from fencepost.server.postgres.leases.lock_request import LockRequest
from fencepost.server.postgres.leases.source_leases import SourceLease
from fencepost.server.times import TIMES, Times

if TYPE_CHECKING:
    from fencepost.server.postgres.leases.sources import SourceState

VOID_TRIES: Final = 5
"""How often a grant that came to nothing is tried anew."""
_FOR_GOOD: Final = frozenset({"FP400", "42501"})
"""SQLSTATEs of a registration that an operator has to mend."""
FORGOTTEN_AT_ONCE: Final = 500


class SourceLocks(Leases):
    """The leases of one configured source."""

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

    async def take(self, wanted: LockRequest, claim: Claim[object] | None, gone: "asyncio.Future[None]") -> TakeResult:
        """Take a lock, wait for it as long as is wanted or until `gone` is done, and claim.

        Raises StorageError, SourceError, Overtaken, Withdrawn, and what `claim` raises; no hold remains then.
        """
        if not self._registered:
            await self._register()
        began = self._grants.clock.monotonic()
        for _ in range(VOID_TRIES):
            taken = await self._take_once(wanted, claim, gone, began)
            if taken is not None:
                return taken
        return not_granted("held", wanted, Holder(), self._waited_ms(began))

    def _waited_ms(self, began: float) -> int:
        return int((self._grants.clock.monotonic() - began) * 1000)

    async def _take_once(
        self, wanted: LockRequest, claim: Claim[object] | None, gone: "asyncio.Future[None]", began: float
    ) -> TakeResult | None:
        """Try once; None: what was granted came to nothing, and another try may do."""
        before, found = await self._look_up(wanted)
        if found is None:
            left = max(began + wanted.wait_ms / 1000 - self._grants.clock.monotonic(), 0)
            held = await self._grants.grant(wanted, before, left, gone)
            if not isinstance(held, Holder):
                lease = None if held is None else await self._record(wanted, held)
                if held is None or lease is None:
                    return None
                return await self._claim_and_answer(
                    lease, wanted, claim, int((held.since - began) * 1000), repeated=False
                )
            _, found = await self._look_up(wanted)  # the holder may be this very request, sent twice
            if found is None:
                return not_granted("held", wanted, held, self._waited_ms(began))
        source, known = found
        if (source, known.lock, known.claims, known.writes) != (
            self.name,
            wanted.names[0],
            wanted.claims,
            wanted.writes,
        ):
            return not_granted("mismatch", wanted, Holder(), self._waited_ms(began))
        still = await self._renew_hold(known, wanted.secret_hash)
        if still is None:
            return None
        return await self._claim_and_answer(still, wanted, claim, 0, repeated=True)

    async def _look_up(self, wanted: LockRequest) -> "tuple[SourceState, tuple[str, SourceLease] | None]":
        return await self._grants.ask(
            lambda c: source_leases.find_by_secret(c, self.name, wanted.names[0], wanted.secret_hash)
        )

    async def renew(self, lease_id: int, secret_hash: bytes, ttl_ms: int | None) -> Lease | None:
        """Keep a lease alive, from now on for ttl_ms or as long as before. None: it is lost."""
        lease = await self._grants.ask(lambda c: source_leases.lease(c, self.name, lease_id, secret_hash))
        if lease is None:
            return None
        ttl_ms = lease.ttl_ms if ttl_ms is None else ttl_ms
        since = self._grants.clock.monotonic()
        if not await self.source.renew(lease.lock, lease.handle, self._grants.ttl(ttl_ms)):
            await self.over(lease_id)
            return None
        renewed = await self._grants.ask(
            lambda c: source_leases.record_renewal(
                c, self.name, lease_id, secret_hash, ttl_ms, self._grants.ms_since(since)
            )
        )
        if renewed is None:  # over by our record meanwhile: the hold belongs to no lease
            await self._grants.give_back(lease.lock, lease.handle)
            return None
        self._watch.due(lease_id, renewed.remaining_ms)  # a renewal may have shortened it
        return public(renewed, ())

    async def mint(self, lease_id: int, secret_hash: bytes, count: int) -> Lease | None:
        """Draw more tokens. None: the lease is lost. Raises SourceQuarantinedError."""
        found = await self._grants.ask(lambda c: source_leases.find_held(c, self.name, lease_id, secret_hash))
        if found is None:
            return None
        before, lease = found
        self._grants.require_sound(before)
        tokens = await self._grants.draw(lease.lock, lease.handle, lease.ttl_ms, count, before)
        if tokens is None:  # lost; or still held, and its generation was raised
            await self._grants.give_back(lease.lock, lease.handle)
            await self.over(lease_id)
            return None
        match await self._grants.ask(lambda c: source_leases.record_minted(c, lease_id, secret_hash, tokens, before)):
            case "minted":
                return public(replace(lease, last_token=max(lease.last_token, tokens[-1])), tokens)
            case "lost":
                return None
            case verdict:
                raise await self._grants.quarantine_error(lease.lock, just_now=verdict == "backwards")

    async def release(self, lease_id: int, secret_hash: bytes) -> bool:
        """Give the lock back; False: the lease lives and is another client's."""
        found = await self._grants.ask(lambda c: source_leases.hold(c, self.name, lease_id, secret_hash))
        if found is None:
            return await self.inspect(lease_id) is None
        # Also where it is over by our record: the service may hold it for longer.
        await self.source.release(*found)
        self._watch.forget(lease_id)
        await self._grants.ask(lambda c: source_leases.end(c, lease_id, by="holder"))
        return True

    async def inspect(self, lease_id: int) -> Lease | None:
        lease = await self._grants.ask(lambda c: source_leases.lease(c, self.name, lease_id, None))
        return None if lease is None else public(lease, ())

    async def find_ended(self, lease_id: int) -> LostLease | None:
        """Look at a lease that is over, as long as it is remembered."""
        return await self._grants.ask(lambda c: source_leases.find_ended(c, self.name, lease_id))

    async def states(
        self,
        names: Sequence[str] | None,
        after: str | None,
        limit: int,
        patterns: Sequence[str] | None = None,
    ) -> list[LockState]:
        """List the locks that are held under leases."""
        return await self._grants.ask(lambda c: source_leases.lock_states(c, self.name, names, after, limit, patterns))

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
        """Forget leases that ended longer ago than that."""
        gone = FORGOTTEN_AT_ONCE
        while gone == FORGOTTEN_AT_ONCE:
            gone = await self._grants.ask(lambda c: source_leases.forget(c, keep_seconds, FORGOTTEN_AT_ONCE))

    async def _record(self, wanted: LockRequest, held: Held) -> SourceLease | None:
        lease = await self._grants.record(wanted, held)
        if lease is not None and not self.source.capabilities.ttl_from_server:
            self._watch.keep(lease.lease_id, lease.lock, lease.handle, lease.remaining_ms)
        return lease

    async def _claim_and_answer(
        self, lease: SourceLease, wanted: LockRequest, claim: Claim[object] | None, waited_ms: int, *, repeated: bool
    ) -> TakeResult | None:
        """Make the claims of a recorded grant, unless they are made, and answer. None: the lease was lost over that."""
        asked, claims = self._grants.clock.monotonic(), None
        if claim is not None:
            claimed = await SourceClaims(self, self._grants, self._database).make(lease, wanted.secret_hash, claim)
            if claimed is None:
                return None
            claims, lease = claimed
        return granted(lease, wanted, claims, waited_ms, repeated=repeated, read_ms=self._grants.ms_since(asked))

    async def _renew_hold(self, lease: SourceLease, secret_hash: bytes) -> SourceLease | None:
        """Renew the hold of a lease, and return the lease as it is then. None: it is lost, and ended in our record."""
        given, number = 0, lease.lease_id
        while lease.remaining_ms > given:  # it may be renewed for longer meanwhile
            given = max(lease.remaining_ms, lease.ttl_ms)
            if not await self.source.renew(lease.lock, lease.handle, self._grants.ttl(given)):
                await self.over(lease.lease_id)
                return None
            now = await self._grants.ask(lambda c: source_leases.lease(c, self.name, number, secret_hash))
            if now is None:  # over by our record meanwhile: the hold belongs to no lease
                await self._grants.give_back(lease.lock, lease.handle)
                return None
            lease = now
        return lease

    async def over(self, lease_id: int, by: EndedBy = "service") -> None:
        """Note that a lease was lost at the service, or was given back."""
        self._watch.forget(lease_id)
        await self._grants.ask(lambda c: source_leases.end(c, lease_id, by=by))
