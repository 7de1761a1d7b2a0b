"""What a gateway serves: protected tables only, unless a setting says otherwise, and of them those that are named."""

import asyncpg
import httpx
import pytest
from tests.http.conftest import StartGateway

from fencepost.server.ops.protect import protect
from fencepost.testing.servers.processes import PATIENCE

SQL = """
CREATE TABLE public.plain (id int PRIMARY KEY, note text);
INSERT INTO public.plain VALUES (1, 'not for all');
CREATE VIEW public.shown AS SELECT order_id FROM public.orders;
CREATE SCHEMA sales;
CREATE TABLE sales.leads (id int PRIMARY KEY, note text);
INSERT INTO sales.leads VALUES (1, 'lead');
"""


@pytest.fixture
async def tables(demo_database: str) -> str:
    connection = await asyncpg.connect(demo_database)
    try:
        await connection.execute(SQL)
        await protect(connection, "sales.leads")
    finally:
        await connection.close()
    return demo_database


def reading(base_url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=base_url, timeout=PATIENCE, trust_env=False)


async def test_what_is_not_protected_is_not_read_nor_shown_until_it_is(
    tables: str, start_gateway: StartGateway
) -> None:
    async with reading(await start_gateway(tables)) as http:
        for path in ("plain", "plain/1", "shown", "public.plain"):
            answer = await http.get(f"/v1/data/{path}")
            assert (answer.status_code, answer.json()["code"]) == (403, "FP005"), path
            assert "not for all" not in answer.text, path
            assert "FENCEPOST_SERVE_UNPROTECTED" in answer.json()["hint"], path
        paths = (await http.get("/openapi.json")).json()["paths"]
        index = (await http.get("/")).text
        assert "/v1/data/orders" in paths
        assert not {"/v1/data/plain", "/v1/data/shown"} & set(paths)
        assert ">orders<" in index
        assert ">plain<" not in index
        # The picture of the tables may be old: the refusal is looked into before it is given.
        connection = await asyncpg.connect(tables)
        try:
            await protect(connection, "plain")
        finally:
            await connection.close()
        assert (await http.get("/v1/data/plain")).status_code == 200


async def test_only_the_tables_of_the_list_are_there(tables: str, start_gateway: StartGateway) -> None:
    async with reading(await start_gateway(tables, tables=" public.orders ,shown", serve_unprotected=True)) as http:
        for path in ("orders?limit=1", "public.orders?limit=1", "shown?limit=1"):
            assert (await http.get(f"/v1/data/{path}")).status_code == 200, path
        for path in ("sales.leads", "plain"):
            answer = await http.get(f"/v1/data/{path}")
            assert (answer.status_code, answer.json()["code"]) == (404, "FP007"), path
        write = await http.patch("/v1/data/sales.leads/1", headers={"X-Fence-Token": "9"}, json={"note": "mine"})
        claim = await http.post("/v1/claims", headers={"X-Fence-Token": "9"}, json={"resource": "sales.leads/1"})
        assert {write.status_code, claim.status_code} == {404}
        paths = set((await http.get("/openapi.json")).json()["paths"])
        assert paths & {"/v1/data/sales.leads", "/v1/data/plain"} == set()
        # Requests for other tables do not have the catalog loaded.
        before = loads(await http.get("/metrics"))
        assert (await http.get("/v1/data/sales.leads")).status_code == 404
        assert loads(await http.get("/metrics")) == before


async def test_what_is_to_be_served_and_is_not_there_is_named_at_the_start(
    tables: str, start_gateway: StartGateway, capfd: pytest.CaptureFixture[str]
) -> None:
    async with reading(await start_gateway(tables, tables="public.orders,nope", schemas="public,none,shop")) as http:
        assert (await http.get("/v1/data/orders?limit=1")).status_code == 200
    written = capfd.readouterr().err
    assert "--tables: there is nothing to serve yet of nope " in written
    assert "--schemas: there is nothing to serve yet of none, shop " in written


def loads(metrics: httpx.Response) -> str:
    return next(line for line in metrics.text.splitlines() if line.startswith("fencepost_catalog_loads_total"))
