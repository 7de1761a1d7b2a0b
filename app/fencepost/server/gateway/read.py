"""Reads: rows by filters, and one row by key. They carry no token and take no lock."""

from dataclasses import dataclass

from fencepost.server.fence.problem_types import ROW_NOT_FOUND
from fencepost.server.fence.problems import Problem, bad_request
from fencepost.server.fence.token import shown_mark
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.gathered_reads import ReadLanes, read_lanes
from fencepost.server.gateway.outcomes import Done, Outcome
from fencepost.server.gateway.preconditions import require_key, require_served
from fencepost.server.gateway.writes.culprit import with_column
from fencepost.server.postgres import reading
from fencepost.server.postgres.errors import map_errors
from fencepost.server.postgres.group_commit import Alone
from fencepost.server.postgres.keyed import FencedRow
from fencepost.server.postgres.query import Query, Select
from fencepost.server.postgres.row_sql import Key
from fencepost.server.postgres.tables import Table
from fencepost.server.quota import UNKNOWN


@dataclass(frozen=True, slots=True)
class ReadMany:
    """Rows of a table or view. `count` asks for the number of all that match, whatever the limit."""

    table: str
    query: Query
    count: bool = False
    caller: str = UNKNOWN


@dataclass(frozen=True, slots=True)
class ReadOne:
    """The row that the path names."""

    table: str
    key: Key
    select: Select = None
    caller: str = UNKNOWN


async def read_many(gateway: Gateway, request: ReadMany, table: Table) -> Outcome:
    """Read what matches, at most max_rows of it."""
    if (unserved := require_served(gateway.catalog.current, table)) is not None:
        return unserved
    reading.check(table, request.query)
    most = reading.Most(gateway.max_rows, gateway.max_answer_bytes, gateway.database.statement_timeout)
    try:
        async with (
            gateway.read_connection(request.caller, runs_code=table.reads_run_code) as connection,
            with_column(connection, table, query=request.query),
        ):
            with map_errors(writing=False):
                rows, total = await reading.rows(connection, table, request.query, most, count=request.count)
    except reading.TooManyBytesError as error:
        return bad_request(str(error), "?limit= takes fewer rows, ?select= fewer columns; FENCEPOST_MAX_ANSWER_BYTES.")
    return Done(rows, total=total)


async def read_one(gateway: Gateway, request: ReadOne, table: Table) -> Outcome:
    """Read a row by its key."""
    if (unserved := require_served(gateway.catalog.current, table)) is not None:
        return unserved
    require_key(table, request.key)
    lanes = table.kept(_lanes, request.select, gateway.max_answer_bytes)
    if lanes is not None:
        row = await gateway.gathered.read(lanes, gateway.caller, request.key, request.caller)
        if not isinstance(row, Alone):
            return _shown(table, request, row)
    try:
        async with (
            gateway.read_connection(request.caller, runs_code=table.reads_run_code) as connection,
            with_column(connection, table, key=request.key, query=Query(request.select)),
        ):
            with map_errors(writing=False):
                row = await reading.row(connection, table, request.key, request.select, gateway.max_answer_bytes)
    except reading.TooManyBytesError as error:
        return bad_request(str(error), "?select= takes fewer columns; FENCEPOST_MAX_ANSWER_BYTES.")
    return _shown(table, request, row)


def _lanes(table: Table, select: Select, most_bytes: int) -> ReadLanes | None:
    reading.check_select(table, select)
    return read_lanes(table, select, most_bytes)


def _shown(table: Table, request: ReadOne, row: FencedRow | None) -> Outcome:
    if row is None:
        return Problem(ROW_NOT_FOUND, f"There is no row {table.name}/{','.join(request.key)}.")
    return Done([row.json], shown_mark(table.fence.rule, row.mark) if table.fence else None)
