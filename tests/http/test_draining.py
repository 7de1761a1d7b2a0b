"""SIGTERM under keep-alive: no request of which a byte had arrived stays without an answer."""

import asyncio
import itertools
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.support.serving import Gateway, serving, workers

from fencepost.testing.servers.waiting import eventually

pytestmark = pytest.mark.long("gateways that stop, and databases that hang")

HEAD = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
REQUEST = HEAD + b"\r\n"


@dataclass
class Client:
    """A connection that is kept alive."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def answer(self) -> bytes:
        """Read the head of an answer, and its body; empty at the end of the stream."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return b""
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await self.reader.readexactly(int(length.partition(b":")[2]))
        return head.lower()

    async def ask(self, request: bytes = REQUEST) -> bytes:
        self.writer.write(request)
        return await self.answer()


Connected = Callable[[Gateway], Awaitable[Client]]


@pytest.fixture
async def connected() -> AsyncIterator[Connected]:
    """Give what connects to a gateway. All connections are closed afterwards."""
    clients: list[Client] = []

    async def connected(gateway: Gateway) -> Client:
        parts = urlsplit(gateway.url)
        clients.append(Client(*await asyncio.open_connection(parts.hostname, parts.port)))
        return clients[-1]

    yield connected
    for client in clients:
        client.writer.transport.abort()


@asynccontextmanager
async def stopping(gateway: Gateway, connected: Connected) -> AsyncIterator[None]:
    """Send SIGTERM, and go on once the gateway accepts no more; afterwards it has ended in order."""
    os.kill(gateway.process.pid, signal.SIGTERM)

    async def refuses() -> bool:
        try:
            await connected(gateway)
        except ConnectionError:
            return True
        return False

    await eventually(refuses, what="the gateway accepts no more")
    yield
    assert await gateway.ended() == 0, gateway.errors.read_text()


@workers
async def test_an_idle_connection_may_be_used_once_more_and_a_request_that_has_begun_to_arrive_is_answered(
    workers: str, short_dir: Path, connected: Connected
) -> None:
    async with serving(short_dir, "--workers", workers) as gateway:
        idle, fresh, used = [await connected(gateway) for _ in range(3)]
        assert b"connection: close" not in await idle.ask()
        await used.ask()
        for client in (fresh, used):
            client.writer.write(HEAD)
        await (await connected(gateway)).ask()  # what came before is likely to be read by then
        async with stopping(gateway, connected):
            answer = b""
            while b"connection: close" not in answer:  # a worker may drain a moment after the parent accepts no more
                answer = await idle.ask()
                assert answer.startswith(b"http/1.1 200")
            assert await idle.reader.read() == b""
            for client in (fresh, used):
                answer = await client.ask(b"\r\n")
                assert answer.startswith(b"http/1.1 200")
                assert await client.reader.read() == b""


@workers
async def test_clients_that_ask_again_and_again_miss_no_answer(
    workers: str, short_dir: Path, connected: Connected
) -> None:
    async with serving(short_dir, "--workers", workers) as gateway:
        answered, lost = itertools.count(), []
        busy = asyncio.Event()

        async def ask_again_and_again(client: Client) -> None:
            while True:
                answer = await client.ask()
                if not answer:
                    lost.append(client)
                    return
                if next(answered) > 500:
                    busy.set()
                if b"connection: close" in answer:
                    return

        clients = [await connected(gateway) for _ in range(50)]
        assert all(await asyncio.gather(*(client.ask() for client in clients)))  # the gateway has accepted them all
        async with asyncio.TaskGroup() as group:
            for client in clients:
                group.create_task(ask_again_and_again(client))
            await busy.wait()
            async with stopping(gateway, connected):
                pass
        assert lost == []


async def test_a_gateway_with_idle_connections_ends_soon(short_dir: Path, connected: Connected) -> None:
    async with serving(short_dir, "--shutdown-timeout", "600") as gateway:
        clients = [await connected(gateway) for _ in range(5)]
        assert all(await asyncio.gather(*(client.ask() for client in clients)))  # the gateway has accepted them all
        os.kill(gateway.process.pid, signal.SIGTERM)
        assert await gateway.ended() == 0
        assert [await client.reader.read() for client in clients] == [b""] * 5
