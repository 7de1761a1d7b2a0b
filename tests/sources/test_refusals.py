"""What a lock service refuses is answered with its reason, and grants nothing."""

import asyncio

from click.testing import CliRunner
from tests.conformance.redis_bench import RedisBench, command
from tests.sources.conftest import Api, one_source
from tests.support.gateways import in_process

from fencepost.cli.main import main
from fencepost.server.locks.source import MOST_NATIVE


@one_source
async def test_a_lock_service_that_will_not_do_it_is_502_and_doctor_says_so(bench: RedisBench, api: Api) -> None:
    for content in ("many", "", "+5", "-5", f"{MOST_NATIVE}"):
        await refused_by_the_counter(bench, api, content)


async def refused_by_the_counter(bench: RedisBench, api: Api, content: str) -> None:
    await command(bench.ports[0], "SET", "fencepost:tokens", content)
    try:
        refused = await api.post("of-a-counter")
        configured = ["--sources", f"{api.source}={bench.url}", "--database-url", api.database]
        looked = await asyncio.to_thread(CliRunner().invoke, main, ["doctor", *configured])
    finally:
        await command(bench.ports[0], "DEL", "fencepost:tokens")
    assert (refused.status_code, refused.json()["code"], refused.json()["retryable"]) == (502, "FP025", False)
    assert (looked.exit_code, f"ERROR    source {api.source}: " in looked.output) == (1, True), looked.output
    assert "counter fencepost:tokens" in looked.output


async def test_a_name_that_the_lock_service_cannot_have_is_the_callers_error(database: str) -> None:
    async with in_process(database, sources="rows=postgres-advisory:?keys=number") as client:
        refused = await client.post("/v1/leases", json={"lock": "orders/1", "source": "rows", "ttl_ms": 5000})
        assert (refused.status_code, refused.json()["type"]) == (400, "/problems/bad-request")
        assert "the lock orders/1 is no number" in refused.json()["detail"]
        assert refused.json()["retryable"] is False
        granted = await client.post("/v1/leases", json={"lock": "17", "source": "rows", "ttl_ms": 5000})
        assert granted.status_code == 201
