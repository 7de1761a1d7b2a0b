"""The statements of scoped writes (R8). Each is one step of a transaction; gateway/writes/scoped.py has their order.

E   SELECT … FROM fencepost.enter(prefix, scopes, $t)    scope_marks.py; first, alone: raises marks, waits for holders
W   UPDATE | DELETE … WHERE key AND scope = ANY($scopes)   later, so that it sees what older holders committed
"""

from collections.abc import Sequence

from fencepost.fencing.scope import Scope
from fencepost.storage.connections.connection import Connection
from fencepost.storage.statements.fenced import Change, FencedRow, Key
from fencepost.storage.statements.fenced_many import ManyOutcome, ManyWritten, TooManyRows
from fencepost.storage.statements.query import Filter
from fencepost.storage.statements.query_sql import Parameters, render_filters
from fencepost.storage.statements.row_sql import (
    ORDINAL,
    body_columns,
    equal,
    json_row,
    key_order,
    literal,
    lock_clause,
    operator,
    row_resource,
    suppressed_if,
)
from fencepost.storage.statements.scope_names import key_match, row_scope
from fencepost.storage.tables.catalog import ProtectedTable, quote


def _write(table: ProtectedTable, write: str, hit: str, answer: str, limit: int | None) -> str:
    """Write what `hit` has locked. A row that was locked and yet not written was kept from it by somebody's trigger."""
    within = f" AND (SELECT count(*) FROM hit) <= {limit}" if limit is not None else ""
    keys = ", ".join(f"w.k{n}" for n, _ in enumerate(table.key))
    over = f" UNION ALL SELECT 'too many', NULL FROM hit HAVING count(*) > {limit}" if limit is not None else ""
    missing = f"(SELECT count(*) FROM w) < (SELECT count(*) FROM hit){within}"
    return (
        f"WITH hit AS MATERIALIZED ({hit}), w AS ({write}{within}"
        f" RETURNING {answer}::text AS json, {', '.join(f'r.{quote(c)} AS k{n}' for n, c in enumerate(table.key))})"
        f" SELECT * FROM (SELECT 'row' AS what, w.json FROM w ORDER BY {keys}) AS a{over}"
        f" UNION ALL {suppressed_if(table.fence.name, missing, 'NULL::text')}"
    )


def _sets(change: Change) -> str:
    given = [f"{quote(c)} = b.{quote(c)}" for c in change.columns]
    return ", ".join([*given, *(f"{quote(c)} = DEFAULT" for c in change.defaults)])


async def _run(
    connection: Connection,
    table: ProtectedTable,
    condition: str,
    parameters: Parameters,
    scopes: str,
    change: Change | None,
    target: str,
    limit: int | None,
) -> list[str] | None:
    """Change (or delete, if change is None) the rows in these scopes that match; None: there are more than `limit`."""
    keys = ", ".join(f"r.{quote(c)}" for c in table.key)
    lock = (
        lock_clause(table, "delete", ())
        if change is None
        else lock_clause(table, "update", (*change.columns, *change.defaults))
    )
    most = f" LIMIT {limit + 1}" if limit is not None else ""
    hit = f"SELECT {keys} FROM {table.sql_name} AS r WHERE {condition} AND {scopes} ORDER BY {keys}{most} {lock}"
    match = equal(table, table.key, "r", "hit")
    if change is not None and not (change.columns or change.defaults):  # nothing to set: the rows as they are
        rows = await connection.fetch(
            f"WITH hit AS MATERIALIZED ({hit}) SELECT {json_row(target)}::text AS json FROM {table.sql_name} AS r, hit"
            f" WHERE {match} ORDER BY {keys}",
            *parameters.values,
        )
        return None if limit is not None and len(rows) > limit else [row["json"] for row in rows]
    if change is None:
        write = f"DELETE FROM {table.sql_name} AS r USING hit WHERE {match}"
    else:
        source = (
            f", json_to_record({parameters.add(change.body)}::json) AS b({body_columns(table, change.columns)})"
            if change.columns
            else ""
        )
        write = f"UPDATE {table.sql_name} AS r SET {_sets(change)} FROM hit{source} WHERE {match}"
    sql = _write(table, write, hit, json_row(target), limit)
    rows = await connection.fetch(sql, *parameters.values)
    return None if any(row["what"] == "too many" for row in rows) else [row["json"] for row in rows]


