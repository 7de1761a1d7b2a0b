"""A gateway with a lock service behind it, each on its real server."""

import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from tests.conformance.benches import BENCHES, Bench
from tests.sources.scripted import NAME, Scripted, Stage
from tests.support.gateways import in_process
from tests.support.interleave import Connect, connection_to
from tests.support.use_cases import open_gateway

from fencepost.server.locks.source_leases import SourceLocks
from fencepost.server.ops.protect import protect
from fencepost.server.times import TIMES, Times

OF_EACH_KIND = ["redis", "advisory", pytest.param("zookeeper", marks=pytest.mark.long("tests with zookeeper"))]
"""One that ends leases by itself, one whose tokens are drawn in PostgreSQL, and one whose holds live by a session. How
each source behaves is shown in tests/conformance.
"""
one_source = pytest.mark.parametrize("bench", ["redis"], indirect=True)
"""What no source does in a way of its own."""


@pytest.fixture(scope="package", params=OF_EACH_KIND)
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Run a lock service, once for each kind."""
    with BENCHES[request.param](tmp_path_factory.mktemp(request.param)) as running:
        yield running


@dataclass
class Api:
    """A gateway and one source behind it. `database` is its own."""

    client: httpx.AsyncClient
    source: str
    database: str

    async def post(self, lock: str, **asked: object) -> httpx.Response:
        """Ask for a lock. `secret` goes where it belongs."""
        secret = asked.pop("secret", None)
        headers = {} if secret is None else {"X-Lease-Secret": str(secret)}
        body = {"lock": lock, "source": self.source, "ttl_ms": 20_000, **asked}
        return await self.client.post("/v1/leases", json=body, headers=headers)

    async def grant(self, lock: str, **asked: object) -> dict[str, Any]:
        answer = await self.post(lock, **asked)
        assert answer.status_code == 201, answer.text
        granted: dict[str, Any] = answer.json()
        return granted

    async def on(self, lease: dict[str, Any], verb: str, **body: object) -> httpx.Response:
        """Renew, mint (`tokens`) or release (`delete`) a lease."""
        headers = {"X-Lease-Secret": lease["secret"]}
        if verb == "delete":
            return await self.client.delete(f"/v1/leases/{lease['lease_id']}", headers=headers)
        return await self.client.post(f"/v1/leases/{lease['lease_id']}/{verb}", json=body, headers=headers)

    async def write(self, token: str | int, key: str = "k", **changes: object) -> httpx.Response:
        return await self.client.patch(
            f"/v1/data/orders/{key}", json=changes or {"status": f"by {token}"}, headers={"X-Fence-Token": str(token)}
        )


async def orders(database: str, *, source: str | None = None, verify: bool = False, rule: Any = "strict") -> None:
    """Make a table orders with the row k, protected for a source (registered by a gateway before)."""
    async with connection_to(database) as connection:
        await connection.execute(
            "CREATE TABLE public.orders (order_id text PRIMARY KEY, status text NOT NULL DEFAULT 'new');"
            "INSERT INTO public.orders VALUES ('k')"
        )
        await protect(connection, "orders", source=source, verify=verify, rule=rule)


def secret() -> str:
    return secrets.token_urlsafe(24)


async def serving(stack: AsyncExitStack, database: str, name: str, url: str, **pinned: Any) -> Api:
    """Serve a database with the source of this name, and a table orders: its own, unless `source` says otherwise."""
    client = await stack.enter_async_context(in_process(database, sources=f"{name}={url}"))
    await orders(database, **{"source": name, **pinned})
    return Api(client, name, database)


@pytest.fixture
async def api(bench: Bench, database: str, stack: AsyncExitStack) -> Api:
    """Serve the test's database with the bench's service as the source `lock_service`."""
    return await serving(stack, database, "lock_service", bench.url)


@pytest.fixture
def make(connect: Connect, database: str) -> Callable[..., Any]:
    """Give a function that opens leases over a scripted service; its arguments are those of `Scripted`."""

    @asynccontextmanager
    async def staged(times: Times = TIMES, **service: Any) -> AsyncIterator[Stage]:
        scripted, troubles, quarantined = Scripted(**service), list[str](), list[str]()
        async with open_gateway(database, lease_pool_size=4) as gateway:
            locks = SourceLocks(
                *(NAME, "mock", scripted, gateway.database),
                failed=troubles.append,
                quarantined=quarantined.append,
                times=times,
            )
            await locks.open()
            try:
                yield Stage(locks, scripted, await connect(), gateway.database, troubles, quarantined)
            finally:
                await locks.close()

    return staged
