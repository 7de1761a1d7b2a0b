"""What `protect` looks at before it touches a table, and its messages when something is in the way."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import asyncpg

from fencepost.server.fence.resource import MalformedScopeError, Scope, parse_scope
from fencepost.server.fence.token import Ceiling, Rule
from fencepost.server.postgres.catalog_cache import api_name
from fencepost.server.postgres.connection import Connection
from fencepost.server.postgres.row_sql import dollar
from fencepost.server.postgres.tables import MARK_CHECK, MARK_COLUMN, quote

KEY_TYPES: Final = (
    "int2", "int4", "int8", "numeric", "text", "varchar", "bpchar", "uuid", "bool", "date", "timestamp", "timestamptz",
    "bytea",
)  # fmt: skip
"""Key types whose equality is equality of one text (R6); enums too. Not float (-0 = 0), interval (1 day = 24 hours),
citext, json, arrays."""


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """One column of the primary key."""

    name: str
    type: str
    base_name: str


@dataclass(frozen=True, slots=True)
class Registration:
    """How the table stands in fencepost.protected now."""

    name: str
    rule: Rule
    source: str
    functions: str
    requires_key: bool = False
    scope: str | None = None
    verify: bool = False
    ceiling: Ceiling | None = None
    sealed: bool = False


@dataclass(frozen=True, slots=True)
class Target:
    """A table that can be protected. `name` is the prefix of its resources."""

    oid: int
    schema: str
    relation: str
    name: str
    key: tuple[KeyColumn, ...]
    partitions: tuple[str, ...]
    """The table and all its partitions, as SQL names: statement triggers are not cloned."""
    registered: Registration | None = None
    lost: bool = False
    """Whether it is protected by rows, and has lost the column of their marks."""
    formerly: tuple[str, ...] = ()
    """Names under which it was protected before; it was renamed while it was not, and its marks bear them."""


_RELATION: Final = """
SELECT c.oid::int8 AS oid, n.nspname::text AS schema, c.relname::text AS relation,
       n.nspname IN ('pg_catalog', 'information_schema', 'fencepost') AS of_system, c.relkind IN ('v', 'm') AS is_view,
       c.relkind = 'f' AS is_foreign, c.relispartition AS is_partition, c.relpersistence <> 'p' AS unlogged,
       NOT pg_has_role(c.relowner, 'USAGE') AS not_owned, pg_get_userbyid(c.relowner)::text AS owner,
       current_user::text AS me, row_security_active(c.oid) AS ruled,
       EXISTS (SELECT FROM pg_inherits i JOIN pg_class child ON child.oid = i.inhrelid
                WHERE i.inhparent = c.oid AND NOT child.relispartition
                   OR i.inhrelid = c.oid AND NOT c.relispartition) AS inherits,
       i.indexrelid IS NULL AS no_key, NOT i.indimmediate AS deferrable,
       p.name AS registered_name, p.rule AS registered_rule, p.source AS registered_source,
       p.functions AS registered_functions, p.requires_key AS registered_requires_key, p.verify AS registered_verify,
       p.max_token AS registered_max_token, p.max_jump AS registered_max_jump,
       p.sealed AS registered_sealed, p.scope AS registered_scope, p.key_columns AS registered_key,
       (SELECT array_agg(format('%I.%I', pn.nspname, pc.relname) ORDER BY pt.level, pt.relid)
          FROM pg_partition_tree(c.oid) pt JOIN pg_class pc ON pc.oid = pt.relid
          JOIN pg_namespace pn ON pn.oid = pc.relnamespace) AS partitions,
       (SELECT format_type(a.atttypid, a.atttypmod) || CASE WHEN a.attnotnull THEN ' NOT NULL' ELSE '' END
          FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = $2 AND NOT a.attisdropped) AS column,
       EXISTS (SELECT FROM pg_constraint k WHERE k.conrelid = c.oid AND k.conname = $3) AS has_check,
       (SELECT a.attname::text FROM pg_constraint k JOIN pg_attribute a ON a.attrelid = k.conrelid
           AND k.conkey = ARRAY[a.attnum] AND a.attname <> $2
         WHERE k.conrelid = c.oid AND k.conname = $3 AND k.contype = 'c') AS mark_called,
       NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = c.oid AND t.tgname = 'zzz_fencepost_ins') AS no_ins,
       NOT (has_schema_privilege('fencepost', 'CREATE') AND has_table_privilege('fencepost.marks', 'INSERT')
         AND pg_has_role(f.nspowner, 'USAGE') AND pg_has_role(f.nspowner, CASE
               WHEN current_setting('server_version_num')::int >= 160000 THEN 'SET' ELSE 'MEMBER' END)) AS not_keeper,
       pg_get_userbyid(f.nspowner)::text AS keeper,
       (SELECT string_agg(DISTINCT pg_get_userbyid(o.proowner)::text, ', ') FROM pg_proc o
         WHERE o.pronamespace = f.oid AND starts_with(o.proname, p.functions || '_')
           AND NOT pg_has_role(o.proowner, 'USAGE')) AS functions_of
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_namespace f ON f.nspname = 'fencepost'
  LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
  LEFT JOIN fencepost.protected p ON p.relation = c.oid
 WHERE c.oid = $1::int8::oid"""

COLUMNS: Final = f"""
WITH RECURSIVE base(oid, below) AS (
  SELECT t.oid, t.oid FROM pg_type t
  UNION ALL
  SELECT b.oid, t.typbasetype FROM base b JOIN pg_type t ON t.oid = b.below WHERE t.typtype = 'd'
)
SELECT a.attname::text AS name, format_type(a.atttypid, -1) AS type, bt.typname::text AS base_name, of.is_enum,
       NOT of.is_enum AND NOT (bn.nspname = 'pg_catalog' AND of.known) AS is_other,
       of.is_enum AND bt.oid <> a.atttypid AS enum_in_domain, of.is_enum AND of.known AS enum_called_so,
       EXISTS (SELECT FROM pg_collation l WHERE l.oid = a.attcollation AND NOT l.collisdeterministic)
         AS nondeterministic, NOT a.attnotnull AS nullable, a.attgenerated <> '' AS generated
  FROM pg_attribute a
  JOIN base ON base.oid = a.atttypid
  JOIN pg_type bt ON bt.oid = base.below AND bt.typtype <> 'd'
  JOIN pg_namespace bn ON bn.oid = bt.typnamespace
 CROSS JOIN LATERAL (SELECT bt.typtype = 'e' AS is_enum, bt.typname IN ('{"', '".join(KEY_TYPES)}') AS known) of"""
"""Every column with the type that it comes down to."""

_KEY: Final = f"""{COLUMNS}
  JOIN pg_index i ON i.indrelid = a.attrelid AND i.indisprimary
  CROSS JOIN unnest(i.indkey) WITH ORDINALITY k(attnum, position)
 WHERE i.indrelid = $1::int8::oid AND a.attnum = k.attnum AND k.position <= i.indnkeyatts
 ORDER BY k.position"""


async def read_rows(connection: Connection, oid: int) -> tuple[asyncpg.Record | None, list[asyncpg.Record]]:
    """Read what the catalog has of a table, None if it was dropped, and of its key's columns. In a transaction whose
    search_path is pg_catalog, types are spelled with their schema: they mean the same where the DDL runs.
    """
    return await connection.fetchrow(_RELATION, oid, MARK_COLUMN, MARK_CHECK), await connection.fetch(_KEY, oid)


async def read_target(connection: Connection, oid: int) -> Target | None:
    """Look at a protected table in a transaction whose search_path is pg_catalog, and check nothing; None: it is gone,
    or has another primary key by now.
    """
    row, key = await read_rows(connection, oid)
    if row is None or row["registered_name"] is None:
        return None
    return to_target(row, key) if [k["name"] for k in key] == list(row["registered_key"]) else None


def to_target(row: asyncpg.Record, key: list[asyncpg.Record], formerly: tuple[str, ...] = ()) -> Target:
    """Make a Target of what `read_rows` has read."""
    return Target(
        oid=row["oid"],
        schema=row["schema"],
        relation=row["relation"],
        name=api_name(row["schema"], row["relation"]),
        key=tuple(KeyColumn(k["name"], k["type"], k["base_name"]) for k in key),
        partitions=tuple(row["partitions"] or ()),
        registered=_registration(row),
        lost=bool(row["registered_name"]) and row["registered_scope"] is None and row["column"] is None,
        formerly=formerly,
    )


def _registration(row: asyncpg.Record) -> Registration | None:
    if not row["registered_name"]:
        return None
    now = {name.removeprefix("registered_"): value for name, value in row.items() if name.startswith("registered_")}
    most, jump = now.pop("max_token"), now.pop("max_jump")
    del now["key"]
    return Registration(**now, ceiling=None if most is None else Ceiling(most, jump))


class ProtectError(Exception):
    """The table cannot be protected (or unprotected) as it is. `reasons` are sentences for its owner."""

    def __init__(self, table: str, reasons: list[str]) -> None:
        super().__init__(f"{table}: " + " ".join(reasons))
        self.table = table
        self.reasons = reasons


_FIND: Final = """
SELECT c.oid::int8 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND n.nspname <> 'pg_toast'
   AND ($1 = n.nspname || '.' || c.relname OR n.nspname = 'public' AND $1 = c.relname)"""

_NAME_TAKEN: Final = """
SELECT p.relation::text FROM fencepost.protected p
 WHERE p.name = $1 AND p.relation <> $2::int8::oid AND EXISTS (SELECT FROM pg_class c WHERE c.oid = p.relation)"""

_FORMERLY: Final = """
SELECT o.name FROM fencepost.floors o
 WHERE o.relation = $1::int8::oid AND o.name <> $2
   AND NOT EXISTS (SELECT FROM fencepost.protected p WHERE p.name = o.name OR p.relation = o.relation)
 ORDER BY o.name"""


async def find(connection: Connection, name: str) -> int:
    """Find a table by the catalog's spelling, with or without schema; ProtectError when there is none, or two."""
    oids = await connection.fetch(_FIND, name)
    if not oids:
        raise ProtectError(
            name, ["there is no such table: names are spelled as in the catalog, schema.table or table."]
        )
    if len(oids) > 1:
        raise ProtectError(name, ["two tables have this name (one has a dot in its name): rename one of them."])
    oid: int = oids[0]["oid"]
    return oid


