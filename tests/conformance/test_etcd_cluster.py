"""etcd as three nodes, of which some are killed or stopped, and what `doctor` reports of its settings."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress

import pytest
from tests.conformance.bench import opened
from tests.conformance.etcd_bench import EtcdBench, running
from tests.conformance.test_etcd import granted, queued

from fencepost.server.locks.etcd import EtcdRefusedError
from fencepost.server.locks.source import REQUEST_TIMEOUT, Holder, Source, SourceContext, SourceUnavailableError, make
from fencepost.testing.servers.processes import PATIENCE

pytestmark = pytest.mark.long("tests of etcd")


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdBench]:
    with running(tmp_path_factory.mktemp("etcd3"), nodes=3) as bench:
        yield bench


@pytest.fixture
async def source(nodes: EtcdBench) -> AsyncIterator[Source]:
    found = await opened(nodes)
    yield found
    await found.close()


@pytest.fixture
def lock(request: pytest.FixtureRequest) -> str:
    return f"etcd3/{request.node.name}"


@asynccontextmanager
async def only(nodes: EtcdBench, *numbers: int) -> AsyncIterator[Source]:
    """Open a source that knows these endpoints, in this order."""
    places = ",".join(nodes.endpoints[n] for n in numbers)
    source = make(f"etcd://{places}", SourceContext("some", ""))
    await source.open()
    yield source
    await source.close()


@asynccontextmanager
async def killed(nodes: EtcdBench, *numbers: int) -> AsyncIterator[None]:
    for n in numbers:
        nodes.nodes[n].crash()
    try:
        yield
    finally:
        for n in numbers:
            nodes.nodes[n].start()
        for n in numbers:
            await nodes.nodes[n].serves()


@asynccontextmanager
async def stopped(nodes: EtcdBench, number: int) -> AsyncIterator[None]:
    nodes.nodes[number].pause()
    try:
        yield
    finally:
        nodes.nodes[number].resume()
        await nodes.nodes[number].serves()


async def everything(source: Source, lock: str) -> None:
    """Take a lock, and do with it what can be done."""
    grant = await granted(source, lock, ttl_ms=60_000)
    assert await source.renew(lock, grant.handle, 60_000) is True
    more = await source.mint(lock, grant.handle, 1)
    assert more is not None
    assert await source.issued(more[0])
    await source.release(lock, grant.handle)
    assert await source.inspect(lock) is None


async def test_a_follower_that_is_killed_changes_nothing(nodes: EtcdBench, lock: str) -> None:
    leader = await nodes.leader()
    follower, other = (n for n in range(3) if n != leader)
    async with only(nodes, follower, leader, other) as source, killed(nodes, follower):
        await everything(source, lock)


@pytest.mark.realtime
async def test_a_node_that_hangs_is_passed_over(nodes: EtcdBench, lock: str) -> None:
    leader = await nodes.leader()
    follower, other = (n for n in range(3) if n != leader)
    async with only(nodes, follower, other, leader) as source, stopped(nodes, follower):
        async with asyncio.timeout(REQUEST_TIMEOUT):
            await everything(source, lock)


@pytest.mark.parametrize("harm", ["killed", "stopped"])
async def test_the_leader_goes_while_a_lock_is_held_and_waited_for(
    nodes: EtcdBench, source: Source, lock: str, harm: str
) -> None:
    leader = await nodes.leader()
    grant = await granted(source, lock, ttl_ms=10_000, tokens=3)
    async with only(nodes, leader, *(n for n in range(3) if n != leader)) as waiting:
        # A waiter that hears nothing from the node that hangs looks again before its place's TTL ends.
        waiter = asyncio.create_task(granted(waiting, lock, ttl_ms=3000))
        await queued(nodes, lock)
        async with killed(nodes, leader) if harm == "killed" else stopped(nodes, leader):
            assert await source.renew(lock, grant.handle, 10_000) is True
            more = await source.mint(lock, grant.handle, 3)
            assert more is not None
            assert more[0] > grant.tokens[-1]
            held = await source.inspect(lock)
            assert isinstance(held, Holder)
            assert held.owner == "somebody"
            assert not waiter.done()
            await source.release(lock, grant.handle)
            assert (await waiter).tokens[0] > more[-1]


async def test_a_waiter_whose_watch_hangs_gets_the_lock_all_the_same(
    nodes: EtcdBench, source: Source, lock: str
) -> None:
    leader = await nodes.leader()
    follower, other = (n for n in range(3) if n != leader)
    grant = await granted(source, lock, ttl_ms=60_000)
    async with only(nodes, follower, other) as waiting, only(nodes, leader) as releasing:
        waiter = asyncio.create_task(granted(waiting, lock, ttl_ms=3000))
        await queued(nodes, lock)
        async with stopped(nodes, follower):
            await releasing.release(lock, grant.handle)
            assert (await waiter).tokens > grant.tokens


async def test_without_a_majority_nothing_is_answered_and_nothing_is_lost(
    nodes: EtcdBench, source: Source, lock: str
) -> None:
    grant = await granted(source, lock, ttl_ms=60_000)
    async with killed(nodes, 0, 2):
        asked = asyncio.gather(
            source.renew(lock, grant.handle, 60_000),
            source.mint(lock, grant.handle, 1),
            source.inspect(lock),
            granted(source, f"{lock}/other", wait_s=0),
            granted(source, f"{lock}/other"),
            source.issued(1),
            return_exceptions=True,
        )
        assert all(isinstance(each, SourceUnavailableError) for each in await asyncio.wait_for(asked, PATIENCE))
    assert await source.renew(lock, grant.handle, 60_000) is True
    more = await source.mint(lock, grant.handle, 1)
    assert more is not None
    assert more > grant.tokens
    await granted(source, f"{lock}/other", wait_s=PATIENCE)


async def test_a_sound_cluster_needs_no_advice(nodes: EtcdBench, source: Source) -> None:
    assert await source.advice() == []
    async with killed(nodes, 1):
        (advice,) = await source.advice()
        assert nodes.endpoints[1] in advice


async def test_endpoints_of_two_clusters_and_a_single_node_are_reported(
    nodes: EtcdBench, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with running(tmp_path_factory.mktemp("etcd1")) as single:
        source = make(f"etcd://{single.endpoints[0]},{nodes.endpoints[0]}", SourceContext("mixed", ""))
        await source.open()
        advice = " ".join(await source.advice())
        await source.close()
    assert "2 clusters" in advice
    assert "one node" in advice


async def test_an_alarm_is_reported(tmp_path_factory: pytest.TempPathFactory) -> None:
    with running(tmp_path_factory.mktemp("full"), extra=("--quota-backend-bytes", str(64 * 1024))) as full:
        source = await opened(full)
        with suppress(AssertionError):  # of etcdctl, once no more is taken
            for n in range(10):
                await full.ctl("put", f"big{n}", "x" * 30_000)
        with pytest.raises(EtcdRefusedError, match="space exceeded"):
            await granted(source, "a", wait_s=0)
        advice = " ".join(await source.advice())
        await source.close()
    assert "NOSPACE" in advice
