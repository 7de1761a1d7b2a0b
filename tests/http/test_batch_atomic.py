"""A batch that lands as a whole, or not at all: `POST /v1/batch?atomic=true`."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import httpx
import pytest
from tests.http.conftest import StartGateway
from tests.support.gateways import DemoGateway, demo_gateway
from tests.support.interleave import blocks_another_session, start
from tests.support.postgres import ReadyMade
from tests.support.use_cases import patch_line

from fencepost.testing.servers.processes import PATIENCE

SENT = {"Content-Type": "application/x-ndjson"}
A, B, C = "order-123", "order-124", "order-125"
LAST = {"method": "PATCH", "path": f"orders/{C}?select=note", "token": 2001, "body": {"note": "all"}}
KINDS: list[dict[str, Any]] = [
    patch_line(A, 2001, note="all"),
    {"method": "PUT", "path": f"orders/{B}", "token": 2001, "body": {"status": "paid", "note": "all"}},
    {"claim": "orders/order-900", "token": 2001},
    {"method": "POST", "path": "orders", "token": 2002, "body": [{"order_id": "order-901", "status": "new"}]},
    {"method": "PATCH", "path": "orders?order_id=eq.order-901", "token": 2003, "body": {"note": "all"}},
    {"method": "DELETE", "path": "orders/order-901", "token": 2004},
    LAST,
]
STATE = "SELECT order_id, status, note, last_fence_token FROM orders ORDER BY 1"
MARKS = "SELECT resource, last_fence_token FROM fencepost.marks ORDER BY 1"


@pytest.fixture(scope="module")
def shared(databases: ReadyMade) -> Iterator[DemoGateway]:
    """Give a gateway with one connection: a batch takes no other while it has it."""
    with demo_gateway(databases, pool_size=1, max_answer_bytes=2000, lock_timeout=60) as gateway:
        yield gateway


async def send(http: httpx.AsyncClient, lines: list[Any], query: str = "atomic=true") -> httpx.Response:
    body = "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
    return await http.post(f"/v1/batch?{query}", content=body, headers=SENT)


async def kept(dsn: str) -> list[Any]:
    connection = await asyncpg.connect(dsn)
    try:
        return [tuple(row) for sql in (STATE, MARKS) for row in await connection.fetch(sql)]
    finally:
        await connection.close()


async def test_all_lines_land(http: httpx.AsyncClient) -> None:
    answer = await send(http, ["\n", *KINDS])
    assert answer.status_code == 200
    verdicts = [json.loads(line) for line in answer.text.splitlines()]
    assert [verdict["status"] for verdict in verdicts] == [200, 200, 200, 201, 204, 204, 200]
    assert [verdict["number"] for verdict in verdicts] == list(range(2, 9))
    assert verdicts[-1] == {"number": 8, "status": 200, "mark": "2001", "body": {"note": "all"}}


@pytest.mark.parametrize(
    ("line", "status", "code"),
    [
        (patch_line(C, 1, note="stale"), 409, "FP001"),
        (patch_line(A, 2001, note="the token of line 1"), 409, "FP002"),
        ({"method": "POST", "path": "orders", "token": 1, "body": {"order_id": B, "status": "new"}}, 409, "FP001"),
        ({"method": "DELETE", "path": f"orders/{C}", "token": 2000}, 409, "FP001"),
        ({"method": "DELETE", "path": f"orders/{C}", "token": 2001}, 409, "FP002"),
        (patch_line("none", 2001, note="x"), 404, "FP006"),
        (patch_line(C, 2002, status="no such state"), 400, "23514"),
        ({"claim": "orders/order-124", "token": 1}, 409, "FP001"),
        ({**LAST, "path": "orders?status=eq.new", "prefer": "max-affected=0"}, 400, "FP016"),
        ({**LAST, "header": 1}, 400, "FP016"),
        (patch_line(C, 2002, amount="no number"), 400, "22P02"),
        ("no JSON\n", 400, "FP016"),
    ],
)
async def test_none_lands_where_one_is_refused(
    http: httpx.AsyncClient, shared: DemoGateway, line: Any, status: int, code: str
) -> None:
    before = await kept(shared.dsn)
    answer = await send(http, [*KINDS, line, patch_line(B, 2009, note="behind it")])
    problem = answer.json()
    assert (answer.status_code, problem["code"], problem["line"]) == (status, code, len(KINDS) + 1), problem
    assert problem["detail"].startswith("Line 8: ")
    assert answer.headers["content-type"] == "application/problem+json"
    assert problem.get("column") == ("amount" if code == "22P02" else None)
    assert await kept(shared.dsn) == before


async def test_a_line_is_judged_by_its_own_token_and_not_by_that_of_a_filtered_delete_before_it(
    http: httpx.AsyncClient,
) -> None:
    def deleted(key: str, token: int) -> dict[str, Any]:
        return {"method": "DELETE", "path": f"orders?order_id=eq.{key}", "token": token}

    await send(http, [{"claim": "orders/order-900", "token": 2055}])
    made = {"method": "POST", "path": "orders", "body": {"order_id": "order-900", "status": "new"}}
    stale = await send(http, [deleted("none", 2100), {**made, "token": 2040}])
    assert (stale.status_code, stale.json()["code"], stale.json()["line"]) == (409, "FP001", 2)
    again = {"method": "PUT", "path": f"orders/{C}", "token": 2060, "body": {"status": "new"}}
    assert (await send(http, [deleted(C, 2050), again])).status_code == 200
    assert (await send(http, [patch_line(C, 2055, note="older than the PUT")])).json()["code"] == "FP001"


@pytest.mark.parametrize(
    "made", [{"method": "PUT", "path": f"orders/{A}"}, {"method": "POST", "path": "orders"}], ids=["PUT", "POST"]
)
async def test_a_row_is_deleted_and_made_anew_under_one_token(http: httpx.AsyncClient, made: dict[str, Any]) -> None:
    anew = {**made, "token": 2001, "body": {"order_id": A, "status": "new"}}
    answer = await send(http, [{"method": "DELETE", "path": f"orders/{A}", "token": 2001}, anew])
    assert [json.loads(line)["status"] for line in answer.text.splitlines()] == [204, 201], answer.text
    await send(http, [{"method": "DELETE", "path": f"orders/{A}", "token": 2002}])
    assert (await send(http, [{**anew, "token": 2002}])).json()["code"] == "FP002", "another transaction deleted it"


async def test_what_landed_is_not_done_again_under_its_keys(http: httpx.AsyncClient) -> None:
    lines = [patch_line(key, 2001, f"key of {key}", note="once") for key in (A, B)]
    first, again = await send(http, lines), await send(http, lines)
    assert (first.status_code, again.status_code) == (200, 200)
    assert [json.loads(line).get("replayed") for line in again.text.splitlines()] == [True, True]
    assert [json.loads(line).get("replayed") for line in first.text.splitlines()] == [None, None]


@pytest.mark.parametrize(
    ("query", "lines", "status", "said"),
    [
        ("atomic=yes", KINDS, 400, "atomic=yes: it is true or false"),
        ("atomic=true&atomic=true", KINDS, 400, "given once"),
        ("order=id", KINDS, 400, "order: a batch takes atomic only"),
        ("atomic=true", [patch_line(A, 2000 + n, note="x") for n in range(1001)], 413, "more than 1000 lines"),
        (
            "atomic=true",
            [{**LAST, "body": {"note": "x" * 1500}}, {**LAST, "path": f"orders/{A}", "body": {"note": "x" * 1500}}],
            400,
            "Line 2: with it",
        ),
        ("atomic=true", [patch_line(A, 2001, note="x" * 2_000_000)], 413, "The body has more than"),
    ],
)
async def test_what_no_batch_is_that_lands_as_a_whole(
    http: httpx.AsyncClient, shared: DemoGateway, query: str, lines: list[Any], status: int, said: str
) -> None:
    before = await kept(shared.dsn)
    answer = await send(http, lines, query)
    assert (answer.status_code, said in answer.json()["detail"]) == (status, True), answer.text
    assert await kept(shared.dsn) == before


async def test_a_refused_batch_is_counted_as_refused_only(http: httpx.AsyncClient) -> None:
    async def counted() -> dict[str, str]:
        lines = (await http.get("/metrics")).text.splitlines()
        return dict(
            line.rsplit(" ", 1) for line in lines if line.startswith(("fencepost_operations_t", "fencepost_rows"))
        )

    before = await counted()
    assert (await send(http, [patch_line(A, 3001, note="x"), patch_line(B, 1, note="x")])).status_code == 409
    changed = {name: value for name, value in (await counted()).items() if value != before.get(name)}
    assert len(changed) == 1
    assert "FP002" in str(changed)


@asynccontextmanager
async def begun(dsn: str, statement: str) -> AsyncIterator[asyncpg.Connection]:
    """Begin a transaction that lets others find a deadlock."""
    connection = await asyncpg.connect(dsn)
    await connection.execute(f"SET deadlock_timeout = '1h'; BEGIN; {statement}")
    yield connection
    await connection.close()


async def test_nobody_sees_half_of_it_and_after_a_deadlock_all_of_it_starts_over(
    http: httpx.AsyncClient, shared: DemoGateway
) -> None:
    """The batch has A and waits for C; another has B and waits for A; then the batch wants B."""
    lines = [patch_line(key, 2001, note="whole") for key in (A, C, B)]
    before = await kept(shared.dsn)
    async with (
        begun(shared.dsn, f"SELECT FROM orders WHERE order_id = '{C}' FOR UPDATE") as gate,
        begun(shared.dsn, f"SELECT FROM orders WHERE order_id = '{B}' FOR UPDATE") as other,
        begun(shared.dsn, "COMMIT") as observer,
    ):
        sent = asyncio.create_task(send(http, lines))
        await blocks_another_session(gate, observer)
        assert await kept(shared.dsn) == before
        wants_a = await start(
            observer, other.execute(f"SELECT FROM orders WHERE order_id = '{A}' FOR UPDATE"), other.get_server_pid()
        )
        assert not wants_a.done()
        await gate.execute("COMMIT")
        await wants_a  # the batch gave way
        await blocks_another_session(other, observer)
        assert await kept(shared.dsn) == before
        await other.execute("COMMIT")
        answer = await sent
        assert answer.status_code == 200, answer.text
    connection = await asyncpg.connect(shared.dsn)
    assert (
        await connection.fetchval("SELECT count(*) FROM orders WHERE note = 'whole' AND last_fence_token = 2001") == 3
    )
    await connection.close()


async def test_nothing_is_written_where_the_connection_breaks_before_the_commit(
    http: httpx.AsyncClient, shared: DemoGateway
) -> None:
    before = await kept(shared.dsn)
    async with (
        begun(shared.dsn, f"SELECT FROM orders WHERE order_id = '{C}' FOR UPDATE") as gate,
        begun(shared.dsn, "COMMIT") as observer,
    ):
        sent = asyncio.create_task(send(http, [patch_line(A, 2001, note="x"), patch_line(C, 2001, note="x")]))
        await blocks_another_session(gate, observer)
        ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))"
        assert await observer.fetchval(ended, gate.get_server_pid())
        answer = await sent
        assert (answer.status_code, answer.json()["code"]) == (503, "FP010"), answer.text
        assert "nothing was written" in answer.json()["detail"]
    assert await kept(shared.dsn) == before
    assert (await send(http, [patch_line(A, 2001, note="x")])).status_code == 200


async def test_a_batch_waits_for_others_as_long_as_for_a_connection(
    demo_database: str, start_gateway: StartGateway
) -> None:
    url = await start_gateway(demo_database, pool_size=4, pool_timeout=3, lock_timeout=60)
    async with (
        begun(demo_database, f"SELECT FROM orders WHERE order_id = '{C}' FOR UPDATE") as gate,
        begun(demo_database, "COMMIT") as observer,
        httpx.AsyncClient(base_url=url, timeout=PATIENCE, trust_env=False) as http,
    ):
        first = asyncio.create_task(send(http, [patch_line(C, 2001, note="x")]))
        await blocks_another_session(gate, observer)
        second = await send(http, [patch_line(A, 2001, note="x")])
        assert (second.status_code, second.json()["code"]) == (503, "FP010")
        assert "nothing was written" in second.json()["detail"]
        assert (await send(http, [{"claim": f"orders/{A}", "token": 2001}], "atomic=false")).status_code == 200
        await gate.execute("COMMIT")
        assert (await first).status_code == 200
