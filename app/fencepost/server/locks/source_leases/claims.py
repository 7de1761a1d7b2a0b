"""The claims that go with a grant of a lock service: in a transaction of their own, once, under tokens that pass (R7).

A crash between grant and claims leaves a lease whose claims are not made; its request, repeated, makes them. Of two
that are under way at once the second waits, and reads again what the first has claimed.
"""

from contextlib import suppress
from dataclasses import replace
from typing import Final, Protocol

from fencepost.server.fence.token import Token
from fencepost.server.locks.leases import Claim, Overtaken
from fencepost.server.locks.source_leases.grants import Grants
from fencepost.server.postgres.connections.connection import Connection
from fencepost.server.postgres.connections.engine import Database
from fencepost.server.postgres.connections.transactions import run_write
from fencepost.server.postgres.errors import OutcomeUnknownError
from fencepost.server.postgres.leases import source_leases
from fencepost.server.postgres.leases.builtin import EndedBy, Lease
from fencepost.server.postgres.leases.source_leases import SourceLease

OVERTAKEN_TRIES: Final = 10


class HeldLeases(Protocol):
    """What is needed of SourceLocks."""

    async def renew(self, lease_id: int, secret_hash: bytes, ttl_ms: int | None) -> Lease | None:
        """Renew a lease; None: it is lost."""
        ...

    async def mint(self, lease_id: int, secret_hash: bytes, count: int) -> Lease | None:
        """Mint under a lease; None: it is lost."""
        ...

    async def inspect(self, lease_id: int) -> Lease | None: ...

    async def over(self, lease_id: int, by: EndedBy = "service") -> None:
        """Note that a lease is over: lost at the service, or given back."""
        ...


class SourceClaims:
    """Makes the claims of one source's leases."""

    def __init__(self, leases: HeldLeases, grants: Grants, database: Database) -> None:
        self._leases, self._grants, self._database = leases, grants, database

    async def make(
        self, lease: SourceLease, secret_hash: bytes, claim: Claim[object]
    ) -> tuple[object, SourceLease] | None:
        """Make the claims; a lease that can make none is given back. None: it was lost meanwhile."""
        clock = self._grants.clock
        asked = clock.monotonic()
        try:
            made = await self._newest(lease, secret_hash, claim)
            if made is not None and clock.monotonic() - asked > self._grants.times.late_share * lease.ttl_ms / 1000:
                late = await self._leases.renew(lease.lease_id, secret_hash, None)
                made = None if late is None else (made[0], _later(made[1], late, self._grants.ms_since(asked)))
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
        lost = await self._leases.inspect(lease.lease_id) is None
        await self._grants.give_back(lease.lock, lease.handle)
        await self._leases.over(lease.lease_id, "holder")
        return lost

    async def _newest(
        self, lease: SourceLease, secret_hash: bytes, claim: Claim[object]
    ) -> tuple[object, SourceLease] | None:
        """Claim, with newer tokens where a younger one was there first: those that are older are worth nothing then."""
        tokens = lease.tokens
        for _ in range(OVERTAKEN_TRIES):
            with suppress(Overtaken):
                return await self._claim_once(lease, claim, tokens)
            more = await self._leases.mint(lease.lease_id, secret_hash, len(lease.tokens))
            if more is None:
                return None
            tokens = tuple(more.minted)
        raise Overtaken

    async def _claim_once(
        self, lease: SourceLease, claim: Claim[object], tokens: tuple[int, ...]
    ) -> tuple[object, SourceLease] | None:
        async def in_transaction(connection: Connection) -> tuple[object, SourceLease] | None:
            async with connection.transaction():
                now = await source_leases.lock_claims(connection, lease.lease_id)
                if now is None:
                    return None
                made, used = now[0], now[1] if now[0] else tokens
                claims = await claim(connection, Token(used[0]), made)
                if not made and not await source_leases.record_claims(connection, lease.lease_id, used):
                    raise Overtaken
            return claims, replace(lease, tokens=used, claimed=True)

        return await run_write(self._database.grants.lend, in_transaction)


def _later(lease: SourceLease, renewed: Lease, asked_ms: int) -> SourceLease:
    """Take a renewal over into a lease; `asked_ms`: how long ago its answer begins to count its remaining time."""
    return replace(lease, expires_at=renewed.expires_at, remaining_ms=renewed.remaining_ms + asked_ms)