async def examine(connection: Connection, name: str, scope: str | None = None) -> Target:
    """Check everything first; ProtectError lists all that is in the way at once.

    `scope`: as in plan_protect. A table whose rows have no marks of their own may have keys that others may not.
    """
    oid = await find(connection, name)
    async with connection.transaction():
        await connection.execute("SET LOCAL search_path = pg_catalog, pg_temp")
        row, key = await read_rows(connection, oid)
        if row is None:
            raise ProtectError(name, ["the table was dropped meanwhile."])
        api = api_name(row["schema"], row["relation"])
        taken = await connection.fetchval(_NAME_TAKEN, api, oid)
    reasons = _reasons(_KINDS, row)[:1] or [
        *_reasons(_TABLE, {**row, **_columns(row)}),
        *(reason for column in key for reason in _reasons(_KEY_COLUMN, column)[:1]),
    ]
    of_rows = not (row["registered_scope"] if scope is None else scope)
    if of_rows:
        reasons += [reason for column in key for reason in _reasons(_GENERATED, column)]
    if not row["not_owned"] and row["ruled"] and (of_rows or row["column"] is not None):
        reasons.append(ruled_reason(row))
    if taken:
        reasons.append(
            f"the name {api} belongs to the protected table {taken}, renamed since: unprotect that one first."
        )
    if reasons:
        raise ProtectError(api, reasons)
    formerly = await connection.fetch(_FORMERLY, oid, api)
    return to_target(row, key, tuple(each["name"] for each in formerly))


