"""Locks, leases and tokens in the database: one statement a verb. The rules are in migrations/schema, leases.sql (R9).

Times come as ISO 8601 texts in UTC, durations in milliseconds. Secrets arrive hashed.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self
from uuid import UUID

import asyncpg

from fencepost.server.fence.caller import EVERYBODY, Caller, likes
from fencepost.server.fence.token import BUILTIN, GENERATION_BITS, MAX_TOKEN, Token
from fencepost.server.postgres.connection import Connection

# A request for locks, as it passes from the route to the statement that grants them.


def hash_secret(secret: str, caller: Caller = EVERYBODY) -> bytes:
    """Hash a lease's secret for storing. It has 128 random bits or more, so it needs neither salt nor stretching.

    The caller's name is a part of it: for another caller the same secret is another one, which no lease has. Neither
    text has a NUL byte.
    """
    text = f"{caller.name}\0{secret}" if caller.name else secret
    return hashlib.sha256(text.encode()).digest()


@dataclass(frozen=True, slots=True)
class LockRequest:
    """What a client asks for with POST /v1/leases. Durations in milliseconds; no name stands anywhere twice."""

    names: tuple[str, ...]
    """The locks: all of them, or none."""
    secret: str = field(repr=False)
    owner: str
    """Who holds the lock, for people."""
    ttl_ms: int
    tokens: int = 1
    claims: tuple[str, ...] = ()
    """Resources, `table/key`, as the client has written them."""
    wait_ms: int = 0
    keep_place: bool = False
    """Whether the place in the queue stays for a moment when the wait is over."""
    chosen: bool = True
    """Whether the secret is the client's own, who can come back with it."""
    owner_given: bool = True
    """Whether the client has named the owner itself, and so must name the same one when it repeats the request."""
    source: str = BUILTIN
    writes: tuple[str, ...] = ()
    """What sealed tokens may be used for beside what locks and claims name; for a source as the database spells it."""
    caller: Caller = EVERYBODY
    """Whose request it is: the gateway sets it."""

    @property
    def secret_hash(self) -> bytes:
        return hash_secret(self.secret, self.caller)


# Locks and leases of the built-in source.


class LeaseId(str):
    """What a lease is called: `41` of the built-in source, `etcd-41` of another one."""

    __slots__ = ("number", "source")
    source: str
    number: int

    def __new__(cls, source: str, number: int) -> Self:
        made = super().__new__(cls, number if source == BUILTIN else f"{source}-{number}")
        made.source, made.number = source, number
        return made


def is_lease_number(number: int) -> bool:
    """Whether a lease may have this number: they stand in the upper half of a generation (leases.sql)."""
    return number <= MAX_TOKEN and number % 2**GENERATION_BITS > 2 ** (GENERATION_BITS - 1)


