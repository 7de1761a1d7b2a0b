"""A ZooKeeper of this folder's own, and sources on it."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack

import pytest
from tests.conformance.zookeeper.queueing import Open
from tests.conformance.zookeeper_bench import ZooKeeperBench, running

from fencepost.server.locks.zookeeper import ZooKeeperSource
from fencepost.server.locks.zookeeper_session import parse


@pytest.fixture(scope="package")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperBench]:
    with running(tmp_path_factory.mktemp("zookeeper-alone")) as bench:
        yield bench


@pytest.fixture
async def open_source(zookeeper: ZooKeeperBench) -> AsyncIterator[Open]:
    async with AsyncExitStack() as stack:

        async def opened(url: str = "", session_s: float = 30) -> ZooKeeperSource:
            url = url or f"zookeeper://127.0.0.1:{zookeeper.port}"
            source = ZooKeeperSource(parse(f"{url}?session_timeout_s={session_s}", "zk"))
            await source.open()
            stack.push_async_callback(source.close)
            return source

        yield opened


@pytest.fixture
async def source(open_source: Open) -> ZooKeeperSource:
    opened: ZooKeeperSource = await open_source()
    return opened


@pytest.fixture
def lock(request: pytest.FixtureRequest) -> str:
    return f"orders/{request.node.name}"
