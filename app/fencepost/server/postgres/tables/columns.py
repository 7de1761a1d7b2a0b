"""The columns of tables, read from pg_catalog."""

from typing import Final, Literal

import asyncpg

from fencepost.server.postgres.tables.catalog import Column

_IDENTITY: Final[dict[str, Literal["", "always", "by default"]]] = {"": "", "a": "always", "d": "by default"}

# base: the type below all domains; a domain may lie over a domain. with_hstores: hstore and what is made of it.
COLUMNS: Final = """
WITH RECURSIVE base(oid, below, typmod, not_null) AS (
  SELECT t.oid, t.oid, -1, false FROM pg_type t
  UNION ALL
  SELECT b.oid, t.typbasetype, t.typtypmod, b.not_null OR t.typnotnull
    FROM base b JOIN pg_type t ON t.oid = b.below WHERE t.typtype = 'd'
), with_hstores(oid) AS (
  SELECT t.oid FROM pg_type t WHERE t.typname = 'hstore' AND t.typtype = 'b'
  UNION
  SELECT t.oid FROM with_hstores h JOIN pg_type t
      ON t.typlen = -1 AND t.typelem = h.oid OR t.typbasetype = h.oid
      OR t.typrelid IN (SELECT a.attrelid FROM pg_attribute a WHERE a.atttypid = h.oid AND a.attnum > 0)
)
SELECT a.attrelid::int8 AS oid, a.attname::text AS name, a.attnum AS number, a.atttypid::int8 AS type_oid,
       format_type(a.atttypid, a.atttypmod) AS type, format_type(bt.oid, -1) AS base_type,
       bt.typname::text AS base_name, a.attnotnull OR base.not_null AS not_null,
       d.oid IS NOT NULL AS has_default, a.attgenerated <> '' AS generated, a.attidentity::text AS identity,
       col_description(a.attrelid, a.attnum) AS comment,
       (SELECT array_agg(e.enumlabel::text ORDER BY e.enumsortorder) FROM pg_enum e
         WHERE e.enumtypid = CASE WHEN bt.typelem <> 0 AND bt.typlen = -1 THEN bt.typelem ELSE bt.oid END)
         AS enum_labels,
       (SELECT format('%I.%I', ln.nspname, l.collname) FROM pg_collation l
          JOIN pg_namespace ln ON ln.oid = l.collnamespace
         WHERE l.oid = a.attcollation AND l.collprovider <> 'd') AS collation,
       CASE WHEN bt.typname IN ('varchar', 'bpchar')
            THEN nullif(greatest(a.atttypmod, base.typmod) - 4, -5) END AS max_length,
       EXISTS (SELECT FROM with_hstores h WHERE h.oid = bt.oid) AS with_hstores,
       bt.typcategory IN ('A', 'C') OR EXISTS (SELECT FROM pg_cast k WHERE k.castsource = bt.oid
         AND k.casttarget IN ('json'::regtype, 'jsonb'::regtype)) AS has_parts,
       greatest(a.atttypmod, base.typmod) >= 0
         AND bt.typname IN ('numeric', 'timestamp', 'timestamptz', 'time') AS lossy
  FROM pg_attribute a
  JOIN pg_class c ON c.oid = a.attrelid
  JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN base ON base.oid = a.atttypid
  JOIN pg_type bt ON bt.oid = base.below AND bt.typtype <> 'd'
  LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
 WHERE a.attnum > 0 AND NOT a.attisdropped AND c.relkind IN ('r', 'p', 'v', 'm', 'f') AND NOT c.relispartition
   AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast', 'fencepost')
   AND (cardinality($1::text[]) = 0 OR n.nspname = ANY($1))
 ORDER BY a.attrelid, a.attnum"""

# pg_get_expr takes the table's lock since PostgreSQL 18: asked apart, and left out where it is locked.
DEFAULTS: Final = """
SELECT d.adrelid::int8 AS oid, a.attname::text AS name, pg_get_expr(d.adbin, d.adrelid) AS expression
  FROM pg_attrdef d JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
  JOIN pg_class c ON c.oid = d.adrelid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast', 'fencepost')"""

UNKNOWN_DEFAULT: Final = "…"
"""Stands for a default whose expression could not be read."""


def column_of(row: asyncpg.Record, expression: str | None) -> Column:
    """Make a column of a row of COLUMNS. `expression`: its default."""
    return Column(
        name=row["name"],
        type=row["type"],
        base_type=row["base_type"],
        base_name=row["base_name"],
        nullable=not row["not_null"],
        default=(expression or UNKNOWN_DEFAULT) if row["has_default"] and not row["generated"] else None,
        generated=row["generated"],
        identity=_IDENTITY[row["identity"]],
        comment=row["comment"],
        enum_labels=tuple(row["enum_labels"] or ()),
        max_length=row["max_length"],
        collation=row["collation"],
        with_hstores=row["with_hstores"],
        type_oid=row["type_oid"],
        number=row["number"],
        has_parts=row["has_parts"],
    )
