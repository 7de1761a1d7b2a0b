"""SELECT: rows as JSON, made by PostgreSQL."""

from fencepost.storage.connections.connection import Connection
from fencepost.storage.statements.fenced import FencedRow, Key
from fencepost.storage.statements.query import Query, Select
from fencepost.storage.statements.query_sql import Parameters, render_filters, render_order, render_select
from fencepost.storage.statements.row_sql import MARK, json_row, key_match, literal
from fencepost.storage.statements.scope_names import row_scope
from fencepost.storage.tables.catalog import Table


def check(table: Table, query: Query) -> None:
    """Raise QueryError for what the table does not have, before a connection is taken."""
    parameters = Parameters()
    render_select(table, query.select, parameters)
    render_filters(table, query.filters, parameters)
    render_order(table, query.order, parameters)


async def rows(
    connection: Connection, table: Table, query: Query, limit: int, *, count: bool
) -> tuple[list[str], int | None]:
    """Read rows as JSON texts, at most `limit`; and how many match, if asked."""
    parameters = Parameters()
    target = render_select(table, query.select, parameters)
    condition = render_filters(table, query.filters, parameters)
    order = render_order(table, query.order, parameters)
    most = min(limit, query.limit) if query.limit is not None else limit
    # Bound, not spelled out: each page would be a statement of its own to prepare.
    at = len(parameters.values)
    sql = (
        f"SELECT {json_row(target)}::text AS json FROM {table.sql_name} AS r WHERE {condition}"
        f"{f' ORDER BY {order}' if order else ''} LIMIT ${at + 1}::bigint OFFSET ${at + 2}::bigint"
    )
    found = [row["json"] for row in await connection.fetch(sql, *parameters.values, most, query.offset)]
    if not count:
        return found, None
    counted = Parameters()
    total = await connection.fetchval(
        f"SELECT count(*) FROM {table.sql_name} AS r WHERE {render_filters(table, query.filters, counted)}",
        *counted.values,
    )
    return found, total


def _mark(table: Table) -> str:
    fence = table.fence
    if fence is None or not fence.intact:
        return "0::bigint"
    if fence.scope is None:
        return f"r.{MARK}"
    return f"coalesce(fencepost.mark_without_row({literal(fence.scope.prefix)}, {row_scope(table, fence.scope)}), 0)"


async def row(connection: Connection, table: Table, key: Key, select: Select) -> FencedRow | None:
    """Read a row by its key, with its mark (0 where the table has none)."""
    parameters = Parameters(len(key))
    target = render_select(table, select, parameters)
    mark = _mark(table)
    found = await connection.fetchrow(
        f"SELECT {json_row(target)}::text AS json, {mark} AS mark FROM {table.sql_name} AS r WHERE {key_match(table)}",
        *key,
        *parameters.values,
    )
    return FencedRow(found["json"], found["mark"]) if found else None
