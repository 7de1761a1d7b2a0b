"""Several workers: each gets its share of the connections, whatever happens to the others."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest
from tests.http.raw import RawConnection
from tests.support.gateways import Gateway, serving_process
from tests.support.servers import all_gone, established

from fencepost.server.ops.embedded import PostgresServer
from fencepost.server.ops.embedded_files import embedded_bin_dir
from fencepost.server.ops.migrate import upgrade
from fencepost.testing.servers.processes import PATIENCE, eventually, free_port, mentioning

pytestmark = pytest.mark.long("tests of several worker processes")

_REQUEST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Connection(RawConnection):
    """A connection to the gateway, kept open."""

    @property
    def port(self) -> int:
        port: int = self.writer.get_extra_info("sockname")[1]
        return port

    async def ask(self) -> int:
        await self.send(_REQUEST)
        return (await asyncio.wait_for(self.answer(), PATIENCE)).status

    async def closed_by_the_other_side(self) -> None:
        assert await asyncio.wait_for(self.ended(), PATIENCE)


class Clients:
    """Connections to one gateway, and which worker has them."""

    def __init__(self, gateway: Gateway, stack: AsyncExitStack) -> None:
        self._gateway, self._stack = gateway, stack
        self.port = int(gateway.url.rpartition(":")[2])

    async def connect(self, count: int) -> list[Connection]:
        """Open connections all at once, without a request on them."""

        async def one() -> Connection:
            connection = Connection(*await asyncio.open_connection("127.0.0.1", self.port))
            self._stack.callback(connection.close)
            return connection

        return await asyncio.gather(*(one() for _ in range(count)))

    async def answered(self, count: int) -> list[Connection]:
        """Open connections all at once, each of which has had an answer."""
        connections = await self.connect(count)
        assert await asyncio.gather(*(connection.ask() for connection in connections)) == [200] * count
        return connections

    def workers(self) -> list[int]:
        return [pid for pid in mentioning("spawn_main") if pid in self._gateway.processes()]

    def held(self) -> dict[int, set[int]]:
        return established(self.port, self.workers())


@asynccontextmanager
async def served(directory: Path, workers: int, *arguments: str) -> AsyncIterator[tuple[Gateway, Clients]]:
    async with serving_process(directory, "--workers", str(workers), *arguments) as gateway, AsyncExitStack() as stack:
        yield gateway, Clients(gateway, stack)


async def test_a_killed_workers_replacement_gets_connections(short_dir: Path) -> None:
    async with served(short_dir, 2) as (_, clients):
        first = clients.workers()
        connections = await clients.answered(8)
        lost = clients.held()[first[0]]
        assert len(lost) == 4
        os.kill(first[0], signal.SIGKILL)
        await all_gone([first[0]])  # until then its channel may still take a connection, which ends with it
        for connection in connections:
            if connection.port in lost:
                await connection.closed_by_the_other_side()
            else:
                assert await connection.ask() == 200

        async def replaced() -> bool:  # meanwhile everybody is served by the other
            await clients.answered(1)
            held = clients.held()
            return len(held) == 2 and all(len(ports) > 0 for ports in held.values())

        await eventually(replaced, what="a connection for the new worker")
        assert first[0] not in clients.workers()


async def test_sighup_reloads_in_every_worker_and_ends_no_connection_and_sigterm_ends_them(short_dir: Path) -> None:
    # What a load without news says is for debugging.
    async with served(short_dir, 2, "--log-level", "debug") as (gateway, clients):
        connections = await clients.answered(4)
        before = clients.workers()
        loads = gateway.errors.read_text().count("catalog loaded")
        gateway.process.send_signal(signal.SIGHUP)

        async def loaded() -> bool:
            return gateway.errors.read_text().count("catalog loaded") >= loads + 2

        await eventually(loaded, what="the tables loaded anew")
        assert [await connection.ask() for connection in connections] == [200] * 4
        assert clients.workers() == before
        connections += await clients.connect(4)
        gateway.process.send_signal(signal.SIGTERM)
        await asyncio.gather(*(connection.closed_by_the_other_side() for connection in connections))
        assert await gateway.ended() == 0
        assert "Traceback" not in gateway.errors.read_text()


async def test_a_worker_that_dies_while_the_database_is_away_comes_back_with_it(short_dir: Path) -> None:
    directory = short_dir / "postgres"
    server = PostgresServer(bin_dir=embedded_bin_dir(), data_dir=directory, port=free_port())
    server.start()
    try:
        url = server.url
        await upgrade(url)
        async with (
            serving_process(short_dir, "--workers", "2", "--start-timeout", "0", FENCEPOST_DATABASE_URL=url) as gateway,
            httpx.AsyncClient(base_url=gateway.url, timeout=PATIENCE) as client,
            AsyncExitStack() as stack,
        ):
            first = set(Clients(gateway, stack).workers())
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
                now = set(Clients(gateway, stack).workers())
                return len(now) == 2 and victim not in now and (await client.get("/readyz")).status_code == 200

            await eventually(all_back, what="two workers again")
            assert (await client.get("/v1/data/orders/order-123")).status_code == 200
            gateway.interrupt()
            assert await gateway.ended() == 0
    finally:
        server.stop()
