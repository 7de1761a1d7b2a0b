"""Reads: rows by filters, and one row by key. They carry no token and take no lock."""

from dataclasses import dataclass

from fencepost.fencing.problem_types import ROW_NOT_FOUND
from fencepost.fencing.problems import Problem
from fencepost.gateway.gateway import Gateway
from fencepost.gateway.outcomes import Done, Outcome
from fencepost.gateway.preconditions import require_key
from fencepost.gateway.writes.culprit import with_column
from fencepost.storage.errors import map_errors
from fencepost.storage.statements import reading
from fencepost.storage.statements.parameters import Bound, Key
from fencepost.storage.statements.query import Query, Select
from fencepost.storage.statements.query_sql import render_select
from fencepost.storage.tables.catalog import Table


@dataclass(frozen=True, slots=True)
class ReadMany:
    """Rows of a table or view. `count` asks for the number of all that match, whatever the limit."""

    table: str
    query: Query
    count: bool = False


@dataclass(frozen=True, slots=True)
class ReadOne:
    """The row that the path names."""

    table: str
    key: Key
    select: Select = None


async def read_many(gateway: Gateway, request: ReadMany, table: Table) -> Outcome:
    """Read what matches, at most max_rows of it."""
    reading.check(table, request.query)
    async with gateway.database.connection() as connection:
        with map_errors(writing=False):
            rows, total = await reading.rows(connection, table, request.query, gateway.max_rows, count=request.count)
    return Done(rows, total=total)


async def read_one(gateway: Gateway, request: ReadOne, table: Table) -> Outcome:
    """Read a row by its key."""
    require_key(table, request.key)
    render_select(table, request.select, Bound())
    async with (
        gateway.database.connection() as connection,
        with_column(connection, table, None, request.key),
    ):
        with map_errors(writing=False):
            row = await reading.row(connection, table, request.key, request.select)
    if row is None:
        return Problem(ROW_NOT_FOUND, f"There is no row {table.name}/{','.join(request.key)}.")
    return Done([row.json], row.mark if table.fence else None)