class Withdrawn(Exception):  # noqa: N818 - it is no error
    """The client has withdrawn the acquire, in a request of its own: nothing is granted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRow:
    """A live lease of any source."""

    id: LeaseId
    names: tuple[str, ...]
    """Its locks, sorted."""
    owner: str
    ttl_ms: int
    granted_at: str
    expires_at: str
    remaining_ms: int
    claims: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    """What its tokens may be used for where they are sealed, beside what locks and claims name."""
    tokens: tuple[Token, ...] = ()
    """Those that came with the grant, or that this very call drew."""
    attempt: int | None = None
    """Of the next row of a table: how often that was taken, with this time; None: the request named its locks."""
    sealed: tuple[str, ...] = ()
    """The same with their seals; none where the gateway has no keys."""

    @property
    def lease_id(self) -> int:
        """Its number."""
        return self.id.number


# What an acquire came to.


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """The lease is the caller's: granted now, or found again by the secret of a repeated request."""

    lease: LeaseRow
    verdict: Literal["granted", "repeated"]
    claim_token: Token | None = None
    """The one for the claims of a lease of the built-in source."""
    claims: Sequence[Any] = ()
    """What its claims gave."""
    waited_ms: int = 0
    """How long the request had waited when its last try began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A lock is another's lease; without a `lease_id` it is free, and others wait for it. queued: the caller has a
    place among them. `due_ms`: until the lease expires. `first`: no one waits before the caller. `busy`: another grant
    was under way, and so the caller's place is as it was.
    """

    verdict: Literal["held", "queued"]
    lock: str
    lease_id: int | None = None
    owner: str | None = None
    granted_at: str | None = None
    expires_at: str | None = None
    due_ms: int | None = None
    first: bool = False
    waiting: int = 0
    busy: bool = False


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The secret is that of a live lease of other locks, claims or writes."""

    verdict: Literal["mismatch"] = "mismatch"


Acquired = Granted | Held | Mismatch


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
class LockRow:
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


_ACQUIRED = (
    f"verdict, lease_id, owner, claim_token, tokens, ttl_ms, {iso('granted_at')}, {iso('expires_at')},"
    " lock, due_ms, first, waiting"
)
_ACQUIRE = f"SELECT {_ACQUIRED} FROM fencepost.acquire($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"
_ACQUIRE_EACH = (
    f"SELECT {_ACQUIRED}, busy, attempt FROM fencepost.acquire_each($1, $2, $3, $4, $5, $6, $7)"
    " WITH ORDINALITY AS e(busy, acquired, attempt, o), LATERAL (SELECT (e.acquired).*) AS a ORDER BY o"
)
_RELEASE_EACH = (
    "SELECT busy, woken FROM fencepost.release_each($1, $2, $3) WITH ORDINALITY AS e(busy, woken, o) ORDER BY o"
)
_LEASE = f"lease_id, names, owner, claims, ttl_ms, {iso('granted_at')}, {iso('expires_at')}, remaining_ms, writes"
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
    return _acquired(row, wanted)


async def try_each(
    connection: Connection, batch: Sequence[LockRequest], marks: Sequence[int] | None = None
) -> list[Acquired | Withdrawn | None]:
    """Try for the one lock of each request, without waits, in one transaction; None: it is busy. They are sorted by the
    names of their locks, and have the same `writes`. `marks`: of the rows that the locks are named after, which each
    request claims; None: they have no claims.
    """
    rows = await connection.fetch(
        _ACQUIRE_EACH,
        [wanted.names[0] for wanted in batch],
        [wanted.secret_hash for wanted in batch],
        [wanted.owner for wanted in batch],
        [wanted.ttl_ms for wanted in batch],
        [wanted.tokens for wanted in batch],
        marks,
        list(batch[0].writes),
    )
    return [None if row["busy"] else _or_withdrawn(row, wanted) for row, wanted in zip(rows, batch, strict=True)]


def _or_withdrawn(row: asyncpg.Record, wanted: LockRequest) -> Acquired | Withdrawn:
    return Withdrawn() if row["verdict"] == "withdrawn" else _acquired(row, wanted)


def _acquired(row: asyncpg.Record, wanted: LockRequest) -> Acquired:
    match row["verdict"]:
        case "withdrawn":
            raise Withdrawn
        case "mismatch":
            return Mismatch()
        case "held" | "queued" as verdict:
            return Held(
                verdict=verdict,
                lock=row["lock"],
                lease_id=row["lease_id"],
                owner=row["owner"],
                granted_at=row["granted_at"],
                expires_at=row["expires_at"],
                due_ms=row["due_ms"],
                first=bool(row["first"]),
                waiting=row["waiting"] or 0,
            )
    lease = LeaseRow(
        id=LeaseId(BUILTIN, row["lease_id"]),
        names=tuple(sorted(wanted.names, key=str.encode)),
        owner=row["owner"],
        ttl_ms=row["ttl_ms"],
        granted_at=row["granted_at"],
        expires_at=row["expires_at"],
        remaining_ms=row["due_ms"],
        claims=wanted.claims,
        writes=wanted.writes,
        tokens=tuple(map(Token, row["tokens"])),
        attempt=row.get("attempt"),
    )
    claim_token = None if row["claim_token"] is None else Token(row["claim_token"])
    return Granted(lease=lease, verdict=row["verdict"], claim_token=claim_token)


@dataclass(frozen=True, slots=True)
class TakenBy:
    """What a secret has. `busy`: another request with it is under way. `names`: the locks of its live lease; None:
    there is none. `attempt`: that of a lease of the next row.
    """

    busy: bool
    withdrawn: bool
    names: tuple[str, ...] | None
    attempt: int | None


async def taken_by(connection: Connection, hashes: Sequence[bytes]) -> list[TakenBy]:
    """Look what secrets have, and let no grant under them begin before this transaction is over."""
    rows = await connection.fetch("SELECT busy, withdrawn, names, attempt FROM fencepost.taken_by($1)", hashes)
    return [
        TakenBy(row["busy"], row["withdrawn"], None if row["names"] is None else tuple(row["names"]), row["attempt"])
        for row in rows
    ]


async def put_aside(connection: Connection, lease_id: int) -> None:
    """End a lease of the next row in the transaction that granted it: the row was taken too often."""
    await connection.execute("SELECT fencepost.put_aside($1)", lease_id)


async def extend(
    connection: Connection, lease_id: int, secret_hash: bytes, *, ttl_ms: int = 0, tokens: int = 0
) -> LeaseRow | None:
    """Renew (ttl_ms > 0; -1 as before; 0 not) and mint (tokens > 0). None: it is lost, or not the caller's."""
    row = await connection.fetchrow(_EXTEND, lease_id, secret_hash, ttl_ms, tokens)
    return None if row is None else _lease(row, row["tokens"])


