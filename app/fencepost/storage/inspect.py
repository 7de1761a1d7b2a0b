"""Looks at the database for `fencepost status` and `fencepost doctor`: what is protected, and what is amiss."""

from dataclasses import dataclass
from typing import Final, Literal

import asyncpg

from fencepost.fencing.scope import Scope, parse_scope
from fencepost.storage import migrate
from fencepost.storage.catalog import MARK_COLUMN
from fencepost.storage.catalog_load import BOUND, api_name
from fencepost.storage.connection import Connection
from fencepost.storage.owner import RELATIONS
from fencepost.storage.protect_check import CONSTRAINT
from fencepost.storage.protect_table import PREFIX

OLDEST_SERVER: Final = 140000
ROW_TRIGGERS: Final = frozenset(PREFIX + part for part in ("upd", "ins", "insmark", "del"))
SCOPE_TRIGGERS: Final = frozenset(PREFIX + part for part in ("scope", "scope_ins", "scope_upd"))
TRUNCATE_TRIGGER: Final = PREFIX + "trunc"


@dataclass(frozen=True, slots=True)
class Protected:
    """One protected table, for people."""

    name: str
    rule: str
    source: str
    key: tuple[str, ...]
    rows: int
    marks: int
    since: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that doctor looked at."""

    level: Literal["ok", "warning", "error"]
    subject: str
    text: str


async def protected_tables(connection: Connection) -> list[Protected]:
    """List the protected tables. `rows` is the planner's estimate, `marks` counts keys that have no row, or the marks
    of its scopes, which it shares.
    """
    rows = await connection.fetch(
        """SELECT p.name, p.rule, p.source, p.key_columns, p.scope,
                  to_char(p.protected_at, 'YYYY-MM-DD HH24:MI') AS since,
                  (SELECT greatest(sum(c.reltuples), 0)::int8 FROM pg_partition_tree(p.relation) t
                     JOIN pg_class c ON c.oid = t.relid WHERE t.isleaf) AS rows,
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
            r["rows"] or 0,
            r["marks"],
            r["since"],
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
    found = await migrate.current(connection)
    if found != migrate.newest():
        state = "has no schema fencepost" if found is None else f"is at revision {found}, not {migrate.newest()}"
        return [Finding("error", "schema", f"the database {state}: run `fencepost migrate`")]
    findings = [Finding("ok", "schema", f"revision {found}")]
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
    if strays := await connection.fetchval(
        """SELECT string_agg(c.relname, ', ') FROM pg_class c WHERE c.relnamespace = 'fencepost'::regnamespace
           AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
           AND c.relname <> ALL ($1::text[])""",
        list(RELATIONS),
    ):
        findings.append(
            Finding(
                "warning",
                "schema",
                f"the schema fencepost holds tables that are not its own ({strays}); the gateway does not serve them. A"
                ' role named fencepost creates tables here, since its search_path begins with "$user"',
            )
        )
    if row["standby"]:
        findings.append(Finding("error", "server", "this is a standby: nothing can be written here"))
    return findings


