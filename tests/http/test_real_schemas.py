"""Schemas as they are: every protected table is read, put back as it was read, and read again."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import asyncpg
import pytest
from tests.http.conftest import StartGateway
from tests.support.asking import Api, code

from fencepost.storage.protecting.protect import ProtectError, protect

pytestmark = pytest.mark.versions

SCHEMAS = Path(__file__).parents[1] / "schemas"

WRITABLE = """
SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = $1::int8::oid AND a.attnum > 0 AND NOT a.attisdropped
   AND a.attgenerated = '' AND a.attidentity <> 'a' AND a.attname <> 'last_fence_token' ORDER BY a.attnum"""

TABLES = """
SELECT p.relation::oid::int8 AS oid, p.name, p.key_columns, p.relation::text AS sql_name FROM fencepost.protected p"""


class Schema:
    """A database with its tables protected, and a gateway on it."""

    def __init__(self, api: Api, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        self.api = api
        self.connection = connection
        self.token = 100

    def next_token(self) -> int:
        self.token += 1
        return self.token


@asynccontextmanager
async def served(database: str, sql: str, start_gateway: StartGateway) -> AsyncIterator[Schema]:
    """Load a schema, protect every table that has a primary key, serve it."""
    connection = await asyncpg.connect(database)
    try:
        await connection.execute(sql)
        found = await connection.fetch(
            "SELECT n.nspname || '.' || c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary"
            " WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition"
            " AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'fencepost')"
        )
        for row in found:
            await protect(connection, row[0])
        async with Api.open(await start_gateway(database, serve_unprotected=True)) as api:
            yield Schema(api, connection)
    finally:
        await connection.close()


def path_of(table: str, key_columns: list[str], row: dict[str, Any]) -> str:
    def text(value: object) -> str:
        return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)

    return f"data/{quote(table, safe='')}/" + ",".join(quote(text(row[name]), safe="") for name in key_columns)


def exact(content: bytes) -> Any:
    """Read JSON without losing digits."""
    return json.loads(content, parse_float=Decimal)


async def round_trip(schema: Schema) -> int:
    """GET, PUT the same back, GET: for each row of each protected table. Returns how many rows there were."""
    rows = 0
    for table in await schema.connection.fetch(TABLES):
        writable = [row[0] for row in await schema.connection.fetch(WRITABLE, table["oid"])]
        columns = quote(",".join('"' + name.replace('"', '\\"') + '"' for name in writable), safe="")
        listed = await schema.api.ask("GET", f"data/{quote(table['name'], safe='')}")
        assert listed.status_code == 200, listed.text
        for row in exact(listed.content):
            rows += 1
            path = path_of(table["name"], table["key_columns"], row)
            before = await schema.api.ask("GET", path)
            assert exact(before.content) == row, path
            token = schema.next_token()
            answer = await schema.api.ask(
                "PUT",
                f"{path}?columns={columns}",
                content=before.content,
                token=token,
                headers={"Content-Type": "application/json"},
            )
            assert answer.status_code == 200, answer.text
            assert answer.headers["x-fence-mark"] == str(token)
            after = await schema.api.ask("GET", path)
            assert ignoring_clock(exact(after.content)) == ignoring_clock(row), path
            await has_one_name(schema, path, token)
    return rows


def ignoring_clock(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "last_update"}


async def has_one_name(schema: Schema, path: str, token: int) -> None:
    """The name in a refusal, in a claim and in GET /v1/fences is one, and leads back to the row."""
    stale = await schema.api.ask("PATCH", path, {}, token=token - 1)
    assert code(stale) == (409, "FP001")
    resource = stale.json()["resource"]
    fence = await schema.api.ask("GET", f"fences?resource={quote(resource, safe='')}")
    assert (fence.json()["resource"], fence.json()["mark"]) == (resource, str(token))
    claim = await schema.api.ask("POST", "claims", {"resource": resource}, token=schema.next_token())
    assert (claim.status_code, claim.json()["resource"]) == (200, resource)
    assert claim.json()["row"] is not None


async def test_every_type_and_name_goes_round(database: str, start_gateway: StartGateway) -> None:
    async with served(database, (SCHEMAS / "real_world.sql").read_text(), start_gateway) as schema:
        assert await round_trip(schema) == 16
        for name in ("dotted.name", "public.dotted.name"):
            answer = await schema.api.ask("GET", f"data/{name}")
            assert answer.status_code == (404 if name == "dotted.name" else 200), "a dot reads like a schema"
        other = await schema.api.ask("GET", "data/Other%20Schema.every_type")
        assert other.json() == [{"id": 1, "v": "other"}]
        api = schema.api
        for view in ("calm", "counted"):
            assert (await api.ask("GET", f"data/{view}")).status_code == 200, view
            for method in ("POST", "PATCH", "DELETE"):
                query = "" if method == "POST" else "?n=eq.1"
                body: dict[str, object] | None = None if method == "DELETE" else {}
                assert code(await api.ask(method, f"data/{view}{query}", body, token=1)) == (403, "FP005"), method
        assert len((await api.ask("GET", "data/no_key")).json()) == 2
        assert code(await api.ask("POST", "data/no_key", {"a": 1}, token=1)) == (403, "FP005")
        for partition in ("readings_eu", "readings_eu_2025", "readings_rest"):
            assert code(await api.ask("GET", f"data/{partition}")) == (404, "FP007"), partition


async def test_columns_may_be_called_as_the_gateways_own(database: str, start_gateway: StartGateway) -> None:
    async with served(database, (SCHEMAS / "real_world.sql").read_text(), start_gateway) as schema:
        api, row = schema.api, (await schema.api.ask("GET", "data/r")).json()[0]
        path = path_of("r", ["mark", "k0", "token", "k1", "hits", "before", "what", "old"], row)
        other = {**row, "hits": 5, "x": 10, "ordinality": 20}
        made = await api.ask("POST", "data/r", [{**other, "hits": 6}, other], token=5)
        assert made.json() == [{**other, "hits": 6}, other]
        changed = await api.ask(
            "PATCH", "data/r?hits=gte.5", {"x": 1, "b": "c"}, token=6, prefer="return=representation"
        )
        assert changed.json() == [{**other, "x": 1, "b": "c"}, {**other, "hits": 6, "x": 1, "b": "c"}]
        assert len((await api.ask("PATCH", "data/r?hits=gte.5", {"w": 1}, token=6)).json()["rows"]) == 2
        assert (await api.ask("DELETE", "data/r?hits=gte.5", token=7)).status_code == 204
        assert (await api.ask("DELETE", path, token=7, prefer="return=representation")).json() == row
        assert (await api.ask("PUT", path, {"x": 3}, token=8)).json()["x"] == 3
        for body in ({"x": "many"}, {"ordinality": 2**40}):
            assert (await api.ask("PATCH", path, body, token=9)).json()["column"] == next(iter(body))


async def test_rows_of_partitioned_tables_are_written_through_the_parent(
    database: str, start_gateway: StartGateway
) -> None:
    async with served(database, (SCHEMAS / "real_world.sql").read_text(), start_gateway) as schema:
        api, made = schema.api, {"region": "eu", "at": "2025-07-07", "id": 9, "v": 1}
        assert (await api.ask("POST", "data/readings", made, token=5)).status_code == 201
        path = "data/readings/eu,2025-07-07,9"
        assert code(await api.ask("PATCH", path, {"v": 2}, token=4)) == (409, "FP001")
        assert (await api.ask("PATCH", path, {"v": 2}, token=6)).json()["v"] == 2
        assert (await api.ask("DELETE", path, token=7)).status_code == 204
        assert code(await api.ask("PUT", path, {"v": 3}, token=6)) == (409, "FP001")
        assert (await api.ask("PUT", path, {"v": 3}, token=8)).status_code == 201
        many = await api.ask("PATCH", "data/readings?id=lt.100", {"v": 0}, token=9, prefer="return=representation")
        assert len(many.json()) == 4
        for statement in ("TRUNCATE readings", "TRUNCATE readings_eu_2025", "UPDATE readings_rest SET v = 1"):
            with pytest.raises(asyncpg.PostgresError) as refused:
                await schema.connection.execute(statement)
            assert refused.value.sqlstate == "FP428", statement


async def test_a_table_with_two_hundred_columns(database: str, start_gateway: StartGateway) -> None:
    columns = ", ".join(f"c{n} int DEFAULT {n}" for n in range(199))
    sql = f"CREATE TABLE public.wide (id int PRIMARY KEY, {columns}); INSERT INTO public.wide VALUES (1)"
    async with served(database, sql, start_gateway) as schema:
        assert await round_trip(schema) == 1
        row = (await schema.api.ask("GET", "data/wide/1")).json()
        assert len(row) == 200
        changed = {name: value + 1 for name, value in row.items()}
        made = await schema.api.ask("POST", "data/wide", {**changed, "id": 2}, token=5)
        assert made.json() == [{**changed, "id": 2}]


@pytest.mark.parametrize("kind", ["s", "v"])
async def test_generated_columns(database: str, start_gateway: StartGateway, kind: str) -> None:
    connection = await asyncpg.connect(database)
    if kind == "v" and connection.get_server_version().major < 18:
        await connection.close()
        return  # PostgreSQL 15 has no virtual generated columns
    await connection.close()
    how = "STORED" if kind == "s" else "VIRTUAL"
    sql = f"CREATE TABLE public.t (id int PRIMARY KEY, n int, twice int GENERATED ALWAYS AS (n * 2) {how})"
    async with served(database, sql, start_gateway) as schema:
        api = schema.api
        assert (await api.ask("PUT", "data/t/1", {"n": 2}, token=5)).json() == {"id": 1, "n": 2, "twice": 4}
        assert (await api.ask("PATCH", "data/t/1", {"n": 3}, token=6)).json()["twice"] == 6
        assert (await api.ask("PUT", "data/t/1", {}, token=7)).json() == {"id": 1, "n": None, "twice": None}
        assert code(await api.ask("PATCH", "data/t/1", {"twice": 3}, token=8)) == (400, "428C9")
        assert (await api.ask("GET", "data/t?twice=is.null&select=twice")).json() == [{"twice": None}]


async def test_citext_columns_are_served_and_citext_keys_refused(database: str, start_gateway: StartGateway) -> None:
    connection = await asyncpg.connect(database)
    try:
        if not await connection.fetchval("SELECT EXISTS (SELECT FROM pg_available_extensions WHERE name = 'citext')"):
            return  # the embedded server has no extensions
        await connection.execute("CREATE EXTENSION citext SCHEMA public")
        await connection.execute("CREATE TABLE public.mails (mail public.citext PRIMARY KEY)")
        with pytest.raises(ProtectError, match="several texts"):
            await protect(connection, "mails")
        await connection.execute("DROP TABLE public.mails")
    finally:
        await connection.close()
    sql = (
        "CREATE TABLE public.people (id int PRIMARY KEY, mail public.citext);"
        "INSERT INTO public.people VALUES (1, 'A@b')"
    )
    async with served(database, sql, start_gateway) as schema:
        assert await round_trip(schema) == 1
        assert len((await schema.api.ask("GET", "data/people?mail=eq.a@B")).json()) == 1


async def test_the_shape_of_pagila(database: str, start_gateway: StartGateway) -> None:
    async with served(database, (SCHEMAS / "pagila_shape.sql").read_text(), start_gateway) as schema:
        assert await round_trip(schema) == 19
        api = schema.api
        film = await api.ask(
            "PATCH",
            "data/film/1",
            {
                "rating": "NC-17",
                "special_features": ["Trailers", "a,b"],
                "title": "DINOSAUR ACADEMY",
                "release_year": 1999,
            },
            token=schema.next_token(),
        )
        assert (film.json()["rating"], film.json()["special_features"]) == ("NC-17", ["Trailers", "a,b"])
        assert film.json()["fulltext"].startswith("'academi':2 'dinosaur':1"), "the table's own trigger ran"
        for body, expected in (
            ({"rating": "X"}, (400, "22P02")),
            ({"release_year": 1900}, (400, "23514")),
            ({"language_id": 99}, (409, "23503")),
            ({"rental_rate": 100}, (400, "22003")),
            ({"title": None}, (400, "23502")),
        ):
            assert code(await api.ask("PATCH", "data/film/1", body, token=schema.next_token())) == expected, body
        restricted = "23001" if schema.connection.get_server_version().major >= 18 else "23503"
        assert code(await api.ask("DELETE", "data/film/1", token=schema.next_token())) == (409, restricted)
        listed = await api.ask("GET", "data/film_list?rating=eq.NC-17&select=title,actors,category")
        assert listed.json()[0]["category"] == "Action"
        found = await api.ask("GET", "data/film?special_features=eq.%7BTrailers,%22a,b%22%7D&select=film_id")
        assert found.json() == [{"film_id": 1}]
        assert (await api.ask("DELETE", "data/film_actor/2,2", token=schema.next_token())).status_code == 204
        payment = {
            "customer_id": 1,
            "staff_id": 1,
            "rental_id": 1,
            "amount": 1.5,
            "payment_date": "2022-03-01T00:00:00Z",
        }
        made = await api.ask("POST", "data/payment", payment, token=schema.next_token())
        key = quote(f"{made.json()[0]['payment_date']},{made.json()[0]['payment_id']}", safe=",")
        assert (
            await api.ask("PATCH", f"data/payment/{key}", {"amount": 2}, token=schema.next_token())
        ).status_code == 200
        moved = await api.ask(
            "POST", "data/payment", {**payment, "payment_date": "2030-01-01"}, token=schema.next_token()
        )
        assert code(moved) == (400, "23514"), "no partition for it"
        assert (await api.ask("GET", "data/rental_by_category")).json()[0]["total_sales"] == 3.98
