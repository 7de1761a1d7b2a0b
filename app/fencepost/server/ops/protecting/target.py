"""A table that can be protected, as `protect` finds it in the catalog."""

from dataclasses import dataclass
from typing import Final

import asyncpg

from fencepost.server.fence.token import Ceiling, Rule
from fencepost.server.postgres.catalog_cache import api_name
from fencepost.server.postgres.connection import Connection
from fencepost.server.postgres.tables import MARK_CHECK, MARK_COLUMN

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
SELECT c.oid::int8 AS oid, n.nspname::text AS schema, c.relname::text AS relation, c.relkind::text AS kind,
       c.relpersistence::text AS persistence, c.relispartition AS is_partition,
       pg_has_role(c.relowner, 'USAGE') AS owned, pg_get_userbyid(c.relowner)::text AS owner, current_user::text AS me,
       row_security_active(c.oid) AS ruled,
       EXISTS (SELECT FROM pg_inherits i JOIN pg_class child ON child.oid = i.inhrelid
                WHERE i.inhparent = c.oid AND NOT child.relispartition
                   OR i.inhrelid = c.oid AND NOT c.relispartition) AS inherits,
       i.indexrelid IS NOT NULL AS has_key, i.indimmediate AS immediate,
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
            row["registered_sealed"],
        )
        if row["registered_name"]
        else None,
        lost=bool(row["registered_name"]) and row["registered_scope"] is None and row["column"] is None,
        formerly=formerly,
    )
