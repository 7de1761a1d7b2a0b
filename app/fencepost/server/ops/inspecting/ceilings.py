"""What `fencepost doctor` looks at of the marks of external tables: one that is far above all others, which a made-up
token left, and which refuses all holders.

For each table its highest mark is read, which is a scan: no index has the column. Only where that is above FAR is the
next lower one read, and the name of the resource: two scans more.
"""

import shlex
from dataclasses import dataclass
from typing import Final

from fencepost.server.ops.inspecting.overview import Finding
from fencepost.server.postgres.connection import Connection
from fencepost.server.postgres.tables import MARK_COLUMN, quote

FAR: Final = 2**49
"""How far above the next lower mark one is doubtful. Raised generations leave 2^48 between two marks, or twice that; a
ZooKeeper that elected a leader 2^32; a clock that counts nanoseconds is so far within six days."""

_TABLES: Final = """
SELECT p.name, p.max_token, n.nspname::text AS schema, c.relname::text AS relation, p.functions,
       has_table_privilege(c.oid, 'SELECT') AND EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid
          AND a.attname = $1 AND a.atttypid = 'bigint'::regtype AND NOT a.attisdropped)
       AND EXISTS (SELECT FROM pg_proc o
         WHERE o.pronamespace = 'fencepost'::regnamespace AND o.proname = p.functions || '_name') AS readable
  FROM fencepost.protected p JOIN pg_class c ON c.oid = p.relation JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE p.source = 'external' AND p.scope IS NULL
UNION ALL
SELECT DISTINCT left(p.scope, strpos(p.scope, '/{') - 1), p.max_token, NULL, NULL, NULL, false
  FROM fencepost.protected p JOIN pg_class c ON c.oid = p.relation
 WHERE p.source = 'external' AND p.scope IS NOT NULL ORDER BY 1"""


@dataclass(frozen=True, slots=True)
class _Marks:
    """Where the marks of a table, or of a scope's prefix, are read: SQL that gives resource and mark."""

    name: str
    marks: str

    async def highest(self, connection: Connection) -> int:
        """Read the highest mark, 0 if there is none."""
        found: int | None = await connection.fetchval(f"SELECT max(k.mark) FROM ({self.marks}) AS k", self.name)
        return found or 0

    async def below(self, connection: Connection, bound: int) -> int:
        """Read the highest mark that is lower than `bound`, 0 if there is none."""
        highest: int | None = await connection.fetchval(
            f"SELECT max(k.mark) FROM ({self.marks}) AS k WHERE k.mark < $2", self.name, bound
        )
        return highest or 0

    async def resource_at(self, connection: Connection, mark: int) -> str:
        name: str = await connection.fetchval(
            f"SELECT k.resource FROM ({self.marks}) AS k WHERE k.mark = $2 LIMIT 1", self.name, mark
        )
        return name


async def examine_marks(connection: Connection) -> list[Finding]:
    """Look for marks far above all others, or above the ceiling, of external tables."""
    findings = []
    may_read = await connection.fetchval(
        "SELECT has_table_privilege('fencepost.marks', 'SELECT') AND has_table_privilege('fencepost.floors', 'SELECT')"
    )
    for row in await connection.fetch(_TABLES, MARK_COLUMN):
        parts = []
        if may_read:
            parts += [
                "SELECT m.resource, m.last_fence_token AS mark FROM fencepost.marks AS m"
                " WHERE starts_with(m.resource, fencepost.enc($1) || '/')",
                "SELECT fencepost.enc(f.name), f.floor FROM fencepost.floors AS f WHERE f.name = $1",
            ]
        if row["readable"]:
            named = f"fencepost.{quote(row['functions'] + '_name')}(r.*)"
            of = f"{quote(row['schema'])}.{quote(row['relation'])}"
            rows = f"SELECT {named} AS resource, r.{MARK_COLUMN} AS mark FROM {of} AS r"
            parts.append(f"{rows} WHERE $1::text IS NOT NULL")
        marks = _Marks(row["name"], " UNION ALL ".join(parts))
        if parts and (text := await _check_ceiling(connection, marks, row["max_token"])):
            findings.append(Finding("warning", row["name"], text))
    return findings


async def _check_ceiling(connection: Connection, marks: _Marks, max_token: int) -> str | None:
    highest = await marks.highest(connection)
    if highest <= FAR:
        return None
    lower = await marks.below(connection, highest)
    if highest <= max_token and (not lower or highest - lower <= FAR):
        return None
    resource = await marks.resource_at(connection, highest)
    above = f"far above all others ({lower})"
    if highest > max_token:
        above = f"above {max_token}, the highest token that is taken"
    return (
        f"{resource} has the mark {highest}, {above}. If no lock service has counted so far, everybody is refused:"
        f" `fencepost fence reset {shlex.quote(resource)} --to N --reason …`, N being the newest token that it has"
        " given out"
    )
