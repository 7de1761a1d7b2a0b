"""Token sources beside the built-in one, as PostgreSQL remembers them: one statement a verb. The rules are in
migrations/schema/sources.sql (R12). Times are ISO 8601 texts in UTC, durations milliseconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import asyncpg

from fencepost.server.fence.token import GENERATION_BITS
from fencepost.server.postgres.connections.connection import Connection
from fencepost.server.postgres.upkeep.raising import call_with_retries


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