_TABLES: Final = f"""
SELECT p.name, p.relation::oid::int8 AS oid, p.relation::text AS shown, p.functions, p.key_columns, p.scope,
       ARRAY(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnotnull AND a.attnum > 0
                AND NOT a.attisdropped) AS not_null,
       {BOUND} AS bound, c.oid IS NOT NULL AS exists, n.nspname::text AS schema, c.relname::text AS relation,
       c.relpersistence::text AS persistence, c.relhasrules AS has_rules,
       (SELECT format_type(a.atttypid, -1) || CASE WHEN a.attnotnull THEN ' NOT NULL' ELSE '' END FROM pg_attribute a
         WHERE a.attrelid = c.oid AND a.attname = $1 AND NOT a.attisdropped) AS column,
       (SELECT k.convalidated FROM pg_constraint k WHERE k.conrelid = c.oid AND k.conname = $2) AS validated,
       (SELECT array_agg(a.attname::text ORDER BY k.n) FROM pg_index i
          CROSS JOIN unnest(i.indkey) WITH ORDINALITY k(attnum, n)
          JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
         WHERE i.indrelid = c.oid AND i.indisprimary AND k.n <= i.indnkeyatts) AS key,
       (SELECT array_agg(t.tgname::text) FROM pg_trigger t
         WHERE t.tgrelid = c.oid AND starts_with(t.tgname, $3) AND t.tgenabled IN ('O', 'A')) AS triggers,
       (SELECT array_agg(t.tgname::text) FROM pg_trigger t
         WHERE t.tgrelid = c.oid AND NOT t.tgisinternal AND t.tgname > $3 AND NOT starts_with(t.tgname, $3)
           AND t.tgtype & 3 = 3) AS later,
       (SELECT array_agg(part.relid::regclass::text) FROM pg_partition_tree(c.oid) part
         WHERE NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = part.relid AND t.tgname = $4
                              AND t.tgenabled IN ('O', 'A'))) AS can_truncate,
       (SELECT array_agg(i.inhrelid::regclass::text) FROM pg_inherits i
         WHERE i.inhparent = c.oid AND c.relkind = 'r') AS heirs,
       (SELECT count(*) FROM unnest(CASE WHEN p.scope IS NULL
            THEN ARRAY['upd', 'ins', 'insmark', 'del', 'delete', 'name'] ELSE ARRAY['scope', 'of', 'name'] END) part
         WHERE NOT EXISTS (SELECT FROM pg_proc f JOIN pg_namespace fn ON fn.oid = f.pronamespace
                            WHERE fn.nspname = 'fencepost' AND f.proname = p.functions || '_' || part))
         AS functions_gone,
       (SELECT array_to_string(f.proargtypes::oid[], ',') <> (
          SELECT string_agg(a.atttypid::text, ',' ORDER BY k.n) || ',' || 'int8'::regtype::oid FROM pg_index i
            CROSS JOIN unnest(i.indkey) WITH ORDINALITY k(attnum, n)
            JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
           WHERE i.indrelid = c.oid AND i.indisprimary AND k.n <= i.indnkeyatts)
          FROM pg_proc f JOIN pg_namespace fn ON fn.oid = f.pronamespace
         WHERE fn.nspname = 'fencepost' AND f.proname = p.functions || '_delete') AS key_retyped
  FROM fencepost.protected p LEFT JOIN pg_class c ON c.oid = p.relation
  LEFT JOIN pg_namespace n ON n.oid = c.relnamespace
 ORDER BY p.name"""


async def examine_tables(connection: Connection) -> list[Finding]:
    """Look at every protected table: whether all that `protect` made is there, and still fits."""
    findings: list[Finding] = []
    for row in await connection.fetch(_TABLES, MARK_COLUMN, CONSTRAINT, PREFIX, TRUNCATE_TRIGGER):
        name = row["name"]
        if not row["exists"]:
            findings.append(
                Finding(
                    "warning", name, "the table was dropped; protecting a new one of this name goes on from its marks"
                )
            )
            continue
        mend = f"run `fencepost protect {api_name(row['schema'], row['relation'])}`"
        amiss = [Finding("error", name, f"{text}: {mend}") for text in _broken(row)]
        amiss += [Finding("warning", name, text) for text in _doubtful(row, mend)]
        findings += amiss or [Finding("ok", name, "column, check, triggers and functions are in place")]
    return findings


def _broken(row: asyncpg.Record) -> list[str]:
    """Say what keeps the fence from holding; the gateway refuses writes to such a table."""
    broken = []
    scope = parse_scope(row["scope"]) if row["scope"] is not None else None
    wanted = ROW_TRIGGERS if scope is None else SCOPE_TRIGGERS
    missing = sorted((wanted | {TRUNCATE_TRIGGER}) - set(_names(row["triggers"])))
    if missing:
        broken.append(f"triggers are missing or disabled ({', '.join(missing)})")
    if scope is not None:
        broken += _columns_of(scope, row)
    elif row["column"] != "bigint NOT NULL":
        broken.append(f"the column {MARK_COLUMN} is {row['column'] or 'gone'}")
    if row["validated"] is None and scope is None:
        broken.append(f"the check {CONSTRAINT} is gone")
    if _names(row["key"]) != _names(row["key_columns"]):
        broken.append("the primary key has changed")
    elif row["key_retyped"]:
        broken.append("a column of the primary key has another type now, and keyed deletes fail")
    now = api_name(str(row["schema"]), str(row["relation"]))
    if now != row["name"]:
        broken.append(f"the table is called {now} now, and its resources are still {row['name']}/…")
    if row["functions_gone"]:
        broken.append("functions are missing from the schema fencepost")
    return broken