async def release(connection: Connection, lease_id: int, secret_hash: bytes, gateway: UUID) -> list[UUID] | None:
    """Give the locks back. Returns this gateway's visits that are to try now; None: it is held by another."""
    woken: list[UUID] | None = await connection.fetchval(
        "SELECT fencepost.release($1, $2, $3)", lease_id, secret_hash, gateway
    )
    return woken


@dataclass(frozen=True, slots=True)
class Release:
    """The end of a lease that its holder asks for, as whom `secret_hash` shows it."""

    lease_id: int
    secret_hash: bytes


async def release_each(
    connection: Connection, batch: Sequence[Release], gateway: UUID
) -> list[tuple[bool, list[UUID] | None]]:
    """Release many leases in one transaction. Of each: whether it is busy, and stays; else what `release` gives."""
    numbers, hashes = [each.lease_id for each in batch], [each.secret_hash for each in batch]
    rows = await connection.fetch(_RELEASE_EACH, numbers, hashes, gateway)
    return [(row["busy"], row["woken"]) for row in rows]


async def inspect(connection: Connection, lease_id: int) -> LeaseRow | None:
    """Look at a live lease."""
    row = await connection.fetchrow(_INSPECT, lease_id)
    return None if row is None else _lease(row)


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
) -> list[LockRow]:
    """List the locks that are held or waited for, by name: those of these names, or `limit` after a name; only those
    that a pattern names, unless there are none.
    """
    rows = await connection.fetch(_LOCKS, names, after, limit, likes(patterns))
    return [LockRow(**dict(row)) for row in rows]


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


def _lease(row: asyncpg.Record, tokens: Sequence[int] = ()) -> LeaseRow:
    return LeaseRow(
        id=LeaseId(BUILTIN, row["lease_id"]),
        names=tuple(row["names"]),
        owner=row["owner"],
        ttl_ms=row["ttl_ms"],
        granted_at=row["granted_at"],
        expires_at=row["expires_at"],
        remaining_ms=row["remaining_ms"],
        claims=tuple(row["claims"]),
        writes=tuple(row["writes"]),
        tokens=tuple(map(Token, tokens)),
    )


