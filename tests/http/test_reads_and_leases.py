"""Reads and writes that take long do not keep leases from their renewals, nor one caller's reads those of others."""

import asyncio
from contextlib import AsyncExitStack

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
    url = await start_gateway(demo_database, serve_unprotected=True, pool_size=4, pool_timeout=600, lock_timeout=60)
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
        secret = {"X-Lease-Secret": lease["secret"]}
        path = f"/leases/{lease['lease_id']}"
        async with asyncio.timeout(PATIENCE):  # a connection of the pool would be waited for for ten minutes
            for _ in range(3):
                renewed = await client.post(f"{path}/renew", json={}, headers=secret)
                assert renewed.status_code == 200, renewed.text
            assert (await client.post(f"{path}/tokens", json={}, headers=secret)).status_code == 200
            assert (await client.delete(path, headers=secret)).status_code == 204

        async def ready() -> bool:
            return "all connections" in (await client.get(f"{url}/readyz")).raise_for_status().json()["database"]

        await eventually(ready, what="readiness, without a connection of the pool")
        await keeper.execute("ROLLBACK")
        await operator.execute(f"SELECT pg_advisory_unlock({LOCK})")
        assert {(await each).status_code for each in asked} == {200}
    await operator.close()
    await keeper.close()


async def test_the_reads_of_one_caller_leave_a_connection_to_those_of_others(
    demo_database: str, start_gateway: StartGateway
) -> None:
    operator = await asyncpg.connect(demo_database)
    await operator.execute(SLOW)
    url = await start_gateway(demo_database, serve_unprotected=True, pool_size=4, pool_timeout=600)
    async with client_at("127.0.0.1", url) as one, client_at("127.0.0.2", url) as other:
        await operator.execute(f"SELECT pg_advisory_lock({LOCK})")
        slow = [asyncio.create_task(one.get("/data/slow")) for _ in range(8)]

        async def two_read() -> bool:
            return bool(await operator.fetchval(WAITING) == 2)

        await eventually(two_read, what="reads that hold as many connections as one caller may")
        async with asyncio.timeout(PATIENCE):
            for path in ("/data/orders", "/data/orders/order-123", "/fences?resource=orders/order-123"):
                assert (await other.get(path)).status_code == 200
        assert await operator.fetchval(WAITING) == 2
        await operator.execute(f"SELECT pg_advisory_unlock({LOCK})")
        assert {(await read).status_code for read in slow} == {200}
    await operator.close()


async def test_a_lease_is_granted_while_reads_hold_all_connections_that_they_may_have(
    demo_database: str, start_gateway: StartGateway
) -> None:
    operator = await asyncpg.connect(demo_database)
    await operator.execute(SLOW)
    url = await start_gateway(demo_database, serve_unprotected=True, pool_size=4, pool_timeout=600)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(client_at("127.0.0.1", url))
        lease = (await client.post("/leases", json=LEASE)).json()
        await operator.execute(f"SELECT pg_advisory_lock({LOCK})")
        others = await stack.enter_async_context(client_at("127.0.0.2", url))
        reads = [asyncio.create_task(each.get("/data/slow")) for each in (client, others) for _ in range(6)]

        async def three_wait() -> bool:
            return bool(await operator.fetchval(WAITING) >= 3)

        await eventually(three_wait, what="reads that wait")
        secret = {"X-Lease-Secret": lease["secret"]}
        async with asyncio.timeout(PATIENCE):  # all of the pool, and it would wait for ten minutes
            for _ in range(3):
                renewed = await client.post(f"/leases/{lease['lease_id']}/renew", json={}, headers=secret)
                assert renewed.status_code == 200, renewed.text
            assert (await client.post("/leases", json={**LEASE, "lock": "another"})).status_code == 201
            written = await client.patch(
                "/data/orders/order-123", json={"status": "paid"}, headers={"X-Fence-Token": "77"}
            )
            assert written.status_code == 200
        assert await operator.fetchval(WAITING) == 3
        await operator.execute(f"SELECT pg_advisory_unlock({LOCK})")
        assert {(await read).status_code for read in reads} == {200}
    await operator.close()


async def test_a_read_that_gets_no_connection_says_whose_the_others_are(
    demo_database: str, start_gateway: StartGateway
) -> None:
    operator = await asyncpg.connect(demo_database)
    await operator.execute(SLOW)
    url = await start_gateway(demo_database, serve_unprotected=True, pool_size=2, pool_timeout=0.2)
    async with httpx.AsyncClient(base_url=f"{url}/v1", timeout=PATIENCE, trust_env=False) as client:
        await operator.execute(f"SELECT pg_advisory_lock({LOCK})")
        first = asyncio.create_task(client.get("/data/slow"))

        async def waits() -> bool:
            return bool(await operator.fetchval(WAITING))

        await eventually(waits, what="a read that waits")
        refused = await client.get("/data/orders")
        assert (refused.status_code, refused.json()["code"], refused.headers["retry-after"]) == (503, "FP010", "1")
        assert "the rest is for others, for leases and writes (FENCEPOST_POOL_SIZE)" in refused.json()["detail"]
        await operator.execute(f"SELECT pg_advisory_unlock({LOCK})")
        assert (await first).status_code == 200
        assert (await client.get("/data/orders")).status_code == 200
    await operator.close()
