"""What a soak puts on the gateway: every kind of write at once, and leases, of which some are asked for in vain."""

import asyncio
import itertools
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import asyncpg

from benchmarks import load
from benchmarks.lease_clients import HttpClient
from benchmarks.load import HOST, Plan, Result
from benchmarks.sized import FIRST_KEY, execute, fresh
from benchmarks.walk import MARK_AT_FIRST, STALE_TOKEN, Walk
from fencepost.server.ops.migrate import upgrade
from fencepost.server.ops.protect import protect

ROWS: Final = 100_000
_QUARTER: Final = ROWS // 4
_TOKEN: Final = 10_000_000_000
_CHANGE: Final = '{"status": "paid"}'
_ROW: Final = '{"order_id": "order-%(key)d", "status": "paid"}'
_SAME_ROW: Final = _ROW.replace("key", "same")
_WAITED_IN_VAIN: Final = 0.2  # seconds


@dataclass(frozen=True, slots=True)
class Load:
    """One kind of request, and the statuses that it may be answered with."""

    name: str
    line: str
    body: str
    connections: int
    walk: Walk
    statuses: frozenset[int]
    headers: str = ""
    rising: bool = True
    token: int = _TOKEN

    def plan(self, port: int, seconds: float) -> Plan:
        """Send the change to the load generator."""
        key, token = str(self.walk.first_key), str(self.token)
        length = len(self.body.replace("%(key)d", key).replace("%(same)d", key).replace("%(token)d", token))
        head = f"{self.line} HTTP/1.1\r\nHost: {HOST}\r\nX-Fence-Token: %(token)d\r\n{self.headers}"
        return Plan(
            port=port,
            request=f"{head}Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{self.body}",
            connections=self.connections,
            first_token=self.token,
            rising=self.rising,
            expected_status=min(self.statuses),
            expected_text="",
            warmup=0.0,
            seconds=seconds,
            walk=self.walk,
        )

    def faults(self, result: Result) -> list[str]:
        """Name answers that must not be."""
        found = [f"{self.name}: {count} x {what}" for what, count in result["faults"].items()]
        wrong = {s: count for s, count in result["statuses"].items() if int(s) not in self.statuses}
        return found + [f"{self.name}: {count} x status {status}" for status, count in wrong.items()]


def _quarter(number: int) -> Walk:
    return Walk(first_key=FIRST_KEY + number * _QUARTER, rows=_QUARTER)


def _write(name: str, method: str, table: str, body: str, walk: Walk, statuses: set[int], connections: int = 4) -> Load:
    return Load(name, f"{method} /v1/data/{table}/order-%(key)d", body, connections, walk, frozenset(statuses))


_FEW: Final = Walk(first_key=FIRST_KEY, rows=20_000)

LOADS: Final = (
    _write("PATCH", "PATCH", "orders", _CHANGE, _quarter(0), {200}, connections=16),
    Load(
        "PATCH with key", "PATCH /v1/data/orders/order-%(key)d", _CHANGE, 4, _quarter(1), frozenset({200}),
        headers="Idempotency-Key: %(same)d-%(token)d\r\n",
    ),
    Load("claim", "POST /v1/claims", '{"resource": "orders/order-%(key)d"}', 4, _quarter(2), frozenset({200})),
    Load(
        "stale PATCH", "PATCH /v1/data/orders/order-%(key)d", _CHANGE, 4, _quarter(3), frozenset({409}),
        rising=False, token=STALE_TOKEN,
    ),
    _write("PATCH with scope", "PATCH", "scoped", _CHANGE, Walk(first_key=FIRST_KEY, rows=ROWS), {200}),
    # One token for both, under the rule epoch: the last writer wins.
    Load(
        "PUT", "PUT /v1/data/churn/order-%(key)d", _SAME_ROW, 4, _FEW,
        frozenset({200, 201}), rising=False,
    ),
    Load(
        "DELETE", "DELETE /v1/data/churn/order-%(key)d", "", 4, _FEW,
        frozenset({204, 404}), rising=False,
    ),
    Load("POST", "POST /v1/data/new", _ROW, 2, fresh(0), frozenset({201})),
)  # fmt: skip


async def make_tables(url: str) -> None:
    """Make the tables that the loads write to."""
    await upgrade(url)
    await execute(
        url,
        *(
            f"CREATE TABLE {table} (order_id text PRIMARY KEY, status text NOT NULL)"
            for table in ("orders", "scoped", "churn", "new")
        ),
    )
    await _protected(url)
    fill = f"SELECT 'order-' || n, 'new' FROM generate_series({FIRST_KEY}, {FIRST_KEY + ROWS - 1}) n"
    await execute(
        url,
        "SET session_replication_role = replica;"
        f"INSERT INTO orders (order_id, status, last_fence_token) SELECT o, s, {MARK_AT_FIRST} FROM ({fill}) f (o, s);"
        f"INSERT INTO scoped (order_id, status) {fill}",
        "VACUUM ANALYZE orders",
        "VACUUM ANALYZE scoped",
    )


async def _protected(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await protect(connection, "orders")
        await protect(connection, "new")
        await protect(connection, "churn", rule="epoch")
        await protect(connection, "scoped", scope="by_order/{order_id}")
    finally:
        await connection.close()


async def put_on(port: int, seconds: float) -> tuple[dict[str, Result], int]:
    """Run all loads until the time is up; return what they saw, and how many leases were taken and released."""
    loop = asyncio.get_running_loop()
    threads = ThreadPoolExecutor(len(LOADS))  # each waits for a process
    running = [loop.run_in_executor(threads, load.generate, each.plan(port, seconds)) for each in LOADS]
    until = loop.time() + seconds
    holders = [_hold(port, f"alone-{n}", until) for n in range(3)] + [_hold(port, "shared", until) for _ in range(4)]
    results, pairs, _ = await asyncio.gather(
        asyncio.gather(*running), asyncio.gather(*holders), _wait_in_vain(port, until)
    )
    threads.shutdown()
    return {each.name: result for each, result in zip(LOADS, results, strict=True)}, sum(pairs)


async def _hold(port: int, lock: str, until: float) -> int:
    """Take a lock and give it back, again and again."""
    client, pairs = await HttpClient.open(port, waits=True), 0
    try:
        while asyncio.get_running_loop().time() < until:
            await client.acquire(lock)
            await client.release()
            pairs += 1
            await asyncio.sleep(0.002)
    finally:
        await client.close()
    return pairs


async def _wait_in_vain(port: int, until: float) -> None:
    """Ask for a lock that is held, and hang up before the answer, again and again.

    A busy gateway may grant it to a client that has just gone: then it is held until the lease expires. So each time it
    is another lock.
    """
    loop = asyncio.get_running_loop()
    holder = await HttpClient.open(port, waits=True)
    for lock in (f"held-{number}" for number in itertools.count()):
        await holder.acquire(lock)
        await asyncio.gather(*(_hang_up(port, lock) for _ in range(5)))
        await holder.release()
        if loop.time() >= until:
            break
    await holder.close()


async def _hang_up(port: int, lock: str) -> None:
    client = await HttpClient.open(port, waits=True)
    with suppress(TimeoutError):
        await asyncio.wait_for(client.acquire(lock), _WAITED_IN_VAIN)
    with suppress(ConnectionError):
        await client.close()
