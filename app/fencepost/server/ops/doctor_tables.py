"""What `fencepost doctor` reports of each protected table: whether all that `protect` made is there, and still fits."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import asyncpg

from fencepost.server.fence.resource import Scope, parse_scope
from fencepost.server.fence.token import EXTERNAL
from fencepost.server.ops import checks
from fencepost.server.ops.checks import Target, read_scope, read_target, renamed_column_reason
from fencepost.server.ops.ddl import ABOVE, PREFIX, ScopeDdl
from fencepost.server.ops.doctor import Finding
from fencepost.server.ops.functions import Functions
from fencepost.server.ops.schema import RELATIONS
from fencepost.server.postgres.catalog_cache import BOUND, ROW_TRIGGERS, SCOPE_TRIGGERS, TRUNCATE_TRIGGER, api_name
from fencepost.server.postgres.connection import Connection
from fencepost.server.postgres.tables import HAS_RULES, MARK_CHECK, MARK_COLUMN, quote

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
            text = "the table was dropped; protecting a new one of this name goes on from its marks"
            findings.append(Finding("warning", name, text))
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


# What `fencepost doctor` looks at of the functions: whose they are, who may execute them, and whether those of a table
# are what this version makes.

FOR_ALL: Final = frozenset(
    {
        *("mark_behind_glass", "record_break_glass", "require_reach", "require_reach_of_row"),
        *("altered", "altered_marks", "leave_marks", "partitions_known", "require_no_default"),
        *("held_floor", "held_mark", "highest_below", "is_reset", "reset_mark", "force_release"),
        *("gateway_mark_without_row", "gateway_mark_record", "gateway_floor_of", "gateway_raise_mark"),
        *("gateway_meet_ceiling", "gateway_enter", "gateway_enter_each", "gateway_idem_begin"),
        *("gateway_idem_begin_each", "gateway_idem_record", "gateway_idem_record_each"),
    }
)
"""SECURITY DEFINER functions that the triggers of any role, operators, or callers of the gateway call in their own
name; each checks which role calls it, or logged in, or which table is being changed, or only raises."""
NOT_FOR_ALL: Final = frozenset({"current_timeline", "location", "issue_beyond", "prune", "raise_generation", "wake"})
"""Others that only some may execute."""
FOR_TRIGGERS_ONLY: Final = frozenset({"judge_delete", "judge_insert", "judge_scope", "meet_mark"})
"""SECURITY DEFINER functions that only triggers call: another role that may, can shut others out."""

_MOST: Final = 6
"""Names that one finding shows."""

_FUNCTIONS: Final = """
SELECT f.oid::regprocedure::text AS called, f.proname::text AS name, f.prosrc AS body, f.prosecdef AS definer,
       pg_get_userbyid(f.proowner)::text AS owner, f.proowner <> n.nspowner AS strays,
       pg_get_userbyid(n.nspowner)::text AS keeper, f.prorettype = 'trigger'::regtype AS of_trigger,
       coalesce(f.proconfig @> ARRAY['search_path=pg_catalog, pg_temp'], false) AS pinned,
       EXISTS (SELECT FROM aclexplode(coalesce(f.proacl, acldefault('f', f.proowner))) g
                WHERE g.grantee = 0 AND g.privilege_type = 'EXECUTE') AS for_all,
       ARRAY(SELECT DISTINCT pg_get_userbyid(g.grantee)::text FROM aclexplode(f.proacl) g
              WHERE g.grantee NOT IN (0, f.proowner) AND g.privilege_type = 'EXECUTE' ORDER BY 1) AS given_to
  FROM pg_proc f JOIN pg_namespace n ON n.oid = f.pronamespace WHERE n.nspname = 'fencepost' ORDER BY 1"""

_STRAYS: Final = """
SELECT c.relname::text AS name, pg_get_userbyid(c.relowner)::text AS owner, pg_get_userbyid(n.nspowner)::text AS keeper
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = 'fencepost' AND c.relname = ANY ($1::text[]) AND c.relowner <> n.nspowner ORDER BY 1"""

_KEEPER: Final = """
SELECT pg_get_userbyid(n.nspowner)::text AS keeper,
       (SELECT string_agg(p.name, ', ' ORDER BY p.name) FROM fencepost.protected p JOIN pg_class c ON c.oid = p.relation
         WHERE pg_has_role(c.relowner, n.nspowner, 'MEMBER')) AS tables
  FROM pg_namespace n WHERE n.nspname = 'fencepost'"""

_PROTECTED: Final = """
SELECT p.relation::oid::int8 AS oid, p.name, p.functions FROM fencepost.protected p
  JOIN pg_class c ON c.oid = p.relation ORDER BY p.name"""


async def examine_functions(connection: Connection) -> list[Finding]:
    """Look at owners, privileges, and versions."""
    async with connection.transaction():
        await connection.execute("SET LOCAL search_path = pg_catalog, pg_temp")  # names are shown in full
        functions = await connection.fetch(_FUNCTIONS)
        findings = _owners(functions, await connection.fetch(_STRAYS, list(RELATIONS))) or await _keeper(connection)
        findings += [*_privileges(functions), *_grantees(functions)]
        bodies = {function["name"]: function["body"] for function in functions}
        for table in await connection.fetch(_PROTECTED):
            made = await _expected_functions(connection, table["oid"], table["functions"])
            # What is gone altogether is reported with the table.
            old = [
                part
                for part, body in made.items()
                if (found := bodies.get(f"{table['functions']}_{part}")) is not None and found.strip() != body.strip()
            ]
            if old:
                text = (
                    f"its functions ({', '.join(old)}) were made by an older version, or changed by hand: run"
                    f" `fencepost protect {table['name']}` again"
                )
                findings.append(Finding("warning", table["name"], text))
    return findings


def _owners(functions: list[asyncpg.Record], strays: list[asyncpg.Record]) -> list[Finding]:
    foreign = {f"{stray['name']} of {stray['owner']}": stray["keeper"] for stray in strays}
    foreign |= {f"{each['called']} of {each['owner']}": each["keeper"] for each in functions if each["strays"]}
    if not foreign:
        return []
    keeper = next(iter(foreign.values()))
    shown = [*list(foreign)[:_MOST], *(["…"] if len(foreign) > _MOST else [])]
    text = (
        f"the schema fencepost belongs to {keeper}, and not all that is in it ({', '.join(shown)}): `fencepost migrate"
        f" --owner {keeper}`, run as a superuser or a member of these roles, gives it to {keeper}"
    )
    return [Finding("error", "owner", text)]


async def _keeper(connection: Connection) -> list[Finding]:
    """Name who owns the marks, and which tables' owners could change them: no fault, but good to know."""
    row = await connection.fetchrow(_KEEPER)
    if row is None:
        return []
    text = f"the schema fencepost and all in it belongs to {row['keeper']}"
    if row["tables"]:
        text += f", as whom the owners of these tables may act too: {row['tables']} (`migrate --owner` parts them)"
    return [Finding("ok", "owner", text)]


