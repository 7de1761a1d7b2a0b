"""The checks of protected tables: `fencepost doctor` looks whether all that `protect` made is there, and still fits."""

import json
import shlex
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from fencepost.server.fence.resource import parse_scope
from fencepost.server.fence.token import BUILTIN, EXTERNAL
from fencepost.server.ops.doctor import NOW, Check, Row, read
from fencepost.server.ops.schema import LACKS_EVENT_TRIGGERS, MISSING, RELATIONS
from fencepost.server.postgres.catalog_cache import BOUND, ROW_TRIGGERS, SCOPE_TRIGGERS, TRUNCATE_TRIGGER, WORK_TRIGGER
from fencepost.server.postgres.connection import Connection
from fencepost.server.postgres.next_rows import INDEX_OPTIONS, named
from fencepost.server.postgres.row_sql import literal
from fencepost.server.postgres.tables import HAS_RULES, MARK_CHECK, MARK_COLUMN, quote

# `table` is a table's name as it is, `subject` the one under which it was protected.
_ON: Final = "t.tgenabled IN ('O', 'A')"
_AGAIN: Final = ": run `fencepost protect {table}`"

_TABLES: Final = f"""
SELECT p.name AS subject, p.source, p.max_attempts, p.relation::oid::int8 AS oid, p.relation::text AS sql_name,
       p.scope, c.oid IS NULL AS dropped, n.nspname::text AS schema, c.relname::text AS relation, {NOW},
       c.relpersistence <> 'p' AS unlogged, {HAS_RULES} AS has_rules, current_user::text AS role,
       p.scope IS NULL AND row_security_active(c.oid) AS ruled,
       ARRAY(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnotnull AND a.attnum > 0
                AND NOT a.attisdropped) AS not_null, {BOUND} AS bound,
       (SELECT format_type(a.atttypid, -1) || CASE WHEN a.attnotnull THEN ' NOT NULL' ELSE '' END FROM pg_attribute a
         WHERE a.attrelid = c.oid AND a.attname = '{MARK_COLUMN}' AND NOT a.attisdropped) AS column,
       m.called AS mark_called, fencepost.renamed_column_reason(c.oid, m.called) AS rename_back,
       (SELECT k.convalidated FROM pg_constraint k WHERE k.conrelid = c.oid AND k.conname = '{MARK_CHECK}')
         AS validated,
       CASE WHEN p.scope IS NULL THEN fencepost.other_defaults(c.oid)::text[] END AS other_defaults,
       i.key IS DISTINCT FROM p.key_columns::text[] AS key_changed,
       CASE WHEN p.scope IS NULL THEN i.generated END AS generated,
       (SELECT array_agg(t.tgname::text) FROM pg_trigger t
         WHERE t.tgrelid = c.oid AND starts_with(t.tgname, 'zzz_fencepost_') AND {_ON}) AS triggers,
       (SELECT array_agg(t.tgname::text) FROM pg_trigger t  -- rows of a scope are looked at once more afterwards
         WHERE t.tgrelid = c.oid AND NOT t.tgisinternal AND t.tgname > 'zzz_fencepost_' AND t.tgtype & 3 = 3
           AND NOT starts_with(t.tgname, 'zzz_fencepost_') AND p.scope IS NULL) AS later,
       (SELECT array_agg(part.relid::regclass::text) FROM pg_partition_tree(c.oid) part
         WHERE part.relid <> c.oid AND NOT EXISTS (
               SELECT FROM pg_trigger t WHERE t.tgrelid = part.relid AND t.tgname = '{TRUNCATE_TRIGGER}' AND {_ON}))
         AS can_truncate,
       (SELECT array_agg(h.inhrelid::regclass::text) FROM pg_inherits h
         WHERE h.inhparent = c.oid AND c.relkind = 'r') AS heirs,
       EXISTS (SELECT FROM unnest(CASE WHEN p.scope IS NULL
            THEN ARRAY['upd', 'ins', 'insmark', 'del', 'delete', 'name', 'key'] ELSE ARRAY['scope', 'of'] END) part
         WHERE NOT EXISTS (SELECT FROM pg_proc f WHERE f.pronamespace = 'fencepost'::regnamespace
                              AND f.proname = p.functions || '_' || part)) AS functions_gone,
       CASE WHEN p.triggers_see_own_row THEN o.of_statements || o.deferred END AS vouched_in_vain,
       (SELECT array_agg(u.relid::regclass::text) FROM fencepost.with_partitions(c.oid) u
         WHERE p.work AND NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = u.relid AND t.tgname = '{WORK_TRIGGER}'
           AND {_ON} AND t.tgfoid = 'fencepost.work_there()'::regprocedure AND t.tgtype = 20 AND t.tgqual IS NULL))
         AS silent,
       ARRAY(SELECT k FROM jsonb_object_keys(p.on_exhausted) k WHERE NOT EXISTS (
         SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = k AND NOT a.attisdropped)) AS not_set,
       i.key = p.key_columns::text[] AND (
         SELECT array_to_string(f.proargtypes::oid[], ',')
                <> i.types || ',' || 'int8'::regtype::oid || ',' || 'text[]'::regtype::oid FROM pg_proc f
          WHERE f.pronamespace = 'fencepost'::regnamespace AND f.proname = p.functions || '_delete') AS key_retyped
  FROM fencepost.protected p LEFT JOIN pg_class c ON c.oid = p.relation
  LEFT JOIN pg_namespace n ON n.oid = c.relnamespace
 CROSS JOIN LATERAL (
   SELECT array_agg(a.attname::text ORDER BY k.n) AS key, string_agg(a.atttypid::text, ',' ORDER BY k.n) AS types,
          array_agg(a.attname::text ORDER BY k.n) FILTER (WHERE a.attgenerated <> '') AS generated
     FROM pg_index i CROSS JOIN unnest(i.indkey) WITH ORDINALITY k(attnum, n)
     JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
    WHERE i.indrelid = c.oid AND i.indisprimary AND k.n <= i.indnkeyatts) i
 CROSS JOIN LATERAL fencepost.triggers_of_others(c.oid) o
  LEFT JOIN LATERAL (
    SELECT a.attname::text AS called FROM pg_constraint k JOIN pg_attribute a ON a.attrelid = k.conrelid
       AND k.conkey = ARRAY[a.attnum] AND a.attname <> '{MARK_COLUMN}'
     WHERE k.conrelid = c.oid AND k.conname = '{MARK_CHECK}' AND k.contype = 'c') m ON true
 ORDER BY p.name"""