# What is in the way: where the column of a row is neither empty nor false, the sentence, filled in from the row.

_KINDS: Final = (
    ("of_system", "system tables cannot be protected."),
    ("is_view", "it is a view: protect the table below it; views are read only in Fencepost."),
    ("is_foreign", "it is a foreign table: its rows live in another database, and that is where the fence belongs."),
    ("is_partition", "it is a partition: protect its parent, the fence covers all partitions."),
)
"""Why a relation is not a table that can have a fence at all: the first one that holds."""

_TABLE: Final = (
    ("unlogged", "it is unlogged or temporary: a crash would empty it and leave its marks behind."),
    ("inherits", "it takes part in table inheritance, where a primary key covers one table only."),
    ("not_owned", "it belongs to {owner}; {me} is not a member of that role, and only an owner may."),
    ("not_keeper", "the schema fencepost belongs to {keeper}, and {me} may not act as that role: run this as a member"
        " of it."),
    ("functions_of_others", "its functions belong to {functions_of}: `fencepost migrate --owner {keeper}`, run as a"
        " superuser or a member of both roles, gives them to the schema's owner."),
    ("no_key", "it has no primary key, and the key is what a fence is named after."),
    ("deferrable", "its primary key is DEFERRABLE: two rows may share a key inside a transaction."),
    ("renamed", "{rename}"),
    ("renamed_and_new", f"its column {MARK_COLUMN} is a new one: {{drop}}. {{rename}}"),
    ("made_anew", f"its column {MARK_COLUMN} was dropped and made anew, and the marks of its rows are lost: {{drop}},"
        " and run this again; for an external source with --above N."),
    ("not_ours", f"it has a column {MARK_COLUMN} ({{column}}) that Fencepost did not make: rename it."),
)  # fmt: skip

