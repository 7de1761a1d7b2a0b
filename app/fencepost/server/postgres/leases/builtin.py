"""Locks, leases and tokens in the database: one statement a verb. The rules are in migrations/schema, leases.sql (R9).

Times come as ISO 8601 texts in UTC, durations in milliseconds. Secrets arrive hashed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

import asyncpg

from fencepost.server.fence.lock_pattern import likes
from fencepost.server.fence.token import BUILTIN, GENERATION_BITS, MAX_TOKEN, Token
from fencepost.server.postgres.connections.connection import Connection
from fencepost.server.postgres.leases.lock_request import LockRequest


@dataclass(frozen=True, slots=True)
class LeaseId:
    """What a lease is called: `41` of the built-in source, `etcd-41` of another one."""

    source: str
    number: int

    def __str__(self) -> str:
        return str(self.number) if self.source == BUILTIN else f"{self.source}-{self.number}"


def is_lease_number(number: int) -> bool:
    """Whether a lease may have this number: they stand in the upper half of a generation (leases.sql)."""
    return number <= MAX_TOKEN and number % 2**GENERATION_BITS > 2 ** (GENERATION_BITS - 1)


class Withdrawn(Exception):  # noqa: N818 - it is no error
    """The client has withdrawn the acquire, in a request of its own: nothing is granted."""


@dataclass(frozen=True, slots=True)
class Acquired:
    """What an acquire came to.

    granted, repeated: the lease is the caller's; `claim_token` is the one for its claims. held, queued: the lease is
    its holder's, with no id when the lock is free and others wait for it. mismatch: the secret is that of a live lease
    of other locks, claims or writes. `due_ms`: until the lease expires. `first`: no one waits before the caller.
    """

    verdict: Literal["granted", "repeated", "held", "queued", "mismatch"]
    lease_id: int | None
    owner: str | None
    claim_token: Token | None
    tokens: tuple[Token, ...]
    ttl_ms: int | None
    granted_at: str | None
    expires_at: str | None
    lock: str | None
    due_ms: int | None
    first: bool
    waiting: int


@dataclass(frozen=True, slots=True)
class Lease:
    """A live lease. `minted` are the tokens that this very call drew."""

    lease_id: int
    names: tuple[str, ...]
    owner: str
    claims: tuple[str, ...]
    ttl_ms: int
    last_token: int
    granted_at: str
    expires_at: str
    remaining_ms: int
    minted: tuple[Token, ...] = ()
    writes: tuple[str, ...] = ()
    """What its tokens may be used for where they are sealed, beside what locks and claims name."""


EndedBy = Literal["holder", "operator", "generation", "service"]


@dataclass(frozen=True, slots=True)
class LostLease:
    """What is still known of a lease that is over. `ended_by`: who ended it before its time; None: its time ran out.
    `superseded_by`: JSON about who has one of its locks now.
    """

    names: tuple[str, ...]
    owner: str
    ended_at: str
    ended_by: EndedBy | None
    superseded_by: str | None


@dataclass(frozen=True, slots=True)
class LockState:
    """Who has a lock, and who waits for it, first come first. The lease's members are None when it is free."""

    name: str
    lease_id: int | None
    owner: str | None
    last_token: int | None
    granted_at: str | None
    expires_at: str | None
    remaining_ms: int | None
    waiters: str
    """A JSON array of {"owner", "since", "until"}."""


def iso(expression: str) -> str:
    """Write a time as a text, under its own name."""
    return f"pg_catalog.to_json({expression}) OPERATOR(pg_catalog.#>>) '{{}}' AS {expression}"


_ACQUIRE = (
    f"SELECT verdict, lease_id, owner, claim_token, tokens, ttl_ms, {iso('granted_at')}, {iso('expires_at')},"
    " lock, due_ms, first, waiting FROM fencepost.acquire($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"
)
_LEASE = (
    f"lease_id, names, owner, claims, ttl_ms, last_token, {iso('granted_at')}, {iso('expires_at')}, remaining_ms,"
    " writes"
)
_EXTEND = f"SELECT {_LEASE}, tokens FROM fencepost.extend($1, $2, $3, $4)"
_INSPECT = f"SELECT {_LEASE} FROM fencepost.lease($1)"
_LOST = f"SELECT names, owner, {iso('ended_at')}, ended_by, superseded_by FROM fencepost.lost($1)"
_LOCKS = (
    f"SELECT name, lease_id, owner, last_token, {iso('granted_at')}, {iso('expires_at')},"
    " remaining_ms, waiters FROM fencepost.lock_states($1, $2, $3, $4)"
)