async def _tables(connection: Connection) -> list[Row]:
    rows = await read(connection, _TABLES)
    there = {row["subject"]: row for row in rows if not row["dropped"]}
    return [
        {"subject": row["subject"], "dropped": True} if row["dropped"] else {**row, **_compared(row, there)}
        for row in rows
    ]


def _compared(row: Row, there: Mapping[str, Row]) -> Row:
    """Compare a table with what `protect` made. `there`: the protected tables, by the names under which they were
    protected.
    """
    more: dict[str, object] = {"protect_it_again": _mend(row, there), "renamed": row["table"] != row["subject"]}
    if row["scope"] is None:
        wanted, column = ROW_TRIGGERS, row["column"] or "gone"
        more |= {
            "other_column": "" if column == "bigint NOT NULL" else column,
            "new_column": column == "bigint NOT NULL" and row["mark_called"],
            "check_gone": row["validated"] is None,
        }
    else:
        wanted, scope = SCOPE_TRIGGERS, parse_scope(row["scope"])
        gone = sorted(set(scope.columns) - set(row["not_null"]))
        others = not gone and set(scope.columns) != set(row["bound"])
        more |= {"columns_gone": gone, "columns_now": (row["bound"] or ["nothing"]) if others else []}
    missing = sorted((wanted | {TRUNCATE_TRIGGER}) - set(row["triggers"] or ()))
    return {**more, "missing_triggers": missing, "not_validated": row["validated"] is False}


def _mend(row: Row, there: Mapping[str, Row]) -> str:
    """Return what mends a table: the column of the marks must not come back empty."""
    now, other = row["table"], there.get(row["table"], row)
    if other is not row:
        its = other["table"]
        return (
            f"{now} is still the name of another protected table, which is called {its} now: run `fencepost unprotect"
            f" {now}` and `fencepost unprotect {its}`, and then protect both"
        )
    again = f"`fencepost protect {now}"
    if row["scope"] is None and row["column"] is None:
        if row["mark_called"] is not None:
            return f"{row['rename_back']} Then run {again}`"
        if row["source"] == EXTERNAL:
            return f"run {again} --above N`, where no token up to N may write to it any more"
        return f"run {again}`: its rows then take tokens only that {row['source']} has not issued by then"
    return f"run {again}`"


_PROTECT: Final = ": {protect_it_again}"