_TYPES: Final = ", ".join(KEY_TYPES)
_KEY_COLUMN: Final = (
    ("is_other", "its key column {name} is of type {type}, whose equal values have several texts; a key can be of"
        f" {_TYPES}, a domain over one of these, or an enum."),
    ("enum_in_domain", "its key column {name} is of type {type}, a domain over an enum, for which PostgreSQL has no"
        " operator =; use the enum itself."),
    ("enum_called_so", "its key column {name} is of an enum that is called {base_name}, like one of PostgreSQL's own"
        " types: rename it."),
    ("nondeterministic", "its key column {name} has a nondeterministic collation: equal keys would have two marks."),
)  # fmt: skip
"""The first one that holds of each column."""

# PostgreSQL computes such a column after the BEFORE triggers, where a row's mark is judged under its key.
_GENERATED: Final = (
    ("generated", "its key column {name} is generated from other columns, and not known when a row is judged: rows"
        " could be inserted and deleted, and never changed or claimed. Make it an ordinary column that a trigger or a"
        " CHECK keeps right, or give the table a scope (--scope), whose mark is not named after the key."),
)  # fmt: skip

_SCOPE_COLUMN: Final = (
    ("is_enum", "the scope's column {name} is of the enum {type}: renaming one of its values would give a scope a new"
        " name, without a mark. Let the scope have a text column, with a CHECK."),
    ("is_other", "the scope's column {name} is of type {type}, whose equal values have several texts; it can be of"
        f" {_TYPES}, or a domain over one of these."),
    ("nondeterministic", "the scope's column {name} has a nondeterministic collation: equal scopes would have two"
        " marks."),
    ("nullable", "the scope's column {name} can be null: ALTER TABLE … ALTER COLUMN {name} SET NOT NULL."),
    ("generated", "the scope's column {name} is generated, and not known before a row is written."),
)  # fmt: skip


def _reasons(sentences: Sequence[tuple[str, str]], row: asyncpg.Record | dict[str, Any]) -> list[str]:
    return [sentence.format_map(dict(row)) for when, sentence in sentences if row[when]]


def _columns(row: asyncpg.Record) -> dict[str, object]:
    """Say what became of the column of the marks. Where a guarded table has another than that of the last `protect`,
    the check stands on the old one, or went with it, and so did the trigger whose condition names it.
    """
    column, called = row["column"], row["mark_called"]
    another = column is not None and row["registered_name"] and not row["registered_scope"]
    return {
        "renamed": column is None and called,
        "renamed_and_new": another and called,
        "made_anew": another and not called and not row["has_check"] and row["no_ins"],
        "not_ours": column is not None
        and not (column == "bigint NOT NULL" and (row["has_check"] or row["registered_name"])),
        "rename": renamed_column_reason(row["schema"], row["relation"], called) if called else "",
        "drop": f"{_alter(row['schema'], row['relation'])} DROP COLUMN {MARK_COLUMN} CASCADE",
        "functions_of_others": row["functions_of"] and not row["not_keeper"],
    }


def _alter(schema: str, relation: str) -> str:
    return f"ALTER TABLE {quote(schema)}.{quote(relation)}"


def renamed_column_reason(schema: str, relation: str, called: str) -> str:
    """Return what to do about a column of marks that was renamed: its check stands on it still."""
    rename = f"{_alter(schema, relation)} RENAME COLUMN {quote(called)} TO {MARK_COLUMN}"
    return f"its column {MARK_COLUMN}, which holds the marks of its rows, is called {called} now: {rename}."


def ruled_reason(row: asyncpg.Record) -> str:
    """Return what to do where policies rule the owner too. `row`: schema, relation, owner, me."""
    alter = _alter(row["schema"], row["relation"])
    return (
        f"row security rules {row['me']} there (FORCE ROW LEVEL SECURITY), and rows that a policy hides have marks,"
        f" too: run this as a role with BYPASSRLS that is a member of {row['owner']}; or {alter} NO FORCE ROW LEVEL"
        f" SECURITY, run this, and FORCE it again."
    )