def _privileges(functions: list[asyncpg.Record]) -> list[Finding]:
    """Name the functions that every role may execute and must not, and those that a search_path could lead astray."""
    open_to_all = [each["called"] for each in functions if each["for_all"] and _is_for_some(each)]
    findings = [
        Finding(
            "error", "privileges", f"everybody may execute {called}: REVOKE EXECUTE ON FUNCTION {called} FROM PUBLIC"
        )
        for called in open_to_all
    ]
    if unpinned := [each["called"] for each in functions if each["definer"] and not each["pinned"]]:
        text = f"functions run in their owner's name and under the caller's search_path: {', '.join(unpinned)}"
        findings.append(Finding("error", "privileges", text))
    return findings


def _grantees(functions: list[asyncpg.Record]) -> list[Finding]:
    """Name the roles that may execute what no role should, by default privileges maybe; and who may break the glass."""
    inner: dict[str, list[str]] = {}
    for function in functions:
        if function["definer"] and (function["name"] in FOR_TRIGGERS_ONLY or function["of_trigger"]):
            for role in function["given_to"]:
                inner.setdefault(role, []).append(function["called"])
    findings = [
        Finding(
            "error",
            "privileges",
            f"{role} may execute what only triggers should: REVOKE EXECUTE ON FUNCTION {', '.join(called)} FROM"
            f" {quote(role)}",
        )
        for role, called in sorted(inner.items())
    ]
    glass = [role for each in functions if each["name"] == "may_break_glass" for role in each["given_to"]]
    if glass:
        text = f"besides the schema's owner and superusers these may break the glass: {', '.join(glass)}"
        findings.append(Finding("ok", "break-glass", text))
    return findings


