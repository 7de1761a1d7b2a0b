"""Lock services as PostgreSQL knows them: how far their numbers got, and the leases that they have granted."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import asyncpg

from fencepost.server.fence.caller import likes
from fencepost.server.fence.token import GENERATION_BITS, Token
from fencepost.server.postgres.connection import Connection
from fencepost.server.postgres.leases import EndedBy, LeaseId, LeaseRow, LockRequest, LockRow, LostLease, Withdrawn, iso
from fencepost.server.postgres.upkeep import call_with_retries

# Token sources beside the built-in one, as PostgreSQL remembers them: one statement a verb. The rules are in
# migrations/schema/sources.sql (R12). Times are ISO 8601 texts in UTC, durations milliseconds.


@dataclass(frozen=True, slots=True)
class SourceState:
    """Where a source's tokens are. `issued`: the highest that is known, of the source or of one lock. `quarantined`:
    why no tokens are taken from it any more (R12).
    """

    generation: int
    issued: int
    quarantined: str | None

    def compose(self, numbers: Sequence[int]) -> tuple[int, ...]:
        """Make tokens of the service's own numbers."""
        return tuple((self.generation << GENERATION_BITS) + number for number in numbers)


@dataclass(frozen=True, slots=True)
class KnownSource:
    """A source as it stands. `kind`: which service it is. `verifies`: whether it can be asked what it has issued."""

    name: str
    kind: str
    verifies: bool
    generation: int
    issued: int
    quarantined: str | None
    tables: tuple[str, ...]

    @property
    def number(self) -> int:
        """The service's own number of the highest token; 0: none of this generation was given."""
        return max(self.issued - (self.generation << GENERATION_BITS), 0)

    @property
    def of_a_queue(self) -> bool:
        """Whether its tokens are positions in a log, and not grants of a lock service."""
        return ":" in self.name

    @property
    def unused(self) -> bool:
        """Whether nothing was ever made of it: no table needs it, and it has given no token."""
        return not self.tables and self.quarantined is None and not self.issued and not self.generation

    def describe(self) -> str:
        """Return the source's state as one phrase."""
        if self.quarantined is not None:
            return f"quarantined at generation {self.generation}: {self.quarantined}"
        return f"generation {self.generation}, " + (f"issued {self.issued}" if self.number else "nothing issued yet")


async def list_known(connection: Connection) -> list[KnownSource]:
    """List the sources that were ever configured or named, and the tables that are pinned to each; queues come last."""
    rows = await connection.fetch(
        "SELECT s.name, s.scheme AS kind, coalesce(s.verifies, false) AS verifies,"
        " b.generation, b.issued, s.quarantined_because AS quarantined, ARRAY(SELECT p.name"
        " FROM fencepost.protected p WHERE p.source OPERATOR(pg_catalog.=) s.name ORDER BY 1) AS tables"
        " FROM fencepost.sources s CROSS JOIN LATERAL fencepost.source_bounds(s.name) b ORDER BY s.name"
    )
    found = [
        KnownSource(
            row["name"],
            row["kind"],
            row["verifies"],
            row["generation"],
            row["issued"],
            row["quarantined"],
            tuple(row["tables"]),
        )
        for row in rows
    ]
    return sorted(found, key=lambda each: each.of_a_queue)


async def raise_source(connection: Connection, name: str, reason: str, above: int = 0) -> int:
    """Raise a source's generation: its earlier tokens are void, its leases over, and it is quarantined no more. Later
    tokens are above `above` as well. Writes that have compared their token are waited for, and are from before that;
    later ones under such a token are refused.

    Raises asyncpg.PostgresError: FP400 for a source that is not known, 42501 for a role that does not own the schema,
    and what call_with_retries raises.
    """
    return await call_with_retries(connection, "SELECT fencepost.source_raise($1, $2, $3)", name, reason, above)


async def register(connection: Connection, name: str, kind: str, ordering: str, *, verifies: bool) -> None:
    """Record that this source is configured here. RefusedError (FP400) where the name is another kind of service's."""
    await connection.execute("SELECT fencepost.source_register($1, $2, $3, $4)", name, kind, ordering, verifies)


async def state(connection: Connection, name: str, lock: str) -> SourceState:
    """Look where the source's tokens are. Before the service is asked, not after."""
    row = await connection.fetchrow(
        "SELECT generation, issued, quarantined FROM fencepost.source_state($1, $2)", name, lock
    )
    return state_of(row, name)


async def draw(connection: Connection, name: str, generation: int, count: int) -> tuple[int, ...] | None:
    """Draw tokens for a source without numbers of its own. None: it is quarantined, or its generation was raised."""
    drawn = await connection.fetchval("SELECT fencepost.source_draw($1, $2, $3)", name, generation, count)
    return None if drawn is None else tuple(drawn)


async def record_verified(connection: Connection, source: str, token: int) -> None:
    """Record that the service confirmed that it issued this token."""
    await connection.execute("SELECT fencepost.source_verified($1, $2)", source, token)


