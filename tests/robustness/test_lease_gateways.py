"""Locks over several gateways, HTTP and all, of which one is killed, or whose PostgreSQL restarts.

The gateway that is killed is a process of its own.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest
from tests.support.gateways import Gateway, serving_process
from tests.support.interleave import Connection
from tests.support.lease_gateways import in_line, look_on, post, release, running
from tests.support.violations import promised

from fencepost.server.ops import demo
from fencepost.server.ops.embedded import PostgresServer
from fencepost.server.ops.embedded_files import embedded_bin_dir
from fencepost.server.ops.migrate import upgrade
from fencepost.testing.servers.processes import PATIENCE, eventually, free_port, new_directory, remove_directory

pytestmark = pytest.mark.long("holders, leaders and gateways that are paused or killed")

WAIT = 300_000


async def wait(
    client: httpx.AsyncClient, observer: Connection, owner: str, **asked: object
) -> asyncio.Task[httpx.Response]:
    """Start waiting for the lock `x`; return once the place in the queue is taken."""
    task = asyncio.create_task(post(client, "x", owner=owner, wait_ms=WAIT, **asked))
    await in_line(observer, owner)
    return task


async def lease(answer: httpx.Response) -> dict[str, str]:
    assert answer.status_code == 201, answer.text
    given: dict[str, str] = answer.json()
    return given


def assert_waits(task: asyncio.Task[httpx.Response]) -> None:
    """Assert that a request waits for the lock, which another one holds."""
    promised(not task.done() or task.result().status_code != 201, "two hold one lock")
    assert not task.done()


async def waiting(observer: Connection) -> list[str]:
    rows = await observer.fetch("SELECT owner FROM fencepost.live_waiters WHERE name = 'x' ORDER BY ticket")
    return [row[0] for row in rows]


# Two gateways on one database


# Gateways and a PostgreSQL that go away


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """Run a PostgreSQL of our own, on a port of its own, which can be restarted."""
    directory = new_directory()
    try:
        server = PostgresServer(bin_dir=embedded_bin_dir(), data_dir=directory / "data", port=free_port())
        server.start()
        asyncio.run(upgrade(server.url))
        asyncio.run(demo.load(server.url))  # `serve --demo` does it too, and two at once would collide
        yield server
        server.stop()
    finally:
        remove_directory(directory)


@pytest.fixture
async def observer(server: PostgresServer) -> AsyncIterator[Connection]:
    connection = await look_on(server.url)
    for table in ("locks", "leases", "draws", "waiters", "gateways"):
        await connection.execute(f"TRUNCATE fencepost.{table}")
    yield connection
    await connection.close(timeout=5)


@pytest.fixture
async def processes(server: PostgresServer, short_dir: Path) -> AsyncIterator[list[tuple[Gateway, httpx.AsyncClient]]]:
    """Run two gateways as processes."""
    async with AsyncExitStack() as stack:
        started = []
        for name in ("one", "two"):
            (short_dir / name).mkdir()
            started.append(
                stack.enter_async_context(serving_process(short_dir / name, FENCEPOST_DATABASE_URL=server.url))
            )
        gateways = await asyncio.gather(*started)
        clients = [
            await stack.enter_async_context(httpx.AsyncClient(base_url=gateway.url, timeout=PATIENCE, trust_env=False))
            for gateway in gateways
        ]
        yield list(zip(gateways, clients, strict=True))


async def test_waiters_of_a_killed_gateway_hold_no_other_up(
    processes: list[tuple[Gateway, httpx.AsyncClient]], observer: Connection
) -> None:
    (killed, first_client), (_, client) = processes
    holder = await lease(await post(client, "x"))
    first = await wait(first_client, observer, "at the killed gateway")
    second = await wait(client, observer, "second")
    third = await wait(client, observer, "third")
    os.kill(killed.process.pid, signal.SIGKILL)
    with pytest.raises(httpx.TransportError):
        await first
    await release(client, holder)  # and the first in the queue is not there to take it
    given = await lease(await asyncio.wait_for(second, PATIENCE))
    await release(client, given)
    await release(client, await lease(await asyncio.wait_for(third, PATIENCE)))


async def test_a_waiter_gets_the_lock_though_postgresql_restarts_meanwhile(
    server: PostgresServer, observer: Connection
) -> None:
    async with running(server.url) as client:
        holder = await lease(await post(client, "x", ttl_ms=300_000))
        first = await wait(client, observer, "first")
        second = await wait(client, observer, "second")
        await observer.close()
        server.stop()
        server.start()

        async def back() -> bool:
            return (await client.get("/readyz")).status_code == 200

        await eventually(back, what="the gateway's readiness")
        assert_waits(first)
        assert_waits(second)
        await release(client, holder)
        await release(client, await lease(await asyncio.wait_for(first, PATIENCE)))
        await release(client, await lease(await asyncio.wait_for(second, PATIENCE)))