# The errors keep the fence from holding, and the gateway refuses writes to such a table; not for a default, which none
# of its own statements takes. The three without a command are what `protect` refuses, and does not mend.
TABLES: Final = (
    Check("table-dropped", _tables, "warning",
        "the table was dropped; protecting a new one of this name goes on from its marks", when="dropped"),
    Check("triggers-missing", _tables, "error",
        "triggers are missing or disabled ({missing_triggers})", _PROTECT, when="missing_triggers"),
    Check("scope-columns-gone", _tables, "error",
        "columns of its scope {scope} are gone or can be null ({columns_gone})", _PROTECT, when="columns_gone"),
    Check("scope-columns-changed", _tables, "error",
        "columns of its scope {scope} are others now: it is read from {columns_now}", _PROTECT, when="columns_now"),
    Check("mark-column-changed", _tables, "error",
        f"the column {MARK_COLUMN} is {{other_column}}", _PROTECT, when="other_column"),
    Check("mark-column-replaced", _tables, "error",
        f"the column {MARK_COLUMN} is a new one, and the marks are in {{mark_called}}", _PROTECT, when="new_column"),
    Check("mark-default", _tables, "error",
        f"the default of {MARK_COLUMN} is not 0 in {{other_defaults}}, so that an INSERT passes without a token",
        _PROTECT, when="other_defaults"),
    Check("mark-check-gone", _tables, "error", f"the check {MARK_CHECK} is gone", _PROTECT, when="check_gone"),
    Check("key-changed", _tables, "error", "the primary key has changed", _PROTECT, when="key_changed"),
    Check("key-retyped", _tables, "error",
        "a column of the primary key has another type now, and keyed deletes fail", _PROTECT, when="key_retyped"),
    Check("table-renamed", _tables, "error",
        "the table is called {table} now, and its resources are still {subject}/…", _PROTECT, when="renamed"),
    Check("functions-gone", _tables, "error",
        "functions are missing from the schema fencepost", _PROTECT, when="functions_gone"),
    Check("key-generated", _tables, "error",
        "a column of the primary key is generated ({generated}), so that rows can be inserted and deleted, and never"
        " changed or claimed", ": `fencepost unprotect` it, or protect it with --scope", when="generated"),
    Check("inherited", _tables, "error",
        "tables inherit from it ({heirs}), and their rows, which are its rows, have no fence: nothing is written"
        " through the gateway", " until ALTER TABLE … NO INHERIT {sql_name}", when="heirs"),
    Check("unlogged", _tables, "error",
        "the table is unlogged: a crash empties it, and rows that were there can be created again with an old token",
        ": ALTER TABLE {sql_name} SET LOGGED", when="unlogged"),
    Check("mark-check-not-validated", _tables, "warning",
        f"the check {MARK_CHECK} was not validated on old rows", _PROTECT, when="not_validated"),
    Check("partitions-truncated", _tables, "warning",
        "partitions that TRUNCATE could empty ({can_truncate}), and whose rows have not taken up the marks of deleted"
        " keys", _PROTECT, when="can_truncate"),
    Check("later-triggers", _tables, "warning",
        "BEFORE triggers run after the fence's and could change what it judged: {later}", when="later"),
    Check("vouched-in-vain", _tables, "warning",
        "--triggers-see-own-row has no effect: of a statement, or deferrable, are {vouched_in_vain}",
        when="vouched_in_vain"),
    Check("work-unheard", _tables, "warning",
        "workers that wait for rows of it hear of them within a second only: the trigger"
        f" {WORK_TRIGGER} is missing, disabled or another one on {{silent}}", _PROTECT, when="silent"),
    Check("exhausted-columns-gone", _tables, "warning",
        "rows that were taken {max_attempts} times cannot be put aside: --on-exhausted sets columns that are gone"
        " ({not_set})", ": `fencepost protect {table} --on-exhausted COLUMN=VALUE`", when="not_set"),
    Check("row-security", _tables, "warning",
        "row security rules {role}, so that the marks of rows which a policy hides were not looked at",
        ": run this as a role with BYPASSRLS, or as the owner of a table without FORCE ROW LEVEL SECURITY",
        when="ruled"),
    Check("rewrite-rules", _tables, "warning",
        "the table has rewrite rules, which can turn a fenced write into another one", when="has_rules"),
    Check("table", _tables, "ok", "column, check, triggers and functions are in place"),
)  # fmt: skip

# The triggers: that each fires and calls what it should, on the table and on each of its partitions, of which every one
# has copies of its own. `kind` is pg_trigger.tgtype: 1 ROW, 2 BEFORE, 4 INSERT, 8 DELETE, 16 UPDATE, 32 TRUNCATE. A
# trigger of the table itself that is missing or disabled is found with the rest of the table.

