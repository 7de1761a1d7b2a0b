"""What a query string selects, on real PostgreSQL, compared with the same filters evaluated in Python."""

import json
from typing import Any
from urllib.parse import quote_plus

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.filter_oracle import ORDERS, ROWS, THINGS, Leaf, Tree, ordered, quoted, trees
from tests.support.interleave import Connect, Connection

from fencepost.http.requests.query import parse_query
from fencepost.storage.statements.parameters import Bound, compiled
from fencepost.storage.statements.query_sql import render_filters, render_order, render_select
from fencepost.storage.tables.catalog import EVERYTHING, Table
from fencepost.storage.tables.load import load


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
    things: Things,
    filters: list[Leaf | Tree],
    order: list[tuple[str, str, str]],
    limit: int | None,
    offset: int | None,
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


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("n=eq.5", [1, 4]),
        ("n=eq.5&q=lt.50", [1]),
        ("n=not.eq.5", [2, 5, 6, 8]),
        ("n=not.in.(5,-3)", [5, 6]),
        ("n=in.()", []),
        ("n=not.in.()", [1, 2, 3, 4, 5, 6, 7, 8]),
        ('t=in.("")', [4]),
        ('t=in.("a,b \\"c\\" (d)",b)', [5, 8]),
        ("t=eq.a,b%20%22c%22%20(d)", [5]),
        ("t=like.*pple", [1, 2]),
        ("t=like.50\\%25*", [6]),
        ("t=ilike.APPLE", [1, 2]),
        ("c=eq.ab++", [1]),
        ("c=in.(ab,b)", [1, 8]),
        ("c=like.ab*", [1, 6]),
        ("b=is.true", [1, 6, 7]),
        ("b=not.is.true", [2, 3, 4, 5, 8]),
        ("b=is.unknown", [3, 4, 8]),
        ("m=gte.ok", [1, 2, 6, 8]),
        ("dm=eq.ok", [4, 5]),
        ("dm=in.(ok,sad)", [2, 4, 5, 7]),
        ("last_fence_token=gt.0", [1]),
        ("or=(n.is.null,and(n.eq.5,not.q.lt.50))", [3, 4, 7]),
        ("not.or=(n.eq.5,b.is.true)", [2, 5, 8]),
        ("j->>k=eq.x", [1, 7]),
        ("j->>k=in.(x,y)", [1, 2, 7]),
        ("j->>k=like.*", [1, 2, 7]),
        ("j->k=eq.null", [6]),
        ("j->>k=is.null", [3, 4, 5, 6, 8]),
        ("j->k=is.null", [3, 4, 5, 8]),
        ('j->k=in.("\\"y\\"")', [2]),
        ("j->n=gt.6", [2]),
        ("j->list->0=eq.1", [1]),
        ("j->1=eq.20", [4]),
        ("j->>-1=eq.30", [4]),
        ("j->5=not.is.null", []),
        ('j->>"5"=eq.five', [1]),
        ("order=j->>k.desc.nullslast&limit=3", [2, 1, 7]),
        ("order=m.desc,id.desc&limit=4&m=not.is.null", [6, 2, 8, 1]),
    ],
)
async def test_a_query_selects_what_postgrest_would(things: Things, raw: str, expected: list[int]) -> None:
    assert await things.ids(raw) == expected


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("select=n,number:n,t::text", {"n": 5, "number": 5, "t": "apple"}),
        ("select=last_fence_token", {"last_fence_token": "9007199254740993"}),
        ("select=mark:last_fence_token,q::int", {"mark": "9007199254740993", "q": 2}),
        ("select=j->k,j->>list,j->list->0", {"k": "x", "list": 1}),
        ("select=j->list->1->z,first:j->list->>0", {"z": None, "first": "1"}),
        ("select=n::numeric(4,1),q::double precision,b::text", {"n": 5.0, "q": 1.5, "b": "true"}),
        ('select="a \\"b\\" é":id', {'a "b" é': 1}),
    ],
)
async def test_selected_columns_are_named_and_cast(things: Things, raw: str, expected: dict[str, Any]) -> None:
    (row,) = await things.rows(raw + "&id=eq.1")
    assert row == expected


async def test_a_star_leaves_out_the_mark(things: Things) -> None:
    (row,) = await things.rows("id=eq.4")
    assert set(row) == {"id", "n", "q", "t", "c", "b", "m", "dm", "j"}
    (row,) = await things.rows("select=*,last_fence_token&id=eq.4")
    assert row["last_fence_token"] == "0"


