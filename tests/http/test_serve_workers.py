"""Several workers: each gets its share of the connections, whatever happens to the others."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest
from tests.support.processes import all_gone, established
from tests.support.serving import Gateway, serving

from fencepost.testing.servers.processes import mentioning
from fencepost.testing.servers.waiting import PATIENCE, eventually

pytestmark = pytest.mark.long("tests of several worker processes")

_REQUEST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Connection:
    """A bare connection to the gateway, kept open."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @property
    def port(self) -> int:
        port: int = self.writer.get_extra_info("sockname")[1]
        return port

    async def ask(self) -> int:
        self.writer.write(_REQUEST)
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), PATIENCE)
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        await self.reader.readexactly(length)
        return int(head.split()[1])

    async def closed_by_the_other_side(self) -> None:
        with suppress(ConnectionResetError):
            assert await asyncio.wait_for(self.reader.read(), PATIENCE) == b""

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


class Clients:
    """Connections to one gateway, and which worker has them."""

    def __init__(self, gateway: Gateway, stack: AsyncExitStack) -> None:
        self._gateway, self._stack = gateway, stack
        self.port = int(gateway.url.rpartition(":")[2])

    async def connect(self, count: int) -> list[Connection]:
        """Open connections all at once, without a request on them."""

        async def one() -> Connection:
            connection = Connection(*await asyncio.open_connection("127.0.0.1", self.port))
            self._stack.push_async_callback(connection.close)
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

    def counts(self) -> list[int]:
        return sorted(len(ports) for ports in self.held().values())


@asynccontextmanager
async def served(directory: Path, workers: int) -> AsyncIterator[tuple[Gateway, Clients]]:
    async with serving(directory, "--workers", str(workers)) as gateway, AsyncExitStack() as stack:
        yield gateway, Clients(gateway, stack)


async def test_connections_are_spread_evenly(short_dir: Path) -> None:
    async with served(short_dir, 3) as (_, clients):
        await clients.answered(64)
        assert clients.counts() == [21, 21, 22]


async def test_new_connections_go_where_the_fewest_are(short_dir: Path) -> None:
    async with served(short_dir, 2) as (_, clients):
        connections = await clients.answered(16)
        victim = clients.workers()[0]
        ended = clients.held()[victim]
        await asyncio.gather(*(connection.close() for connection in connections if connection.port in ended))

        async def gone() -> bool:
            return clients.counts() == [0, 8]

        await eventually(gone, what="the end of one worker's connections")

        async def caught_up() -> bool:  # never by turns alone
            await clients.answered(1)
            return len(set(clients.counts())) == 1

        await eventually(caught_up, what="as many connections for the idle worker")


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


async def test_a_connection_handed_to_a_worker_that_dies_first_is_closed(short_dir: Path) -> None:
    async with served(short_dir, 2) as (_, clients):
        victim = clients.workers()[0]
        os.kill(victim, signal.SIGSTOP)
        connections = await clients.connect(4)
        asked = [asyncio.create_task(connection.ask()) for connection in connections]

        async def half_answered() -> bool:
            return sum(task.done() for task in asked) >= 2

        await eventually(half_answered, what="the answers of the other worker")
        os.kill(victim, signal.SIGKILL)
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        assert outcomes.count(200) >= 2
        assert all(
            outcome == 200 or isinstance(outcome, ConnectionResetError | asyncio.IncompleteReadError)
            for outcome in outcomes
        )


async def test_sighup_reloads_in_every_worker_and_ends_no_connection_and_sigterm_ends_them(short_dir: Path) -> None:
    async with served(short_dir, 2) as (gateway, clients):
        connections = await clients.answered(4)
        before = clients.workers()
        loads = gateway.errors.read_text().count("catalog")
        gateway.process.send_signal(signal.SIGHUP)

        async def loaded() -> bool:
            return gateway.errors.read_text().count("catalog") >= loads + 2

        await eventually(loaded, what="the tables loaded anew")
        assert [await connection.ask() for connection in connections] == [200] * 4
        assert clients.workers() == before
        connections += await clients.connect(4)
        gateway.process.send_signal(signal.SIGTERM)
        await asyncio.gather(*(connection.closed_by_the_other_side() for connection in connections))
        assert await gateway.ended() == 0
        assert "Traceback" not in gateway.errors.read_text()
