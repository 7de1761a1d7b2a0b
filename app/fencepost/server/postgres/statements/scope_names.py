"""Which scope a row is in, or would be (R8): read from the row, or rendered from key, body and filters. No locks."""

from collections.abc import Sequence
from typing import Final

import asyncpg

from fencepost.server.fence.scope import Scope
from fencepost.server.postgres.connections.connection import Connection
from fencepost.server.postgres.connections.transactions import savepoint
from fencepost.server.postgres.statements.given import key_texts, unnested
from fencepost.server.postgres.statements.many import TooManyRows
from fencepost.server.postgres.statements.parameters import OF_KEY, Bound, Key, compiled
from fencepost.server.postgres.statements.query import Filter
from fencepost.server.postgres.statements.query_sql import render_filters
from fencepost.server.postgres.statements.row_sql import operator, resource_sql, row_scope, the_row
from fencepost.server.postgres.tables.catalog import Column, Table, quote

_WIDEST = {"int2": "pg_catalog.int8", "int4": "pg_catalog.int8", "varchar": "pg_catalog.text"}
"""The tables of a scope may have integers of different widths: a scope's name is read as the widest."""

_ALWAYS_FIT: Final = {"int2": 4, "int4": 9}
"""So many characters of an integer fit into its type."""


async def scope_of_row(connection: Connection, table: Table, scope: Scope, key: Key) -> str | None:
    """Read a row's scope, without a lock: its columns never change. None: there is no row."""
    text = f"SELECT {row_scope(table, scope)} FROM {table.sql_name} AS r WHERE {the_row(table)}"
    found: str | None = await compiled(text, OF_KEY).value(connection, key)
    return found


async def scope_named(
    connection: Connection, table: Table, scope: Scope, key: Key, columns: Sequence[str], body: str
) -> str | None:
    """Render the scope that key and body name together, from typed values; None: one of them is null."""
    bound = Bound()
    values = dict(zip(table.key, key, strict=True))
    parts = []
    from_body = tuple(name for name in scope.columns if name not in values and name in columns)
    for name in scope.columns:
        column = table.columns[name]
        value = f"CAST({bound.add(values[name])} AS {column.base_type})" if name in values else f"b.{quote(name)}"
        parts.append((column.base_name, value))
    source = (
        f" FROM json_to_record({bound.add(body, 'json')}) AS b({full_columns(table, from_body)})" if from_body else ""
    )
    statement = compiled(f"SELECT {resource_sql(scope.prefix, parts)}{source}", bound.parameters)
    found: str | None = await statement.value(connection, None)
    return found


def full_columns(table: Table, columns: Sequence[str]) -> str:
    """List columns with their full types: a scope is named after what will be stored, rounded and cut."""
    return ", ".join(f"{quote(name)} {table.columns[name].type}" for name in columns)


async def scopes_of_body(connection: Connection, table: Table, scope: Scope, body: str) -> list[str | None]:
    """Render the scopes of all rows of a JSON array, each once; None among them: a row lacks a column."""
    rows = await connection.fetch(
        f"SELECT DISTINCT {row_scope(table, scope, 'b')} AS scope"
        f" FROM json_to_recordset($1::json) AS b({full_columns(table, scope.columns)})",
        body,
    )
    return [row["scope"] for row in rows]


async def scopes_matching(
    connection: Connection, table: Table, scope: Scope, filters: tuple[Filter, ...], limit: int
) -> list[str] | TooManyRows:
    """Render the scopes of the rows that match, each once; no more than `limit` rows may match."""
    bound = Bound()
    condition = render_filters(table, filters, bound)
    rows = await compiled(
        f"SELECT m.scope, count(*) AS rows FROM (SELECT {row_scope(table, scope)} AS scope FROM {table.sql_name} AS r"
        f" WHERE {condition} LIMIT {limit + 1}) AS m GROUP BY m.scope",
        bound.parameters,
    ).fetch(connection, None)
    return TooManyRows(limit) if sum(row["rows"] for row in rows) > limit else [row["scope"] for row in rows]


async def scopes_typed(
    connection: Connection, table: Table, scope: Scope, values: Sequence[tuple[str, ...]]
) -> list[str]:
    """Render scopes from the texts of their columns' values, in the order given."""
    texts = [key_texts(n) for n, _ in enumerate(scope.columns)]
    columns = [table.columns[c] for c in scope.columns]
    given = unnested(texts)
    parts = [
        (column.base_name, f"CAST({text} AS {_WIDEST.get(column.base_name, column.base_type)})")
        for column, text in zip(columns, given.texts, strict=True)
    ]
    rows = await compiled(
        f"SELECT {resource_sql(scope.prefix, parts)} AS scope FROM {given.source} ORDER BY {given.place}", texts
    ).fetch(connection, values)
    return [row["scope"] for row in rows]


def may_change(table: Table, scope: Scope, values: Sequence[str]) -> bool:
    """Whether storing could change a scope's values, or refuse them: rounded numbers, texts cut to length, domains."""
    return any(
        _column_may_change(table.columns[name], value) for name, value in zip(scope.columns, values, strict=True)
    )


def _column_may_change(column: Column, value: str) -> bool:
    is_domain = "." in column.type and column.type != column.base_type
    if column.max_length is not None and not is_domain:
        return len(value) > column.max_length
    return column.type != column.base_type or len(value) > _ALWAYS_FIT.get(column.base_name, len(value))


async def stores(connection: Connection, table: Table, scope: Scope, values: Sequence[str]) -> bool:
    """Whether a row of the table can have these values of its scope, which can be read as the types."""
    bound = Bound()
    tests = []
    for name, value in zip(scope.columns, values, strict=True):
        column = table.columns[name]
        wanted = _WIDEST.get(column.base_name, column.base_type)
        named = f"CAST({bound.add(value)} AS {wanted})"
        tests.append(f"{named} {operator(column, '=')} CAST(CAST({named} AS {column.type}) AS {wanted})")
    try:
        async with savepoint(connection):
            same: bool = await compiled(f"SELECT {' AND '.join(tests)}", bound.parameters).value(connection, None)
    except (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError):  # too large, or a domain's CHECK
        return False
    return same
