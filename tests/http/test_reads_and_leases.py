"""Reads and writes that take long do not keep leases from their renewals, nor one caller's reads those of others."""

import asyncio

import asyncpg
import httpx
from tests.http.conftest import StartGateway

from fencepost.testing.servers.waiting import PATIENCE, eventually

LOCK = 4711
SLOW = f"""
CREATE FUNCTION public.waits(v text) RETURNS text LANGUAGE plpgsql AS
  $$ BEGIN PERFORM pg_advisory_xact_lock_shared({LOCK}); RETURN v; END $$;
CREATE VIEW public.slow AS SELECT public.waits(order_id) AS order_id FROM public.orders
"""
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory' AND datname = current_database()"
LEASE = {"lock": "nightly", "ttl_ms": 60_000, "owner": "me"}


WAITS_FOR_ROWS = """SELECT count(*) FROM pg_stat_activity
 WHERE wait_event_type = 'Lock' AND wait_event <> 'advisory' AND datname = current_database()"""


def client_at(address: str, url: str) -> httpx.AsyncClient:
    """Give a client whose connections come from this address of the loopback interface."""
    transport = httpx.AsyncHTTPTransport(local_address=address, limits=httpx.Limits(max_connections=100))
    return httpx.AsyncClient(base_url=f"{url}/v1", timeout=PATIENCE, trust_env=False, transport=transport)


async def test_a_lease_lives_while_reads_and_writes_hold_all_connections(
    demo_database: str, start_gateway: StartGateway
) -> None:
    operator, keeper = await asyncpg.connect(demo_database), await asyncpg.connect(demo_database)
    await operator.execute(SLOW)
    settings = {"serve_unprotected": True, "pool_size": 4, "pool_timeout": 600, "lock_timeout": 60}
    url = await start_gateway(demo_database, **settings, sources="other=postgres-advisory:")
    async with client_at("127.0.0.1", url) as client:
        lease = (await client.post("/leases", json=LEASE)).json()
        await operator.execute(f"SELECT pg_advisory_lock({LOCK})")
        await keeper.execute("BEGIN; SELECT FROM orders FOR UPDATE")
        token = {"X-Fence-Token": "77"}
        asked = [
            asyncio.create_task(client.patch(f"/data/orders/order-12{n}", json={"status": "paid"}, headers=token))
            for n in (3, 4)
        ]

        async def two_wait_for_rows() -> bool:
            return bool(await operator.fetchval(WAITS_FOR_ROWS) == 2)

        await eventually(two_wait_for_rows, what="two writes that wait for rows")
        asked += [asyncio.create_task(client.get("/data/slow")) for _ in range(4)]

        async def two_read() -> bool:
            return bool(await operator.fetchval(WAITING) == 2)

        await eventually(two_read, what="two reads that hold a connection")
        async with asyncio.timeout(PATIENCE):  # a connection of the pool would be waited for for ten minutes
            await renewed_minted_and_released(client, lease)
            for source in ("builtin", "other"):
                wanted = LEASE | {"lock": "hourly", "source": source, "claim": [f"orders/of-{source}"]}
                taken = await client.post("/leases", json=wanted)
                assert taken.status_code == 201, taken.text

        async def ready() -> bool:
            return "all connections" in (await client.get(f"{url}/readyz")).raise_for_status().json()["database"]

        await eventually(ready, what="readiness, without a connection of the pool")
        await keeper.execute("ROLLBACK")
        await operator.execute(f"SELECT pg_advisory_unlock({LOCK})")
        assert {(await each).status_code for each in asked} == {200}
    await operator.close()
    await keeper.close()


async def renewed_minted_and_released(client: httpx.AsyncClient, lease: dict[str, str]) -> None:
    secret, path = {"X-Lease-Secret": lease["secret"]}, f"/leases/{lease['lease_id']}"
    for _ in range(3):
        renewed = await client.post(f"{path}/renew", json={}, headers=secret)
        assert renewed.status_code == 200, renewed.text
    assert (await client.post(f"{path}/tokens", json={}, headers=secret)).status_code == 200
    assert (await client.delete(path, headers=secret)).status_code == 204


