"""What only the source redlock has: dead, slow and disagreeing nodes, and a validity that runs out."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence

import pytest
from tests.conformance import test_redis
from tests.conformance.benches import (
    LONGEST_NODE_MS,
    NODE_TIMEOUT_MS,
    RedisBench,
    redis_command,
    redlock_url,
    running_redis_servers,
)
from tests.conformance.test_redis import Opened
from tests.support.postgres import cutting_proxy

from fencepost.server.locks.redlock import validity_ms
from fencepost.server.locks.source import Grant, Holder, Source, SourceError, SourceUnavailableError
from fencepost.testing.servers.processes import eventually

pytestmark = pytest.mark.long("tests of Redlock")

source_of = test_redis.source_of

LONG_MS = 60_000
"""A TTL that no test waits for: what is free before was given back."""
LOCK = "orders/order-1"
KEY = f"fencepost:redlock:{LOCK}"
ANOTHER_CLIENT = "0" * 32 + ":another client"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisBench]:
    with running_redis_servers(tmp_path_factory.mktemp("redlock"), 5) as (nodes, ports):
        yield RedisBench("redlock", redlock_url(ports, LONGEST_NODE_MS), nodes, ports, "fencepost:redlock:")


@pytest.fixture
async def bench(servers: RedisBench) -> AsyncIterator[RedisBench]:
    """Five healthy and empty nodes; what a test did to them is undone after it."""
    for port in servers.ports:
        await redis_command(port, "FLUSHALL")
    yield servers
    for server in servers.servers:
        if server.running:
            server.resume()
        else:
            server.start()
    for server in servers.servers:
        await server.serves()


@pytest.fixture
async def source(request: pytest.FixtureRequest, bench: RedisBench, source_of: Opened) -> Source:
    by_the_clock = request.node.get_closest_marker("realtime") is not None
    source = source_of(redlock_url(bench.ports) if by_the_clock else bench.url)
    await source.inspect(LOCK)  # it is connected
    return source


async def take(source: Source, *, ttl_ms: int = LONG_MS, wait_s: float = 0) -> Grant | Holder:
    return await source.acquire(LOCK, owner="somebody", ttl_ms=ttl_ms, tokens=1, wait_s=wait_s)


async def granted(source: Source) -> Grant:
    grant = await take(source)
    assert isinstance(grant, Grant)
    return grant


async def having(ports: Sequence[int]) -> list[bytes | None]:
    return [await redis_command(port, "GET", KEY) for port in ports]


# Dead and slow nodes


async def test_two_dead_nodes_of_five_are_borne_also_under_a_hold(bench: RedisBench, source: Source) -> None:
    grant = await granted(source)
    for server in bench.servers[:2]:
        server.crash()
    for _ in range(2):
        assert isinstance(await take(source), Holder)
        assert await source.renew(LOCK, grant.handle, LONG_MS) is True
        assert await source.inspect(LOCK) is not None
        assert await source.mint(LOCK, grant.handle, 1) == ()
        await source.release(LOCK, grant.handle)
        assert await source.inspect(LOCK) is None
        grant = await granted(source)


async def test_three_dead_nodes_of_five_are_too_many_and_others_keep_nothing(bench: RedisBench, source: Source) -> None:
    for server in bench.servers[:3]:
        server.crash()
    with pytest.raises(SourceUnavailableError, match="only 2 of 5 Redis servers answered") as error:
        await take(source)
    assert LOCK in str(error.value)
    assert f"127.0.0.1:{bench.ports[0]}" in str(error.value)
    assert await having(bench.ports[3:]) == [None, None]


@pytest.mark.realtime
async def test_stopped_nodes_count_as_dead_and_do_not_eat_up_the_ttl(bench: RedisBench, source: Source) -> None:
    for server in bench.servers[:2]:
        server.pause()
    loop = asyncio.get_running_loop()
    began = loop.time()
    grant = await granted(source)
    assert await source.renew(LOCK, grant.handle, LONG_MS) is True
    assert loop.time() - began < 1.0, "twice the time limit of a node, and no repeats by the library"
    left_ms = await redis_command(bench.ports[4], "PTTL", KEY)
    assert left_ms > LONG_MS - 1000
    await source.release(LOCK, grant.handle)
    assert await having(bench.ports[2:]) == [None] * 3


@pytest.mark.realtime
async def test_all_nodes_are_asked_at_once_and_who_waits_outlasts_an_outage(bench: RedisBench, source: Source) -> None:
    await bench.pause()
    async with asyncio.timeout(5 * NODE_TIMEOUT_MS / 1000):  # to take and to release, and not ten time limits
        with pytest.raises(SourceUnavailableError, match="only 0 of 5 Redis servers answered"):
            await take(source)
    waiter = asyncio.create_task(take(source, wait_s=30))
    await asyncio.wait([waiter], timeout=0.5)
    assert not waiter.done()
    await bench.resume()
    assert isinstance(await waiter, Grant)


async def test_a_stopped_node_that_wakes_up_keeps_the_lock_free(bench: RedisBench, source: Source) -> None:
    bench.servers[0].pause()
    await source.release(LOCK, (await granted(source)).handle)
    bench.servers[0].resume()
    await granted(source)


@pytest.mark.realtime
async def test_a_validity_that_is_used_up_is_neither_a_grant_nor_a_renewal(bench: RedisBench, source: Source) -> None:
    for server in bench.servers[:2]:
        server.pause()
    # It is asked for less than its least_ttl_ms on purpose: waiting for the slow nodes takes all of it.
    with pytest.raises(SourceUnavailableError, match="so late") as error:
        await take(source, ttl_ms=NODE_TIMEOUT_MS)
    assert LOCK in str(error.value)
    assert await having(bench.ports[2:]) == [None] * 3, "given back, not left to expire"
    grant = await granted(source)
    with pytest.raises(SourceUnavailableError, match="so late"):
        await source.renew(LOCK, grant.handle, NODE_TIMEOUT_MS)


def test_validity_is_the_ttl_without_the_time_that_asking_took_and_the_drift_of_clocks() -> None:
    assert validity_ms(1000, 40.0) == 1000 - 40 - 10 - 2
    assert validity_ms(100, 98.0) < 0


# Nodes that disagree


async def test_a_minority_is_no_grant_and_is_given_back_everywhere(bench: RedisBench, source: Source) -> None:
    for port in bench.ports[:3]:
        await redis_command(port, "SET", KEY, ANOTHER_CLIENT, "PX", LONG_MS)
    held = await take(source)
    assert isinstance(held, Holder)
    assert held.owner == "another client"
    assert held.expires_ms is not None
    assert await having(bench.ports) == [ANOTHER_CLIENT.encode()] * 3 + [None] * 2


async def test_a_node_that_took_the_lock_and_answered_nothing_is_released(bench: RedisBench, source_of: Opened) -> None:
    for port in bench.ports[:3]:
        await redis_command(port, "SET", KEY, ANOTHER_CLIENT, "PX", LONG_MS)
    async with cutting_proxy(f"redis://127.0.0.1:{bench.ports[4]}") as (proxy, url):
        source = source_of(bench.url.replace(f":{bench.ports[4]}", f":{url.rpartition(':')[2]}"))
        await source.inspect(LOCK)
        proxy.mute_after = b"'NX', 'PX'"
        assert isinstance(await take(source), Holder)
        assert proxy.muted.is_set(), "it was asked"
    assert await having(bench.ports[3:]) == [None, None]


async def test_rivals_who_split_the_nodes_are_both_without(bench: RedisBench, source: Source) -> None:
    for port, value in zip(bench.ports, ("a", "a", "b", "b", "c"), strict=True):
        await redis_command(port, "SET", KEY, value, "PX", LONG_MS)
    assert isinstance(await take(source), Holder)
    assert await source.inspect(LOCK) is None, "no client has a majority"
    for port in bench.ports:
        await redis_command(port, "DEL", KEY)
    assert isinstance(await take(source), Grant)


async def test_a_hold_that_lost_its_majority_is_lost_and_cleared_away(bench: RedisBench, source: Source) -> None:
    grant = await granted(source)
    for port in bench.ports[:3]:
        await redis_command(port, "DEL", KEY)
    assert await source.mint(LOCK, grant.handle, 1) is None
    assert await source.inspect(LOCK) is None
    assert await source.renew(LOCK, grant.handle, LONG_MS) is False
    assert await having(bench.ports) == [None] * 5


async def test_a_hold_of_which_silent_nodes_decide_is_neither_there_nor_lost(bench: RedisBench, source: Source) -> None:
    grant = await granted(source)
    await redis_command(bench.ports[2], "DEL", KEY)
    for server in bench.servers[:2]:
        server.pause()
    for asked in (source.renew(LOCK, grant.handle, LONG_MS), source.mint(LOCK, grant.handle, 1)):
        with pytest.raises(SourceUnavailableError, match="do not decide about the lock orders/order-1"):
            await asked
    assert await source.inspect(LOCK) is not None, "it may be held"
    assert await having(bench.ports[3:]) == [grant.handle.encode()] * 2, "and nothing was given back"


async def test_one_refusing_node_is_a_dead_one(bench: RedisBench, source: Source) -> None:
    for port in bench.ports[:2]:
        await redis_command(port, "RPUSH", KEY, "not a lock")
    grant = await granted(source)
    assert await source.renew(LOCK, grant.handle, LONG_MS) is True
    await source.release(LOCK, grant.handle)


@pytest.mark.realtime
async def test_an_acquire_cancelled_while_a_node_is_slow_leaves_nothing(bench: RedisBench, source_of: Opened) -> None:
    source = source_of(bench.url)
    await source.inspect(LOCK)  # it is connected
    bench.servers[0].pause()
    acquiring = asyncio.create_task(take(source))
    await eventually(lambda: redis_command(bench.ports[4], "GET", KEY), what="the lock at a node that answers")
    assert not acquiring.done()
    acquiring.cancel()
    with pytest.raises(asyncio.CancelledError):
        await acquiring
    assert await having(bench.ports[1:]) == [None] * 4


async def test_it_has_no_numbers(source: Source) -> None:
    assert (await granted(source)).tokens == ()
    with pytest.raises(SourceError, match="no numbers"):
        await source.issued(1)


# Settings


async def test_a_node_named_twice_and_a_dead_one_and_a_forgetful_one(bench: RedisBench, source_of: Opened) -> None:
    assert await source_of(bench.url).advice() == []
    first, second, third, *_ = bench.ports
    await redis_command(second, "CONFIG SET", "appendfsync", "no")
    bench.servers[2].crash()
    try:
        hosts = f"127.0.0.1:{first},localhost:{first},127.0.0.1:{second},127.0.0.1:{third}"
        source = source_of(f"redlock://{hosts}/0?node_timeout_ms={LONGEST_NODE_MS}")
        sentences = await source.advice()
    finally:
        await redis_command(second, "CONFIG SET", "appendfsync", "always")
    for words in ("are the same Redis server", f"{second} answers before", f"{third} cannot be asked", "an odd number"):
        assert any(words in sentence for sentence in sentences), (words, sentences)
    assert len(sentences) == 4


async def test_a_node_with_a_replica_is_not_independent(bench: RedisBench, source: Source) -> None:
    one, two, *_ = bench.ports

    async def followed() -> bool:
        return bool((await redis_command(one, "INFO", "replication"))["connected_slaves"])

    await redis_command(two, "REPLICAOF", "127.0.0.1", one)
    try:
        await eventually(followed, what="a replica")
        sentences = await source.advice()
    finally:
        await redis_command(two, "REPLICAOF", "NO", "ONE")
    assert any(f"{one} has 1 replicas" in sentence for sentence in sentences)
    assert any(f"{two} is a replica" in sentence for sentence in sentences)
