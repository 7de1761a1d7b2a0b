"""A Redis of this folder's own, emptied before each test, and queues in it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack

import pytest
from tests.conformance.redis_bench import RedisBench, command, running

from fencepost.server.queues.log import Message
from fencepost.server.queues.redis import RedisConsumer, RedisLog, from_url
from fencepost.testing.servers.processes import PATIENCE

Opened = Callable[[str], RedisLog]
QUEUE = "fencepost:{orders}"


def message(number: int) -> Message:
    return Message(b"orders/1", b"%d" % number)


async def numbers_taken(consumer: RedisConsumer, count: int) -> list[int]:
    """Take until so many messages came, and return their numbers."""
    found: list[int] = []
    async with asyncio.timeout(2 * PATIENCE):
        while len(found) < count:
            found += [int(each.message.value or b"-1") for each in await consumer.take(100, 30)]
    return found


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisBench]:
    with running(tmp_path_factory.mktemp("queues")) as bench:
        yield bench


@pytest.fixture
async def port(server: RedisBench) -> int:
    await command(server.ports[0], "FLUSHALL")
    return server.ports[0]


@pytest.fixture
async def log_at() -> AsyncIterator[Opened]:
    """Give a function that makes the log of a URL; it is closed after the test."""
    async with AsyncExitStack() as stack:

        def made(url: str) -> RedisLog:
            log = from_url(url)
            stack.push_async_callback(log.close)
            return log

        yield made


@pytest.fixture
def url(port: int) -> str:
    return f"redis://127.0.0.1:{port}/orders?partitions=1"


@pytest.fixture
def log(url: str, log_at: Opened) -> RedisLog:
    return log_at(url)
