"""PATCH of an array: each element names a row by its key and says what changes. All or nothing (R10).

b        the elements, typed, with their places in the body
hit      their rows, locked in key order; a row that changed while we waited is judged as it is now
verdict  whether every element met a row of its own, and no mark refuses
w        the write, only then

All of it is one statement. Nothing written is a question (R5), which the next statement asks of every key: `ask_rows`.
In a table with a scope the marks were judged before (gateway/writes/patch_rows.py has the order), and rows outside of
the scopes that were entered are not met.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fencepost.fencing.token import Token
from fencepost.storage.connections.connection import Connection
from fencepost.storage.statements.fenced import Change, Standing, standing_of
from fencepost.storage.statements.row_sql import (
    FOUND_MARK,
    MARK,
    ORDINAL,
    body_columns,
    ceiling_of,
    comparison,
    equal,
    json_row,
    key_order,
    literal,
    lock_clause,
    operator,
    row_resource,
    stored_token,
    suppressed_if,
)
from fencepost.storage.statements.scope_names import row_scope
from fencepost.storage.tables.catalog import ProtectedTable, Table, quote

_FEW: Final = "LIMIT (SELECT 2147483647)"
"""Of a LIMIT that is no constant the planner believes that it leaves a tenth: 10 of the 100 rows that it expects of any
JSON. So it looks each key up in the index, and reads no table of some thousand rows twice for an array of hundred."""
_PASSES: Final = "(SELECT passes FROM verdict)"


@dataclass(frozen=True, slots=True)
class Unwritten:
    """Nothing was written. `met`: the elements (from 0) whose rows were found and locked."""

    met: frozenset[int]


@dataclass(frozen=True, slots=True)
class Asked:
    """What is known of one element's key. The resource is empty when the element has no value for a part of it."""

    element: int
    standing: Standing


@dataclass(frozen=True, slots=True)
class Placed:
    """An element's resource, as above, and the scope of its row; None without a row."""

    element: int
    resource: str
    scope: str | None


def _elements(table: Table, columns: Sequence[str], body: str) -> str:
    names = ", ".join(quote(c) for c in columns)
    return (
        f"ROWS FROM (json_to_recordset({body}::json) AS ({body_columns(table, columns)})) WITH ORDINALITY"
        f" AS b({names}, {ORDINAL})"
    )


def update_rows_sql(table: ProtectedTable, change: Change) -> str:
    """Write the UPDATE. Parameters: the token (of a table with a scope: the scopes entered), and the body."""
    keys = [f"r.{quote(c)}" for c in table.key]
    hit = [f"{key} AS k{n}" for n, key in enumerate(keys)]
    hit += [f"b.{quote(c)} AS v{n}" for n, c in enumerate(change.columns)]
    match = equal(table, table.key, "r", "b")
    sets = [f"{quote(c)} = hit.v{n}" for n, c in enumerate(change.columns)]
    refused = "false"
    json = f"{json_row(change.target)}::text AS json"
    if table.fence.scope is None:
        hit.append(f"r.{MARK} AS {FOUND_MARK}")
        refused = f"NOT {FOUND_MARK} {comparison(table.fence.rule)} $1::bigint"
        sets.append(f"{MARK} = {stored_token(table.fence.rule, '$1::bigint')}")
    else:
        match += f" AND {row_scope(table, table.fence.scope)} = ANY ($1::text[])"
    write = _write(table, sets, json)
    if not sets:  # in a scope, and only keys were given: the rows as they are
        hit.append(json)
        write = f"SELECT hit.json, hit.{ORDINAL} FROM hit WHERE {_PASSES}"
    # An element without a key meets no row, and two with one key meet the same: both show in the number of rows.
    distinct = ", ".join(f"hit.k{n}" for n, _ in enumerate(keys))
    unwritten = f"{_PASSES} AND (SELECT count(*) FROM w) < (SELECT count(*) FROM b)"
    return (
        f"WITH b AS MATERIALIZED (SELECT * FROM {_elements(table, (*table.key, *change.columns), '$2')} {_FEW}),"
        f" hit AS MATERIALIZED (SELECT {', '.join(hit)}, b.{ORDINAL} FROM b JOIN {table.sql_name} AS r ON {match}"
        f" ORDER BY {', '.join(keys)} {lock_clause(table, 'update', change.columns)}),"
        f" verdict AS MATERIALIZED (SELECT (SELECT count(*) FROM (SELECT DISTINCT {distinct} FROM hit) AS rows)"
        f" = (SELECT count(*) FROM b) AND NOT EXISTS (SELECT FROM hit WHERE {refused}) AS passes),"
        f" w AS ({write})"
        f" SELECT * FROM (SELECT w.json, w.{ORDINAL} AS element FROM w ORDER BY w.{ORDINAL}) AS written"
        f" UNION ALL SELECT NULL, hit.{ORDINAL} FROM hit WHERE NOT {_PASSES}"
        f" UNION ALL {suppressed_if(table.fence.name, unwritten, 'NULL::bigint')}"
    )


