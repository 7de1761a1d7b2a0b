"""Leases on the locks of a source: the source says who holds a lock, PostgreSQL keeps the lease and judges the tokens.

Order of a grant (R12), with the state of the source's tokens read before the number is asked for:

    1 state: generation, highest token issued      2 the source grants, and its owner mints
    3 record: the number must be above 1's         4 claims, in a transaction of their own

A grant that waited for long is renewed and minted for once more after 1 was read anew: so what was handed out while it
waited counts too. For a source without numbers of its own, tokens are drawn here, and then the source is asked whether
the lock is still held: if so, it was held when they were drawn.

A crash between two steps leaves a hold that nobody knows the handle of. It expires.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from fencepost.fencing.token import GENERATION_BITS, Token
from fencepost.locks.hold_keeper import HoldKeeper
from fencepost.locks.postgres import Attempted, Claim, LeaseLimits, Overtaken
from fencepost.locks.source import MOST_NATIVE, Holder, Source
from fencepost.locks.source_grants import Grants, Held, ms_since
from fencepost.storage import sources
from fencepost.storage.connection import gateway_connection
from fencepost.storage.engine import Database, retrying
from fencepost.storage.errors import OutcomeUnknownError, translated
from fencepost.storage.leases import Acquired, Lease, LockState, LostLease, Wanted
from fencepost.storage.sources import SourceLease

if TYPE_CHECKING:
    import asyncio

LATE: Final = 0.1
"""Share of the TTL that claims may take before the lease is renewed after them."""
VOID_TRIES: Final = 5
"""How often a grant that came to nothing is tried anew."""
OVERTAKEN_TRIES: Final = 10
FORGOTTEN_AT_ONCE: Final = 500


class SourceLocks:
    """The leases of one configured source. Has the methods of PostgresLocks; besides, they raise SourceError."""

    def __init__(
        self,
        name: str,
        scheme: str,
        source: Source,
        database: Database,
        *,
        limits: LeaseLimits | None = None,
        failed: Callable[[str], None] = lambda _reason: None,
        froze: Callable[[str], None] = lambda _reason: None,
    ) -> None:
        self.name = name
        self.scheme = scheme
        self.source = source
        self.limits = limits or LeaseLimits()
        self._database = database
        self._grants = Grants(name, source, database, failed, froze)
        self._keeper = HoldKeeper(source, self._grants.ask, failed)

    async def open(self) -> None:
        """Register the source. Raises StorageError; the service itself need not be there."""
        ordering = self.source.capabilities.order
        await self._grants.ask(lambda c: sources.register(c, self.name, self.scheme, ordering))
        await self.source.open()

    async def close(self) -> None:
        """End what lives by this process's session, and close the connections to the service."""
        await self._keeper.close()
        await self.source.close()

    async def acquire(self, wanted: Wanted, claim: Claim[object] | None, gone: "asyncio.Future[None]") -> Attempted:
        """Take a lock, wait for it as long as is wanted or until `gone` is done, and claim.

        Raises StorageError, SourceError, Overtaken, and what `claim` raises; no hold remains then.
        """
        began = time.monotonic()
        for _ in range(VOID_TRIES):
            before, found = await self._grants.ask(
                lambda c: sources.begun(c, self.name, wanted.names[0], wanted.secret_hash)
            )
            if found is not None:
                source, known = found
                if (source, known.lock, known.claims) != (self.name, wanted.names[0], wanted.claims):
                    return _attempted(_refused("mismatch", wanted, Holder()), began)
                if await self._holds(known):
                    return await self._answered(known, wanted, claim, began, repeated=True)
            left = max(began + wanted.wait_ms / 1000 - time.monotonic(), 0)
            held = await self._grants.grant(wanted, before, left, gone)
            if isinstance(held, Holder):
                return _attempted(_refused("held", wanted, held), began)
            if held is not None and (lease := await self._recorded(wanted, held)) is not None:
                return await self._answered(lease, wanted, claim, began, repeated=False)
        return _attempted(_refused("held", wanted, Holder()), began)

    async def renew(self, lease_id: int, secret_hash: bytes, ttl_ms: int | None) -> Lease | None:
        """Keep a lease alive, from now on for ttl_ms or as long as before. None: it is lost."""
        lease = await self._grants.ask(lambda c: sources.lease(c, self.name, lease_id, secret_hash))
        if lease is None:
            return None
        ttl_ms = lease.ttl_ms if ttl_ms is None else ttl_ms
        since = time.monotonic()
        if not await self.source.renew(lease.lock, lease.handle, self._grants.ttl(ttl_ms)):
            await self._over(lease_id)
            return None
        renewed = await self._grants.ask(
            lambda c: sources.renewed(c, self.name, lease_id, secret_hash, ttl_ms, ms_since(since))
        )
        return None if renewed is None else _public(renewed, ())

    async def mint(self, lease_id: int, secret_hash: bytes, count: int) -> Lease | None:
        """Draw more tokens. None: the lease is lost. Raises SourceFrozenError."""
        found = await self._grants.ask(lambda c: sources.held(c, self.name, lease_id, secret_hash))
        if found is None:
            return None
        before, lease = found
        self._grants.require_sound(before)
        tokens = await self._grants.drawn(lease.lock, lease.handle, lease.ttl_ms, count, before)
        if tokens is None:
            await self._over(lease_id)
            return None
        match await self._grants.ask(lambda c: sources.minted(c, lease_id, secret_hash, tokens, before.generation)):
            case "minted":
                return _public(replace(lease, last_token=max(lease.last_token, tokens[-1])), tokens)
            case "lost":
                return None
            case verdict:
                raise await self._grants.frozen(lease.lock, just_now=verdict == "backwards")

    async def release(self, lease_id: int, secret_hash: bytes) -> bool:
        """Give the lock back; False: the lease lives and is somebody else's."""
        lease = await self._grants.ask(lambda c: sources.lease(c, self.name, lease_id, secret_hash))
        if lease is None:
            return await self.inspect(lease_id) is None
        await self.source.release(lease.lock, lease.handle)
        self._keeper.forget(lease_id)
        await self._grants.ask(lambda c: sources.end(c, lease_id, released=True))
        return True

    async def inspect(self, lease_id: int) -> Lease | None:
        """Look at a live lease."""
        lease = await self._grants.ask(lambda c: sources.lease(c, self.name, lease_id, None))
        return None if lease is None else _public(lease, ())

    async def lost(self, lease_id: int) -> LostLease | None:
        """Look at a lease that is over, as long as it is remembered."""
        return await self._grants.ask(lambda c: sources.lost(c, self.name, lease_id))

    async def states(self, name: str | None, after: str | None, limit: int) -> list[LockState]:
        """List the locks that are held under leases."""
        return await self._grants.ask(lambda c: sources.lock_states(c, self.name, name, after, limit))

    async def verify(self, token: int) -> bool:
        """Ask the source whether it has issued a token that is above all that are known, and note that (--verify)."""
        if not self.source.capabilities.verifies:
            return False
        before = await self._grants.state("")
        number = token - (before.generation << GENERATION_BITS)
        if not 0 < number <= MOST_NATIVE or not await self.source.issued(number):
            return False
        await self._grants.ask(lambda c: sources.verified(c, self.name, token))
        return True

    async def sweep(self, keep_seconds: float) -> None:
        """Forget leases that ended longer ago than that."""
        while await self._grants.ask(lambda c: sources.forget(c, keep_seconds, FORGOTTEN_AT_ONCE)) == FORGOTTEN_AT_ONCE:
            pass

    async def _recorded(self, wanted: Wanted, held: Held) -> SourceLease | None:
        lease = await self._grants.record(wanted, held)
        if lease is not None and not self.source.capabilities.ttl_from_server:
            self._keeper.keep(lease.lease_id, lease.lock, lease.handle)
        return lease

    async def _answered(
        self, lease: SourceLease, wanted: Wanted, claim: Claim[object] | None, began: float, *, repeated: bool
    ) -> Attempted:
        """Make the claims of a recorded grant, unless they are made, and answer."""
        claims, now = None, None
        if claim is not None:
            asked = time.monotonic()
            try:
                claims = await self._claim(lease, wanted, claim)
            except OutcomeUnknownError:
                raise  # repeated with the same secret, it finds the lease, and whether its claims were made
            except BaseException:
                await self._grants.give_back(lease.lock, lease.handle)
                await self._over(lease.lease_id)
                raise
            if time.monotonic() - asked > LATE * lease.ttl_ms / 1000:
                now = await self.renew(lease.lease_id, wanted.secret_hash, None)
        tokens = lease.tokens[1:] if wanted.claims else lease.tokens
        return Attempted(
            Acquired(
                "repeated" if repeated else "granted",
                lease.lease_id,
                lease.owner,
                None,
                tuple(Token(token) for token in tokens),
                lease.ttl_ms,
                lease.granted_at,
                (now or lease).expires_at,
                lease.lock,
                (now or lease).remaining_ms,
                first=False,
                waiting=0,
            ),
            claims,
            0 if repeated else int((time.monotonic() - began) * 1000) - (lease.ttl_ms - lease.remaining_ms),
        )

    async def _claim(self, lease: SourceLease, wanted: Wanted, claim: Claim[object]) -> object:
        token = lease.tokens[0]
        for _ in range(OVERTAKEN_TRIES):
            with suppress(Overtaken):
                return await self._claimed(lease, claim, token)
            more = await self.mint(lease.lease_id, wanted.secret_hash, 1)
            if more is None:
                break
            token = more.minted[0]
        raise Overtaken

    async def _claimed(self, lease: SourceLease, claim: Claim[object], token: int) -> object:
        async def attempt() -> object:
            async with self._database.connection(writing=True) as connection:
                with translated(writing=True):
                    async with connection.transaction():
                        claims = await claim(connection, Token(token), lease.claimed)
                        if not lease.claimed and not await sources.claimed(connection, lease.lease_id):
                            raise Overtaken
                gateway_connection(connection).require_replicated()
                return claims

        return await retrying(attempt)

    async def _holds(self, lease: SourceLease) -> bool:
        """Whether the hold of a lease is there still. It is renewed by that, and ended in our record if it is not."""
        if await self.source.renew(lease.lock, lease.handle, self._grants.ttl(lease.remaining_ms)):
            return True
        await self._over(lease.lease_id)
        return False

    async def _over(self, lease_id: int) -> None:
        self._keeper.forget(lease_id)
        await self._grants.ask(lambda c: sources.end(c, lease_id, released=False))


def _refused(verdict: str, wanted: Wanted, holder: Holder) -> Acquired:
    return Acquired(
        "mismatch" if verdict == "mismatch" else "held",
        None,
        holder.owner,
        None,
        (),
        None,
        None,
        None,
        wanted.names[0],
        holder.expires_ms,
        first=False,
        waiting=0,
    )


def _attempted(acquired: Acquired, began: float) -> Attempted:
    return Attempted(acquired, None, int((time.monotonic() - began) * 1000))


def _public(lease: SourceLease, minted: Sequence[int]) -> Lease:
    return Lease(
        lease.lease_id,
        (lease.lock,),
        lease.owner,
        lease.claims,
        lease.ttl_ms,
        lease.last_token,
        lease.granted_at,
        lease.expires_at,
        lease.remaining_ms,
        tuple(Token(token) for token in minted),
    )