@pytest.mark.parametrize(
    ("raw", "sqlstate"),
    [
        ("n=like.5*", "42883"),
        ("m=ilike.ok", "42883"),
        ("dm=like.ok", "42883"),
        ("j=like.x", "42883"),
        ("n=eq.x", "22P02"),
        ("n=in.(1,x)", "22P02"),
        ("n=gt.2147483648", "22003"),
        ("m=eq.angry", "22P02"),
        ("n=is.true", "42804"),
        ("t=like.a\\", "22025"),
        ("j->k=eq.x", "22P02"),
        ("select=n::public.mood[]", "42846"),
        ("select=t::int", "22P02"),
    ],
)
async def test_what_makes_no_sense_is_refused_by_postgresql(things: Things, raw: str, sqlstate: str) -> None:
    with pytest.raises(asyncpg.PostgresError) as caught:
        await things.rows(raw)
    assert caught.value.sqlstate == sqlstate


ODD_TYPES = """
CREATE SCHEMA odd;
CREATE TYPE odd."My \"\"Type\"\"\" AS ENUM ('q');
CREATE TYPE kind AS ENUM ('small', 'Big one');
CREATE TYPE pair AS (a int, b text);
CREATE DOMAIN over_int AS int CHECK (value > 0);
CREATE DOMAIN over_domain AS over_int;
CREATE DOMAIN over_varchar AS varchar(3);
CREATE DOMAIN over_kind AS kind;
CREATE DOMAIN over_kind_domain AS over_kind;
CREATE DOMAIN over_array AS int[];
CREATE DOMAIN over_range AS int4range;
CREATE DOMAIN over_pair AS pair;
"""
TYPES = [
    ("smallint", "7"),
    ("bigint", "9007199254740993"),
    ("numeric(5,2)", "1.50"),
    ("double precision", "0.1"),
    ("text", "a'b\\"),
    ("varchar(3)", "abc"),
    ("char(5)", "ab"),
    ('"char"', "x"),
    ("name", "x y"),
    ("bytea", "\\x00ff"),
    ("boolean", "t"),
    ("uuid", "6ECD8C99-4036-403D-BF84-CF8400F67836"),
    ("date", "2026-02-28"),
    ("timestamptz(3)", "2026-02-28 12:00:00.5+01"),
    ("interval", "25:00:00"),
    ("jsonb", '{"a": [1, null]}'),
    ("inet", "10.0.0.1/8"),
    ("bit(3)", "101"),
    ("varbit", "10"),
    ("int4range", "[1,2]"),
    ("int[]", "{1,NULL,3}"),
    ("text[]", '{"a,b","c\\"d"}'),
    ("kind", "Big one"),
    ("kind[]", '{"Big one"}'),
    ("pair", '(1,"x,y")'),
    ("over_int", "5"),
    ("over_domain", "5"),
    ("over_varchar", "abc"),
    ("over_kind", "Big one"),
    ("over_kind_domain", "Big one"),
    ("over_array", "{1,2}"),
    ("over_range", "[1,3)"),
    ("over_pair", "(1,x)"),
    ("over_int[]", "{1,2}"),
    ('odd."My ""Type"""', "q"),
]


@pytest.mark.parametrize(("type_", "value"), TYPES)
async def test_values_of_every_type_are_found_by_eq_and_in_and_the_index_serves_both(
    connect: Connect, type_: str, value: str
) -> None:
    connection = await connect()
    await connection.execute("SET search_path = public")
    await connection.execute(ODD_TYPES)
    await connection.execute(f'CREATE TABLE "T" (id int PRIMARY KEY, "The Value" {type_} UNIQUE)')
    await connection.execute(f'INSERT INTO "T" SELECT 1, CAST($1::text AS {type_})', value)
    await connection.execute('INSERT INTO "T" VALUES (2, NULL)')
    table = Things(connection, (await load(connection, EVERYTHING, 1)).tables["T"])
    for raw in (f"The Value=eq.{quote_plus(value)}", f"The Value=in.({quote_plus(quoted(value))})"):
        assert await table.ids(raw) == [1], raw
        bound = Bound()
        where = render_filters(table.table, parse_query(raw.encode()).filters, bound)
        await connection.execute("SET enable_seqscan = off")
        explain = compiled(f'EXPLAIN SELECT 1 FROM "T" r WHERE {where}', bound.parameters)
        plan = await explain.fetch(connection, None)
        assert any("Index Cond" in line[0] for line in plan), plan
    assert await table.ids(f"The Value=neq.{quote_plus(value)}") == []
    assert await table.ids("order=The Value.desc.nullsfirst") == [2, 1]
