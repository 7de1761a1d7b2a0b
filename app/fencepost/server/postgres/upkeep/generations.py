"""Generations, as an operator sees them: their history, and raising one (R19)."""

from dataclasses import dataclass

from fencepost.server.postgres.connections.connection import Connection
from fencepost.server.postgres.connections.engine import Database
from fencepost.server.postgres.connections.origin import ORIGIN, Origin
from fencepost.server.postgres.connections.transactions import run_write
from fencepost.server.postgres.upkeep.raising import call_with_retries


@dataclass(frozen=True, slots=True)
class Generation:
    """A span of time in which one database has known all its tokens. `raised_at` is a text in UTC."""

    number: int
    identity: str
    system_identifier: int
    timeline: int
    raised_at: str
    raised_by: str
    reason: str


async def history(connection: Connection) -> list[Generation]:
    """List all generations, the oldest first."""
    rows = await connection.fetch(
        "SELECT generation, CAST(identity AS text) AS identity, system_identifier, timeline, raised_by, reason,"
        " to_char(raised_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') AS raised_at"
        " FROM fencepost.generations ORDER BY generation"
    )
    return [
        Generation(
            row["generation"],
            row["identity"],
            row["system_identifier"],
            row["timeline"],
            row["raised_at"],
            row["raised_by"],
            row["reason"],
        )
        for row in rows
    ]


async def origin(connection: Connection) -> Origin:
    """Ask which database this is, and what is stored there."""
    row = await connection.fetchrow(ORIGIN)
    if row is None:
        raise RuntimeError("fencepost.origin() gave no row")
    return Origin.of(row)


async def raise_generation(connection: Connection, reason: str, above: int | None = None) -> int:
    """Vouch for this database, void all older tokens, end all leases. Returns the new generation.

    `above`: a token of another history of this database, which ends with this.

    Raises asyncpg.PostgresError: 25006 on a standby, 42501 for a role that does not own the schema, and what
    call_with_retries raises.
    """
    return await call_with_retries(connection, "SELECT fencepost.raise_generation($1, $2)", reason, above)


async def leave_moment(database: Database) -> None:
    """Leave a random mark in the database that a copy of before does not have. Raises StorageError."""
    await run_write(
        database.for_writing, lambda connection: connection.execute("SELECT fencepost.leave_moment()"), repeatable=True
    )


async def lagging_tables(connection: Connection) -> list[str]:
    """Name the tables of the built-in source whose functions were made before there were generations."""
    rows = await connection.fetch(
        """SELECT p.name FROM fencepost.protected p
            WHERE p.source = 'builtin' AND p.scope IS NULL
              AND EXISTS (SELECT FROM pg_proc f WHERE f.pronamespace = 'fencepost'::regnamespace
                             AND f.proname IN (p.functions || '_upd', p.functions || '_insmark', p.functions || '_del')
                             AND strpos(f.prosrc, 'fencepost.oldest()') = 0)
            ORDER BY p.name"""
    )
    return [row["name"] for row in rows]
