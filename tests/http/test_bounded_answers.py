"""What a read may ask for: types that a value is cast to, how many columns and patterns, how many bytes."""

from collections.abc import AsyncIterator

import asyncpg
import httpx
import pytest
from tests.http.conftest import StartGateway
from tests.scenarios.shop import Shop
from tests.support.asking import Api

from fencepost.storage.statements import reading
from fencepost.testing.servers.waiting import PATIENCE


def detail(answer: httpx.Response) -> str:
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (400, "FP016"), answer.text
    return str(problem["detail"])


async def test_values_are_cast_to_types_of_the_list(api: Api, shop: Shop) -> None:
    kinds = (
        "text", "varchar(255)", "char(3)", "CHARACTER VARYING", "jsonb", "numeric(10,2)", "double precision", "text[]",
        "timestamp(3) with time zone", "pg_catalog.text", "pg_catalog.timestamptz",
    )  # fmt: skip
    for kind in kinds:
        value = "'2026-11-23'" if "time" in kind else "'{1}'" if "[]" in kind else "'1'"
        await shop.sql("CREATE TABLE IF NOT EXISTS public.castable (id text PRIMARY KEY, v text)")
        await shop.sql(f"INSERT INTO public.castable VALUES ('{kind}', {value})")
        answer = await api.ask(
            "GET", "data/castable?" + str(httpx.QueryParams({"select": f"v::{kind}", "id": f"eq.{kind}"}))
        )
        assert (answer.status_code, len(answer.json())) == (200, 1), answer.text


async def test_other_types_are_refused_by_name(api: Api) -> None:
    kinds = (
        "regclass", "_regclass", "regclass[]", "pg_catalog.regrole", "REGPROC", "_regtype", "unknown", "anyelement",
        "record", "cstring", "internal", "void", "oid", "xid", "name", "pg_lsn", "tsvector", "xml", "public.nothing",
        "trigger", "pg_node_tree", "information_schema.sql_identifier",
    )  # fmt: skip
    for kind in kinds:
        for path in ("data/orders", "data/orders/none"):
            answer = await api.ask("GET", f"{path}?select=order_id::{kind}")
            assert f"nothing can be cast to {kind} here" in detail(answer), kind


async def test_a_value_is_padded_to_no_large_length(api: Api) -> None:
    for kind in ("char(256)", "char(9999)", "varchar(1000)", "bit(9999)", "numeric(1000,1000)", "numeric(9,256)"):
        assert "the numbers in brackets are 255 at most" in detail(
            await api.ask("GET", f"data/orders?select=status::{kind}")
        ), kind


async def test_so_many_patterns_are_looked_for(api: Api) -> None:
    def asked(operator: str, count: int) -> str:
        alternatives = ",".join(f"order_id.{operator}.*x{each}y*" for each in range(count - 1))
        return f"data/orders?status={operator}.a*&or=(and({alternatives}),status.eq.b)"

    for operator in ("like", "ilike", "not.ilike"):
        assert "21 filters by like and ilike; at most 20" in detail(await api.ask("GET", asked(operator, 21))), operator
        assert (await api.ask("GET", asked(operator, 20))).status_code == 200, operator


@pytest.fixture
async def small(demo_database: str, start_gateway: StartGateway) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a gateway whose answers have 1000 bytes at most."""
    url = await start_gateway(demo_database, max_answer_bytes=1000, serve_unprotected=True)
    async with httpx.AsyncClient(base_url=f"{url}/v1", timeout=PATIENCE, trust_env=False) as client:
        yield client


async def test_an_answer_has_so_many_bytes(small: httpx.AsyncClient) -> None:
    def asked(count: int) -> str:
        return "data/orders?limit=1&select=" + ",".join(f"a{each}:status::char(200)" for each in range(count))

    assert (await small.get(asked(4))).status_code == 200
    answer = await small.get(asked(5))
    assert detail(answer) == "The rows have more than 1000 bytes."
    assert "FENCEPOST_MAX_ANSWER_BYTES" in answer.json()["hint"]


async def test_what_is_too_much_is_not_computed_to_its_end(small: httpx.AsyncClient, demo_database: str) -> None:
    """Rows are fetched piece by piece: five thousand would be made for nothing."""
    owner = await asyncpg.connect(demo_database)
    await owner.execute(
        "CREATE SEQUENCE public.made; CREATE TABLE public.many AS SELECT n FROM generate_series(1, 5000) n"
    )
    await owner.execute("CREATE VIEW public.counted AS SELECT n, nextval('public.made') AS made FROM public.many")

    async def made() -> int:
        count: int = await owner.fetchval("SELECT last_value FROM public.made")
        return count

    assert "more than 1000 bytes" in detail(await small.get("data/counted"))
    assert await made() <= reading.PIECE + 1  # PostgreSQL looks one row ahead
    assert (await small.get("data/counted?limit=3")).json()[2]["made"] == await made()
    await owner.close()


async def test_pieces_make_a_whole(demo_database: str, start_gateway: StartGateway) -> None:
    owner = await asyncpg.connect(demo_database)
    counts = (499, 500, 501, 1000, 1203)
    for count in counts:
        await owner.execute(f"CREATE TABLE public.pieces_{count} AS SELECT n FROM generate_series(1, {count}) n")
    url = await start_gateway(demo_database, serve_unprotected=True)
    async with httpx.AsyncClient(base_url=f"{url}/v1", timeout=PATIENCE, trust_env=False) as client:
        for count in counts:
            answer = await client.get(f"data/pieces_{count}?order=n.desc", headers={"Prefer": "count=exact"})
            assert [row["n"] for row in answer.json()] == list(range(count, 0, -1))
            assert answer.headers["content-range"] == f"0-{count - 1}/{count}"
            part = await client.get(f"data/pieces_{count}?order=n&offset=1&limit=700")
            assert [row["n"] for row in part.json()] == list(range(2, min(count, 701) + 1))
    await owner.close()


async def test_all_pieces_have_the_time_of_one_statement(demo_database: str, start_gateway: StartGateway) -> None:
    owner = await asyncpg.connect(demo_database)
    await owner.execute("CREATE TABLE public.slow AS SELECT n FROM generate_series(1, 5000) n")
    slow = "CASE WHEN n % 500 = 1 THEN pg_sleep(0.4)::text END"
    await owner.execute(f"CREATE VIEW public.slowly AS SELECT n, {slow} AS s FROM public.slow")
    url = await start_gateway(demo_database, statement_timeout=1, serve_unprotected=True)
    async with httpx.AsyncClient(base_url=f"{url}/v1", timeout=PATIENCE, trust_env=False) as client:
        late = await client.get("data/slowly")
        assert (late.status_code, late.json()["code"]) == (503, "57014")
    await owner.close()
