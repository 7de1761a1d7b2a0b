"""The statements of scoped writes (R8) as a batch runs them, once their scopes are entered (batch_prelude.py): later,
so that they see what older holders have committed, and bound to the scope that was entered.
"""

from fencepost.fencing.scope import Scope
from fencepost.storage.statements.fenced import Change
from fencepost.storage.statements.fenced_batch import Statement, held
from fencepost.storage.statements.row_sql import (
    body_columns,
    json_row,
    key_match,
    key_parameter,
    lock_clause,
    row_resource,
)
from fencepost.storage.statements.scope_names import row_scope
from fencepost.storage.tables.catalog import Table, quote


def update(table: Table, scope: Scope, change: Change) -> Statement:
    """Write the UPDATE of one row of the scope that was entered; `change` sets something."""
    body, number = len(table.key) + 2, len(table.key) + 2
    sets = [f"{quote(c)} = b.{quote(c)}" for c in change.columns]
    sets += [f"{quote(c)} = DEFAULT" for c in change.defaults]
    source = ""
    if change.columns:
        source = f" FROM json_to_record(${body}::json) AS b({body_columns(table, change.columns)})"
        number += 1
    within = _within(table, scope)
    unheld = held(table, within, lock_clause(table, "update", (*change.columns, *change.defaults)))
    return Statement(
        f"UPDATE {table.sql_name} AS r SET {', '.join(sets)}{source} WHERE {within} AND {unheld}"
        f" RETURNING ${number}::int, {json_row(change.target)}::text, 0::bigint, ''",
        bool(change.columns),
        by_scope=True,
    )


def delete(table: Table, scope: Scope, target: str) -> Statement:
    """Write the DELETE of one row of the scope that was entered."""
    within = _within(table, scope)
    unheld = held(table, within, lock_clause(table, "delete", ()))
    return Statement(
        f"DELETE FROM {table.sql_name} AS r WHERE {within} AND {unheld}"
        f" RETURNING ${len(table.key) + 2}::int, {json_row(target)}::text, 0::bigint, ''",
        with_body=False,
        by_scope=True,
    )


def insert(table: Table, name: str, columns: tuple[str, ...], target: str) -> Statement:
    """Write the INSERT of the one row in a JSON array into the scope that was entered."""
    names = ", ".join(quote(c) for c in columns)
    return Statement(
        f"INSERT INTO {table.sql_name} AS r ({names}) SELECT {names}"
        f" FROM json_to_recordset($2::json) AS b({body_columns(table, columns)})"
        f" WHERE $1::text IS NOT NULL ON CONFLICT DO NOTHING"
        f" RETURNING $3::int, {json_row(target)}::text, 0::bigint, {row_resource(table, name)}",
        with_body=True,
        by_scope=True,
    )


def create(table: Table, change: Change) -> Statement:
    """Write the INSERT of the row that a PUT names into the scope that was entered."""
    names = ", ".join([*(quote(c) for c in table.key), *(quote(c) for c in change.columns)])
    values = [key_parameter(table, n) for n in range(1, len(table.key) + 1)]
    values += [f"b.{quote(c)}" for c in change.columns]
    entered = number = len(table.key) + 1
    source = ""
    if change.columns:
        number += 1
        source = f" FROM json_to_record(${number}::json) AS b({body_columns(table, change.columns)})"
    return Statement(
        f"INSERT INTO {table.sql_name} AS r ({names}) SELECT {', '.join(values)}{source}"
        f" WHERE ${entered}::text IS NOT NULL ON CONFLICT DO NOTHING"
        f" RETURNING ${number + 1}::int, {json_row(change.target)}::text, 0::bigint, ''",
        bool(change.columns),
        by_scope=True,
    )


def _within(table: Table, scope: Scope) -> str:
    return f"{key_match(table)} AND {row_scope(table, scope)} = ${len(table.key) + 1}::text"