def _columns_of(scope: Scope, row: asyncpg.Record) -> list[str]:
    if gone := sorted(set(scope.columns) - set(_names(row["not_null"]))):
        return [f"columns of its scope {scope.template} are gone or can be null ({', '.join(gone)})"]
    if set(scope.columns) == set(_names(row["bound"])):
        return []
    bound = ", ".join(_names(row["bound"])) or "nothing"
    return [f"columns of its scope {scope.template} are others now: it is read from {bound}"]


def _doubtful(row: asyncpg.Record, mend: str) -> list[str]:
    """Say what leaves a gap without breaking the fence."""
    doubtful = []
    if row["validated"] is False:
        doubtful.append(f"the check {CONSTRAINT} was not validated on old rows: {mend}")
    if partitions := [part for part in _names(row["can_truncate"]) if part != row["shown"]]:
        doubtful.append(
            f"partitions that TRUNCATE could empty ({', '.join(partitions)}), and whose rows have not taken up the"
            f" marks of deleted keys: {mend}"
        )
    if heirs := _names(row["heirs"]):
        doubtful.append(
            f"tables inherit from it ({', '.join(heirs)}), and their rows, which are seen here, have no fence:"
            f" ALTER TABLE … NO INHERIT {row['shown']}"
        )
    if row["scope"] is None and (later := _names(row["later"])):  # rows of a scope are looked at once more afterwards
        doubtful.append(f"BEFORE triggers run after the fence's and could change what it judged: {', '.join(later)}")
    if row["persistence"] != "p":
        doubtful.append("the table is unlogged: a crash empties it and leaves its marks behind")
    if row["has_rules"]:
        doubtful.append("the table has rewrite rules, which can turn a fenced write into another one")
    return doubtful


def _names(value: object) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list) else []


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
        " AND has_function_privilege('fencepost.mark_without_row(text, text)', 'EXECUTE')"
        " AND has_function_privilege('fencepost.mark_record(text)', 'EXECUTE')"
        " AND has_function_privilege('fencepost.enter(text, text[], bigint, oid, text)', 'EXECUTE')"
        " AND has_function_privilege('fencepost.enter_each(text, text[], bigint[], oid, text)', 'EXECUTE')"
        " AND has_function_privilege('fencepost.idem_begin(text, text, bytea)', 'EXECUTE')"
        " AND has_function_privilege('fencepost.idem_begin_each(text, text[], bytea[])', 'EXECUTE')"
        " AND has_function_privilege('fencepost.idem_record(text, text, bytea, integer, text[], bytea)', 'EXECUTE')"
        " AND has_function_privilege("
        "'fencepost.idem_record_each(text, text[], bytea[], integer[], text[], bytea[])', 'EXECUTE')"
        " AND has_function_privilege('fencepost.lock_counts()', 'EXECUTE')"
        " AND has_function_privilege('fencepost.issued_to(bigint)', 'EXECUTE')"
        " AND has_function_privilege('fencepost.origin()', 'EXECUTE')"
        " AND has_function_privilege('fencepost.source_state(text, text)', 'EXECUTE')"
        " AND has_function_privilege('fencepost.prune_marks(bigint, xid8, double precision, text, integer)', 'EXECUTE')"
    )
    if not allowed:
        role = await connection.fetchval("SELECT current_user::text")
        findings.append(
            Finding(
                "error",
                "privileges",
                f"the role {role} lacks functions of our schema: run `fencepost migrate --gateway-role {role}`",
            )
        )
    return findings
