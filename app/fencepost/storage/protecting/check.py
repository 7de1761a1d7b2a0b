"""What `protect` looks at before it touches a table, and what it says when something is in the way."""

from dataclasses import dataclass
from typing import Final

import asyncpg

from fencepost.fencing.ceiling import Ceiling
from fencepost.fencing.token import Rule
from fencepost.storage.connections.connection import Connection
from fencepost.storage.tables.catalog import MARK_COLUMN, quote
from fencepost.storage.tables.load import api_name

CONSTRAINT: Final = "fencepost_mark"

KEY_TYPES: Final = (
    "int2", "int4", "int8", "numeric", "text", "varchar", "bpchar", "uuid", "bool", "date", "timestamp", "timestamptz",
    "bytea",
)  # fmt: skip
"""Key types whose equality is equality of one text (R6); enums too. Not float (-0 = 0), interval (1 day = 24 hours),
citext, json, arrays."""


class ProtectError(Exception):
    """The table cannot be protected (or unprotected) as it is. `reasons` are sentences for its owner."""

    def __init__(self, table: str, reasons: list[str]) -> None:
        super().__init__(f"{table}: " + " ".join(reasons))
        self.table = table
        self.reasons = reasons


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
SELECT c.oid::int8 AS oid, n.nspname::text AS schema, c.relname::text AS relation, c.relkind::text AS kind,
       c.relpersistence::text AS persistence, c.relispartition AS is_partition,
       pg_has_role(c.relowner, 'USAGE') AS owned, pg_get_userbyid(c.relowner)::text AS owner, current_user::text AS me,
       EXISTS (SELECT FROM pg_inherits i JOIN pg_class child ON child.oid = i.inhrelid
                WHERE i.inhparent = c.oid AND NOT child.relispartition
                   OR i.inhrelid = c.oid AND NOT c.relispartition) AS inherits,
       i.indexrelid IS NOT NULL AS has_key, i.indimmediate AS immediate,
       p.name AS registered_name, p.rule AS registered_rule, p.source AS registered_source,
       p.functions AS registered_functions, p.requires_key AS registered_requires_key, p.verify AS registered_verify,
       p.max_token AS registered_max_token, p.max_jump AS registered_max_jump,
       p.scope AS registered_scope, p.key_columns AS registered_key,
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
       has_schema_privilege('fencepost', 'CREATE') AND has_table_privilege('fencepost.marks', 'INSERT')
         AND pg_has_role(f.nspowner, 'USAGE') AND pg_has_role(f.nspowner, CASE
               WHEN current_setting('server_version_num')::int >= 160000 THEN 'SET' ELSE 'MEMBER' END) AS may_create,
       pg_get_userbyid(f.nspowner)::text AS keeper,
       (SELECT string_agg(DISTINCT pg_get_userbyid(o.proowner)::text, ', ') FROM pg_proc o
         WHERE o.pronamespace = f.oid AND starts_with(o.proname, p.functions || '_')
           AND NOT pg_has_role(o.proowner, 'USAGE')) AS functions_of
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_namespace f ON f.nspname = 'fencepost'
  LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
  LEFT JOIN fencepost.protected p ON p.relation = c.oid
 WHERE c.oid = $1::int8::oid"""

COLUMNS: Final = """
WITH RECURSIVE base(oid, below) AS (
  SELECT t.oid, t.oid FROM pg_type t
  UNION ALL
  SELECT b.oid, t.typbasetype FROM base b JOIN pg_type t ON t.oid = b.below WHERE t.typtype = 'd'
)
SELECT a.attname::text AS name, format_type(a.atttypid, -1) AS type, bt.typname::text AS base_name,
       bt.typtype = 'e' AS is_enum, bt.oid <> a.atttypid AS is_domain, bn.nspname = 'pg_catalog' AS builtin,
       coalesce((SELECT l.collisdeterministic FROM pg_collation l WHERE l.oid = a.attcollation), true) AS deterministic,
       a.attnotnull AS not_null, a.attgenerated <> '' AS generated
  FROM pg_attribute a
  JOIN base ON base.oid = a.atttypid
  JOIN pg_type bt ON bt.oid = base.below AND bt.typtype <> 'd'
  JOIN pg_namespace bn ON bn.oid = bt.typnamespace"""
"""Every column with the type that it comes down to."""

_KEY: Final = f"""{COLUMNS}
  JOIN pg_index i ON i.indrelid = a.attrelid AND i.indisprimary
  CROSS JOIN unnest(i.indkey) WITH ORDINALITY k(attnum, position)
 WHERE i.indrelid = $1::int8::oid AND a.attnum = k.attnum AND k.position <= i.indnkeyatts
 ORDER BY k.position"""

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
        # Types are spelled with their schema, so that they mean the same where the DDL runs.
        await connection.execute("SET LOCAL search_path = pg_catalog, pg_temp")
        row = await connection.fetchrow(_RELATION, oid, MARK_COLUMN, CONSTRAINT)
        if row is None:
            raise ProtectError(name, ["the table was dropped meanwhile."])
        key = await connection.fetch(_KEY, oid)
        api = api_name(row["schema"], row["relation"])
        taken = await connection.fetchval(_NAME_TAKEN, api, oid)
    reasons = _kind_reasons(row) or [*_table_reasons(row), *_key_reasons(key)]
    if not (row["registered_scope"] if scope is None else scope):
        reasons += _generated_reasons(key)
    if taken:
        reasons.append(
            f"the name {api} belongs to the protected table {taken}, renamed since: unprotect that one first."
        )
    if reasons:
        raise ProtectError(api, reasons)
    formerly = await connection.fetch(_FORMERLY, oid, api)
    return _target(row, key, tuple(each["name"] for each in formerly))


async def read_target(connection: Connection, oid: int) -> Target | None:
    """Look at a protected table in a transaction whose search_path is pg_catalog, and check nothing; None: it is gone,
    or has another primary key by now.
    """
    row = await connection.fetchrow(_RELATION, oid, MARK_COLUMN, CONSTRAINT)
    if row is None or row["registered_name"] is None:
        return None
    key = await connection.fetch(_KEY, oid)
    return _target(row, key) if [k["name"] for k in key] == list(row["registered_key"]) else None


def _target(row: asyncpg.Record, key: list[asyncpg.Record], formerly: tuple[str, ...] = ()) -> Target:
    return Target(
        oid=row["oid"],
        schema=row["schema"],
        relation=row["relation"],
        name=api_name(row["schema"], row["relation"]),
        key=tuple(KeyColumn(k["name"], k["type"], k["base_name"]) for k in key),
        partitions=tuple(row["partitions"] or ()),
        registered=Registration(
            row["registered_name"],
            row["registered_rule"],
            row["registered_source"],
            row["registered_functions"],
            row["registered_requires_key"],
            row["registered_scope"],
            row["registered_verify"],
            None
            if row["registered_max_token"] is None
            else Ceiling(row["registered_max_token"], row["registered_max_jump"]),
        )
        if row["registered_name"]
        else None,
        lost=bool(row["registered_name"]) and row["registered_scope"] is None and row["column"] is None,
        formerly=formerly,
    )


def _kind_reasons(row: asyncpg.Record) -> list[str]:
    """Say why the relation is not a table that can have a fence at all."""
    if row["schema"] in ("pg_catalog", "information_schema", "fencepost"):
        return ["system tables cannot be protected."]
    if row["kind"] in ("v", "m"):
        return ["it is a view: protect the table below it; views are read only in Fencepost."]
    if row["kind"] == "f":
        return ["it is a foreign table: its rows live in another database, and that is where the fence belongs."]
    if row["is_partition"]:
        return ["it is a partition: protect its parent, the fence covers all partitions."]
    return []


def renamed_column_reason(schema: str, relation: str, called: str) -> str:
    """Say what to do about a column of marks that was renamed: its check stands on it still."""
    rename = f"ALTER TABLE {quote(schema)}.{quote(relation)} RENAME COLUMN {quote(called)} TO {MARK_COLUMN}"
    return f"its column {MARK_COLUMN}, which holds the marks of its rows, is called {called} now: {rename}."


def _table_reasons(row: asyncpg.Record) -> list[str]:
    reasons = []
    if row["persistence"] != "p":
        reasons.append("it is unlogged or temporary: a crash would empty it and leave its marks behind.")
    if row["inherits"]:
        reasons.append("it takes part in table inheritance, where a primary key covers one table only.")
    if not row["owned"]:
        reasons.append(
            f"it belongs to {row['owner']}; {row['me']} is not a member of that role, and only an owner may."
        )
    if not row["may_create"]:
        reasons.append(
            f"the schema fencepost belongs to {row['keeper']}, and {row['me']} may not act as that role: run this as a"
            " member of it."
        )
    elif row["functions_of"]:
        reasons.append(
            f"its functions belong to {row['functions_of']}: `fencepost migrate --owner {row['keeper']}`, run as a"
            " superuser or a member of both roles, gives them to the schema's owner."
        )
    if not row["has_key"]:
        reasons.append("it has no primary key, and the key is what a fence is named after.")
    elif not row["immediate"]:
        reasons.append("its primary key is DEFERRABLE: two rows may share a key inside a transaction.")
    column = row["column"]
    if column is None and row["mark_called"]:
        reasons.append(renamed_column_reason(row["schema"], row["relation"], row["mark_called"]))
    reasons += _new_column_reasons(row)
    ours = row["has_check"] or row["registered_name"]
    if column is not None and not (column == "bigint NOT NULL" and ours):
        reasons.append(f"it has a column {MARK_COLUMN} ({column}) that Fencepost did not make: rename it.")
    return reasons


def _new_column_reasons(row: asyncpg.Record) -> list[str]:
    """Say that a guarded table's column of marks is not the one of the last `protect`: the check stands on the old one,
    or went with it, and so did the trigger whose condition names it.
    """
    if row["column"] is None or not row["registered_name"] or row["registered_scope"]:
        return []
    drop = f"ALTER TABLE {quote(row['schema'])}.{quote(row['relation'])} DROP COLUMN {MARK_COLUMN} CASCADE"
    if row["mark_called"]:
        return [
            f"its column {MARK_COLUMN} is a new one: {drop}. "
            + renamed_column_reason(row["schema"], row["relation"], row["mark_called"])
        ]
    if not row["has_check"] and row["no_ins"]:
        return [
            f"its column {MARK_COLUMN} was dropped and made anew, and the marks of its rows are lost: {drop}, and run"
            " this again; for an external source with --above N."
        ]
    return []


def _generated_reasons(key: list[asyncpg.Record]) -> list[str]:
    """PostgreSQL computes such a column after the BEFORE triggers, where a row's mark is judged under its key."""
    return [
        f"its key column {column['name']} is generated from other columns, and not known when a row is judged: rows"
        " could be inserted and deleted, and never changed or claimed. Make it an ordinary column that a trigger or a"
        " CHECK keeps right, or give the table a scope (--scope), whose mark is not named after the key."
        for column in key
        if column["generated"]
    ]


def _key_reasons(key: list[asyncpg.Record]) -> list[str]:
    reasons = []
    for column in key:
        if not (column["is_enum"] or (column["builtin"] and column["base_name"] in KEY_TYPES)):
            reasons.append(
                f"its key column {column['name']} is of type {column['type']}, whose equal values have several texts; "
                f"a key can be of {', '.join(KEY_TYPES)}, a domain over one of these, or an enum."
            )
        elif column["is_enum"] and column["is_domain"]:
            reasons.append(
                f"its key column {column['name']} is of type {column['type']}, a domain over an enum, for which "
                "PostgreSQL has no operator =; use the enum itself."
            )
        elif column["is_enum"] and column["base_name"] in KEY_TYPES:
            reasons.append(
                f"its key column {column['name']} is of an enum that is called {column['base_name']}, like one of"
                " PostgreSQL's own types: rename it."
            )
        elif not column["deterministic"]:
            reasons.append(
                f"its key column {column['name']} has a nondeterministic collation: equal keys would have two marks."
            )
    return reasons
