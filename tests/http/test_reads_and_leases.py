"""What takes long does not keep leases from their renewals, nor one caller's requests those of others."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import asyncpg
import httpx
import pytest
from tests.http.conftest import StartGateway

from fencepost.testing.servers.processes import PATIENCE, eventually

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
    async with (
        client_at("127.0.0.1", url) as client,
        client_at("127.0.0.2", url) as reader,
        client_at("127.0.0.3", url) as third,
    ):
        lease = (await client.post("/leases", json=LEASE)).json()
        await operator.execute(f"SELECT pg_advisory_lock({LOCK})")
        await keeper.execute("BEGIN; SELECT FROM orders FOR UPDATE")
        token = {"X-Fence-Token": "77"}
        asked = [
            asyncio.create_task(one.patch(f"/data/orders/order-12{n}", json={"status": "paid"}, headers=token))
            for n, one in ((3, client), (4, third))  # one caller has one of the two turns at rows
        ]

        async def two_wait_for_rows() -> bool:
            return bool(await operator.fetchval(WAITS_FOR_ROWS) == 2)

        await eventually(two_wait_for_rows, what="two writes that wait for rows")
        asked += [asyncio.create_task(reader.get("/data/slow")) for _ in range(4)]

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
        assert "127.0.0.1 has as many as one may have, the rest is for others" in refused.json()["detail"]
        assert (await client.post("/leases", json=LEASE)).status_code == 201
        token = {"X-Fence-Token": "77"}
        written = await client.patch("/data/orders/order-123", json={"status": "paid"}, headers=token)
        assert written.status_code == 200
        await operator.execute(f"SELECT pg_advisory_unlock({LOCK})")
        assert (await first).status_code == 200
        assert (await client.get("/data/orders")).status_code == 200
    await operator.close()


@dataclass
class Held:
    """A gateway, a row that is locked, and two callers."""

    owner: asyncpg.Connection
    keeper: asyncpg.Connection
    one: httpx.AsyncClient
    other: httpx.AsyncClient

    async def while_waiting(
        self, ask: Callable[[], Awaitable[httpx.Response]], held: int, others: Callable[[], Awaitable[httpx.Response]]
    ) -> list[int]:
        """Have one caller ask eight times, of which so many wait in PostgreSQL, and the other one once. Its answer's
        status, and those of the eight once the row is free.
        """
        asked = [asyncio.ensure_future(ask()) for _ in range(8)]

        async def all_wait() -> bool:
            return bool(await self.owner.fetchval(WAITS_FOR_ROWS) == held)

        await eventually(all_wait, what=f"{held} requests that wait for the row")
        answer = await others()
        assert await all_wait(), "no more than these"
        await self.keeper.execute("ROLLBACK")
        return [answer.status_code, *sorted({(await each).status_code for each in asked})]


@pytest.fixture
async def held(demo_database: str, start_gateway: StartGateway) -> AsyncIterator[Held]:
    owner, keeper = await asyncpg.connect(demo_database), await asyncpg.connect(demo_database)
    pools = {"pool_size": 8, "lease_pool_size": 6, "pool_timeout": 600, "lock_timeout": 60}
    url = await start_gateway(demo_database, **pools, statement_timeout=600)
    async with client_at("127.0.0.1", url) as one, client_at("127.0.0.2", url) as other:
        await keeper.execute("BEGIN; SELECT FROM orders WHERE order_id = 'order-123' FOR UPDATE")
        yield Held(owner, keeper, one, other)
    await owner.close()
    await keeper.close()


TOKEN = {"X-Fence-Token": "77"}
NDJSON = {"Content-Type": "application/x-ndjson"}
LINE = '{"method":"PATCH","path":"orders/order-%s","token":77,"body":{"status":"paid"}}'


async def test_writes_of_one_caller_that_go_alone_leave_connections_to_others(held: Held) -> None:
    def write(client: httpx.AsyncClient, row: str) -> Awaitable[httpx.Response]:
        return client.patch(f"/data/orders?order_id=eq.order-{row}", json={"status": "paid"}, headers=TOKEN)

    statuses = await held.while_waiting(lambda: write(held.one, "123"), 6, lambda: write(held.other, "124"))
    assert statuses == [204, 204, 409]


async def test_batches_of_one_caller_that_land_as_a_whole_leave_a_turn_to_others(held: Held) -> None:
    def batch(client: httpx.AsyncClient, row: str) -> Awaitable[httpx.Response]:
        return client.post("/batch?atomic=true", content=LINE % row, headers=NDJSON)

    statuses = await held.while_waiting(lambda: batch(held.one, "123"), 1, lambda: batch(held.other, "124"))
    assert statuses == [200, 200, 409]


async def test_grants_of_one_caller_that_claim_a_locked_row_leave_a_slot_to_others(held: Held) -> None:
    locks = itertools.count()

    def acquire(client: httpx.AsyncClient, row: str) -> Awaitable[httpx.Response]:
        return client.post("/leases", json={"lock": f"lock-{next(locks)}", "claim": [f"orders/order-{row}"]})

    statuses = await held.while_waiting(lambda: acquire(held.one, "123"), 3, lambda: acquire(held.other, "124"))
    assert statuses == [201, 201]


async def test_renewals_of_one_caller_leave_connections_to_those_of_others(held: Held) -> None:
    clients = (held.one, held.other)
    leases = {each: (await each.post("/leases", json={"lock": str(id(each))})).json() for each in clients}

    def renew(client: httpx.AsyncClient) -> Awaitable[httpx.Response]:
        secret = {"X-Lease-Secret": leases[client]["secret"]}
        return client.post(f"/leases/{leases[client]['lease_id']}/renew", json={}, headers=secret)

    await held.keeper.execute(
        f"SELECT FROM fencepost.leases WHERE lease_id = {leases[held.one]['lease_id']} FOR UPDATE"
    )
    assert await held.while_waiting(lambda: renew(held.one), 5, lambda: renew(held.other)) == [200, 200]


async def test_a_batch_that_lands_as_a_whole_has_the_time_of_one_statement(
    demo_database: str, start_gateway: StartGateway
) -> None:
    owner = await asyncpg.connect(demo_database)
    await owner.execute(
        "CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.5); RETURN NEW; END';"
        "CREATE TRIGGER slowly BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION slowly()"
    )
    url = await start_gateway(demo_database, statement_timeout=2)
    before = await owner.fetch("SELECT * FROM orders ORDER BY order_id")
    lines = "\n".join(LINE.replace("77", str(token)) % "123" for token in range(100, 120))
    async with client_at("127.0.0.1", url) as client:
        late = await client.post("/batch?atomic=true", content=lines, headers=NDJSON)
        assert (late.status_code, late.json()["code"]) == (503, "57014"), late.text
        assert "the batch took more than 2 s" in late.json()["detail"]
        assert await owner.fetch("SELECT * FROM orders ORDER BY order_id") == before
        assert (await client.post("/batch?atomic=true", content=LINE % "123", headers=NDJSON)).status_code == 200
    await owner.close()


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
