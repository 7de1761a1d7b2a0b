"""What `fencepost doctor` reports of each protected table: whether all that `protect` made is there, and still fits."""

from collections.abc import Mapping
from typing import Final

import asyncpg

from fencepost.server.fence.resource import Scope, parse_scope
from fencepost.server.fence.token import EXTERNAL
from fencepost.server.ops.inspecting.overview import Finding
from fencepost.server.ops.protecting.check import renamed_column_reason
from fencepost.server.ops.protecting.lost_marks import ABOVE
from fencepost.server.ops.protecting.table import PREFIX
from fencepost.server.postgres.catalog_cache import BOUND, ROW_TRIGGERS, SCOPE_TRIGGERS, TRUNCATE_TRIGGER, api_name
from fencepost.server.postgres.connection import Connection
from fencepost.server.postgres.tables import HAS_RULES, MARK_CHECK, MARK_COLUMN

_TABLES: Final = f"""
SELECT p.name, p.source, p.relation::oid::int8 AS oid, p.relation::text AS shown, p.functions, p.key_columns, p.scope,
       ARRAY(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnotnull AND a.attnum > 0
                AND NOT a.attisdropped) AS not_null,
       {BOUND} AS bound, c.oid IS NOT NULL AS exists, n.nspname::text AS schema, c.relname::text AS relation,
       c.relpersistence::text AS persistence, {HAS_RULES} AS has_rules,
       p.scope IS NULL AND row_security_active(c.oid) AS ruled, current_user::text AS me,
       (SELECT format_type(a.atttypid, -1) || CASE WHEN a.attnotnull THEN ' NOT NULL' ELSE '' END FROM pg_attribute a
         WHERE a.attrelid = c.oid AND a.attname = $1 AND NOT a.attisdropped) AS column,
       (SELECT a.attname::text FROM pg_constraint k JOIN pg_attribute a ON a.attrelid = k.conrelid
           AND k.conkey = ARRAY[a.attnum] AND a.attname <> $1
         WHERE k.conrelid = c.oid AND k.conname = $2 AND k.contype = 'c') AS mark_called,
       (SELECT k.convalidated FROM pg_constraint k WHERE k.conrelid = c.oid AND k.conname = $2) AS validated,
       CASE WHEN p.scope IS NULL THEN fencepost.other_defaults(c.oid)::text[] END AS other_defaults,
       (SELECT array_agg(a.attname::text ORDER BY k.n) FROM pg_index i
          CROSS JOIN unnest(i.indkey) WITH ORDINALITY k(attnum, n)
          JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
         WHERE i.indrelid = c.oid AND i.indisprimary AND k.n <= i.indnkeyatts) AS key,
       (SELECT array_agg(a.attname::text ORDER BY k.n) FROM pg_index i
          CROSS JOIN unnest(i.indkey) WITH ORDINALITY k(attnum, n)
          JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
         WHERE i.indrelid = c.oid AND i.indisprimary AND k.n <= i.indnkeyatts AND a.attgenerated <> '')
         AS generated_key,
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
            THEN ARRAY['upd', 'ins', 'insmark', 'del', 'delete', 'name', 'key'] ELSE ARRAY['scope', 'of'] END) part
         WHERE NOT EXISTS (SELECT FROM pg_proc f JOIN pg_namespace fn ON fn.oid = f.pronamespace
                            WHERE fn.nspname = 'fencepost' AND f.proname = p.functions || '_' || part))
         AS functions_gone,
       (SELECT array_to_string(f.proargtypes::oid[], ',') <> (
          SELECT string_agg(a.atttypid::text, ',' ORDER BY k.n) || ',' || 'int8'::regtype::oid
                 || ',' || 'text[]'::regtype::oid FROM pg_index i
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
    rows = await connection.fetch(_TABLES, MARK_COLUMN, MARK_CHECK, PREFIX, TRUNCATE_TRIGGER)
    there = {row["name"]: row for row in rows if row["exists"]}
    for row in rows:
        name = row["name"]
        if not row["exists"]:
            findings.append(
                Finding(
                    "warning", name, "the table was dropped; protecting a new one of this name goes on from its marks"
                )
            )
            continue
        mend = _mend(row, there)
        faults = [Finding("error", name, f"{text}: {mend}") for text in _broken(row)]
        faults += [Finding("error", name, text) for text in _unfit(row)]
        faults += [Finding("warning", name, text) for text in _find_gaps(row, mend)]
        findings += faults or [Finding("ok", name, "column, check, triggers and functions are in place")]
    return findings


def _mend(row: asyncpg.Record, there: Mapping[str, asyncpg.Record]) -> str:
    """Return what mends a table: the column of the marks must not come back empty. `there`: the protected tables, by
    the names under which they were protected.
    """
    now = api_name(row["schema"], row["relation"])
    if (other := there.get(now, row)) is not row:
        its = api_name(other["schema"], other["relation"])
        return (
            f"{now} is still the name of another protected table, which is called {its} now: run `fencepost unprotect"
            f" {now}` and `fencepost unprotect {its}`, and then protect both"
        )
    again = f"`fencepost protect {now}"
    if row["scope"] is None and row["column"] is None:
        if row["mark_called"] is not None:
            return renamed_column_reason(row["schema"], row["relation"], row["mark_called"]) + f" Then run {again}`"
        if row["source"] == EXTERNAL:
            return f"run {again} {ABOVE}`, where no token up to N may write to it any more"
        return f"run {again}`: its rows then take tokens only that {row['source']} has not issued by then"
    return f"run {again}`"


def _broken(row: asyncpg.Record) -> list[str]:
    """Return what keeps the fence from holding. The gateway refuses writes to such a table; not for a default, which
    none of its own statements takes.
    """
    broken = []
    scope = parse_scope(row["scope"]) if row["scope"] is not None else None
    wanted = ROW_TRIGGERS if scope is None else SCOPE_TRIGGERS
    missing = sorted((wanted | {TRUNCATE_TRIGGER}) - set(_names(row["triggers"])))
    if missing:
        broken.append(f"triggers are missing or disabled ({', '.join(missing)})")
    if scope is not None:
        broken += _columns_of(scope, row)
    else:
        broken += _column_of_marks(row)
    if others := _names(row["other_defaults"]):
        broken.append(
            f"the default of {MARK_COLUMN} is not 0 in {', '.join(others)}, so that an INSERT passes without a token"
        )
    if row["validated"] is None and scope is None:
        broken.append(f"the check {MARK_CHECK} is gone")
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


def _column_of_marks(row: asyncpg.Record) -> list[str]:
    if row["column"] != "bigint NOT NULL":
        return [f"the column {MARK_COLUMN} is {row['column'] or 'gone'}"]
    if row["mark_called"] is not None:
        return [f"the column {MARK_COLUMN} is a new one, and the marks are in {row['mark_called']}"]
    return []


def _unfit(row: asyncpg.Record) -> list[str]:
    """Return what the table has become that `protect` refuses, and does not mend."""
    unfit = []
    if generated := _names(row["generated_key"]) if row["scope"] is None else []:
        unfit.append(
            f"a column of the primary key is generated ({', '.join(generated)}), so that rows can be inserted and"
            " deleted, and never changed or claimed: `fencepost unprotect` it, or protect it with --scope"
        )
    if heirs := _names(row["heirs"]):
        unfit.append(
            f"tables inherit from it ({', '.join(heirs)}), and their rows, which are its rows, have no fence: nothing"
            f" is written through the gateway until ALTER TABLE … NO INHERIT {row['shown']}"
        )
    if row["persistence"] != "p":
        unfit.append(
            "the table is unlogged: a crash empties it, and rows that were there can be created again with an old"
            f" token: ALTER TABLE {row['shown']} SET LOGGED"
        )
    return unfit


def _columns_of(scope: Scope, row: asyncpg.Record) -> list[str]:
    if gone := sorted(set(scope.columns) - set(_names(row["not_null"]))):
        return [f"columns of its scope {scope.template} are gone or can be null ({', '.join(gone)})"]
    if set(scope.columns) == set(_names(row["bound"])):
        return []
    bound = ", ".join(_names(row["bound"])) or "nothing"
    return [f"columns of its scope {scope.template} are others now: it is read from {bound}"]


def _find_gaps(row: asyncpg.Record, mend: str) -> list[str]:
    """Return what leaves a gap without breaking the fence."""
    doubtful = []
    if row["validated"] is False:
        doubtful.append(f"the check {MARK_CHECK} was not validated on old rows: {mend}")
    if partitions := [part for part in _names(row["can_truncate"]) if part != row["shown"]]:
        doubtful.append(
            f"partitions that TRUNCATE could empty ({', '.join(partitions)}), and whose rows have not taken up the"
            f" marks of deleted keys: {mend}"
        )
    if row["scope"] is None and (later := _names(row["later"])):  # rows of a scope are looked at once more afterwards
        doubtful.append(f"BEFORE triggers run after the fence's and could change what it judged: {', '.join(later)}")
    if row["ruled"]:
        doubtful.append(
            f"row security rules {row['me']}, so that the marks of rows which a policy hides were not looked at: run"
            " this as a role with BYPASSRLS, or as the owner of a table without FORCE ROW LEVEL SECURITY"
        )
    if row["has_rules"]:
        doubtful.append("the table has rewrite rules, which can turn a fenced write into another one")
    return doubtful


def _names(value: object) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list) else []


# Of enums in keys: marks are kept under the labels' texts, and `ALTER TYPE … RENAME VALUE` changes those of all rows at
# once, which no trigger sees.
# The n-th value of a name, which is `name/value,value`, as it is encoded there. No domain over an enum is in a key, and
# no enum in a scope.
_UNKNOWN: Final = """
WITH part AS (
  SELECT p.name AS tab, fencepost.enc(p.name) || '/' AS prefix, k.n::int, t.oid AS type
    FROM fencepost.protected p CROSS JOIN LATERAL unnest(p.key_columns) WITH ORDINALITY AS k(name, n)
    JOIN pg_attribute a ON a.attrelid = p.relation AND a.attname = k.name AND NOT a.attisdropped
    JOIN pg_type t ON t.oid = a.atttypid AND t.typtype = 'e'
   WHERE p.scope IS NULL
)
SELECT part.tab, part.type::regtype::text AS type, min(named.value) AS value, count(*) AS marks
  FROM part JOIN fencepost.marks k ON starts_with(k.resource, part.prefix)
 CROSS JOIN LATERAL split_part(substr(k.resource, length(part.prefix) + 1), ',', part.n) AS named(value)
 WHERE named.value NOT IN (SELECT fencepost.enc(e.enumlabel::text) FROM pg_enum e WHERE e.enumtypid = part.type)
 GROUP BY part.tab, part.type ORDER BY part.tab"""


async def examine_labels(connection: Connection) -> list[Finding]:
    """Look for marks under a label that its enum does not have. They do not count for the label's new name."""
    return [
        Finding(
            "error",
            row["tab"],
            f"{row['marks']} marks are kept under {row['value']!r}, which is no label of the enum {row['type']}: it was"
            " renamed, and what was deleted under it can be created again with an old token. Name the label as it was:"
            f" ALTER TYPE {row['type']} RENAME VALUE … TO '{row['value']}'",
        )
        for row in await connection.fetch(_UNKNOWN)
    ]
