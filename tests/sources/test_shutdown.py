"""A gateway that is asked to stop while a lock service hangs ends in time, and names the locks that it leaves."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.conformance.benches import BENCHES, Bench
from tests.support.gateways import serving_process

from fencepost.testing.servers.processes import PATIENCE, eventually

HOLDS = 20
SHUTDOWN = 8.0  # seconds; released one after the other, the holds would take three each


LIVE_BY_SESSION = ("zookeeper", "advisory")
"""Benches of sources whose holds live by the gateway's sessions. All are params of `bench`."""


@pytest.fixture(params=[pytest.param("zookeeper", marks=pytest.mark.long("tests with zookeeper")), "advisory"])
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Run a service whose holds live by the gateway's sessions."""
    with BENCHES[request.param](tmp_path_factory.mktemp(request.param)) as running:
        yield running


@pytest.mark.realtime
@pytest.mark.long("lock services that are paused")
async def test_holds_of_a_service_that_hangs_do_not_keep_the_gateway(bench: Bench, short_dir: Path) -> None:
    arguments = ("--sources", f"locks={bench.url}", "--shutdown-timeout", str(SHUTDOWN))
    # seconds that everything else may take on a busy machine, PostgreSQL's own end included
    more = 12.0
    async with (
        serving_process(short_dir, *arguments) as gateway,
        httpx.AsyncClient(base_url=gateway.url, timeout=PATIENCE) as client,
    ):
        asked = [
            client.post("/v1/leases", json={"source": "locks", "lock": f"orders/{n}", "ttl_ms": 600_000})
            for n in range(HOLDS)
        ]
        assert {answer.status_code for answer in await asyncio.gather(*asked)} == {201}
        await bench.pause()
        try:
            gateway.interrupt()
            assert await gateway.ended(within=SHUTDOWN + more) == 0
        finally:
            await bench.resume()
        output = gateway.errors.read_text()
    assert f"could not release {HOLDS} of its locks" in output
    assert "orders/0, orders/1, orders/10, " in output


async def test_who_waits_for_a_lock_of_a_service_is_sent_away(bench: Bench, short_dir: Path) -> None:
    async with serving_process(short_dir, "--sources", f"locks={bench.url}", "--shutdown-timeout", "600") as gateway:
        async with httpx.AsyncClient(base_url=gateway.url, timeout=PATIENCE) as client:
            wanted = {"source": "locks", "lock": "orders/1", "ttl_ms": 600_000}
            assert (await client.post("/v1/leases", json=wanted)).status_code == 201
            waiting = asyncio.create_task(client.post("/v1/leases", json={**wanted, "wait_ms": 300_000}))

            async def is_waiting() -> bool:
                return await bench.waiting("orders/1") > 0

            await eventually(is_waiting, what="a request that waits")
            gateway.interrupt()
            answer = await waiting
            assert (answer.status_code, answer.json()["code"]) == (503, "FP010")
        assert await gateway.ended() == 0


async def test_holds_of_a_service_that_answers_are_released(bench: Bench, short_dir: Path) -> None:
    async with serving_process(
        short_dir, "--sources", f"locks={bench.url}", "--shutdown-timeout", str(SHUTDOWN)
    ) as gateway:
        async with httpx.AsyncClient(base_url=gateway.url, timeout=PATIENCE) as client:
            for n in range(HOLDS):
                asked = {"source": "locks", "lock": f"orders/{n}", "ttl_ms": 600_000}
                assert (await client.post("/v1/leases", json=asked)).status_code == 201
        gateway.interrupt()
        assert await gateway.ended() == 0
        assert "could not release" not in gateway.errors.read_text()