_TRIGGERS: Final = f"""
WITH wanted(scoped, trigger, function, kind, conditional) AS (
  VALUES (false, 'upd', 'upd', 19, false), (false, 'ins', 'ins', 7, true), (false, 'insmark', 'insmark', 5, false),
         (false, 'del', 'del', 9, false),
         (true, 'scope', 'scope', 31, false), (true, 'scope_ins', 'scope', 5, false),
         (true, 'scope_upd', 'scope', 17, true)
), part AS (
  SELECT p.relation::oid AS root, p.relation::oid AS oid FROM fencepost.protected p
  UNION SELECT p.relation, t.relid FROM fencepost.protected p CROSS JOIN pg_partition_tree(p.relation) t
), gap AS (
  SELECT p.relation::oid AS root, part.oid, w.trigger FROM fencepost.protected p JOIN part ON part.root = p.relation
    JOIN wanted w ON w.scoped = (p.scope IS NOT NULL)
   WHERE NOT EXISTS (SELECT FROM pg_trigger t JOIN pg_proc f ON f.oid = t.tgfoid
                      WHERE t.tgrelid = part.oid AND t.tgname = 'zzz_fencepost_' || w.trigger AND {_ON}
                        AND f.pronamespace = 'fencepost'::regnamespace AND f.proname = p.functions || '_' || w.function
                        AND t.tgtype = w.kind AND (t.tgqual IS NOT NULL) = w.conditional AND t.tgattr = '')
     AND (part.oid <> p.relation OR EXISTS (
          SELECT FROM pg_trigger t WHERE t.tgrelid = part.oid AND t.tgname = 'zzz_fencepost_' || w.trigger AND {_ON}))
  UNION ALL
  SELECT part.root, part.oid, 'trunc' FROM part
   WHERE EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = part.oid AND t.tgname = '{TRUNCATE_TRIGGER}' AND {_ON}
                    AND (t.tgfoid <> 'fencepost.no_truncate()'::regprocedure OR t.tgtype <> 34 OR t.tgqual IS NOT NULL))
)
SELECT p.name AS subject, {NOW}, g.oid <> g.root AS of_partition, g.oid = g.root AS of_table,
       g.oid::regclass::text AS partition, array_agg('zzz_fencepost_' || g.trigger ORDER BY g.trigger) AS triggers
  FROM gap g JOIN fencepost.protected p ON p.relation = g.root JOIN pg_class c ON c.oid = g.root
  JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_class of ON of.oid = g.oid
 GROUP BY p.name, n.nspname, c.relname, g.oid, g.root ORDER BY p.name, g.oid <> g.root, partition"""

_PARTITIONS: Final = f"""
SELECT p.name AS subject, {NOW}, fencepost.partitions_unknown(c.oid)::text[] AS came,
       ARRAY(SELECT g.part::text FROM unnest(p.partitions) AS g(part)
              WHERE NOT g.part = ANY (fencepost.partitions_of(c.oid)) ORDER BY g.part::oid) AS went
  FROM fencepost.protected p JOIN pg_class c ON c.oid = p.relation AND c.relkind = 'p'
  JOIN pg_namespace n ON n.oid = c.relnamespace WHERE p.scope IS NULL ORDER BY p.name"""

_NOT_FOLLOWED: Final = f"""
SELECT 'partitions' AS subject WHERE ({LACKS_EVENT_TRIGGERS}) AND EXISTS (
  SELECT FROM fencepost.protected p JOIN pg_class c ON c.oid = p.relation AND c.relkind = 'p')"""

TRIGGERS: Final = (
    Check("partition-triggers", _TRIGGERS, "error",
        "on its partition {partition} triggers are missing, disabled or not the fence's ({triggers})", _AGAIN,
        when="of_partition"),
    Check("triggers-replaced", _TRIGGERS, "error",
        "triggers have the fence's names and are others ({triggers})", _AGAIN, when="of_table"),
)  # fmt: skip
PARTITIONS: Final = (
    Check("partitions-not-followed", _NOT_FOLLOWED, "warning", *MISSING),
    Check("partitions-attached", _PARTITIONS, "warning",
        "partitions were attached and not looked at ({came}): their rows may be below the marks of their keys", _AGAIN,
        when="came"),
    Check("partitions-detached", _PARTITIONS, "warning",
        "partitions were detached or dropped and not looked at ({went}): the marks of their rows are not known any"
        " more, and a stale holder can make these keys anew", ". Where no token up to N is in use, `SELECT"
        " fencepost.prune('{subject}', N)` refuses all up to it; then run `fencepost protect {table}`", when="went"),
)  # fmt: skip

# The functions: whose they are, who may execute them, and whether those of a table are what this version makes.

