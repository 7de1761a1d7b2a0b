"""SIGTERM under keep-alive: no request of which a byte had arrived stays without an answer."""

import asyncio
import itertools
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.http.raw import Answer, RawConnection
from tests.support.gateways import Gateway, serving_process, workers
from tests.support.use_cases import Sent, patch_line

from fencepost.testing.servers.processes import eventually

pytestmark = pytest.mark.long("gateways that stop, and databases that hang")

HEAD = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
REQUEST = HEAD + b"\r\n"


async def ask(client: RawConnection, request: bytes = REQUEST) -> Answer | None:
    """Send a request and read the answer; None at the end of the stream."""
    await client.send(request)
    try:
        return await client.answer()
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def last(answer: Answer | None) -> bool:
    """Whether an answer says that the connection ends after it."""
    assert answer is not None
    assert answer.status == 200
    return answer.headers.get("connection") == "close"


Connected = Callable[[Gateway], Awaitable[RawConnection]]


@pytest.fixture
async def connected() -> AsyncIterator[Connected]:
    """Give what connects to a gateway. All connections are closed afterwards."""
    clients: list[RawConnection] = []

    async def connected(gateway: Gateway) -> RawConnection:
        clients.append(await RawConnection.open(gateway.url))
        return clients[-1]

    yield connected
    for client in clients:
        client.close()


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
    async with serving_process(short_dir, "--workers", workers, "--shutdown-timeout", "600") as gateway:
        idle, fresh, used = [await connected(gateway) for _ in range(3)]
        assert not last(await ask(idle))
        await ask(used)
        for client in (fresh, used):
            await client.send(HEAD)
        await ask(await connected(gateway))  # what came before is likely to be read by then
        async with stopping(gateway, connected):
            while not last(await ask(idle)):  # a worker may drain a moment after the parent accepts no more
                pass
            assert await idle.ended()
            for client in (fresh, used):
                last(await ask(client, b"\r\n"))
                assert await client.ended()


@workers
async def test_clients_that_ask_again_and_again_miss_no_answer(
    workers: str, short_dir: Path, connected: Connected
) -> None:
    async with serving_process(short_dir, "--workers", workers) as gateway:
        answered, lost = itertools.count(), []
        busy = asyncio.Event()

        async def ask_again_and_again(client: RawConnection) -> None:
            while True:
                answer = await ask(client)
                if answer is None:
                    lost.append(client)
                    return
                if next(answered) > 500:
                    busy.set()
                if last(answer):
                    return

        clients = [await connected(gateway) for _ in range(50)]
        assert all(await asyncio.gather(*(ask(client) for client in clients)))  # the gateway has accepted them all
        async with asyncio.TaskGroup() as group:
            for client in clients:
                group.create_task(ask_again_and_again(client))
            await busy.wait()
            async with stopping(gateway, connected):
                pass
        assert lost == []


async def test_a_batch_that_goes_on_is_ended_with_how_far_it_came(short_dir: Path, connected: Connected) -> None:
    async with serving_process(short_dir, "--workers", "2", "--shutdown-timeout", "600") as gateway:
        sent = await Sent.open(gateway.url)
        await sent.send(*[patch_line("order-123", 1000 + each, note=str(each)) for each in range(10)])
        verdicts = [await sent.next() for _ in range(10)]
        assert [verdict["status"] for verdict in verdicts if verdict is not None] == [200] * 10
        async with stopping(gateway, connected):
            assert await sent.next() == {"stopped": True, "lines": 10, "reason": "The gateway is stopping."}
            assert await sent.next() is None
        sent.connection.close()
