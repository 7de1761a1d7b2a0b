"""How many requests of one caller may wait: others find room."""

import asyncio
from typing import Any

import httpx
import pytest
from tests.http.conftest import StartGateway
from tests.http.test_reads_and_leases import client_at

from fencepost.testing.servers.waiting import eventually

STREAM = "/elections/events?name=scheduler"


async def waiting(client: httpx.AsyncClient) -> int:
    lines = (await client.get(f"{client.base_url.copy_with(path='/metrics')}")).text.splitlines()
    return sum(int(float(line.split()[1])) for line in lines if line.startswith("fencepost_lock_waiters "))


async def test_streams_of_one_caller_leave_room_for_others(demo_database: str, start_gateway: StartGateway) -> None:
    url = await start_gateway(demo_database, max_watchers_per_caller=1)
    async with (
        client_at("127.0.0.1", url) as one,
        client_at("127.0.0.2", url) as other,
        one.stream("GET", STREAM) as open_already,
    ):
        assert open_already.status_code == 200
        refused = await one.get(STREAM)
        assert (refused.status_code, refused.json()["code"], refused.headers["retry-after"]) == (503, "FP010", "1")
        assert "1 of 127.0.0.1 already (FENCEPOST_MAX_WATCHERS_PER_CALLER)" in refused.json()["detail"]
        async with other.stream("GET", STREAM) as of_other:
            assert of_other.status_code == 200


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"max_waiters_per_caller": 1}, "1 of 127.0.0.1 already (FENCEPOST_MAX_WAITERS_PER_CALLER)"),
        ({"max_waiters": 1}, "1 already (FENCEPOST_MAX_WAITERS)"),
    ],
)
async def test_waiters_of_one_caller_leave_room_for_others(
    demo_database: str, start_gateway: StartGateway, limits: dict[str, Any], said: str
) -> None:
    url = await start_gateway(demo_database, **limits)
    async with client_at("127.0.0.1", url) as one, client_at("127.0.0.2", url) as other:
        held = (await one.post("/leases", json={"lock": "x", "ttl_ms": 60_000})).json()
        wanted = {"lock": "x", "wait_ms": 30_000}
        first = asyncio.create_task(one.post("/leases", json=wanted))

        async def in_line() -> bool:
            return await waiting(one) == 1

        await eventually(in_line, what="the first waiter's place")
        refused = await one.post("/leases", json=wanted)
        assert (refused.status_code, refused.json()["code"]) == (503, "FP010")
        assert said in refused.json()["detail"]
        assert (await one.post("/leases", json={"lock": "x"})).status_code == 423, "who does not wait is not counted"
        second = await other.post("/leases", json={**wanted, "wait_ms": 1})
        assert second.status_code == (503 if "max_waiters" in limits else 423)
        await one.delete(f"/leases/{held['lease_id']}", headers={"X-Lease-Secret": held["secret"]})
        assert (await first).status_code == 201
        assert (await one.post("/leases", json={"lock": "y", "wait_ms": 1})).status_code == 201, "there is room again"