def _write(table: Table, sets: Sequence[str], json: str) -> str:
    same = " AND ".join(f"r.{quote(c)} {operator(table.columns[c], '=')} hit.k{n}" for n, c in enumerate(table.key))
    return (
        f"UPDATE {table.sql_name} AS r SET {', '.join(sets)} FROM hit WHERE {same} AND {_PASSES}"
        f" RETURNING {json}, hit.{ORDINAL}"
    )


async def update_rows(
    connection: Connection, table: ProtectedTable, passing: Token | Sequence[str], change: Change
) -> list[str] | Unwritten:
    """Write every element's row (they come back in the body's order), or none. `passing`: the token; for a table with
    a scope, the scopes that were entered.
    """
    rows = await connection.fetch(update_rows_sql(table, change), passing, change.body)
    if rows and rows[0]["json"] is not None:
        return [row["json"] for row in rows]
    return Unwritten(frozenset(row["element"] - 1 for row in rows))


async def ask_rows(connection: Connection, table: ProtectedTable, body: str) -> list[Asked]:
    """R5's question for every element, in key order, on a snapshot of its own."""
    rows = await connection.fetch(
        f"SELECT b.{ORDINAL} AS element, n.resource, r.{MARK} AS live,"
        f" fencepost.mark_without_row({literal(table.fence.name)}, n.resource) AS without_row,"
        f" {ceiling_of(table.fence)}"
        f" FROM {_elements(table, table.key, '$1')}"
        f" CROSS JOIN LATERAL (SELECT {row_resource(table, table.fence.name, 'b')} AS resource) AS n"
        f" LEFT JOIN {table.sql_name} AS r ON {equal(table, table.key, 'r', 'b')}"
        f" ORDER BY {key_order(table, 'b')}, b.{ORDINAL}",
        body,
    )
    return [Asked(row["element"] - 1, standing_of(row)) for row in rows]


async def place_rows(connection: Connection, table: ProtectedTable, body: str) -> list[Placed]:
    """Read which scopes the elements' rows are in, in key order and without a lock: its columns never change."""
    if table.fence.scope is None:
        raise ValueError(f"{table.fence.name} has no scope")
    rows = await connection.fetch(
        f"SELECT b.{ORDINAL} AS element, {row_resource(table, table.fence.name, 'b')} AS resource,"
        f" {row_scope(table, table.fence.scope)} AS scope FROM {_elements(table, table.key, '$1')}"
        f" LEFT JOIN {table.sql_name} AS r ON {equal(table, table.key, 'r', 'b')}"
        f" ORDER BY {key_order(table, 'b')}, b.{ORDINAL}",
        body,
    )
    return [Placed(row["element"] - 1, row["resource"] or "", row["scope"]) for row in rows]