FOR_ALL: Final = frozenset(
    {
        *("mark_behind_glass", "record_break_glass", "require_reach", "require_reach_of_row"),
        *("altered", "altered_marks", "leave_marks", "partitions_known", "require_no_default"),
        *("held_floor", "held_mark", "highest_below", "is_reset", "reset_mark", "force_release"),
        *("gateway_mark_without_row", "gateway_mark_record", "gateway_floor_of", "gateway_raise_mark"),
        *("gateway_meet_ceiling", "gateway_enter", "gateway_enter_each", "gateway_idem_begin", "gateway_is_taken"),
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
SELECT f.oid::regprocedure::text AS called, f.proname::text AS name, f.prosecdef AS definer,
       f.prorettype = 'trigger'::regtype AS of_trigger,
       coalesce(f.proconfig @> ARRAY['search_path=pg_catalog, pg_temp'], false) AS pinned,
       EXISTS (SELECT FROM aclexplode(coalesce(f.proacl, acldefault('f', f.proowner))) g
                WHERE g.grantee = 0 AND g.privilege_type = 'EXECUTE') AS for_all,
       ARRAY(SELECT DISTINCT pg_get_userbyid(g.grantee)::text FROM aclexplode(f.proacl) g
              WHERE g.grantee NOT IN (0, f.proowner) AND g.privilege_type = 'EXECUTE' ORDER BY 1) AS given_to
  FROM pg_proc f JOIN pg_namespace n ON n.oid = f.pronamespace WHERE n.nspname = 'fencepost' ORDER BY 1"""

_OWNER: Final = f"""
SELECT 'owner' AS subject, pg_get_userbyid(n.nspowner)::text AS owner,
       ARRAY(SELECT o.name || ' of ' || pg_get_userbyid(o.owner) FROM (
          SELECT 1, c.relname::text, c.relowner FROM pg_class c WHERE c.relnamespace = n.oid
             AND c.relname IN ({", ".join(literal(name) for name in RELATIONS)})
          UNION ALL SELECT 2, f.oid::regprocedure::text, f.proowner FROM pg_proc f WHERE f.pronamespace = n.oid
        ) o(kind, name, owner) WHERE o.owner <> n.nspowner ORDER BY o.kind, o.name) AS strays,
       (SELECT string_agg(p.name, ', ' ORDER BY p.name) FROM fencepost.protected p JOIN pg_class c ON c.oid = p.relation
         WHERE pg_has_role(c.relowner, n.nspowner, 'MEMBER')) AS tables
  FROM pg_namespace n WHERE n.nspname = 'fencepost'"""

_PROTECTED: Final = """
SELECT p.name AS subject, fencepost.old_functions(p) AS old FROM fencepost.protected p
  JOIN pg_class c ON c.oid = p.relation ORDER BY p.name"""


async def _functions(connection: Connection) -> list[Row]:
    async with connection.transaction():
        await connection.execute("SET LOCAL search_path = pg_catalog, pg_temp")  # names are shown in full
        functions = await read(connection, _FUNCTIONS)
        rows: list[Row] = [
            {**row, "strays": [*row["strays"][:_MOST], *(["…"] if len(row["strays"]) > _MOST else [])]}
            for row in await read(connection, _OWNER)
        ]
        rows += [{"subject": "privileges", "open": each["called"]} for each in functions if _is_open(each)]
        unpinned = [each["called"] for each in functions if each["definer"] and not each["pinned"]]
        rows.append({"subject": "privileges", "unpinned": unpinned})
        inner: dict[str, list[str]] = {}
        for each in functions:
            if each["definer"] and (each["name"] in FOR_TRIGGERS_ONLY or each["of_trigger"]):
                for role in each["given_to"]:
                    inner.setdefault(role, []).append(each["called"])
        for role, called in sorted(inner.items()):
            rows.append({"subject": "privileges", "role": role, "quoted": quote(role), "inner": called})
        glass = [role for each in functions if each["name"] == "may_break_glass" for role in each["given_to"]]
        rows.append({"subject": "break-glass", "roles": glass})
        rows += await read(connection, _PROTECTED)
    return rows


def _is_open(function: Row) -> bool:
    """Whether every role may execute a function that not every role may."""
    if function["of_trigger"]:
        # A table's own: hung on another table, they would write this one's marks. no_truncate and its like only raise.
        inner = function["name"].endswith(("_upd", "_ins", "_insmark", "_del", "_scope"))
    else:
        inner = (function["definer"] and function["name"] not in FOR_ALL) or function["name"] in NOT_FOR_ALL
    return bool(function["for_all"] and inner)


_BELONGS: Final = "the schema fencepost and all in it belongs to {owner}"

FUNCTIONS: Final = (
    Check("owners", _functions, "error",
        "the schema fencepost belongs to {owner}, and not all that is in it ({strays})", ": `fencepost migrate --owner"
        " {owner}`, run as a superuser or a member of these roles, gives it to {owner}", when="strays"),
    Check("owner-shared", _functions, "ok",
        f"{_BELONGS}, as whom the owners of these tables may act too: {{tables}} (`migrate --owner` parts them)",
        when="tables"),
    Check("owner", _functions, "ok", _BELONGS, when="owner"),
    Check("open-to-all", _functions, "error",
        "everybody may execute {open}", ": REVOKE EXECUTE ON FUNCTION {open} FROM PUBLIC", when="open"),
    Check("search-path", _functions, "error",
        "functions run in their owner's name and under the caller's search_path: {unpinned}", when="unpinned"),
    Check("only-for-triggers", _functions, "error",
        "{role} may execute what only triggers should", ": REVOKE EXECUTE ON FUNCTION {inner} FROM {quoted}",
        when="inner"),
    Check("break-glass", _functions, "ok",
        "besides the schema's owner and superusers these may break the glass: {roles}", when="roles"),
    Check("functions-old", _functions, "warning",
        "its functions ({old}) were made by an older version, or changed by hand",
        ": run `fencepost protect {subject}` again", when="old"),
)  # fmt: skip

# Marks and tokens: the sequence of the built-in source, whose tokens no mark may be above, and marks of external tables
# far above all others, which a made-up token left, and which refuse all holders. For each table its highest mark is
# read, which is a scan: no index has the column. Only where that of an external one is above FAR is the next lower one
# read, and the name of the resource: two scans more.

FAR: Final = 2**49
"""How far above the next lower mark one is doubtful. Raised generations leave 2^48 between two marks, or twice that; a
ZooKeeper that elected a leader 2^32; a clock that counts nanoseconds is so far within six days."""

# Triggers compare with the sequence in the writer's own name, so every role must be able to read it.
_SEQUENCE: Final = """
SELECT 'tokens' AS subject, s.seqrelid IS NULL AS gone, s.seqcycle AS cycles, s.seqmax AS most,
       nullif(s.seqincrement, 1) AS step, nullif(s.seqcache, 1) AS drawn_at_once, c.relpersistence <> 'p' AS unlogged,
       s.seqtypid <> 'int8'::regtype OR s.seqmax <> 9223372036854775807 AS ends, r.readable,
       CASE WHEN NOT r.readable THEN 'the role ' || current_user
            WHEN s.seqrelid IS NOT NULL AND NOT EXISTS (
                 SELECT FROM aclexplode(coalesce(c.relacl, acldefault('s', c.relowner))) g
                  WHERE g.grantee = 0 AND g.privilege_type = 'SELECT')
            THEN 'a role that writes directly' END AS reader
  FROM (SELECT to_regclass('fencepost.tokens') AS oid) t LEFT JOIN pg_class c ON c.oid = t.oid
  LEFT JOIN pg_sequence s ON s.seqrelid = c.oid
 CROSS JOIN LATERAL (SELECT has_sequence_privilege(c.oid, 'SELECT') AS readable) r"""

# `unlike`: the functions of a table that do not judge by its source. Marks are read as far as this role may read them:
# those of rows by `reads_rows`, or with their resources by `names_rows`.
_MARKED: Final = f"""
SELECT p.name, p.name AS subject, p.source, p.max_token, p.functions, n.nspname::text AS schema,
       c.relname::text AS relation, {NOW}, false AS scoped, a.attnum IS NOT NULL AS has_column,
       a.atttypid = 'bigint'::regtype
       AND (has_table_privilege(c.oid, 'SELECT') OR has_column_privilege(c.oid, a.attnum, 'SELECT')) AS reads_rows,
       a.atttypid = 'bigint'::regtype AND has_table_privilege(c.oid, 'SELECT') AND EXISTS (
         SELECT FROM pg_proc o
          WHERE o.pronamespace = 'fencepost'::regnamespace AND o.proname = p.functions || '_name') AS names_rows,
       CASE WHEN p.source = '{EXTERNAL}' THEN 'ask' ELSE 'do not ask' END AS ask,
       (SELECT array_agg(part ORDER BY part) FROM unnest(ARRAY['upd', 'insmark', 'del']) part
          JOIN pg_proc f ON f.proname = p.functions || '_' || part AND f.pronamespace = 'fencepost'::regnamespace
         WHERE CASE WHEN p.source = '{EXTERNAL}' THEN strpos(f.prosrc, 'fencepost.issued(') > 0
                    ELSE strpos(f.prosrc, 'fencepost.require_issued(') = 0 OR strpos(f.prosrc, concat(
                      'fencepost.issued(', CASE WHEN p.source <> '{BUILTIN}' THEN quote_literal(p.source) END, ')')) = 0
                    END) AS unlike
  FROM fencepost.protected p JOIN pg_class c ON c.oid = p.relation JOIN pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = '{MARK_COLUMN}' AND NOT a.attisdropped
 WHERE p.scope IS NULL
UNION ALL
SELECT DISTINCT fencepost.scope_prefix(p.scope), fencepost.scope_prefix(p.scope) || '/…', p.source, p.max_token, NULL,
       NULL, NULL, NULL, true, true, false, false, NULL, NULL::text[]
  FROM fencepost.protected p JOIN pg_class c ON c.oid = p.relation
 WHERE p.scope IS NOT NULL AND p.source IN ('{EXTERNAL}', '{BUILTIN}')
 ORDER BY 1"""

_READS: Final = """
SELECT has_table_privilege('fencepost.marks', 'SELECT') AS marks,
       has_table_privilege('fencepost.floors', 'SELECT') AS floors,
       has_function_privilege('fencepost.floor_of(text)', 'EXECUTE') AS floor_of"""
_RECORDED: Final = """SELECT m.resource, m.last_fence_token AS mark FROM fencepost.marks AS m
 WHERE starts_with(m.resource, fencepost.enc($1) || '/')"""


async def _tokens(connection: Connection) -> list[Row]:
    (sequence,), (reads,) = await read(connection, _SEQUENCE), await read(connection, _READS)
    issued = await connection.fetchval("SELECT fencepost.issued()") if sequence["readable"] else None
    amiss: list[Row] = []
    for row in sorted(await read(connection, _MARKED), key=lambda row: bool(row["scoped"])):
        beyond = None
        if row["source"] == BUILTIN and issued is not None:
            marks = [_RECORDED] if reads["marks"] else []
            marks += ["SELECT NULL, fencepost.floor_of($1)"] if reads["floor_of"] else []
            marks += [f"SELECT NULL, {MARK_COLUMN} FROM {_relation(row)}"] if row["reads_rows"] else []
            highest = await _highest(connection, row, marks)
            beyond = str(highest) if highest > issued else None  # 0 counts, too
        if row["has_column"] and (row["unlike"] or beyond is not None):
            amiss.append({**row, "beyond": beyond, "issued": issued})
    return [{**sequence, "issued": issued or "none", "sound": not amiss}, *amiss]


async def _far(connection: Connection) -> list[Row]:
    (reads,), far = await read(connection, _READS), list[Row]()
    for row in await read(connection, _MARKED):
        marks = []
        if reads["marks"] and reads["floors"]:
            marks = [_RECORDED, "SELECT fencepost.enc(f.name), f.floor FROM fencepost.floors AS f WHERE f.name = $1"]
        if row["names_rows"]:
            named = f"fencepost.{quote(row['functions'] + '_name')}(r.*)"
            marks.append(f"SELECT {named}, r.{MARK_COLUMN} FROM {_relation(row)} AS r")
        if row["source"] != EXTERNAL or (highest := await _highest(connection, row, marks)) <= FAR:
            continue
        lower = await _highest(connection, row, marks, below=highest)
        above = highest > row["max_token"]
        if above or (lower and highest - lower > FAR):
            every = f"({' UNION ALL '.join(marks)}) AS k(resource, mark)"
            at = f"SELECT k.resource FROM {every} WHERE k.mark = $2 AND $1 <> '' LIMIT 1"
            resource = await connection.fetchval(at, row["name"], highest)
            found = {"resource": resource, "quoted": shlex.quote(resource), "highest": highest, "lower": lower}
            far.append({"subject": row["name"], "above": above, "far": not above, "ceiling": row["max_token"], **found})
    return far


def _relation(row: Row) -> str:
    return f"{quote(row['schema'])}.{quote(row['relation'])}"


async def _highest(connection: Connection, row: Row, marks: list[str], below: int | None = None) -> int:
    """Read the highest mark, or the next one that is lower than `below`; 0 if there is none. `marks`: queries that give
    resources and marks; no query: this role may read none.
    """
    every = f"({' UNION ALL '.join(marks or ['SELECT NULL, 0'])}) AS k(resource, mark)"
    highest: int | None = await connection.fetchval(
        f"SELECT max(k.mark) FROM {every} WHERE ($2::int8 IS NULL OR k.mark < $2) AND $1 <> ''", row["name"], below
    )
    return highest or 0


# Enums in keys: marks are kept under the labels' texts, and `ALTER TYPE … RENAME VALUE` changes those of all rows at
# once, which no trigger sees. Marks under the old label do not count for the new one. `value` is the n-th of a name,
# which is `name/value,value`, as it is encoded there. No domain over an enum is in a key, and no enum in a scope.
_UNKNOWN_LABELS: Final = """
WITH part AS (
  SELECT p.name AS tab, fencepost.enc(p.name) || '/' AS prefix, k.n::int, t.oid AS type
    FROM fencepost.protected p CROSS JOIN LATERAL unnest(p.key_columns) WITH ORDINALITY AS k(name, n)
    JOIN pg_attribute a ON a.attrelid = p.relation AND a.attname = k.name AND NOT a.attisdropped
    JOIN pg_type t ON t.oid = a.atttypid AND t.typtype = 'e'
   WHERE p.scope IS NULL
)
SELECT part.tab AS subject, part.type::regtype::text AS type, min(named.value) AS label, count(*) AS marks
  FROM part JOIN fencepost.marks k ON starts_with(k.resource, part.prefix)
 CROSS JOIN LATERAL split_part(substr(k.resource, length(part.prefix) + 1), ',', part.n) AS named(value)
 WHERE named.value NOT IN (SELECT fencepost.enc(e.enumlabel::text) FROM pg_enum e WHERE e.enumtypid = part.type)
 GROUP BY part.tab, part.type ORDER BY part.tab"""

_ALTER: Final = ": ALTER SEQUENCE fencepost.tokens"
_RESET: Final = ": `fencepost fence reset {quoted} --to N --reason …`, N being the newest token that it has given out"

MARKS: Final = (
    Check("sequence-gone", _tokens, "error",
        "the sequence fencepost.tokens is gone: no lease can be granted, and no table of it be written to",
        when="gone"),
    Check("sequence-cache", _tokens, "error",
        "sessions draw {drawn_at_once} tokens in advance and hand out old ones later", f"{_ALTER} CACHE 1",
        when="drawn_at_once"),
    Check("sequence-cycles", _tokens, "error",
        "the sequence would begin again at its end", f"{_ALTER} NO CYCLE", when="cycles"),
    Check("sequence-steps", _tokens, "error",
        "the sequence counts in steps of {step}", f"{_ALTER} INCREMENT BY 1", when="step"),
    Check("sequence-ends", _tokens, "error",
        "the sequence ends at {most}", f"{_ALTER} AS bigint NO MAXVALUE", when="ends"),
    Check("sequence-unlogged", _tokens, "error",
        "the sequence is unlogged, and begins again after a crash", f"{_ALTER} SET LOGGED", when="unlogged"),
    Check("sequence-unreadable", _tokens, "error",
        "{reader} may not read it, so every token is refused", ": GRANT SELECT ON fencepost.tokens TO PUBLIC",
        when="reader"),
    Check("source-unlike-functions", _tokens, "error",
        "its source is {source}, and its functions ({unlike}) {ask} whether a token was ever issued", _AGAIN,
        when="unlike"),
    Check("mark-beyond-tokens", _tokens, "error",
        "it has the mark {beyond}, and the newest token is {issued}: leases are refused there until the tokens get so"
        " far", ". SELECT fencepost.issue_beyond({beyond}) moves them", when="beyond"),
    Check("tokens", _tokens, "ok", "the built-in source has issued {issued}", when="sound"),
    Check("label-renamed", _UNKNOWN_LABELS, "error",
        "{marks} marks are kept under {label!r}, which is no label of the enum {type}: it was renamed, and what was"
        " deleted under it can be created again with an old token",
        ". Name the label as it was: ALTER TYPE {type} RENAME VALUE … TO '{label}'"),
    Check("mark-above-ceiling", _far, "warning",
        "{resource} has the mark {highest}, above {ceiling}, the highest token that is taken. If no lock service"
        " has counted so far, everybody is refused", _RESET, when="above"),
    Check("mark-far", _far, "warning",
        "{resource} has the mark {highest}, far above all others ({lower}). If no lock service has counted so far,"
        " everybody is refused", _RESET, when="far"),
)  # fmt: skip

# The next rows: whether an index gives them as workers ask for them (`fencepost.questions`).

ROWS_READ_QUICKLY: Final = 10_000
"""Of a table with no more rows than that no index is asked for."""

_QUESTIONS: Final = f"""
SELECT p.name AS subject, {NOW}, c.oid::regclass::text AS sql_name, q.matched::text[], q.ordered::text[],
       ARRAY(SELECT json_build_object(
               'keys', ARRAY(SELECT coalesce(a.attname, '') FROM unnest(i.indkey) WITH ORDINALITY k(n, nth)
                               LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.n
                              WHERE nth <= i.indnkeyatts ORDER BY nth),
               'options', i.indoption::int2[],
               'only', ARRAY(SELECT a.attname FROM pg_attribute a  -- what the index's predicate asks about
                              WHERE a.attrelid = c.oid AND a.attnum > 0
                                AND strpos(i.indpred::text, ' :varattno ' || a.attnum || ' ') > 0))::text
               FROM pg_index i WHERE i.indrelid = c.oid AND i.indisvalid) AS indexes
  FROM fencepost.questions q JOIN fencepost.protected p ON p.relation = q.relation
  JOIN pg_class c ON c.oid = q.relation JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind = 'r' AND c.reltuples > {ROWS_READ_QUICKLY} ORDER BY p.name, q.matched, q.ordered"""


async def _questions(connection: Connection) -> list[Row]:
    return [
        row | {"columns": [*row["matched"], *row["ordered"]]}
        for row in await read(connection, _QUESTIONS)
        if not any(_answers(json.loads(index), set(row["matched"]), row["ordered"]) for index in row["indexes"])
    ]


def _answers(index: Row, matched: AbstractSet[str], ordered: Sequence[str]) -> bool:
    """Whether an index gives rows in the order, forwards or backwards; and, where columns are compared for equality,
    leaves out others by one of these at least.
    """
    only = {named(each) for each in index["only"]}
    terms = list(zip((named(each) for each in index["keys"]), index["options"], strict=True))
    if not only <= matched:
        return False
    while terms and terms[0][0] in matched:
        only.add(terms.pop(0)[0])
    ways = [[key + INDEX_OPTIONS[option ^ turned] for key, option in terms] for turned in (0, 3)]
    return bool(only or not matched) and any(way[: len(ordered)] == ordered for way in ways)


QUESTIONS: Final = (
    Check("next-row-index", _questions, "warning",
        "workers ask for its next row in the order {ordered}, and no index gives the rows so: each look reads those"
        " that are done, too", ": CREATE INDEX CONCURRENTLY ON {sql_name} ({columns})"),
)  # fmt: skip

FENCES: Final = (*TABLES, *TRIGGERS, *PARTITIONS, *FUNCTIONS, *MARKS, *QUESTIONS)