def state_of(row: asyncpg.Record | None, name: str) -> SourceState:
    """Read the columns of fencepost.source_state."""
    if row is None or row["generation"] is None:
        raise RuntimeError(f"the source {name} is not registered")
    return SourceState(row["generation"], row["issued"], row["quarantined"])


# The leases that lock services have granted, as PostgreSQL keeps them: one statement a verb. The rules are in
# migrations/schema/source_leases.sql (R12). Times are ISO 8601 texts in UTC, durations milliseconds.

_LEASE: Final = (
    f"lease_id, lock, owner, claims, handle, tokens, ttl_ms, {iso('granted_at')}, {iso('expires_at')}, writes"
)
_GRANT: Final = (
    f"SELECT verdict, lease_id, {iso('granted_at')}, {iso('expires_at')} FROM fencepost.source_grant("
    "$1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLease(LeaseRow):
    """A live lease of a source, with the tokens that came with the grant. `handle`: what the service calls the hold."""

    handle: str

    @property
    def lock(self) -> str:
        return self.names[0]


@dataclass(frozen=True, slots=True)
class GrantRecord:
    """A hold that a service has granted, with its tokens, not recorded yet. `before`: where the source's tokens were.
    `since`: by the clock, when the service was asked for it; the TTL runs from there.
    """

    handle: str
    tokens: tuple[int, ...]
    before: SourceState
    since: float


async def find_by_secret(
    connection: Connection, name: str, lock: str, secret_hash: bytes
) -> tuple[SourceState, SourceLease | None]:
    """Look where the source's tokens are, and for the live lease of a secret, of any source. Raises Withdrawn."""
    row = await connection.fetchrow(
        f"SELECT s.generation, s.issued, s.quarantined, x.source, {_LEASE},"
        " fencepost.is_withdrawn($3) AS withdrawn,"
        " ceil(extract(epoch FROM x.expires_at - clock_timestamp()) * 1000)::bigint AS remaining_ms"
        " FROM fencepost.source_state($1, $2) AS s LEFT JOIN fencepost.source_repeated($3) AS x ON true",
        name,
        lock,
        secret_hash,
    )
    if row is not None and row["withdrawn"]:
        raise Withdrawn
    state = state_of(row, name)
    return state, None if row is None or row["lease_id"] is None else _lease(row["source"], row)


async def find_held(
    connection: Connection, name: str, lease_id: int, secret_hash: bytes
) -> tuple[SourceState, SourceLease] | None:
    """Look at a live lease as its holder, and where its source's tokens are."""
    row = await connection.fetchrow(
        f"SELECT s.generation, s.issued, s.quarantined, {_LEASE}, remaining_ms"
        " FROM fencepost.source_lease($1, $2, $3) AS x CROSS JOIN LATERAL fencepost.source_state($1, x.lock) AS s",
        name,
        lease_id,
        secret_hash,
    )
    return None if row is None else (state_of(row, name), _lease(name, row))


async def record_grant(
    connection: Connection, source: str, wanted: LockRequest, record: GrantRecord, elapsed_ms: int
) -> tuple[Literal["granted", "void", "backwards", "quarantined"], SourceLease | None]:
    """Record a grant: its verdict, and where that is `granted` the lease. `elapsed_ms`: since it was asked for. Raises
    Withdrawn.
    """
    row = await connection.fetchrow(
        _GRANT,
        source,
        wanted.names[0],
        wanted.secret_hash,
        wanted.owner,
        list(wanted.claims),
        record.handle,
        list(record.tokens),
        record.before.generation,
        record.before.issued,
        wanted.ttl_ms,
        elapsed_ms,
        list(wanted.writes),
    )
    if row is None:
        raise RuntimeError("fencepost.source_grant gave no row")
    if row["verdict"] == "withdrawn":
        raise Withdrawn
    if row["lease_id"] is None:
        return row["verdict"], None
    return row["verdict"], SourceLease(
        id=LeaseId(source, row["lease_id"]),
        names=(wanted.names[0],),
        owner=wanted.owner,
        ttl_ms=wanted.ttl_ms,
        granted_at=row["granted_at"],
        expires_at=row["expires_at"],
        remaining_ms=wanted.ttl_ms - elapsed_ms,
        claims=wanted.claims,
        writes=wanted.writes,
        tokens=tuple(map(Token, record.tokens)),
        handle=record.handle,
    )


async def lock_claims(connection: Connection, lease_id: int) -> tuple[bool, tuple[Token, ...]] | None:
    """Wait for the transaction that makes the lease's claims, until the end of the transaction: whether they are made
    now, and the lease's tokens. None: it is over.
    """
    row = await connection.fetchrow("SELECT claimed, tokens FROM fencepost.source_claiming($1)", lease_id)
    return None if row is None else (row["claimed"], tuple(map(Token, row["tokens"])))


async def record_claims(connection: Connection, lease_id: int, tokens: Sequence[int]) -> bool:
    """Note that the lease's claims are made with the first of these tokens, in their own transaction. False: it is
    over.
    """
    noted: bool = await connection.fetchval("SELECT fencepost.source_claimed($1, $2)", lease_id, list(tokens))
    return noted


async def hold(connection: Connection, source: str, lease_id: int, secret_hash: bytes) -> tuple[str, str] | None:
    """Give lock and handle of a lease, also of one that is over, to the caller that has its secret."""
    row = await connection.fetchrow(
        "SELECT lock, handle FROM fencepost.source_hold($1, $2, $3)", source, lease_id, secret_hash
    )
    return None if row is None else (row["lock"], row["handle"])


async def lease(connection: Connection, source: str, lease_id: int, secret_hash: bytes | None) -> SourceLease | None:
    """Look at a live lease, with or without its secret."""
    row = await connection.fetchrow(
        f"SELECT {_LEASE}, remaining_ms FROM fencepost.source_lease($1, $2, $3)", source, lease_id, secret_hash
    )
    return None if row is None else _lease(source, row)


async def record_renewal(
    connection: Connection, name: str, lease_id: int, secret_hash: bytes, ttl_ms: int, elapsed_ms: int
) -> SourceLease | None:
    """Note that the service has renewed the hold. None: the lease is over by our record."""
    row = await connection.fetchrow(
        f"SELECT {_LEASE}, remaining_ms FROM fencepost.source_renewed($2, $3, $4, $5) AS done"
        " CROSS JOIN LATERAL fencepost.source_lease($1, $2, $3) AS x WHERE done",
        name,
        lease_id,
        secret_hash,
        ttl_ms,
        elapsed_ms,
    )
    return None if row is None else _lease(name, row)


async def record_minted(
    connection: Connection, lease_id: int, secret_hash: bytes, tokens: Sequence[int], before: SourceState
) -> Literal["minted", "lost", "backwards", "quarantined"]:
    """Record tokens that were minted under a lease."""
    verdict: Literal["minted", "lost", "backwards", "quarantined"] = await connection.fetchval(
        "SELECT fencepost.source_minted($1, $2, $3, $4, $5)",
        lease_id,
        secret_hash,
        list(tokens),
        before.generation,
        before.issued,
    )
    return verdict


async def end(connection: Connection, lease_id: int, *, by: EndedBy | None) -> None:
    """Note that a lease is over, and who ended it; None: its time ran out."""
    await connection.execute("SELECT fencepost.source_end($1, $2)", lease_id, by)


async def due_in(connection: Connection, leases: Sequence[int]) -> dict[int, int]:
    """In how many ms each of these leases may be over; 0: it is."""
    rows = await connection.fetch(
        "SELECT lease_id, due_ms FROM fencepost.source_over($1)",
        list(leases),
    )
    return {row["lease_id"]: row["due_ms"] for row in rows}


async def find_ended(connection: Connection, source: str, lease_id: int) -> LostLease | None:
    """Look at a lease that is over, as long as it is remembered."""
    row = await connection.fetchrow(
        f"SELECT names, owner, {iso('ended_at')}, ended_by, superseded_by FROM fencepost.source_lost($1, $2)",
        source,
        lease_id,
    )
    if row is None:
        return None
    return LostLease(tuple(row["names"]), row["owner"], row["ended_at"], row["ended_by"], row["superseded_by"])


async def lock_states(
    connection: Connection,
    source: str,
    names: Sequence[str] | None,
    after: str | None,
    limit: int,
    patterns: Sequence[str] | None = None,
) -> list[LockRow]:
    """List the source's locks that are held under leases, by name; only those that a pattern names, unless there are
    none. Who waits is known to the service alone.
    """
    rows = await connection.fetch(
        f"SELECT name, lease_id, owner, last_token, {iso('granted_at')}, {iso('expires_at')},"
        " remaining_ms, waiters FROM fencepost.source_lock_states($1, $2, $3, $4, $5)",
        source,
        names,
        after,
        limit,
        likes(patterns),
    )
    return [LockRow(**dict(row)) for row in rows]


async def forget(connection: Connection, keep_seconds: float, limit: int) -> int:
    """Forget leases that ended long ago, at most `limit`; returns how many."""
    gone: int = await connection.fetchval("SELECT fencepost.source_forget($1, $2)", keep_seconds, limit)
    return gone


def _lease(source: str, row: asyncpg.Record) -> SourceLease:
    return SourceLease(
        id=LeaseId(source, row["lease_id"]),
        names=(row["lock"],),
        owner=row["owner"],
        ttl_ms=row["ttl_ms"],
        granted_at=row["granted_at"],
        expires_at=row["expires_at"],
        remaining_ms=row["remaining_ms"],
        claims=tuple(row["claims"]),
        writes=tuple(row["writes"]),
        tokens=tuple(map(Token, row["tokens"])),
        handle=row["handle"],
    )