async def test_a_read_that_gets_no_connection_says_whose_the_others_are(
    demo_database: str, start_gateway: StartGateway
) -> None:
    operator = await asyncpg.connect(demo_database)
    await operator.execute(SLOW)
    url = await start_gateway(demo_database, serve_unprotected=True, pool_size=2, pool_timeout=2)
    async with httpx.AsyncClient(base_url=f"{url}/v1", timeout=PATIENCE, trust_env=False) as client:
        await operator.execute(f"SELECT pg_advisory_lock({LOCK})")
        first = asyncio.create_task(client.get("/data/slow"))

        async def waits() -> bool:
            return bool(await operator.fetchval(WAITING))

        await eventually(waits, what="a read that waits")
        refused = await client.get("/data/orders")
        assert (refused.status_code, refused.json()["code"], refused.headers["retry-after"]) == (503, "FP010", "1")
        assert "the rest is for others, for leases and writes (FENCEPOST_POOL_SIZE)" in refused.json()["detail"]
        assert (await client.post("/leases", json=LEASE)).status_code == 201
        token = {"X-Fence-Token": "77"}
        written = await client.patch("/data/orders/order-123", json={"status": "paid"}, headers=token)
        assert written.status_code == 200
        await operator.execute(f"SELECT pg_advisory_unlock({LOCK})")
        assert (await first).status_code == 200
        assert (await client.get("/data/orders")).status_code == 200
    await operator.close()


STREAM = "/elections/events?name=scheduler"


async def waiting(client: httpx.AsyncClient) -> int:
    lines = (await client.get(f"{client.base_url.copy_with(path='/metrics')}")).text.splitlines()
    return sum(int(float(line.split()[1])) for line in lines if line.startswith("fencepost_lock_waiters "))


async def test_waiters_and_streams_of_one_caller_leave_room_for_others(
    demo_database: str, start_gateway: StartGateway
) -> None:
    limits = {"max_waiters_per_caller": 1, "max_watchers_per_caller": 1, "max_waiters": 2}
    url = await start_gateway(demo_database, **limits)
    clients = (client_at(f"127.0.0.{n}", url) for n in (1, 2, 3))
    async with next(clients) as one, next(clients) as other, next(clients) as third:
        held = (await one.post("/leases", json={"lock": "x", "ttl_ms": 60_000})).json()
        wanted = {"lock": "x", "wait_ms": 30_000}
        first = asyncio.create_task(one.post("/leases", json=wanted))

        async def in_line(count: int) -> bool:
            return await waiting(one) == count

        await eventually(lambda: in_line(1), what="the first waiter's place")
        async with one.stream("GET", STREAM) as open_already:
            assert open_already.status_code == 200
            for refused, bound in (
                (await one.post("/leases", json=wanted), "FENCEPOST_MAX_WAITERS_PER_CALLER"),
                (await one.get(STREAM), "FENCEPOST_MAX_WATCHERS_PER_CALLER"),
            ):
                assert (refused.status_code, refused.json()["code"]) == (503, "FP010")
                assert f"1 of 127.0.0.1 already ({bound})" in refused.json()["detail"]
            async with other.stream("GET", STREAM) as of_other:
                assert of_other.status_code == 200
        assert (await one.post("/leases", json={"lock": "x"})).status_code == 423, "who does not wait is not counted"
        second = asyncio.create_task(other.post("/leases", json=wanted))
        await eventually(lambda: in_line(2), what="the place of another caller's")
        all_places = await third.post("/leases", json=wanted)
        assert (all_places.status_code, "2 already (FENCEPOST_MAX_WAITERS)" in all_places.text) == (503, True)
        second.cancel()
        await one.delete(f"/leases/{held['lease_id']}", headers={"X-Lease-Secret": held["secret"]})
        assert (await first).status_code == 201
        assert (await one.post("/leases", json={"lock": "y", "wait_ms": 1})).status_code == 201, "there is room again"
