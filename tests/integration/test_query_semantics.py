"""What a query string selects, on real PostgreSQL, compared with the same filters evaluated in Python."""

import json
from typing import Any
from urllib.parse import quote_plus

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.filter_oracle import ORDERS, ROWS, THINGS, Leaf, Tree, ordered, trees
from tests.support.interleave import Connect, Connection

from fencepost.server.http.query import parse_query
from fencepost.server.postgres.catalog_cache import load
from fencepost.server.postgres.query import render_filters, render_order, render_select
from fencepost.server.postgres.row_sql import Bound, compiled
from fencepost.server.postgres.tables import EVERYTHING, Table


class Things:
    """The table, and the question that each test asks of it."""

    def __init__(self, connection: Connection, table: Table) -> None:
        self.connection = connection
        self.table = table

    async def rows(self, raw: str) -> list[dict[str, Any]]:
        query, bound = parse_query(raw.encode()), Bound()
        target = render_select(self.table, query.select, bound)
        where = render_filters(self.table, query.filters, bound)
        order = render_order(self.table, query.order, bound)
        by = f"{order}, r.id" if order else "r.id"
        sql = (
            f"SELECT row_to_json(x) FROM (SELECT {target} FROM {self.table.sql_name} r WHERE {where}"
            f" ORDER BY {by} LIMIT {'ALL' if query.limit is None else query.limit} OFFSET {query.offset}) x"
        )
        return [json.loads(row[0]) for row in await compiled(sql, bound.parameters).fetch(self.connection, None)]

    async def ids(self, raw: str) -> list[int]:
        return [row["id"] for row in await self.rows(raw)]


@pytest.fixture
async def things(connect: Connect) -> Things:
    connection = await connect()
    await connection.execute("SET search_path = public")  # else a user called fencepost creates in its own schema
    await connection.execute(THINGS)
    return Things(connection, (await load(connection, EVERYTHING, 1)).tables["things"])


@given(
    filters=st.lists(trees(), max_size=3),
    order=ORDERS,
    limit=st.none() | st.integers(0, 9),
    offset=st.none() | st.integers(0, 9),
)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_random_queries_select_what_the_oracle_selects(
    things: Things, filters: list[Leaf | Tree], order: list[tuple[str, str, str]], limit: int | None, offset: int | None
) -> None:
    pairs = [each.pair() if isinstance(each, Leaf) else ("and", f"({each.text()})") for each in filters]
    if order:
        pairs.append(("order", ",".join("".join(term) for term in order)))
    if limit is not None:
        pairs.append(("limit", str(limit)))
    if offset is not None:
        pairs.append(("offset", str(offset)))
    chosen = [row for row in ROWS if all(each.holds(row) is True for each in filters)]
    start = offset or 0
    expected = ordered(chosen, order)[start:][: len(ROWS) if limit is None else limit]
    raw = "&".join(f"{name}={quote_plus(value)}" for name, value in pairs)
    assert await things.ids(raw) == [row["id"] for row in expected]
