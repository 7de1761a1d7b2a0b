"""Looks at the database for `fencepost status` and `fencepost doctor`: what is protected, and what is wrong."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import asyncpg

from fencepost.server.fence.token import BUILTIN, EXTERNAL
from fencepost.server.ops import schema as versions
from fencepost.server.ops.functions import JUDGING
from fencepost.server.ops.schema import RELATIONS
from fencepost.server.postgres import upkeep
from fencepost.server.postgres.catalog_cache import api_name
from fencepost.server.postgres.connection import NO_TRIGGERS, OPEN_WITHIN, Connection, Limits, session_settings, settle
from fencepost.server.postgres.database_identity import ORIGIN, Origin
from fencepost.server.postgres.errors import SessionError
from fencepost.server.postgres.tables import MARK_COLUMN, quote
from fencepost.server.postgres.upkeep import lagging_tables

OLDEST_SERVER: Final = 140000


@dataclass(frozen=True, slots=True)
class Protected:
    """One protected table, for people."""

    name: str
    rule: str
    source: str
    key: tuple[str, ...]
    rows: int | None
    marks: int
    since: str
    max_token: str | None
    max_jump: str | None
    sealed: bool = False


LOCK_TIMEOUT: Final = "5s"
"""How long `doctor`, and `protect` after its work, wait for tables that are locked."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that doctor looked at."""

    level: Literal["ok", "warning", "error"]
    subject: str
    text: str


