"""What a read may ask for: types that a value is cast to, how many columns and patterns, how many bytes."""

import itertools
from collections.abc import AsyncIterator

import asyncpg
import httpx
import pytest
from tests.http.conftest import StartGateway
from tests.support.asking import Api
from tests.support.gateways import in_process
from tests.support.shops import Shop

from fencepost.server.ops.protect import protect
from fencepost.server.postgres import reading
from fencepost.testing.servers.processes import PATIENCE

TOKENS = itertools.count(10)


def detail(answer: httpx.Response) -> str:
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (400, "FP016"), answer.text
    return str(problem["detail"])


async def test_values_are_cast_to_types_of_the_list(api: Api, shop: Shop) -> None:
    kinds = (
        "varchar(255)", "CHARACTER VARYING", "jsonb", "numeric(10,2)", "text[]", "timestamp(3) with time zone",
        "pg_catalog.timestamptz",
    )  # fmt: skip
    await shop.sql("CREATE TABLE public.castable (id text PRIMARY KEY, v text)")
    for kind in kinds:
        value = "'2026-11-23'" if "time" in kind else "'{1}'" if "[]" in kind else "'1'"
        await shop.sql(f"INSERT INTO public.castable VALUES ('{kind}', {value})")
        answer = await api.ask(
            "GET", "data/castable?" + str(httpx.QueryParams({"select": f"v::{kind}", "id": f"eq.{kind}"}))
        )
        assert (answer.status_code, len(answer.json())) == (200, 1), answer.text


async def test_other_types_are_refused_by_name(api: Api) -> None:
    kinds = (
        "regclass", "_regclass", "regclass[]", "pg_catalog.regclass", "pg_catalog.regrole", "REGPROC", "anyelement",
        "oid", "name", "xml", "unknown", "public.nothing", "information_schema.sql_identifier",
    )  # fmt: skip
    for kind in kinds:
        answer = await api.ask("GET", f"data/orders?select=order_id::{kind}")
        assert f"nothing can be cast to {kind} here" in detail(answer), kind
    for kind in ("char(256)", "varchar(1000)", "numeric(9,256)"):
        assert "the numbers in brackets are 255 at most" in detail(
            await api.ask("GET", f"data/orders?select=status::{kind}")
        ), kind
    assert "it takes no cast" in detail(await api.ask("GET", "data/orders?select=last_fence_token::bigint"))


async def test_so_many_patterns_are_looked_for(api: Api) -> None:
    def asked(operator: str, count: int) -> str:
        alternatives = ",".join(f"order_id.{operator}.*x{each}y*" for each in range(count - 1))
        return f"data/orders?status={operator}.a*&or=(and({alternatives}),status.eq.b)"

    for operator in ("like", "ilike", "not.ilike"):
        assert "21 filters by like and ilike; at most 20" in detail(await api.ask("GET", asked(operator, 21))), operator
        assert (await api.ask("GET", asked(operator, 20))).status_code == 200, operator


