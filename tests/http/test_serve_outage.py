"""The database goes away and comes back, and a worker dies meanwhile: the gateway stays."""

import os
import signal
from pathlib import Path

import httpx
import pytest
from tests.support.serving import Gateway, serving

from fencepost.embedded.server import PostgresServer, embedded_bin_dir
from fencepost.storage.schema.migrate import upgrade
from fencepost.testing.servers.ports import free_port
from fencepost.testing.servers.processes import mentioning
from fencepost.testing.servers.waiting import PATIENCE, eventually


def workers(gateway: Gateway) -> set[int]:
    return {pid for pid in mentioning("spawn_main") if pid in gateway.processes()}


@pytest.mark.long("holders, leaders and gateways that are paused or killed")
async def test_a_worker_that_dies_while_the_database_is_away_comes_back_with_it(short_dir: Path) -> None:
    directory = short_dir / "postgres"
    server = PostgresServer(bin_dir=embedded_bin_dir(), data_dir=directory, port=free_port())
    server.start()
    try:
        url = server.url
        await upgrade(url)
        async with (
            serving(short_dir, "--workers", "2", FENCEPOST_DATABASE_URL=url) as gateway,
            httpx.AsyncClient(base_url=gateway.url, timeout=PATIENCE) as client,
        ):
            first = workers(gateway)
            assert len(first) == 2
            server.stop()
            victim = min(first)
            os.kill(victim, signal.SIGKILL)

            async def failed_to_start() -> bool:
                return "Application startup failed" in gateway.errors.read_text()

            await eventually(failed_to_start, what="a worker that cannot start")
            assert (await client.get("/healthz")).status_code == 200
            assert (await client.get("/v1/data/orders")).status_code == 503
            assert gateway.process.poll() is None

            server.start()

            async def all_back() -> bool:
                now = workers(gateway)
                return len(now) == 2 and victim not in now and (await client.get("/readyz")).status_code == 200

            await eventually(all_back, what="two workers again")
            assert (await client.get("/v1/data/orders/order-123")).status_code == 200
            gateway.interrupt()
            assert await gateway.ended() == 0
    finally:
        server.stop()
