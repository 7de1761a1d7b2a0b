"""INSERT under a token. Its triggers judge: the mark that outlived a deleted row decides (R6).

The token goes in as -t, a token said out loud (R14). The BEFORE trigger stores the positive value; a table that only
looks like the protected one (same columns and checks, no triggers) refuses it by the check. An INSERT has no mark of a
row to compare with, so nothing else would.
"""

from typing import Final

from fencepost.fencing.token import Token
from fencepost.storage.connections.connection import Connection
from fencepost.storage.statements.fenced import Change, FencedRow, Key
from fencepost.storage.statements.row_sql import (
    MARK,
    ORDINAL,
    body_columns,
    json_row,
    key_order,
    key_parameter,
    operator,
    row_resource,
    suppressed_if,
)
from fencepost.storage.tables.catalog import ProtectedTable, Table, quote

_REKEYS: Final = """
WITH RECURSIVE part(oid) AS (
  SELECT $1::text::regclass::oid UNION ALL SELECT i.inhrelid FROM part JOIN pg_inherits i ON i.inhparent = part.oid)
SELECT EXISTS (SELECT FROM part JOIN pg_class c ON c.oid = part.oid WHERE c.relhasrules)
    OR EXISTS (SELECT FROM part JOIN pg_trigger t ON t.tgrelid = part.oid
                WHERE NOT t.tgisinternal AND t.tgtype::int & 7 = 7 AND t.tgenabled <> 'D'
                  AND NOT pg_catalog.starts_with(t.tgname::text, 'zzz_fencepost_'))"""
"""The first three bits of tgtype are ROW, BEFORE and INSERT."""


async def keys_may_change(connection: Connection, table: Table) -> bool:
    """Whether a trigger or rule that is not ours may store a row under another key than was sent."""
    changes: bool = await connection.fetchval(_REKEYS, table.sql_name)
    return changes


async def insert_rows(
    connection: Connection,
    table: ProtectedTable,
    token: Token,
    columns: tuple[str, ...],
    body: str,
    target: str,
) -> list[FencedRow]:
    """Insert the rows of a JSON array, all or none. Refusals by mark come as FP409 from the trigger.

    Rows go in by key, the order in which everybody takes locks, and come back in the body's order.
    """
    names = "".join(f"{quote(c)}, " for c in columns)
    if not columns:
        source = f"json_array_elements($2::json) WITH ORDINALITY AS x(ignored, {ORDINAL})"
    else:
        source = (
            f"ROWS FROM (json_to_recordset($2::json) AS ({body_columns(table, columns)}))"
            f" WITH ORDINALITY AS x({names}{ORDINAL})"
        )
    insert = f"INSERT INTO {table.sql_name} AS r ({names}{MARK}) SELECT {names}-$1::bigint FROM b ORDER BY"
    answer = f"{json_row(target)}::text AS json, r.{MARK} AS mark, {row_resource(table, table.fence.name)} AS resource"
    if table.key and set(table.key) <= set(columns):
        order = key_order(table, "b")
        returned = ", ".join(f"r.{quote(c)} AS k{n}" for n, c in enumerate(table.key))
        match = " AND ".join(f"b.{quote(c)} {operator(table.columns[c], '=')} i.k{n}" for n, c in enumerate(table.key))
        inserted = f"i AS ({insert} {order} RETURNING {answer}, {returned})"
        chosen = (
            f"SELECT * FROM (SELECT i.json, i.mark, i.resource FROM i LEFT JOIN b ON {match} ORDER BY b.{ORDINAL}) AS a"
        )
    else:  # keys that the database makes collide with nobody's
        inserted = f"i AS ({insert} b.{ORDINAL} RETURNING {answer})"
        chosen = "SELECT i.json, i.mark, i.resource FROM i"
    missing = "(SELECT count(*) FROM i) < (SELECT count(*) FROM b)"
    rows = await connection.fetch(
        f"WITH b AS MATERIALIZED (SELECT {names}{ORDINAL} FROM {source}), {inserted} {chosen}"
        f" UNION ALL {suppressed_if(table.fence.name, missing, 'NULL::bigint, NULL::text')}",
        token,
        body,
    )
    return [FencedRow(row["json"], row["mark"], row["resource"]) for row in rows]


async def insert_row(
    connection: Connection, table: ProtectedTable, key: Key, token: Token, change: Change
) -> FencedRow:
    """Create the row that a PUT names: the key from the path, the rest from the body or by default."""
    names = ", ".join([*(quote(c) for c in table.key), *(quote(c) for c in change.columns), MARK])
    values = [key_parameter(table, n) for n in range(1, len(table.key) + 1)]
    values += [f"b.{quote(c)}" for c in change.columns]
    token_at = len(table.key) + 1
    source = (
        f" FROM json_to_record(${token_at + 1}::json) AS b({body_columns(table, change.columns)})"
        if change.columns
        else ""
    )
    arguments = (*key, token, change.body) if change.columns else (*key, token)
    rows = await connection.fetch(
        f"WITH i AS (INSERT INTO {table.sql_name} AS r ({names})"
        f" SELECT {', '.join(values)}, -${token_at}::bigint{source}"
        f" RETURNING {json_row(change.target)}::text AS json, r.{MARK} AS mark)"
        f" SELECT i.json, i.mark FROM i"
        f" UNION ALL {suppressed_if(table.fence.name, 'NOT EXISTS (SELECT FROM i)', 'NULL::bigint')}",
        *arguments,
    )
    return FencedRow(rows[0]["json"], rows[0]["mark"])
