"""What callers were refused for who they are, as counts by day (migrations/schema/refusals.sql)."""

from collections.abc import Mapping
from dataclasses import dataclass

from fencepost.server.postgres.connections.connection import Connection
from fencepost.server.postgres.connections.engine import Database
from fencepost.server.postgres.connections.transactions import run_write


@dataclass(frozen=True, slots=True)
class CallersRefusals:
    """How often a caller was refused with a code on one day, and the last time. `last_at` is ISO 8601."""

    day: str
    caller: str
    code: str
    count: int
    last_at: str
    detail: str


async def add(database: Database, counts: Mapping[tuple[str, str], tuple[int, str]]) -> None:
    """Add counts, by caller and code, with the last detail of each. Raises StorageError."""
    rows = [(caller, code, count, detail) for (caller, code), (count, detail) in counts.items()]
    columns = [[row[column] for row in rows] for column in range(4)]
    sql = "SELECT fencepost.add_refusals($1, $2, $3, $4)"
    await run_write(database.for_writing, lambda connection: connection.execute(sql, *columns))


async def newest(connection: Connection, limit: int) -> list[CallersRefusals]:
    """List the newest first; none where this role may not read them."""
    if not await connection.fetchval("SELECT has_table_privilege('fencepost.refusals', 'SELECT')"):
        return []
    rows = await connection.fetch(
        "SELECT r.day::text, r.caller, r.code, r.count, to_json(date_trunc('second', r.last_at)) #>> '{}', r.detail"
        " FROM fencepost.refusals r ORDER BY r.last_at DESC, r.caller, r.code LIMIT $1",
        limit,
    )
    return [CallersRefusals(*row) for row in rows]