async def write_row(
    connection: Connection, table: ProtectedTable, scope: Scope, entered: str, key: Key, change: Change
) -> str | None:
    """Change a row of the scope that was entered; None: it is not there (any more)."""
    return await _one(connection, table, scope, entered, key, change, change.target)


async def delete_row(
    connection: Connection, table: ProtectedTable, scope: Scope, entered: str, key: Key, target: str
) -> str | None:
    """Delete a row of the scope that was entered; None: it is not there (any more)."""
    return await _one(connection, table, scope, entered, key, None, target)


async def _one(
    connection: Connection, table: ProtectedTable, scope: Scope, entered: str, key: Key,
    change: Change | None, target: str,
) -> str | None:  # fmt: skip
    parameters = Parameters()
    condition = key_match(table, key, parameters)
    within = f"{row_scope(table, scope)} = {parameters.add(entered)}::text"
    rows = await _run(connection, table, condition, parameters, within, change, target, None)
    return rows[0] if rows else None


async def write_many(
    connection: Connection, table: ProtectedTable, scope: Scope, entered: Sequence[str],
    filters: tuple[Filter, ...], change: Change | None, target: str, limit: int,
) -> ManyOutcome:  # fmt: skip
    """Change (or delete) the rows of these scopes that match now."""
    parameters = Parameters()
    condition = render_filters(table, filters, parameters)
    within = f"{row_scope(table, scope)} = ANY ({parameters.add(list(entered))}::text[])"
    rows = await _run(connection, table, condition, parameters, within, change, target, limit)
    return TooManyRows(limit) if rows is None else ManyWritten(rows)


async def insert_rows(
    connection: Connection, table: ProtectedTable, columns: tuple[str, ...], body: str, target: str
) -> list[FencedRow]:
    """Insert the rows of a JSON array into scopes that were entered, by key; they come back in the body's order.

    The marks of the answer are 0: it is the scopes that have marks.
    """
    names = ", ".join(quote(c) for c in columns)
    source = (
        f"ROWS FROM (json_to_recordset($1::json) AS ({body_columns(table, columns)})) WITH ORDINALITY"
        f" AS x({names}, {ORDINAL})"
    )
    answer = f"{json_row(target)}::text AS json, {row_resource(table, table.fence.name)} AS resource"
    keyed = set(table.key) <= set(columns)
    order = key_order(table, "b") if keyed else f"b.{ORDINAL}"
    returned = ", ".join(f"r.{quote(c)} AS k{n}" for n, c in enumerate(table.key))
    match = " AND ".join(f"b.{quote(c)} {operator(table.columns[c], '=')} i.k{n}" for n, c in enumerate(table.key))
    chosen = f"i LEFT JOIN b ON {match} ORDER BY b.{ORDINAL}" if keyed else "i"
    missing = "(SELECT count(*) FROM i) < (SELECT count(*) FROM b)"
    rows = await connection.fetch(
        f"WITH b AS MATERIALIZED (SELECT {names}, {ORDINAL} FROM {source}), i AS (INSERT INTO {table.sql_name} AS r"
        f" ({names}) SELECT {names} FROM b ORDER BY {order} RETURNING {answer}, {returned})"
        f" SELECT * FROM (SELECT i.json, i.resource FROM {chosen}) AS a"
        f" UNION ALL {suppressed_if(table.fence.name, missing, 'NULL::text')}",
        body,
    )
    return [FencedRow(row["json"], 0, row["resource"]) for row in rows]


async def insert_row(connection: Connection, table: ProtectedTable, key: Key, change: Change) -> str:
    """Create the row that a PUT names, in a scope that was entered."""
    parameters = Parameters()
    values = [
        f"CAST({parameters.add(v)}::text AS {table.columns[n].base_type})" for n, v in zip(table.key, key, strict=True)
    ]
    values += [f"b.{quote(c)}" for c in change.columns]
    names = ", ".join(quote(c) for c in (*table.key, *change.columns))
    source = (
        f" FROM json_to_record({parameters.add(change.body)}::json) AS b({body_columns(table, change.columns)})"
        if change.columns
        else ""
    )
    found: str = await connection.fetchval(
        f"WITH i AS (INSERT INTO {table.sql_name} AS r ({names}) SELECT {', '.join(values)}{source}"
        f" RETURNING {json_row(change.target)}::text AS json) SELECT i.json FROM i"
        f" UNION ALL SELECT fencepost.suppressed({literal(table.fence.name)}) WHERE NOT EXISTS (SELECT FROM i)",
        *parameters.values,
    )
    return found