_FAMILIES: Final = {"int2": "integer", "int4": "integer", "int8": "integer", "varchar": "text"}
"""Types whose values have the same texts, so that tables may differ in them."""

PREFIX_OF: Final = "left(p.scope, strpos(p.scope, '/{') - 1)"
"""The name of a scope of fencepost.protected p, without its columns."""

_COLUMNS: Final = f"""{COLUMNS}
 WHERE a.attrelid = $1::int8::oid AND a.attname = ANY ($2) AND a.attnum > 0 AND NOT a.attisdropped"""

_SIBLINGS: Final = f"""
SELECT p.name, p.rule, p.source, p.sealed, p.max_token, p.max_jump, p.scope, p.relation::oid::int8 AS oid
  FROM fencepost.protected p
  JOIN pg_class c ON c.oid = p.relation
 WHERE {PREFIX_OF} = $1 AND p.relation <> $2::int8::oid ORDER BY p.name"""

_TABLES: Final = """
SELECT n.nspname::text AS schema, c.relname::text AS relation
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')
   AND $1::text IN (c.relname::text, n.nspname || '.' || c.relname)"""


@dataclass(frozen=True, slots=True)
class TableScope:
    """A scope that fits its table: `columns` are the template's, with their types."""

    scope: Scope
    columns: tuple[KeyColumn, ...]


def read_template(table: str, template: str) -> Scope:
    """Read a template; ProtectError when it is none."""
    try:
        return parse_scope(template)
    except MalformedScopeError as error:
        raise ProtectError(table, [f"scope {error}."]) from error


async def examine_name(connection: Connection, target: Target) -> None:
    """Refuse a table that is called like a scope: one resource name would mean two things."""
    of_scope = await connection.fetchval(
        f"SELECT p.name FROM fencepost.protected p WHERE {PREFIX_OF} = $1 LIMIT 1", target.name
    )
    if of_scope is not None:
        raise ProtectError(
            target.name, [f"its name is that of a scope, {target.name}/…, of the table {of_scope}: rename one of them."]
        )


async def read_scope(connection: Connection, target: Target, template: str) -> TableScope | None:
    """Give a table's scope with its columns' types; None when they no longer fit."""
    scope = parse_scope(template)
    columns = await _template_columns(connection, target, target.oid, scope)
    return None if isinstance(columns, list) else TableScope(scope, columns)


async def examine_scope(
    connection: Connection,
    target: Target,
    scope: Scope,
    rule: Rule,
    source: str,
    ceiling: Ceiling | None,
    *,
    sealed: bool,
) -> TableScope:
    """Check a scope against its table and its other tables (R8); ProtectError lists all that is in the way."""
    async with connection.transaction():
        await connection.execute("SET LOCAL search_path = pg_catalog, pg_temp")
        columns = await _template_columns(connection, target, target.oid, scope)
        reasons: list[str] = columns if isinstance(columns, list) else []
        if await _is_a_table(connection, scope.prefix):
            reasons.append(
                f"the scope's name {scope.prefix} is that of a table: a resource name would mean two things."
            )
        for row in await connection.fetch(_SIBLINGS, scope.prefix, target.oid):
            if (difference := _difference(row, rule, source, ceiling, sealed=sealed)) is not None:
                reasons.append(difference)
            others = await _template_columns(connection, target, row["oid"], parse_scope(row["scope"]))
            if not isinstance(columns, list) and not isinstance(others, list) and _family(columns) != _family(others):
                reasons.append(
                    f"{row['name']} has the scope {row['scope']}, of other types or another number of columns: equal"
                    " scopes would have two names."
                )
    if isinstance(columns, list) or reasons:
        raise ProtectError(target.name, reasons)
    return TableScope(scope, columns)


async def _is_a_table(connection: Connection, name: str) -> bool:
    """Whether a table is called so, or was when it was protected."""
    tables = await connection.fetch(_TABLES, name)
    if name in {api_name(row["schema"], row["relation"]) for row in tables}:
        return True
    taken: bool = await connection.fetchval("SELECT EXISTS (SELECT FROM fencepost.protected WHERE name = $1)", name)
    return taken