_COMMAND: Final = re.compile("`fencepost protect [^`]+`")
"""What mends a table, and names it."""


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """Make one finding of those that say the same of several subjects: with all names, and what mends each."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for each in findings:
        groups.setdefault((each.level, _COMMAND.sub("", each.text)), []).append(each)
    return [_merge(group) for group in groups.values()]


def _merge(group: Sequence[Finding]) -> Finding:
    commands = ", ".join(dict.fromkeys(found[0] for each in group if (found := _COMMAND.search(each.text))))
    text = _COMMAND.sub(lambda _: commands, group[0].text)
    return replace(group[0], subject=", ".join(dict.fromkeys(each.subject for each in group)), text=text)


async def protected_tables(connection: Connection) -> list[Protected]:
    """List the protected tables. `rows` is the planner's estimate, None where it has none yet of the table or of
    one of its partitions. `marks` counts keys that have no row, or the marks of its scopes, which it shares.
    `max_token` and `max_jump` are an external table's, as texts.
    """
    rows = await connection.fetch(
        """SELECT p.name, p.rule, p.source, p.key_columns, p.scope, p.max_token::text, p.max_jump::text, p.sealed,
                  to_char(p.protected_at, 'YYYY-MM-DD HH24:MI') AS since,
                  -- The tree of a table that has no partitions, and is none, is empty.
                  (SELECT CASE WHEN bool_or(c.reltuples < 0) THEN NULL ELSE coalesce(sum(c.reltuples), 0)::int8 END
                     FROM pg_class c
                    WHERE c.relkind <> 'p'
                      AND (c.oid = p.relation OR c.oid IN (SELECT t.relid FROM pg_partition_tree(p.relation) t))
                  ) AS rows,
                  (SELECT count(*) FROM fencepost.marks m
                    WHERE starts_with(m.resource, fencepost.enc(
                            coalesce(left(p.scope, strpos(p.scope, '/{') - 1), p.name)) || '/')
                      AND m.row_absent) AS marks
             FROM fencepost.protected p ORDER BY p.name"""
    )
    return [
        Protected(
            r["name"],
            r["rule"],
            r["source"],
            (r["scope"],) if r["scope"] else tuple(r["key_columns"]),
            r["rows"],
            r["marks"],
            r["since"],
            r["max_token"],
            r["max_jump"],
            r["sealed"],
        )
        for r in rows
    ]


async def unprotected_tables(connection: Connection) -> list[str]:
    """List the tables that could have a fence and have none."""
    rows = await connection.fetch(
        """SELECT n.nspname::text AS schema, c.relname::text AS relation
             FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p'
              AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast', 'fencepost')
              AND NOT EXISTS (SELECT FROM fencepost.protected p WHERE p.relation = c.oid)
            ORDER BY 1, 2"""
    )
    return [api_name(row["schema"], row["relation"]) for row in rows]


async def examine_server(connection: Connection) -> list[Finding]:
    """Look at what every fence stands on: version, schema, durability."""
    schema = await versions.fit(connection)
    if not schema.works:
        return [Finding("error", "schema", schema.describe())]
    findings = [Finding("ok" if schema.verdict == "same" else "warning", "schema", schema.describe())]
    row = await connection.fetchrow(
        """SELECT current_setting('server_version_num')::int AS version, current_setting('server_version') AS shown,
                  current_setting('fsync') AS fsync, current_setting('full_page_writes') AS full_page_writes,
                  current_setting('session_replication_role') AS replication_role, pg_is_in_recovery() AS standby"""
    )
    if row is None:
        raise RuntimeError("a SELECT without FROM gave no row")
    if row["version"] < OLDEST_SERVER:
        findings.append(Finding("error", "server", f"PostgreSQL {row['shown']} is older than 14"))
    else:
        findings.append(Finding("ok", "server", f"PostgreSQL {row['shown']}"))
    findings += [
        Finding("error", name, f"{name} = off: a crash may forget writes and marks that were answered for")
        for name in ("fsync", "full_page_writes")
        if row[name] == "off"
    ]
    if row["replication_role"] != "origin":
        findings.append(Finding("error", "session", "session_replication_role is not origin: no trigger would fire"))
    findings += await _examine_strays(connection)
    if row["standby"]:
        findings.append(Finding("error", "server", "this is a standby: nothing can be written here"))
    return findings


async def _examine_strays(connection: Connection) -> list[Finding]:
    strays = await connection.fetchval(
        """SELECT string_agg(c.relname, ', ') FROM pg_class c WHERE c.relnamespace = 'fencepost'::regnamespace
           AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
           AND c.relname <> ALL ($1::text[])""",
        list(RELATIONS),
    )
    if not strays:
        return []
    text = (
        f"the schema fencepost holds tables that are not its own ({strays}); the gateway does not serve them. A"
        ' role named fencepost creates tables here, since its search_path begins with "$user"'
    )
    return [Finding("warning", "schema", text)]


_PRIVILEGES: Final = """
SELECT p.name, current_user::text AS role,
       array_remove(ARRAY[
         CASE WHEN NOT has_table_privilege(p.relation, 'SELECT') THEN 'SELECT' END,
         CASE WHEN NOT has_table_privilege(p.relation, 'INSERT') THEN 'INSERT' END,
         CASE WHEN NOT has_any_column_privilege(p.relation, 'UPDATE') THEN 'UPDATE' END,
         CASE WHEN NOT has_table_privilege(p.relation, 'DELETE') THEN 'DELETE' END], NULL) AS missing
  FROM fencepost.protected p JOIN pg_class c ON c.oid = p.relation ORDER BY p.name"""


async def examine_privileges(connection: Connection) -> list[Finding]:
    """Look at what the role of this connection may do, for it is the gateway's."""
    findings = [
        Finding("warning", row["name"], f"the role {row['role']} lacks {', '.join(row['missing'])} on the table")
        for row in await connection.fetch(_PRIVILEGES)
        if row["missing"]
    ]
    allowed = await connection.fetchval(
        "SELECT has_function_privilege('fencepost.raise_mark(text, bigint, text, boolean)', 'EXECUTE')"
        " AND has_function_privilege('fencepost.meet_ceiling(text, text, bigint, bigint, bigint)', 'EXECUTE')"
        " AND has_function_privilege('fencepost.mark_without_row(text, text)', 'EXECUTE')"
        " AND has_function_privilege('fencepost.mark_record(text)', 'EXECUTE')"
        " AND has_function_privilege('fencepost.enter(text, text[], bigint, oid, text)', 'EXECUTE')"
        " AND has_function_privilege('fencepost.enter_each(text, text[], bigint[], oid, text)', 'EXECUTE')"
        " AND has_function_privilege('fencepost.idem_begin(text, text, bytea)', 'EXECUTE')"
        " AND has_function_privilege('fencepost.idem_begin_each(text, text[], bytea[])', 'EXECUTE')"
        " AND has_function_privilege("
        "'fencepost.idem_record(text, text, bytea, json, text, text)', 'EXECUTE')"
        " AND has_function_privilege("
        "'fencepost.idem_record_each(text[], text[], bytea[], json[], text[], text[])', 'EXECUTE')"
        " AND has_function_privilege('fencepost.lock_counts()', 'EXECUTE')"
        " AND has_function_privilege('fencepost.issued_to(bigint)', 'EXECUTE')"
        " AND has_function_privilege('fencepost.origin(bigint, uuid)', 'EXECUTE')"
        " AND has_function_privilege('fencepost.source_state(text, text)', 'EXECUTE')"
        " AND has_function_privilege('fencepost.prune_marks(bigint, xid8, double precision, text, integer)', 'EXECUTE')"
    )
    if not allowed:
        role = await connection.fetchval("SELECT current_user::text")
        text = f"the role {role} lacks functions of our schema: run `fencepost migrate --gateway-role {role}`"
        findings.append(Finding("error", "privileges", text))
    return findings


