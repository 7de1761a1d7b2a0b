"""Read a Catalog from pg_catalog: three statements in one snapshot."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from typing import Final, Literal

import asyncpg

from fencepost.fencing.token import Rule
from fencepost.storage.catalog import MARK_COLUMN, Catalog, Column, Fence, Table, TableKind, quote
from fencepost.storage.engine import Connection

_KINDS: Final[dict[str, TableKind]] = {
    "r": "table",
    "p": "partitioned table",
    "v": "view",
    "m": "materialized view",
    "f": "foreign table",
}
_RULES: Final[dict[str, Rule]] = {"strict": "strict", "lease": "lease"}
_IDENTITY: Final[dict[str, Literal["", "always", "by default"]]] = {"": "", "a": "always", "d": "by default"}

# Partitions are reached through their parent only.
RELATIONS: Final = """
SELECT c.oid::int8 AS oid, n.nspname AS schema, c.relname AS relation, c.relkind::text AS kind,
       obj_description(c.oid, 'pg_class') AS comment, c.relrowsecurity AS row_security,
       (SELECT array_agg(a.attname::text ORDER BY k.position)
          FROM pg_index i CROSS JOIN unnest(i.indkey) WITH ORDINALITY k(attnum, position)
          JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
         WHERE i.indrelid = c.oid AND i.indisprimary AND k.position <= i.indnkeyatts) AS key,
       (SELECT array_agg(DISTINCT a.attname::text)
          FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey)
         WHERE i.indrelid = c.oid AND i.indisunique) AS unique_columns
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND NOT c.relispartition AND c.relpersistence <> 't'
   AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast', 'fencepost')
   AND (cardinality($1::text[]) = 0 OR n.nspname = ANY($1))
 ORDER BY n.nspname, c.relname"""

# base: the type below all domains; a domain may lie over a domain.
COLUMNS: Final = """
WITH RECURSIVE base(oid, below, typmod) AS (
  SELECT t.oid, t.oid, -1 FROM pg_type t
  UNION ALL
  SELECT b.oid, t.typbasetype, t.typtypmod FROM base b JOIN pg_type t ON t.oid = b.below WHERE t.typtype = 'd'
)
SELECT a.attrelid::int8 AS oid, a.attname::text AS name,
       format_type(a.atttypid, a.atttypmod) AS type, format_type(bt.oid, -1) AS base_type,
       bt.typname::text AS base_name, a.attnotnull OR dom.typnotnull AS not_null,
       pg_get_expr(d.adbin, d.adrelid) AS default, a.attgenerated <> '' AS generated, a.attidentity::text AS identity,
       col_description(a.attrelid, a.attnum) AS comment,
       (SELECT array_agg(e.enumlabel::text ORDER BY e.enumsortorder) FROM pg_enum e
         WHERE e.enumtypid = CASE WHEN bt.typelem <> 0 AND bt.typlen = -1 THEN bt.typelem ELSE bt.oid END)
         AS enum_labels,
       CASE WHEN bt.typname IN ('varchar', 'bpchar')
            THEN nullif(greatest(a.atttypmod, base.typmod) - 4, -5) END AS max_length,
       greatest(a.atttypmod, base.typmod) >= 0
         AND bt.typname IN ('numeric', 'timestamp', 'timestamptz', 'time') AS lossy
  FROM pg_attribute a
  JOIN pg_class c ON c.oid = a.attrelid
  JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN base ON base.oid = a.atttypid
  JOIN pg_type bt ON bt.oid = base.below AND bt.typtype <> 'd'
  JOIN pg_type dom ON dom.oid = a.atttypid
  LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
 WHERE a.attnum > 0 AND NOT a.attisdropped AND c.relkind IN ('r', 'p', 'v', 'm', 'f') AND NOT c.relispartition
   AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast', 'fencepost')
   AND (cardinality($1::text[]) = 0 OR n.nspname = ANY($1))
 ORDER BY a.attrelid, a.attnum"""

# What protect made, and whether it is all still there: the four row triggers (enabled) and the column.
FENCES: Final = f"""
SELECT p.relation::oid::int8 AS oid, p.name, p.rule, p.source, p.functions, p.key_columns,
       (SELECT count(*) FROM pg_trigger t WHERE t.tgrelid = p.relation AND starts_with(t.tgname, 'zzz_fencepost_')
           AND t.tgenabled IN ('O', 'A')) AS triggers,
       EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = p.relation AND a.attname = '{MARK_COLUMN}'
                  AND NOT a.attisdropped) AS column
  FROM fencepost.protected p"""

TRIGGERS = 5
"""How many triggers a protected table has: UPDATE, INSERT before and after, DELETE, TRUNCATE."""


def api_name(schema: str, relation: str) -> str:
    """Name a table as the API does. A dot in a public table's name would read like a schema, so it is qualified."""
    return relation if schema == "public" and "." not in relation else f"{schema}.{relation}"


def _column(row: asyncpg.Record) -> Column:
    return Column(
        name=row["name"],
        type=row["type"],
        base_type=row["base_type"],
        base_name=row["base_name"],
        nullable=not row["not_null"],
        default=None if row["generated"] else row["default"],
        generated=row["generated"],
        identity=_IDENTITY[row["identity"]],
        comment=row["comment"],
        enum_labels=tuple(row["enum_labels"] or ()),
        max_length=row["max_length"],
    )


def _fence(row: asyncpg.Record, name: str, key: tuple[str, ...]) -> Fence:
    # Under another name than it was protected under, its DELETE function would reach for whatever has that name now.
    return Fence(
        name=row["name"],
        rule=_RULES[row["rule"]],
        source=row["source"],
        delete_function=f"fencepost.{quote(row['functions'] + '_delete')}",
        intact=row["name"] == name
        and row["triggers"] == TRIGGERS
        and row["column"]
        and tuple(row["key_columns"]) == key,
    )


async def load(connection: Connection, schemas: Iterable[str], version: int) -> Catalog:
    """Read the picture in one snapshot. Types are spelled with their schema, so that they mean the same anywhere."""
    begun = asyncio.get_running_loop().time()
    wanted = list(schemas)
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        await connection.execute("SET LOCAL search_path = pg_catalog")
        relations = await connection.fetch(RELATIONS, wanted)
        columns = await connection.fetch(COLUMNS, wanted)
        fences = {row["oid"]: row for row in await connection.fetch(FENCES)}
    by_table: defaultdict[int, dict[str, Column]] = defaultdict(dict)
    lossy: set[tuple[int, str]] = set()
    for row in columns:
        by_table[row["oid"]][row["name"]] = _column(row)
        if row["lossy"]:
            lossy.add((row["oid"], row["name"]))
    tables: dict[str, Table] = {}
    for row in relations:
        oid, key = row["oid"], tuple(row["key"] or ())
        name = api_name(row["schema"], row["relation"])
        table = Table(
            oid=oid,
            schema=row["schema"],
            relation=row["relation"],
            name=name,
            kind=_KINDS[row["kind"]],
            comment=row["comment"],
            row_security=row["row_security"],
            columns=by_table[oid],
            key=key,
            fence=_fence(fences[oid], name, key) if oid in fences else None,
            lossy_key=any((oid, column) in lossy for column in key),
            unique_columns=frozenset(row["unique_columns"] or ()),
        )
        # Two names with dots may render alike ("a.b"."c" and "a"."b.c"): the first one is served, protect refuses both.
        tables.setdefault(table.name, table)
    return Catalog(version, tables, begun)
