"""Which scope a row is in, or would be (R8): read from the row, or rendered from key, body and filters. No locks."""

from collections.abc import Sequence
from typing import Final

import asyncpg

from fencepost.fencing.scope import Scope
from fencepost.storage.connections.connection import Connection
from fencepost.storage.connections.engine import undoing
from fencepost.storage.statements.fenced import Key
from fencepost.storage.statements.fenced_many import TooManyRows
from fencepost.storage.statements.query import Filter
from fencepost.storage.statements.query_sql import Parameters, render_filters
from fencepost.storage.statements.row_sql import (
    operator,
    resource_sql,
)
from fencepost.storage.tables.catalog import Column, Table, quote

_WIDEST = {"int2": "pg_catalog.int8", "int4": "pg_catalog.int8", "varchar": "pg_catalog.text"}
"""The tables of a scope may have integers of different widths: a scope's name is read as the widest."""

_ALWAYS_FIT: Final = {"int2": 4, "int4": 9}
"""So many characters of an integer fit into its type."""


def row_scope(table: Table, scope: Scope, alias: str = "r") -> str:
    """Render a row's scope."""
    return resource_sql(
        scope.prefix, [(table.columns[name].base_name, f"{alias}.{quote(name)}") for name in scope.columns]
    )


def key_match(table: Table, key: Key, parameters: Parameters) -> str:
    """Match the row with this key."""
    return " AND ".join(
        f"r.{quote(name)} {operator(table.columns[name], '=')}"
        f" CAST({parameters.add(value)}::text AS {table.columns[name].base_type})"
        for name, value in zip(table.key, key, strict=True)
    )


async def scope_of_row(connection: Connection, table: Table, scope: Scope, key: Key) -> str | None:
    """Read a row's scope, without a lock: its columns never change. None: there is no row."""
    parameters = Parameters()
    condition = key_match(table, key, parameters)
    found: str | None = await connection.fetchval(
        f"SELECT {row_scope(table, scope)} FROM {table.sql_name} AS r WHERE {condition}", *parameters.values
    )
    return found


async def scope_named(
    connection: Connection, table: Table, scope: Scope, key: Key, columns: Sequence[str], body: str
) -> str | None:
    """Render the scope that key and body name together, from typed values; None: one of them is null."""
    parameters = Parameters()
    values = dict(zip(table.key, key, strict=True))
    parts = []
    from_body = tuple(name for name in scope.columns if name not in values and name in columns)
    for name in scope.columns:
        column = table.columns[name]
        value = (
            f"CAST({parameters.add(values[name])}::text AS {column.base_type})"
            if name in values
            else f"b.{quote(name)}"
        )
        parts.append((column.base_name, value))
    source = (
        f" FROM json_to_record({parameters.add(body)}::json) AS b({full_columns(table, from_body)})"
        if from_body
        else ""
    )
    found: str | None = await connection.fetchval(
        f"SELECT {resource_sql(scope.prefix, parts)}{source}", *parameters.values
    )
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
    parameters = Parameters()
    condition = render_filters(table, filters, parameters)
    rows = await connection.fetch(
        f"SELECT m.scope, count(*) AS rows FROM (SELECT {row_scope(table, scope)} AS scope FROM {table.sql_name} AS r"
        f" WHERE {condition} LIMIT {limit + 1}) AS m GROUP BY m.scope",
        *parameters.values,
    )
    return TooManyRows(limit) if sum(row["rows"] for row in rows) > limit else [row["scope"] for row in rows]


async def scopes_typed(
    connection: Connection, table: Table, scope: Scope, values: Sequence[tuple[str, ...]]
) -> list[str]:
    """Render scopes from the texts of their columns' values, in the order given."""
    names = [f"v{n}" for n in range(len(scope.columns))]
    parts = []
    for name, column in zip(names, (table.columns[c] for c in scope.columns), strict=True):
        wanted = _WIDEST.get(column.base_name, column.base_type)
        parts.append((column.base_name, f"CAST(x.{name} AS {wanted})"))
    arrays = ", ".join(f"pg_catalog.unnest(${n}::text[])" for n in range(1, len(names) + 1))
    rows = await connection.fetch(
        f"SELECT {resource_sql(scope.prefix, parts)} AS scope FROM ROWS FROM ({arrays}) WITH ORDINALITY AS"
        f" x({', '.join(names)}, o) ORDER BY x.o",
        *([value[n] for value in values] for n in range(len(names))),
    )
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
    parameters = Parameters()
    tests = []
    for name, value in zip(scope.columns, values, strict=True):
        column = table.columns[name]
        wanted = _WIDEST.get(column.base_name, column.base_type)
        named = f"CAST({parameters.add(value)}::text AS {wanted})"
        tests.append(f"{named} {operator(column, '=')} CAST(CAST({named} AS {column.type}) AS {wanted})")
    try:
        async with undoing(connection):
            same: bool = await connection.fetchval(f"SELECT {' AND '.join(tests)}", *parameters.values)
    except (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError):  # too large, or a domain's CHECK
        return False
    return same
