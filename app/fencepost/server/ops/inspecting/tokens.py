"""What `fencepost doctor` looks at for the built-in token source: its sequence, and the tables that take its tokens."""

from typing import Final

import asyncpg

from fencepost.server.fence.token import BUILTIN, EXTERNAL
from fencepost.server.ops.inspecting.overview import Finding
from fencepost.server.ops.protecting.functions import JUDGING
from fencepost.server.postgres.catalog_cache import api_name
from fencepost.server.postgres.connection import Connection
from fencepost.server.postgres.tables import MARK_COLUMN, quote

# Triggers compare with the sequence in the writer's own name, so every role must be able to read it.
_SEQUENCE: Final = """
SELECT s.seqtypid = 'int8'::regtype AS is_bigint, s.seqincrement AS step, s.seqcache AS cache, s.seqcycle AS cycles,
       s.seqmax AS most, c.relpersistence::text AS persistence, current_user::text AS role,
       has_sequence_privilege(c.oid, 'SELECT') AS readable,
       EXISTS (SELECT FROM aclexplode(coalesce(c.relacl, acldefault('s', c.relowner))) g
                WHERE g.grantee = 0 AND g.privilege_type = 'SELECT') AS readable_by_all
  FROM pg_class c JOIN pg_sequence s ON s.seqrelid = c.oid
 WHERE c.oid = to_regclass('fencepost.tokens')"""

_TABLES: Final = """
SELECT p.name, p.source, n.nspname::text AS schema, c.relname::text AS relation,
       a.atttypid = 'bigint'::regtype
       AND (has_table_privilege(c.oid, 'SELECT') OR has_column_privilege(c.oid, a.attnum, 'SELECT')) AS readable,
       (SELECT array_agg(part ORDER BY part) FROM unnest($3::text[]) part
          JOIN pg_proc f ON f.proname = p.functions || '_' || part AND f.pronamespace = 'fencepost'::regnamespace
         WHERE CASE WHEN p.source = $4 THEN strpos(f.prosrc, 'fencepost.issued(') > 0
                    ELSE strpos(f.prosrc, 'fencepost.require_issued(') = 0 OR strpos(f.prosrc, concat(
                      'fencepost.issued(', CASE WHEN p.source <> $2 THEN quote_literal(p.source) END, ')')) = 0
                    END) AS unlike
  FROM fencepost.protected p JOIN pg_class c ON c.oid = p.relation JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = $1 AND NOT a.attisdropped
 WHERE p.scope IS NULL ORDER BY p.name"""

_SCOPES: Final = """
SELECT DISTINCT left(p.scope, strpos(p.scope, '/{') - 1) AS name
  FROM fencepost.protected p JOIN pg_class c ON c.oid = p.relation
 WHERE p.source = $1 AND p.scope IS NOT NULL ORDER BY 1"""


async def examine_tokens(connection: Connection) -> list[Finding]:
    """Look at the sequence, and whether each table's functions and marks fit its source."""
    row = await connection.fetchrow(_SEQUENCE)
    findings = [Finding("error", "tokens", text) for text in _find_faults(row)]
    readable = row is not None and row["readable"]
    issued: int | None = await connection.fetchval("SELECT fencepost.issued()") if readable else None
    for table in await connection.fetch(_TABLES, MARK_COLUMN, BUILTIN, list(JUDGING), EXTERNAL):
        wrong = [_check_functions(table)]
        if table["source"] == BUILTIN and issued is not None:
            wrong.append(await _behind(connection, table, issued))
        findings += [Finding("error", table["name"], text) for text in wrong if text is not None]
    if issued is not None:
        for scope in await connection.fetch(_SCOPES, BUILTIN):
            if (behind := _beyond(await _highest_recorded(connection, scope["name"]), issued)) is not None:
                findings.append(Finding("error", f"{scope['name']}/…", behind))
    return findings or [Finding("ok", "tokens", f"the built-in source has issued {issued or 'none'}")]


def _find_faults(row: asyncpg.Record | None) -> list[str]:
    """Return what keeps the tokens from rising, or from being compared with."""
    if row is None:
        return ["the sequence fencepost.tokens is gone: no lease can be granted, and no table of it be written to"]
    alter = "ALTER SEQUENCE fencepost.tokens"
    wrong = []
    if row["cache"] != 1:
        wrong.append(f"sessions draw {row['cache']} tokens in advance and hand out old ones later: {alter} CACHE 1")
    if row["cycles"]:
        wrong.append(f"the sequence would begin again at its end: {alter} NO CYCLE")
    if row["step"] != 1:
        wrong.append(f"the sequence counts in steps of {row['step']}: {alter} INCREMENT BY 1")
    if not row["is_bigint"] or row["most"] != 2**63 - 1:
        wrong.append(f"the sequence ends at {row['most']}: {alter} AS bigint NO MAXVALUE")
    if row["persistence"] != "p":
        wrong.append(f"the sequence is unlogged, and begins again after a crash: {alter} SET LOGGED")
    if not row["readable"] or not row["readable_by_all"]:
        who = "a role that writes directly" if row["readable"] else f"the role {row['role']}"
        wrong.append(f"{who} may not read it, so every token is refused: GRANT SELECT ON fencepost.tokens TO PUBLIC")
    return wrong


def _check_functions(table: asyncpg.Record) -> str | None:
    if not table["unlike"]:
        return None
    mend = f"run `fencepost protect {api_name(table['schema'], table['relation'])}`"
    what = "do not ask" if table["source"] != EXTERNAL else "ask"
    return (
        f"its source is {table['source']}, and its functions ({', '.join(table['unlike'])}) {what} whether a token was"
        f" ever issued: {mend}"
    )


async def _behind(connection: Connection, table: asyncpg.Record, issued: int) -> str | None:
    """Compare the highest mark with the sequence. Reads the whole table; of marks without a row only who may."""
    name = table["name"]
    highest = 0
    if table["readable"]:
        highest = await connection.fetchval(
            f"SELECT coalesce(max({MARK_COLUMN}), 0) FROM {quote(table['schema'])}.{quote(table['relation'])}"
        )
    return _beyond(max(highest, await _highest_recorded(connection, name)), issued)


async def _highest_recorded(connection: Connection, name: str) -> int:
    """Read the highest mark in fencepost.marks, or the floor, of a table or a scope's prefix; of what may be read."""
    highest = 0
    if await connection.fetchval("SELECT has_table_privilege('fencepost.marks', 'SELECT')"):
        absent = await connection.fetchval(
            "SELECT max(m.last_fence_token) FROM fencepost.marks m"
            " WHERE starts_with(m.resource, fencepost.enc($1) || '/')",
            name,
        )
        highest = absent or 0
    if await connection.fetchval("SELECT has_function_privilege('fencepost.floor_of(text)', 'EXECUTE')"):
        highest = max(highest, await connection.fetchval("SELECT fencepost.floor_of($1)", name) or 0)
    return highest


def _beyond(highest: int, issued: int) -> str | None:
    if highest <= issued:
        return None
    return (
        f"it has the mark {highest}, and the newest token is {issued}: leases are refused there until the tokens get"
        f" so far. SELECT fencepost.issue_beyond({highest}) moves them"
    )
