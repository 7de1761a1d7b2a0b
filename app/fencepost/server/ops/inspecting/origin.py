"""What `fencepost doctor` looks at for failover (R19): origin, generations, synchronous replication."""

from typing import Final

from fencepost.server.ops.inspecting.overview import Finding
from fencepost.server.postgres.connection import Connection
from fencepost.server.postgres.database_identity import ORIGIN, Origin
from fencepost.server.postgres.upkeep import lagging_tables

_VOID: Final = "a promoted standby forgets acknowledged writes and marks: promotion voids the fences"

_SEQUENCE: Final = """
SELECT s.seqmin, (SELECT max(g.generation) FROM fencepost.generations g) AS newest
  FROM pg_sequence s WHERE s.seqrelid = to_regclass('fencepost.tokens')"""

# A role that may not see other roles' connections sees standbys without their state.
_REPLICATION: Final = """
SELECT current_setting('synchronous_standby_names') AS names,
       (SELECT count(*) FROM pg_stat_replication r WHERE r.state IS DISTINCT FROM 'backup') AS attached,
       (SELECT count(*) FROM pg_stat_replication r WHERE r.sync_state IN ('sync', 'quorum')) AS synchronous"""

_ASYNCHRONOUS: Final = """
SELECT coalesce('database ' || quote_ident(d.datname), '')
       || CASE WHEN d.oid IS NOT NULL AND r.oid IS NOT NULL THEN ', ' ELSE '' END
       || coalesce('role ' || quote_ident(r.rolname), '') AS where, setting
  FROM pg_db_role_setting s CROSS JOIN unnest(s.setconfig) AS setting
  LEFT JOIN pg_database d ON d.oid = s.setdatabase LEFT JOIN pg_roles r ON r.oid = s.setrole
 WHERE setting IN ('synchronous_commit=off', 'synchronous_commit=local')
   AND (s.setdatabase = 0 OR d.datname = current_database())
UNION ALL
SELECT 'the server', 'synchronous_commit=' || g.reset_val
  FROM pg_settings g, pg_database d, pg_roles r
 WHERE d.datname = current_database() AND r.rolname = session_user
   AND g.name = 'synchronous_commit' AND g.reset_val IN ('off', 'local')
   AND NOT EXISTS (SELECT FROM pg_db_role_setting s CROSS JOIN unnest(s.setconfig) AS setting
                    WHERE setting LIKE 'synchronous_commit=%'
                      AND s.setdatabase IN (0, d.oid) AND s.setrole IN (0, r.oid))
 ORDER BY 1"""


async def examine_origin(connection: Connection) -> list[Finding]:
    """Look at which database this is, and whether its standbys would know everything that was acknowledged."""
    findings = await _origin(connection) + await _sequence(connection)
    findings += [
        Finding(
            "error",
            name,
            "its functions were made by an older version, and take tokens of earlier generations: run"
            f" `fencepost protect {name}`",
        )
        for name in await lagging_tables(connection)
    ]
    findings += await _replication(connection)
    for row in await connection.fetch(_ASYNCHRONOUS):
        text = f"{row['where']} sets {row['setting']}: direct SQL there is answered before its commit is safe"
        findings.append(Finding("warning", "replication", text))
    return findings


async def _origin(connection: Connection) -> list[Finding]:
    if not await connection.fetchval("SELECT has_function_privilege('fencepost.origin(bigint, uuid)', 'EXECUTE')"):
        return []  # doctor has reported it, of the privileges
    row = await connection.fetchrow(ORIGIN)
    if row is None:
        raise RuntimeError("fencepost.origin() gave no row")
    origin = Origin.of(row)
    if origin.in_recovery:
        return []  # doctor has reported it, of the server
    if (error := origin.problem()) is not None:
        advice = "gateways do not write to it. When no other primary is alive: fencepost generation raise --reason …"
        return [Finding("error", "origin", f"{error}; {advice}")]
    return [
        Finding(
            "ok",
            "origin",
            f"generation {origin.generation}: {origin.found.describe()}",
        )
    ]


async def _sequence(connection: Connection) -> list[Finding]:
    """Compare where the tokens of this generation begin with the sequence."""
    if not await connection.fetchval("SELECT has_table_privilege('fencepost.generations', 'SELECT')"):
        return []
    row = await connection.fetchrow(_SEQUENCE)
    if row is None or row["newest"] is None:
        return []  # reported already: the sequence is gone, or the origin unknown
    first = max(row["newest"] << 48, 1)
    if row["seqmin"] == first:
        return []
    if row["seqmin"] > first:
        text = f"tokens up to {row['seqmin'] - 1} are refused as of an earlier generation, and it began at {first}"
    else:
        text = f"tokens of earlier generations are taken from {row['seqmin']} on, and this one began at {first}"
    mend = "fencepost generation raise --reason …, which begins a new one"
    return [Finding("error", "origin", f"{text} (MINVALUE of fencepost.tokens): {mend}")]


async def _replication(connection: Connection) -> list[Finding]:
    row = await connection.fetchrow(_REPLICATION)
    if row is None:
        raise RuntimeError("a SELECT without FROM gave no row")
    names = row["names"].strip()
    if names:
        text = f"synchronous_standby_names is {names}, {row['synchronous']} of them streaming now"
        return [Finding("ok", "replication", text)]
    if row["attached"]:
        what = "1 standby is" if row["attached"] == 1 else f"{row['attached']} standbys are"
        text = f"synchronous_standby_names is empty, and {what} attached: {_VOID}"
        return [Finding("warning", "replication", text)]
    return [Finding("ok", "replication", f"no synchronous standby; without one {_VOID}")]
