"""Names the column whose value PostgreSQL could not take: its message has the value and the type, not the column.

Asked only after a refusal: each value is converted alone, and the one that fails is it. Some extensions' types (hstore,
PostGIS's) call a text that they cannot read an internal error: with a culprit it is none.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager

from fencepost.server.gateway.writes.write import NO_BODY, Body
from fencepost.server.postgres.connection import Connection
from fencepost.server.postgres.errors import RefusedError, map_errors
from fencepost.server.postgres.marks import converts_key, converts_text, converts_value
from fencepost.server.postgres.query import CAST, NO_QUERY, Condition, Filter, Query, Selected, cast_type
from fencepost.server.postgres.row_sql import Key
from fencepost.server.postgres.tables import Table


@asynccontextmanager
async def with_column(
    connection: Connection, table: Table, body: Body = NO_BODY, key: Key = (), query: Query = NO_QUERY
) -> AsyncIterator[None]:
    """Add the column's name to a data exception (SQLSTATE class 22, a domain's 23514 or 23502) that lacks it."""
    try:
        yield
    except RefusedError as error:
        if _lacks_column(error):
            with map_errors(writing=False):
                culprit = await _culprit(connection, table, body, key, query)
            if culprit is None and error.is_internal:
                culprit = _cast_elsewhere(table, query)
            if culprit is not None:
                error.blame(culprit)
        raise


def _lacks_column(error: RefusedError) -> bool:
    # A domain's refusal is a constraint violation without a table; a table's own names its column. 22P05 is a NUL in
    # the body's JSON, over which PostgreSQL stumbles whatever column it is asked for.
    of_a_domain = error.sqlstate in ("23514", "23502") and error.table is None
    of_a_value = error.may_be_of_a_value and error.sqlstate != "22P05"
    return error.column is None and (of_a_value or of_a_domain)


async def _culprit(connection: Connection, table: Table, body: Body, key: Key, query: Query) -> str | None:
    for position, name in enumerate(table.key if key else ()):
        if not await converts_key(connection, table, position, key[position]):
            return name
    for name in body.columns:
        if name in table.columns and not await converts_value(connection, table, name, body.text):
            return name
    for each in _conditions(query.filters):
        if not await converts_text(connection, table, each.field.column, each.value):
            return each.field.column
    return None


def _cast_elsewhere(table: Table, query: Query) -> str | None:
    """Find what is cast to a type outside of pg_catalog: how that fails is the type's own matter."""
    for item in query.select or ():
        if isinstance(item, Selected) and item.cast is not None and "." in cast_type(table, item.cast):
            return item.field.column
    return None


def _conditions(filters: Sequence[Filter]) -> Iterator[Condition]:
    """List the conditions whose values are cast to the types of their columns."""
    for each in filters:
        if not isinstance(each, Condition):
            yield from _conditions(each.members)
        elif not each.field.path and each.operator in CAST:
            yield each
