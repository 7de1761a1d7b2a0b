"""Each test of this folder runs once for every token source, on that one's real server."""

import itertools
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.benches import BENCHES, Bench, KubernetesBench, kube_cluster, opened

from fencepost.server.locks.source import Grant, Holder, Source
from fencepost.testing.servers.kubernetes import Cluster

EACH_BENCH = [
    name if name in {"redis", "advisory"} else pytest.param(name, marks=pytest.mark.long(f"tests with {name}"))
    for name in BENCHES
]
"""The same as parameters: what one that starts in a moment shows is not waited for with the others in `make test`."""

_numbers = itertools.count(1)
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="package")
def apiserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Run a kube-apiserver for this directory and those in it; a test leaves it running."""
    with kube_cluster(tmp_path_factory.mktemp("kube")) as running:
        yield running


@pytest.fixture(scope="package", params=EACH_BENCH)
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Run one source's service for this directory; skips where its server is not installed."""
    if request.param == "kubernetes":
        yield KubernetesBench(request.getfixturevalue("apiserver"))
        return
    with BENCHES[request.param](tmp_path_factory.mktemp(request.param)) as running:
        yield running


@dataclass
class Asking:
    """Asks sources for locks of the test's own."""

    bench: Bench
    source: Source
    ttl_ms: int

    async def acquire(
        self, lock: str, *, wait_s: float = 0, owner: str = "somebody", tokens: int = 1, by: Source | None = None
    ) -> Grant | Holder:
        return await (by or self.source).acquire(lock, owner=owner, ttl_ms=self.ttl_ms, tokens=tokens, wait_s=wait_s)

    async def granted(self, lock: str, **how: Any) -> Grant:
        grant = await self.acquire(lock, **how)
        assert isinstance(grant, Grant), grant
        return grant


@pytest.fixture
def another(bench: Bench, stack: AsyncExitStack) -> Callable[[], Awaitable[Source]]:
    """Give a function that opens one more source on the same service, as another worker would."""

    async def one_more() -> Source:
        source = await opened(bench)
        stack.push_async_callback(source.close)
        return source

    return one_more


@pytest.fixture
async def ask(bench: Bench, another: Callable[[], Awaitable[Source]]) -> Asking:
    source = await another()
    return Asking(bench, source, 30_000)


@pytest.fixture
def lock() -> str:
    return f"orders/order-{next(_numbers)}"
