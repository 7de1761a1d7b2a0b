"""What the routes of leases and locks answer, as members of JSON bodies."""

from collections.abc import Sequence

import orjson

from fencepost.server import wire
from fencepost.server.gateway.leases.acquire import Granted
from fencepost.server.gateway.leases.held import Minted
from fencepost.server.postgres.leases import Lease, LeaseId, LockState


def grant_body(granted: Granted, secret: str) -> dict[str, object]:
    """Give wire.LeaseAnswer."""
    lease = granted.lease
    tokens = [str(token) for token in lease.tokens]
    return {
        "lease_id": str(granted.lease_id),
        "source": granted.source,
        "secret": secret,
        "lock": _one_name(granted.locks),
        "locks": list(granted.locks),
        "owner": lease.owner,
        "ttl_ms": lease.ttl_ms,
        "token": tokens[0],
        "tokens": tokens,
        **_sealed(granted.sealed),
        "granted_at": lease.granted_at,
        "expires_at": lease.expires_at,
        "remaining_ms": lease.due_ms,
        "waited_ms": granted.waited_ms,
        "claims": [
            {
                "resource": claim.resource,
                "mark": str(claim.mark),
                "row": orjson.Fragment(claim.rows[0]) if claim.rows else None,
            }
            for claim in granted.claims
        ],
    }


def mint_body(lease_id: LeaseId, minted: Minted) -> dict[str, object]:
    """Give wire.MintAnswer."""
    tokens = [str(token) for token in minted.lease.minted]
    return {
        "lease_id": str(lease_id),
        "token": tokens[0],
        "tokens": tokens,
        **_sealed(minted.sealed),
        "expires_at": minted.lease.expires_at,
    }


def _sealed(sealed: Sequence[str]) -> dict[str, object]:
    """Give the tokens with their seals beside the numbers, which clients go on reading as numbers."""
    return {"sealed_token": sealed[0], "sealed_tokens": list(sealed)} if sealed else {}


def state_body(lease_id: LeaseId, lease: Lease) -> wire.LeaseState:
    """Give the state of a live lease."""
    return {
        "lease_id": str(lease_id),
        "source": lease_id.source,
        "lock": _one_name(lease.names),
        "locks": list(lease.names),
        "owner": lease.owner,
        "ttl_ms": lease.ttl_ms,
        "granted_at": lease.granted_at,
        "expires_at": lease.expires_at,
        "remaining_ms": lease.remaining_ms,
        "claims": list(lease.claims),
        "writes": list(lease.writes),
    }


def lock_body(source: str, state: LockState) -> dict[str, object]:
    """Give wire.LockAnswer."""
    return {
        "name": state.name,
        "source": source,
        "held": state.lease_id is not None,
        "lease_id": None if state.lease_id is None else str(LeaseId(source, state.lease_id)),
        "owner": state.owner,
        "granted_at": state.granted_at,
        "expires_at": state.expires_at,
        "remaining_ms": state.remaining_ms,
        "waiters": orjson.Fragment(state.waiters),
    }


def _one_name(names: tuple[str, ...]) -> str | None:
    return names[0] if len(names) == 1 else None
