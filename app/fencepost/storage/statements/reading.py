"""SELECT: rows as JSON, made by PostgreSQL."""

from fencepost.storage.connections.connection import Connection
from fencepost.storage.statements.keyed import FencedRow
from fencepost.storage.statements.parameters import OF_KEY, Bound, Key, compiled
from fencepost.storage.statements.query import Query, Select
from fencepost.storage.statements.query_sql import render_filters, render_order, render_select
from fencepost.storage.statements.row_sql import MARK, json_row, key_match, literal, row_scope
from fencepost.storage.tables.catalog import Table


def check(table: Table, query: Query) -> None:
    """Raise QueryError for what the table does not have, before a connection is taken."""
    bound = Bound()
    render_select(table, query.select, bound)
    render_filters(table, query.filters, bound)
    render_order(table, query.order, bound)


async def rows(
    connection: Connection, table: Table, query: Query, limit: int, *, count: bool
) -> tuple[list[str], int | None]:
    """Read rows as JSON texts, at most `limit`; and how many match, if asked."""
    bound = Bound()
    target = render_select(table, query.select, bound)
    condition = render_filters(table, query.filters, bound)
    order = render_order(table, query.order, bound)
    # Bound, not spelled out: each page would be a statement of its own to prepare.
    most = bound.add(min(limit, query.limit) if query.limit is not None else limit, "bigint")
    page = compiled(
        f"SELECT {json_row(target)}::text AS json FROM {table.sql_name} AS r WHERE {condition}"
        f"{f' ORDER BY {order}' if order else ''} LIMIT {most} OFFSET {bound.add(query.offset, 'bigint')}",
        bound.parameters,
    )
    found = [row["json"] for row in await page.fetch(connection, None)]
    if not count:
        return found, None
    counted = Bound()
    condition = render_filters(table, query.filters, counted)
    total = compiled(f"SELECT count(*) FROM {table.sql_name} AS r WHERE {condition}", counted.parameters)
    return found, await total.value(connection, None)


def _mark(table: Table) -> str:
    fence = table.fence
    if fence is None or not fence.intact:
        return "0::bigint"
    if fence.scope is None:
        return f"r.{MARK}"
    return f"coalesce(fencepost.mark_without_row({literal(fence.scope.prefix)}, {row_scope(table, fence.scope)}), 0)"


async def row(connection: Connection, table: Table, key: Key, select: Select) -> FencedRow | None:
    """Read a row by its key, with its mark (0 where the table has none)."""
    bound = Bound()
    target = render_select(table, select, bound)
    mark = _mark(table)
    found = await compiled(
        f"SELECT {json_row(target)}::text AS json, {mark} AS mark FROM {table.sql_name} AS r WHERE {key_match(table)}",
        (*OF_KEY, *bound.parameters),
    ).fetch(connection, key)
    return FencedRow(found[0]["json"], found[0]["mark"]) if found else None
