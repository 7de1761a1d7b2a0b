"""A Redis of this folder's own, emptied before each test, and sources on it."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack

import pytest
from tests.conformance.redis.taking import Opened
from tests.conformance.redis_bench import RedisBench, command, running

from fencepost.server.locks.source import Source, SourceContext, make


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisBench]:
    with running(tmp_path_factory.mktemp("redis")) as bench:
        yield bench


@pytest.fixture
async def bench(server: RedisBench) -> RedisBench:
    await command(server.ports[0], "FLUSHALL")
    return server


@pytest.fixture
async def source_of() -> AsyncIterator[Opened]:
    """Give a function that makes a source of a URL; it is closed after the test."""
    async with AsyncExitStack() as stack:

        def made(url: str) -> Source:
            source = make(url, SourceContext("locks", ""))
            stack.push_async_callback(source.close)
            return source

        yield made


@pytest.fixture
async def source(bench: RedisBench, source_of: Opened) -> Source:
    return source_of(bench.url)
