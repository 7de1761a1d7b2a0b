"""Lines on rows that are locked: what they keep from other batches, and what becomes of the lines behind them."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import asyncpg
import httpx
import pytest
from tests.http.conftest import StartGateway
from tests.http.test_edge import Holder
from tests.support.gateways import DemoGateway, demo_gateway
from tests.support.postgres import ReadyMade
from tests.support.use_cases import Sent, batch, patch_line

from fencepost.testing.servers.processes import PATIENCE

FEW = 4
FREE, *LOCKED = [f"row-{number}" for number in range(1 + FEW)]


@pytest.fixture(scope="module")
def shared(databases: ReadyMade) -> Iterator[DemoGateway]:
    """Give a gateway whose batches have few lines in hand, and two connections for those that go alone."""
    with demo_gateway(databases, batch_lines=FEW, pool_size=8, lock_timeout=60) as gateway:
        yield gateway


@asynccontextmanager
async def locked(url: str, dsn: str) -> AsyncIterator[Holder]:
    """Make rows, and lock all but one."""
    rows = [
        {"method": "PUT", "path": f"orders/{key}", "token": 1001, "body": {"status": "new"}} for key in [FREE, *LOCKED]
    ]
    assert {verdict["status"] for verdict in await batch(url, rows)} <= {200, 201}
    session, observer = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
    await session.execute(f"BEGIN; SELECT FROM orders WHERE order_id <> '{FREE}' FOR UPDATE")
    yield Holder(session, observer)
    for connection in (session, observer):
        await connection.close()


def line(kind: str, key: str, token: int) -> dict[str, object]:
    return patch_line(key, token, note="x") if kind == "write" else {"claim": f"orders/{key}", "token": token}


@pytest.mark.parametrize("kind", ["write", "claim"])
async def test_a_batch_whose_rows_are_locked_does_not_stop_others(
    gateway_url: str, shared: DemoGateway, kind: str
) -> None:
    async with locked(gateway_url, shared.dsn) as holder:
        stuck = await Sent.open(gateway_url)
        await stuck.send(*(line(kind, key, 2001) for key in LOCKED))
        await stuck.end()
        await holder.is_waited_for()
        verdicts = await batch(gateway_url, [line("write", FREE, 2001), line("claim", FREE, 2002)] * 3)
        assert [verdict["status"] for verdict in verdicts[:2]] == [200, 200]
        stuck.connection.writer.write_eof()  # who closes this half reads on
        await holder.commits()
        assert [verdict["status"] for verdict in await stuck.rest()] == [200] * FEW
    stuck.connection.close()


async def test_what_waits_behind_a_line_that_is_to_be_sent_again_is_not_done(
    demo_database: str, start_gateway: StartGateway
) -> None:
    """Under the rule `epoch` both would be accepted when they are sent again, and the older one would win."""
    url = await start_gateway(demo_database, lock_timeout=1)
    async with locked(url, demo_database) as holder:
        lines = [
            patch_line(LOCKED[0], 2001, note="first"),
            patch_line(FREE, 2001, note="another row"),
            patch_line(LOCKED[0], 2002, note="second"),
            line("claim", LOCKED[0], 2003),
            {"method": "PATCH", "path": f"orders?order_id=eq.{FREE}", "token": 2004, "body": {"note": "maybe any row"}},
            patch_line(FREE, 2005, note="behind that"),
        ]
        busy, *verdicts = await batch(url, lines)
        assert (busy["status"], busy["body"]["code"]) == (503, "55P03")
        assert [verdict["status"] for verdict in verdicts] == [200, 503, 503, 503, 503]
        behind = [verdict["body"] for verdict in verdicts if verdict["status"] == 503]
        assert {problem["code"] for problem in behind} == {"FP047"}
        assert [problem["hint"].split()[2] for problem in behind] == ["1", "1", "1", "5"]
        await holder.commits()
        again = await batch(url, [lines[0], *lines[2:]])
        assert [verdict["status"] for verdict in again] == [200, 200, 200, 204, 200]


async def test_a_look_at_the_tables_is_not_one_of_those_that_wait_too_many(
    demo_database: str, start_gateway: StartGateway
) -> None:
    limits = {"pool_size": 1, "max_waiting": 3, "pool_timeout": 60, "lock_timeout": 60}
    url = await start_gateway(demo_database, **limits, consume_here=False)  # its consumer would wait, too
    async with (
        locked(url, demo_database) as holder,
        httpx.AsyncClient(base_url=url, timeout=PATIENCE, trust_env=False) as http,
    ):
        headers = {"X-Fence-Token": "2001"}
        bodies = [{"resource": f"orders/{key}"} for key in LOCKED]
        claims = [asyncio.create_task(http.post("/v1/claims", json=body, headers=headers)) for body in bodies]
        (refused,), others = await asyncio.wait(claims, return_when=asyncio.FIRST_COMPLETED)
        assert (await refused).status_code == 503, "one has the connection, and as many wait for it as may"
        sent = await Sent.open(url)
        await sent.send({"method": "PATCH", "path": "nowhere/a", "token": 1, "body": {"a": 1}})
        await sent.end()
        await holder.commits()
        assert [verdict["status"] for verdict in await sent.rest()] == [404]
        assert [(await claim).status_code for claim in others] == [200] * 3
    sent.connection.close()
