"""What the leases of a source answer, made of their records."""

from collections.abc import Sequence
from typing import Literal

from fencepost.server.fence.token import Token
from fencepost.server.locks.leases import TakeResult
from fencepost.server.locks.source import Holder
from fencepost.server.postgres.leases.builtin import Acquired, Lease
from fencepost.server.postgres.leases.lock_request import LockRequest
from fencepost.server.postgres.leases.source_leases import SourceLease


def granted(
    lease: SourceLease, wanted: LockRequest, claims: object, waited_ms: int, *, repeated: bool, read_ms: int
) -> TakeResult:
    """Answer with a lease. `read_ms`: how long ago its remaining time was read."""
    acquired = Acquired(
        "repeated" if repeated else "granted",
        lease.lease_id,
        lease.owner,
        None,
        tuple(Token(token) for token in (lease.tokens[1:] if wanted.claims else lease.tokens)),
        lease.ttl_ms,
        lease.granted_at,
        lease.expires_at,
        lease.lock,
        max(lease.remaining_ms - read_ms, 0),
        first=False,
        waiting=0,
    )
    return TakeResult(acquired, claims, waited_ms)


def not_granted(
    verdict: Literal["held", "mismatch"], wanted: LockRequest, holder: Holder, waited_ms: int
) -> TakeResult:
    """Answer that the lock is another client's, or the secret another request's."""
    acquired = Acquired(
        verdict,
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
    return TakeResult(acquired, None, waited_ms)


def public(lease: SourceLease, minted: Sequence[int]) -> Lease:
    """Give a lease as the gateway knows leases, without its handle. `minted`: tokens that were drawn now."""
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
        lease.writes,
    )