def _difference(other: asyncpg.Record, rule: Rule, source: str, ceiling: Ceiling | None, *, sealed: bool) -> str | None:
    """Say in what another table of the scope is protected differently; None: in nothing."""
    if (other["rule"], other["source"]) != (rule, source):
        return (
            f"{other['name']} has the same scope with the rule {other['rule']} and the source {other['source']}; one"
            " mark has one rule and one source: unprotect the others, change this one, and protect them again."
        )
    if (other["max_token"], other["max_jump"]) != _of(ceiling):
        jump = "no --max-jump" if other["max_jump"] is None else f"--max-jump {other['max_jump']}"
        return (
            f"{other['name']} has the same scope with --max-token {other['max_token']} and {jump}; one mark has one"
            " ceiling: unprotect the others, change this one, and protect them again."
        )
    if other["sealed"] != sealed:
        return (
            f"{other['name']} has the same scope {'with' if other['sealed'] else 'without'} --sealed; one mark is"
            " raised by sealed tokens only, or by all: unprotect the others, change this one, and protect them again."
        )
    return None


def _of(ceiling: Ceiling | None) -> tuple[int | None, int | None]:
    return (None, None) if ceiling is None else (ceiling.max_token, ceiling.max_jump)


def _family(columns: tuple[KeyColumn, ...]) -> tuple[str, ...]:
    return tuple(_FAMILIES.get(column.base_name, column.base_name) for column in columns)


async def _template_columns(
    connection: Connection, target: Target, oid: int, scope: Scope
) -> tuple[KeyColumn, ...] | list[str]:
    found = {row["name"]: row for row in await connection.fetch(_COLUMNS, oid, list(scope.columns))}
    reasons = []
    for name in scope.columns:
        if name in found:
            reasons += _reasons(_SCOPE_COLUMN, found[name])
        else:
            reasons.append(f"the scope's column {name} is no column of {target.name}.")
    return reasons or tuple(KeyColumn(n, found[n]["type"], found[n]["base_name"]) for n in scope.columns)


# The event triggers that follow partitions of protected tables: what they do is in migrations/schema,
# event_triggers.sql and partitions.sql.
#
# They belong to the database and not to a schema, and only a superuser can make or own them: `fencepost migrate`, run
# as one. Their functions belong to the schema's owner, as all do.

_FOLLOW: Final = "fencepost_partitions"
_REFUSE: Final = "fencepost_dropped"
EVENT_TRIGGERS: Final = (_FOLLOW, _REFUSE)

MISSING: Final = (
    "partitions that are attached to protected tables are not followed, and dropped or detached ones take the marks of"
    " their rows along: that needs event triggers, which only a superuser can make",
    ". Run `fencepost migrate` once as one where you can; where you cannot, see docs/protect.md on partitions",
)
"""What it means that there are no event triggers, and what to do."""

LACKS_EVENT_TRIGGERS: Final = """
SELECT NOT (
  SELECT count(*) = 2 FROM pg_event_trigger e WHERE e.evtenabled IN ('O', 'A')
     AND (e.evtname, e.evtevent, e.evtfoid) IN (
       ('fencepost_partitions', 'ddl_command_end', to_regprocedure('fencepost.on_partitions()')),
       ('fencepost_dropped', 'sql_drop', to_regprocedure('fencepost.on_dropped()'))))"""


def watch_sql() -> str:
    """Make the event triggers, as the session's own role; nothing if that is no superuser, or the schema has gone."""
    body = f"""
BEGIN
  SET LOCAL ROLE NONE;
  IF NOT (SELECT r.rolsuper FROM pg_roles r WHERE r.rolname = current_user)
     OR to_regprocedure('fencepost.on_dropped()') IS NULL THEN
    RETURN;
  END IF;
  IF NOT EXISTS (SELECT FROM pg_event_trigger e WHERE e.evtname = '{_FOLLOW}') THEN
    CREATE EVENT TRIGGER {_FOLLOW} ON ddl_command_end WHEN TAG IN ('CREATE TABLE', 'ALTER TABLE', 'CREATE SCHEMA')
      EXECUTE FUNCTION fencepost.on_partitions();
  END IF;
  IF NOT EXISTS (SELECT FROM pg_event_trigger e WHERE e.evtname = '{_REFUSE}') THEN
    CREATE EVENT TRIGGER {_REFUSE} ON sql_drop EXECUTE FUNCTION fencepost.on_dropped();
  END IF;
END"""
    return "DO " + dollar(body)


async def lacks_event_triggers(connection: Connection) -> bool:
    """Whether the event triggers are missing or disabled."""
    return bool(await connection.fetchval(LACKS_EVENT_TRIGGERS))