# Whose a token of a source is, as long as that is remembered (R18).


@dataclass(frozen=True, slots=True)
class Issued:
    """A token, and the lease that it was drawn for. Times are ISO 8601 texts in UTC."""

    token: int
    lease_id: str
    locks: tuple[str, ...]
    holder: str
    granted_at: str
    issued_at: str
    source: str = BUILTIN

    def body(self) -> dict[str, object]:
        """The members that answers show: not the token, which may be one that writes are still accepted with."""
        return {
            "holder": self.holder,
            "lease_id": self.lease_id,
            "locks": list(self.locks),
            "granted_at": self.granted_at,
            "issued_at": self.issued_at,
            "source": self.source,
        }


async def issued_to(connection: Connection, token: int, source: str) -> Issued | None:
    """Look a token of a source up; None: it is not remembered, or another source's."""
    builtin = source == BUILTIN
    row = await connection.fetchrow(
        "SELECT lease_id, names, owner, pg_catalog.to_json(granted_at) OPERATOR(pg_catalog.#>>) '{}' AS granted_at,"
        " pg_catalog.to_json(drawn_at) OPERATOR(pg_catalog.#>>) '{}' AS issued_at FROM "
        + ("fencepost.issued_to($1)" if builtin else "fencepost.source_issued_to($2, $1)"),
        *((token,) if builtin else (token, source)),
    )
    if row is None:
        return None
    lease_id = str(LeaseId(source, row["lease_id"]))
    return Issued(token, lease_id, tuple(row["names"]), row["owner"], row["granted_at"], row["issued_at"], source)


# Acquires that their clients have withdrawn: one statement a verb. The rules are in schema/withdrawn.sql.


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """What was there of a secret. `leases` are to be released; `under_way`: a request may be granted one still."""

    leases: tuple[LeaseId, ...]
    under_way: bool


async def withdraw(connection: Connection, secret_hash: bytes) -> Withdrawal:
    """Let no lease be granted under this secret any more, and take its place out of the queues."""
    row = await connection.fetchrow("SELECT sources, lease_ids, under_way FROM fencepost.withdraw($1)", secret_hash)
    if row is None:
        raise RuntimeError("fencepost.withdraw gave no row")
    leases = zip(row["sources"], row["lease_ids"], strict=True)
    return Withdrawal(tuple(LeaseId(source, int(number)) for source, number in leases), row["under_way"])


async def is_withdrawn(connection: Connection, secret_hash: bytes) -> bool:
    """Whether the client of this secret waits no more."""
    withdrawn: bool = await connection.fetchval("SELECT fencepost.is_withdrawn($1)", secret_hash)
    return withdrawn


# Ending a lease in its holder's place (migrations/schema/force_release.sql).


@dataclass(frozen=True, slots=True)
class Forced:
    """The lease that was ended. `handle`: what a lock service calls the hold, which is still there; None: there is
    none.
    """

    lease_id: int
    owner: str
    names: tuple[str, ...]
    granted_at: str
    handle: str | None


async def force_release(connection: Connection, source: str, lock: str, reason: str) -> Forced | None:
    """End the lease that has a lock, and record why. None: no lease has it.

    Raises asyncpg.PostgresError: 42501 for a role that may not break the glass, FP400 for a reason that is none.
    """
    async with connection.transaction():
        await connection.execute("SELECT set_config('fencepost.break_glass', $1, true)", reason)
        row = await connection.fetchrow(
            "SELECT lease_id, owner, names, to_json(granted_at) #>> '{}' AS granted_at, handle"
            " FROM fencepost.force_release($1, $2)",
            source,
            lock,
        )
    return (
        None
        if row is None
        else Forced(row["lease_id"], row["owner"], tuple(row["names"]), row["granted_at"], row["handle"])
    )