async def try_locks(
    connection: Connection, wanted: LockRequest, gateway: UUID | None, visit: UUID | None, wait_ms: int
) -> Acquired:
    """Try for all locks once: granted, or another one is in the way; wait_ms > 0 then takes a place in the queue.

    Raises Withdrawn.
    """
    row = await connection.fetchrow(
        _ACQUIRE,
        list(wanted.names),
        wanted.secret_hash,
        wanted.owner,
        wanted.ttl_ms,
        wanted.tokens,
        list(wanted.claims),
        gateway,
        visit,
        wait_ms,
        list(wanted.writes),
    )
    if row is None:
        raise RuntimeError("fencepost.acquire gave no row")
    if row["verdict"] == "withdrawn":
        raise Withdrawn
    return Acquired(
        row["verdict"],
        row["lease_id"],
        row["owner"],
        None if row["claim_token"] is None else Token(row["claim_token"]),
        tuple(map(Token, row["tokens"] or ())),
        row["ttl_ms"],
        row["granted_at"],
        row["expires_at"],
        row["lock"],
        row["due_ms"],
        bool(row["first"]),
        row["waiting"] or 0,
    )


async def extend(
    connection: Connection, lease_id: int, secret_hash: bytes, *, ttl_ms: int = 0, tokens: int = 0
) -> Lease | None:
    """Renew (ttl_ms > 0; -1 as before; 0 not) and mint (tokens > 0). None: it is lost, or not the caller's."""
    row = await connection.fetchrow(_EXTEND, lease_id, secret_hash, ttl_ms, tokens)
    return None if row is None else _lease(row, tuple(map(Token, row["tokens"])))


async def release(connection: Connection, lease_id: int, secret_hash: bytes, gateway: UUID) -> list[UUID] | None:
    """Give the locks back. Returns this gateway's visits that are to try now; None: it is held by another."""
    woken: list[UUID] | None = await connection.fetchval(
        "SELECT fencepost.release($1, $2, $3)", lease_id, secret_hash, gateway
    )
    return woken


async def inspect(connection: Connection, lease_id: int) -> Lease | None:
    """Look at a live lease."""
    row = await connection.fetchrow(_INSPECT, lease_id)
    return None if row is None else _lease(row, ())


async def find_ended(connection: Connection, lease_id: int) -> LostLease | None:
    """Look at a lease that is over, as long as it is remembered."""
    row = await connection.fetchrow(_LOST, lease_id)
    if row is None:
        return None
    return LostLease(tuple(row["names"]), row["owner"], row["ended_at"], row["ended_by"], row["superseded_by"])


async def lock_states(
    connection: Connection,
    names: Sequence[str] | None,
    after: str | None,
    limit: int,
    patterns: Sequence[str] | None = None,
) -> list[LockState]:
    """List the locks that are held or waited for, by name: those of these names, or `limit` after a name; only those
    that a pattern names, unless there are none.
    """
    rows = await connection.fetch(_LOCKS, names, after, limit, likes(patterns))
    return [LockState(**dict(row)) for row in rows]


async def lock_counts(connection: Connection) -> tuple[int, int]:
    """Count (locks held, requests that wait)."""
    row = await connection.fetchrow("SELECT held, waiting FROM fencepost.lock_counts()")
    if row is None:
        raise RuntimeError("fencepost.lock_counts gave no row")
    return row["held"], row["waiting"]


async def leave(connection: Connection, visit: UUID, keep_ms: int = 0) -> None:
    """Leave the queue, and wake the one that is first then. keep_ms > 0: the place stays for that long."""
    await connection.execute("SELECT fencepost.leave($1, $2)", visit, keep_ms)


async def beat(connection: Connection, gateway: UUID, visits: list[UUID], left: list[UUID]) -> list[tuple[UUID, int]]:
    """Record which visits of this gateway still wait, and which have left.

    Returns which of them are to try, and in how many ms: those first in a queue, and those that have no place in one.
    """
    rows = await connection.fetch("SELECT visit, due_ms FROM fencepost.beat($1, $2, $3)", gateway, visits, left)
    return [(row["visit"], row["due_ms"]) for row in rows]


async def retire(connection: Connection, gateway: UUID) -> None:
    """Take all of this gateway's waiters out of their queues."""
    await connection.execute("SELECT fencepost.retire($1)", gateway)


async def begin_now(connection: Connection, lease_id: int) -> tuple[str, str]:
    """Let a lease that this very transaction was granted begin now; returns (granted_at, expires_at)."""
    row = await connection.fetchrow(
        f"SELECT {iso('granted_at')}, {iso('expires_at')} FROM fencepost.begin_now($1)", lease_id
    )
    if row is None or row["granted_at"] is None:
        raise RuntimeError("the lease was not granted by this transaction")
    return row["granted_at"], row["expires_at"]


async def sweep(connection: Connection) -> int:
    """Remove what no lock needs any more, some of it; returns how many rows that were."""
    swept: int = await connection.fetchval("SELECT fencepost.sweep()")
    return swept


async def forget(connection: Connection, keep_seconds: float, after: int) -> int | None:
    """Forget leases that ended long ago, a part of them; returns where to go on, None at the end."""
    position: int | None = await connection.fetchval("SELECT fencepost.forget($1, $2)", keep_seconds, after)
    return position


def _lease(row: asyncpg.Record, minted: tuple[Token, ...]) -> Lease:
    return Lease(
        row["lease_id"],
        tuple(row["names"]),
        row["owner"],
        tuple(row["claims"]),
        row["ttl_ms"],
        row["last_token"],
        row["granted_at"],
        row["expires_at"],
        row["remaining_ms"],
        minted,
        tuple(row["writes"]),
    )
