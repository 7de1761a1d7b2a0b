"""Who broke the glass (R14): the newest records of fencepost.break_glass_log, for people."""

from dataclasses import dataclass

from fencepost.server.postgres.connection import Connection


@dataclass(frozen=True, slots=True)
class BreakGlassUse:
    """One record: what an operator wrote without a token, and why. `at` is ISO 8601, when the transaction began. The
    marks are those of a reset, as texts.
    """

    at: str
    login: str
    role: str
    table: str
    verb: str
    resource: str
    reason: str
    old_mark: str | None = None
    new_mark: str | None = None


async def newest_uses(connection: Connection, limit: int) -> list[BreakGlassUse]:
    """List the newest records first; none where this role may not read them (their queries may hold secrets)."""
    if not await connection.fetchval("SELECT has_table_privilege('fencepost.break_glass_log', 'SELECT')"):
        return []
    rows = await connection.fetch(
        "SELECT to_json(date_trunc('second', l.at)) #>> '{}' AS at, l.login, l.role, l.name, l.verb, l.resource,"
        " l.reason, l.old_mark::text, l.new_mark::text"
        " FROM fencepost.break_glass_log l ORDER BY l.at DESC, l.xid DESC, l.name, l.verb LIMIT $1",
        limit,
    )
    return [BreakGlassUse(*row) for row in rows]
