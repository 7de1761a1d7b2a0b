"""An etcd of one node for the tests of this folder, a source on it, and a lock for each test."""

from collections.abc import AsyncIterator, Iterator

import pytest
from tests.conformance.bench import opened
from tests.conformance.etcd_bench import EtcdBench, running

from fencepost.server.locks.source import Source


@pytest.fixture(scope="package")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdBench]:
    with running(tmp_path_factory.mktemp("etcd")) as bench:
        yield bench


@pytest.fixture
async def source(node: EtcdBench) -> AsyncIterator[Source]:
    found = await opened(node)
    yield found
    await found.close()


@pytest.fixture
def lock(request: pytest.FixtureRequest) -> str:
    return f"etcd/{request.node.name}"