@pytest.fixture
async def small(shop: Shop, start_gateway: StartGateway) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a gateway whose answers have 1000 bytes at most."""
    url = await start_gateway(shop.dsn, max_answer_bytes=1000, serve_unprotected=True)
    async with httpx.AsyncClient(base_url=f"{url}/v1", timeout=PATIENCE, trust_env=False) as client:
        yield client


async def test_an_answer_has_so_many_bytes(small: httpx.AsyncClient, shop: Shop) -> None:
    """Rows are fetched piece by piece: of what is too much, five thousand would be made for nothing."""

    def asked(count: int) -> str:
        return f"data/orders?order_id=eq.{key}&select=" + ",".join(
            f"a{each}:status::char(200)" for each in range(count)
        )

    key = await shop.order()
    assert (await small.get(asked(4))).status_code == 200
    answer = await small.get(asked(5))
    assert detail(answer) == "The rows have more than 1000 bytes."
    assert "FENCEPOST_MAX_ANSWER_BYTES" in answer.json()["hint"]
    await shop.sql("CREATE SEQUENCE public.drawn")
    await shop.sql("CREATE TABLE public.many AS SELECT n FROM generate_series(1, 5000) n")
    await shop.sql("CREATE VIEW public.counted AS SELECT n, nextval('public.drawn') AS drawn FROM public.many")
    assert "more than 1000 bytes" in detail(await small.get("data/counted"))
    (row,) = await shop.sql("SELECT last_value FROM public.drawn")
    assert row[0] <= reading.PIECE + 1  # PostgreSQL looks one row ahead
    assert (await small.get("data/counted?limit=3")).json()[2]["drawn"] > row[0]


async def test_what_is_named_too_often_is_not_made_so_often(small: httpx.AsyncClient, shop: Shop) -> None:
    """By 250 names a short request could have PostgreSQL build a gigabyte of one row, to find out that it is too much.
    What a value becomes as JSON counts: the type's own cast makes it here, and draws a number each time.
    """
    await shop.sql("CREATE SEQUENCE public.made_json")
    await shop.sql("CREATE TYPE public.short AS ENUM ('a')")
    made = "SELECT json_build_object('x', repeat('y', 300), 'made', nextval('public.made_json'))"
    await shop.sql(f"CREATE FUNCTION public.long(public.short) RETURNS json LANGUAGE sql AS $$ {made} $$")
    await shop.sql("CREATE CAST (public.short AS json) WITH FUNCTION public.long(public.short)")
    await shop.sql("CREATE TABLE public.expanding (id int PRIMARY KEY, c public.short)")
    await shop.sql("INSERT INTO public.expanding VALUES (1, 'a')")
    for path in ("data/expanding?limit=1&", "data/expanding/1?"):
        for name in ("c", "c->x", "c->>x"):
            select = ",".join(f"a{n}:{name}" for n in range(20))
            assert detail(await small.get(f"{path}select={select}")) == "The rows have more than 1000 bytes."
            assert (await small.get(f"{path}select=a:{name},b:{name}")).status_code == 200
    (row,) = await shop.sql("SELECT last_value FROM public.made_json")
    assert row[0] <= 6 * (1 + 3), "once for each refusal, once more than it is shown for each answer"


async def test_what_casts_make_on_their_way_counts(small: httpx.AsyncClient, shop: Shop) -> None:
    """`varchar(1)` shows one digit of a number, and makes all 400 before. A text that becomes jsonb has them then."""
    await shop.sql("CREATE TABLE public.cast_away (id int PRIMARY KEY, j jsonb, t text, o json, n int)")
    await shop.sql(
        "INSERT INTO public.cast_away VALUES"
        """ (1, '[1e400]', '[1e400]', '{"s": "[1e400]"}', 7), (2, '{}', '{1\\e1200}', '{"s": "[1e400, 1E+800]"}', 7)"""
    )
    owner = await asyncpg.connect(shop.dsn)
    await protect(owner, "cast_away")
    await owner.close()
    few, many = (",".join(f"a{n}:j::varchar({n})" for n in range(1, most)) for most in (3, 4))
    for select in (few, "t::jsonb", "o->>s::jsonb", "n::numeric,m:n::text", "j::jsonb"):
        for answer in (await small.get(f"data/cast_away/1?select={select}"), await patched(small, select)):
            assert answer.status_code == 200, answer.text
    for path in (f"1?select={many}", "2?select=t::numeric[]", "2?select=o->>s::jsonb"):
        assert detail(await small.get(f"data/cast_away/{path}")) == "The rows have more than 1000 bytes."
    assert detail(await patched(small, many)) == "The rows have more than 1000 bytes."


async def patched(client: httpx.AsyncClient, select: str) -> httpx.Response:
    token = next(TOKENS)
    path = f"data/cast_away?id=eq.1&select={select}" if ">" not in select else "data/cast_away?id=eq.1"
    headers = {"X-Fence-Token": str(token), "Prefer": "return=representation"}
    return await client.patch(path, json={"n": token}, headers=headers)


async def test_pieces_make_a_whole_and_have_the_time_of_one_statement(database: str) -> None:
    owner = await asyncpg.connect(database)
    counts = (499, 500, 501, 1203)
    for count in counts:
        await owner.execute(f"CREATE TABLE public.pieces_{count} AS SELECT n FROM generate_series(1, {count}) n")
    slow = "CASE WHEN n % 500 = 1 THEN pg_sleep(0.5)::text END"
    await owner.execute(f"CREATE VIEW public.slowly AS SELECT n, {slow} AS s FROM generate_series(1, 5000) n")
    await owner.close()
    async with in_process(database, serve_unprotected=True, statement_timeout=2) as client:
        for count in counts:
            path = f"/v1/data/pieces_{count}"
            answer = await client.get(f"{path}?order=n.desc", headers={"Prefer": "count=exact"})
            assert [row["n"] for row in answer.json()] == list(range(count, 0, -1))
            assert answer.headers["content-range"] == f"0-{count - 1}/{count}"
            part = await client.get(f"{path}?order=n&offset=1&limit=700")
            assert [row["n"] for row in part.json()] == list(range(2, min(count, 701) + 1))
        late = await client.get("/v1/data/slowly")
        assert (late.status_code, late.json()["code"]) == (503, "57014")