def _is_for_some(function: asyncpg.Record) -> bool:
    if function["of_trigger"]:
        # A table's own: hung on another table, they would write this one's marks. no_truncate and its like only raise.
        return bool(function["name"].endswith(("_upd", "_ins", "_insmark", "_del", "_scope")))
    return (function["definer"] and function["name"] not in FOR_ALL) or function["name"] in NOT_FOR_ALL


async def _expected_functions(connection: Connection, oid: int, stem: str) -> dict[str, str]:
    """Write what this version's `protect` would make, as the table stands; nothing when it has changed too much for
    that, which is reported with the table.
    """
    target: Target | None = await read_target(connection, oid)
    if target is None or target.registered is None or target.registered.name != target.name:
        return {}
    now = target.registered
    if now.scope is None:
        functions = Functions(target, now.rule, now.source, now.ceiling)
        return functions.bodies() if functions.stem == stem else {}
    scoped = await read_scope(connection, target, now.scope)
    if scoped is None:
        return {}
    ddl = ScopeDdl(target, scoped, now.rule, now.source, requires_key=now.requires_key)
    return ddl.bodies() if ddl.functions.stem == stem else {}


# What `fencepost doctor` looks at of protected tables' triggers: that each is there, fires, and calls what it should,
# on the table and on each of its partitions, of which every one has copies of its own.

# Trigger, the function it calls, when it fires (pg_trigger.tgtype: 1 ROW, 2 BEFORE, 4 INSERT, 8 DELETE, 16 UPDATE), and
# whether it has a condition.
_ROWS: Final = (("upd", "upd", 19, False), ("ins", "ins", 7, True), ("insmark", "insmark", 5, False),
                ("del", "del", 9, False))  # fmt: skip
_SCOPED: Final = (("scope", "scope", 31, False), ("scope_ins", "scope", 5, False), ("scope_upd", "scope", 17, True))
_TRUNCATE: Final = 34
"""STATEMENT BEFORE TRUNCATE"""

_GAPS: Final = """
WITH wanted(scoped, trigger, function, kind, conditional) AS (
  SELECT * FROM unnest($1::bool[], $2::text[], $3::text[], $4::int[], $5::bool[])
), part AS (
  SELECT p.relation::oid AS root, p.relation::oid AS oid FROM fencepost.protected p
  UNION SELECT p.relation, t.relid FROM fencepost.protected p CROSS JOIN pg_partition_tree(p.relation) t
), gap AS (
  SELECT p.relation::oid AS root, part.oid, w.trigger FROM fencepost.protected p JOIN part ON part.root = p.relation
    JOIN wanted w ON w.scoped = (p.scope IS NOT NULL)
   WHERE NOT EXISTS (SELECT FROM pg_trigger t JOIN pg_proc f ON f.oid = t.tgfoid
                      WHERE t.tgrelid = part.oid AND t.tgname = $6 || w.trigger AND t.tgenabled IN ('O', 'A')
                        AND f.pronamespace = 'fencepost'::regnamespace AND f.proname = p.functions || '_' || w.function
                        AND t.tgtype = w.kind AND (t.tgqual IS NOT NULL) = w.conditional AND t.tgattr = '')
     -- A trigger of the table itself that is missing or disabled is reported with the rest of the table.
     AND (part.oid <> p.relation OR EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = part.oid
                                               AND t.tgname = $6 || w.trigger AND t.tgenabled IN ('O', 'A')))
  UNION ALL
  SELECT part.root, part.oid, 'trunc' FROM part
   WHERE EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = part.oid AND t.tgname = $6 || 'trunc'
                    AND t.tgenabled IN ('O', 'A')
                    AND (t.tgfoid <> 'fencepost.no_truncate()'::regprocedure OR t.tgtype <> $7
                         OR t.tgqual IS NOT NULL))
)
SELECT p.name, n.nspname::text AS schema, c.relname::text AS relation, g.oid <> g.root AS of_partition,
       g.oid::regclass::text AS shown, array_agg($6 || g.trigger ORDER BY g.trigger) AS triggers
  FROM gap g JOIN fencepost.protected p ON p.relation = g.root JOIN pg_class c ON c.oid = g.root
  JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_class of ON of.oid = g.oid
 GROUP BY p.name, n.nspname, c.relname, g.oid, g.root ORDER BY p.name, g.oid <> g.root, shown"""


