"""What /readyz and /metrics answer while PostgreSQL hangs, and that they answer at once."""

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg
import httpx
import pytest
from tests.support.gateways import in_process, serving_process
from tests.support.interleave import blocks_another_session

from fencepost.server.ops.demo import load
from fencepost.server.ops.embedded import PostgresServer
from fencepost.server.ops.embedded_files import embedded_bin_dir
from fencepost.server.ops.migrate import upgrade
from fencepost.server.times import HealthTimes, Times
from fencepost.testing import Link, partitioned
from fencepost.testing.servers.processes import PATIENCE, descendants, eventually

pytestmark = pytest.mark.long("gateways that stop, and databases that hang")

NEVER_GIVEN_UP = Times(health=HealthTimes(ask_for=3600))
"""Times of a gateway that answers in time though what it asked PostgreSQL is not answered for an hour."""


@pytest.fixture
async def server(short_dir: Path) -> AsyncIterator[PostgresServer]:
    """Run a PostgreSQL of the test's own, with the demo table."""
    with PostgresServer(bin_dir=embedded_bin_dir(), data_dir=short_dir / "data") as server:
        await upgrade(server.url)
        await load(server.url)
        yield server


@contextmanager
def hanging(data: Path) -> Iterator[None]:
    """Stop all of a server's processes until the block ends."""
    postmaster = int(next(data.rglob("postmaster.pid")).read_text().split()[0])
    stopped = [postmaster, *descendants(postmaster)]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)


async def answers_all_the_same(client: httpx.AsyncClient) -> None:
    for _ in range(2):
        async with asyncio.timeout(PATIENCE):
            ready = await client.get("/readyz")
        assert ready.status_code == 503
        assert re.match(r"no answer from PostgreSQL for \d+\.\d s", ready.json()["database"]), ready.text
        async with asyncio.timeout(PATIENCE):
            metrics = await client.get("/metrics")
        assert metrics.status_code == 200
        silence = re.search(r"^fencepost_database_silence_seconds (\S+)$", metrics.text, re.MULTILINE)
        assert silence, metrics.text
        assert float(silence[1]) > 1
        async with asyncio.timeout(PATIENCE):
            assert (await client.get("/healthz")).status_code == 200


async def ready_again(client: httpx.AsyncClient) -> None:
    async def ready() -> bool:
        found = await client.get("/readyz"), await client.get("/metrics")
        return found[0].status_code == 200 and "fencepost_database_silence_seconds 0.0" in found[1].text

    await eventually(ready, what="/readyz is 200, and there is no silence")


async def sessions(connection: asyncpg.Connection) -> int:
    """Count those of the gateway's pools."""
    found: int = await connection.fetchval(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'fencepost'"
    )
    return found


async def test_health_is_answered_while_all_processes_of_postgresql_are_stopped(
    server: PostgresServer, short_dir: Path
) -> None:
    async with in_process(server.url, NEVER_GIVEN_UP) as client:
        await ready_again(client)
        with hanging(short_dir / "data"):
            writes = [
                asyncio.create_task(
                    client.patch("/v1/data/orders/order-123", json={"note": "x"}, headers={"X-Fence-Token": str(token)})
                )
                for token in range(50, 80)
            ]
            reads = [asyncio.create_task(client.get("/v1/data/orders")) for _ in range(20)]  # more than connections
            await answers_all_the_same(client)
        await ready_again(client)
        await asyncio.gather(*writes, *reads)


async def test_a_gateway_without_a_free_connection_is_ready_and_reports_it(database: str) -> None:
    await load(database)
    owner = await asyncpg.connect(database)
    try:
        async with in_process(database, pool_size=1) as client:
            await ready_again(client)
            async with owner.transaction():
                await owner.execute("LOCK TABLE orders")
                waiting = asyncio.create_task(client.get("/v1/data/orders"))
                await blocks_another_session(owner, owner)
                ready = await client.get("/readyz")
                assert not waiting.done()
            assert ready.status_code == 200
            assert ready.json()["database"] == "reachable; all connections of this process are in use"
            assert (await waiting).status_code == 200

            async def closed() -> bool:
                return await sessions(owner) == 3  # one in each pool

            await eventually(closed, what="what was opened for the question is closed")
            await ready_again(client)
    finally:
        await owner.close()


async def test_health_is_answered_while_the_network_swallows_everything(database: str) -> None:
    await load(database)
    with Link.to(database) as link:
        async with in_process(link.url, NEVER_GIVEN_UP) as client:
            await ready_again(client)
            with partitioned(link, direction="to-client"):
                await answers_all_the_same(client)
                link.hang_up()
            await ready_again(client)


@pytest.mark.realtime
async def test_a_gateway_that_is_asked_to_stop_meanwhile_ends_in_time(server: PostgresServer, short_dir: Path) -> None:
    (directory := short_dir / "gateway").mkdir()
    async with (
        serving_process(directory, "--database-url", server.url, "--shutdown-timeout", "1") as gateway,
        httpx.AsyncClient(base_url=gateway.url, timeout=PATIENCE) as client,
    ):
        headers = {"X-Fence-Token": "50"}
        with hanging(short_dir / "data"):
            write = asyncio.create_task(client.patch("/v1/data/orders/order-123", json={"note": "x"}, headers=headers))
            assert (await client.get("/readyz")).status_code == 503
            os.kill(gateway.process.pid, signal.SIGTERM)
            assert await gateway.ended(within=15) == 0, "statements may take 30 seconds, and were waited for"
            answer = await write
        assert (answer.status_code, answer.json()["code"]) == (503, "FP009")