# What `fencepost doctor` looks at for failover (R19): origin, generations, synchronous replication.

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
    return [Finding("ok", "origin", f"generation {origin.generation}: {origin.found.describe()}")]


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


# What `fencepost doctor` reports of the gateway's sessions: what is in force in one, and whether all of them fit.

_SHOWN: Final = ("synchronous_commit", "DateStyle", "TimeZone")


async def examine_session(dsn: str) -> Finding:
    """Open a session as the gateway's pools do, and read what is in force there."""
    connection = await asyncpg.connect(dsn, timeout=OPEN_WITHIN)
    try:
        found = await settle(connection, session_settings(Limits()))
        # A pooler gives its clients a process id that it made up.
        direct = connection.get_server_pid() == await connection.fetchval("SELECT pg_backend_pid()")
    except SessionError as error:
        return Finding("error", "session", str(error))
    finally:
        connection.terminate()
    if found["session_replication_role"] == "replica":
        return Finding("error", "session", NO_TRIGGERS)
    shown = ", ".join(f"{name} = {found[name]}" for name in _SHOWN)
    way = "" if direct else ", through a connection pooler in session mode"
    return Finding("ok", "session", f"a session of the gateway has {found['transaction_isolation']}, {shown}{way}")


# A superuser may take what is reserved, and has no limits.
_ROOM: Final = """
SELECT least(current_setting('max_connections')::int
               - CASE WHEN r.rolsuper THEN 0 ELSE current_setting('superuser_reserved_connections')::int
                      + coalesce(current_setting('reserved_connections', true)::int, 0) END,
             CASE WHEN r.rolconnlimit >= 0 AND NOT r.rolsuper THEN r.rolconnlimit END,
             CASE WHEN d.datconnlimit >= 0 AND NOT r.rolsuper THEN d.datconnlimit END) AS room
  FROM pg_roles r, pg_database d WHERE r.rolname = session_user AND d.datname = current_database()"""


async def examine_room(connection: Connection, workers: int, pool_sizes: Sequence[int]) -> Finding:
    """Compare what one gateway may open with what PostgreSQL lets this role have, `max_connections` first."""
    wanted = workers * (sum(pool_sizes) + 1)
    room: int = await connection.fetchval(_ROOM)
    text = f"a gateway of {workers} workers may open {wanted} connections (the three pool sizes + 1 each)"
    if wanted > room:
        return Finding(
            "warning",
            "connections",
            f"{text}, and PostgreSQL has {room} for this role (max_connections, CONNECTION LIMIT): requests wait for"
            " those that can be had",
        )
    return Finding("ok", "connections", f"{text}, of {room}")


OLD: Final = 300.0
"""Seconds after which no transaction manager is expected to come back to its prepared transaction."""


async def examine_prepared(connection: Connection, old: float = OLD) -> list[Finding]:
    """Name prepared transactions that lock protected tables, whatever their age, and all that are `old`, in seconds."""
    findings = []
    for each in await upkeep.all_prepared(connection):
        if each.protected:
            effect = (
                f"holds locks on {', '.join(each.protected)}: writes to its rows, and whatever needs the whole table,"
                " wait for it and fail"
            )
        elif each.age >= old:
            of = f"holds locks on {', '.join(each.locked)}, and " if each.locked else ""
            effect = f"{of}keeps VACUUM, and the pruning of marks, from removing what is newer than it"
        else:
            continue
        findings.append(Finding("warning", "prepared", f"{each.describe()}, {effect}: {each.mend()}"))
    return findings


# What `fencepost doctor` looks at for the built-in token source: its sequence, and the tables that take its tokens.

# Triggers compare with the sequence in the writer's own name, so every role must be able to read it.
_BUILTIN_SEQUENCE: Final = """
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
    row = await connection.fetchrow(_BUILTIN_SEQUENCE)
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