async def examine_triggers(connection: Connection) -> list[Finding]:
    """Look for triggers that were replaced, and for partitions where one is missing or does not fire."""
    wanted = [(scoped, *each) for scoped, triggers in ((False, _ROWS), (True, _SCOPED)) for each in triggers]
    rows = await connection.fetch(_GAPS, *(list(column) for column in zip(*wanted, strict=True)), PREFIX, _TRUNCATE)
    findings = []
    for row in rows:
        what = (
            f"on its partition {row['shown']} triggers are missing, disabled or not the fence's"
            if row["of_partition"]
            else "triggers have the fence's names and are others"
        )
        mend = f"run `fencepost protect {api_name(row['schema'], row['relation'])}`"
        findings.append(Finding("error", row["name"], f"{what} ({', '.join(row['triggers'])}): {mend}"))
    return findings


_PARTITIONED: Final = """
SELECT p.name, p.scope IS NULL AS by_rows, n.nspname::text AS schema, c.relname::text AS relation,
       fencepost.partitions_unknown(c.oid)::text[] AS came,
       ARRAY(SELECT g.part::text FROM unnest(p.partitions) AS g(part)
              WHERE NOT g.part = ANY (fencepost.partitions_of(c.oid)) ORDER BY g.part::oid) AS went
  FROM fencepost.protected p JOIN pg_class c ON c.oid = p.relation AND c.relkind = 'p'
  JOIN pg_namespace n ON n.oid = c.relnamespace ORDER BY p.name"""


async def examine_partitions(connection: Connection) -> list[Finding]:
    """Look whether event triggers follow the partitions, where a protected table has any, and what they missed."""
    tables = await connection.fetch(_PARTITIONED)
    findings = []
    if tables and await checks.lacks_event_triggers(connection):
        findings.append(Finding("warning", "partitions", checks.MISSING))
    for table in tables:
        mend = f"run `fencepost protect {api_name(table['schema'], table['relation'])}`"
        if table["by_rows"] and table["came"]:
            text = (
                f"partitions were attached and not looked at ({', '.join(table['came'])}): their rows may be below the"
                f" marks of their keys: {mend}"
            )
            findings.append(Finding("warning", table["name"], text))
        if table["by_rows"] and table["went"]:
            text = (
                f"partitions were detached or dropped and not looked at ({', '.join(table['went'])}): the marks of"
                f" their rows are not known any more, and a stale holder can make these keys anew. Where no token up to"
                f" N is in use, `SELECT fencepost.prune('{table['name']}', N)` refuses all up to it; then {mend}"
            )
            findings.append(Finding("warning", table["name"], text))
    return findings


# What `fencepost doctor` looks at of the marks of external tables: one that is far above all others, which a made-up
# token left, and which refuses all holders.
#
# For each table its highest mark is read, which is a scan: no index has the column. Only where that is above FAR is
# the next lower one read, and the name of the resource: two scans more.

FAR: Final = 2**49
"""How far above the next lower mark one is doubtful. Raised generations leave 2^48 between two marks, or twice that; a
ZooKeeper that elected a leader 2^32; a clock that counts nanoseconds is so far within six days."""

_EXTERNAL_TABLES: Final = """
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
    for row in await connection.fetch(_EXTERNAL_TABLES, MARK_COLUMN):
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
