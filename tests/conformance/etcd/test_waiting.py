"""Waiters: compaction, lost places, TTLs that end while they wait."""

import asyncio

import pytest
from tests.conformance.etcd.asking import TTL, granted, leases, queued
from tests.conformance.etcd_bench import EtcdBench

from fencepost.server.locks.etcd import EtcdApi, parse
from fencepost.server.locks.source import Holder, Source
from fencepost.testing.servers.processes import PATIENCE, eventually

pytestmark = pytest.mark.long("tests of etcd")


async def test_a_waiter_goes_on_when_the_revision_that_it_watches_from_is_compacted(
    node: EtcdBench, source: Source, lock: str
) -> None:
    grant = await granted(source, lock)
    waiter = asyncio.create_task(granted(source, lock, ttl_ms=10_000))
    await queued(node, lock)
    more = await source.mint(lock, grant.handle, 5)
    assert more is not None
    await node.ctl("compact", str(more[-1]))
    await source.release(lock, grant.handle)
    assert (await asyncio.wait_for(waiter, PATIENCE)).tokens[0] > more[-1]


async def test_a_watch_from_before_a_compaction_is_no_error(node: EtcdBench) -> None:
    """The deletion fell between the look and the watch, and was compacted."""
    api = EtcdApi(parse(node.url, "compacted"))
    await api.open()
    old = (await node.ctl("put", "compacted", "1"))["header"]["revision"]
    now = (await node.ctl("put", "compacted", "2"))["header"]["revision"]
    await node.ctl("compact", str(now))
    started = asyncio.get_running_loop().time()
    await api.deleted("Y29tcGFjdGVk", old, PATIENCE)
    assert asyncio.get_running_loop().time() - started < PATIENCE / 2, "the watch has ended, and the caller looks"
    await api.close()


async def test_a_waiter_that_lost_its_place_queues_anew(node: EtcdBench, source: Source, lock: str) -> None:
    grant = await granted(source, lock)
    waiter = asyncio.create_task(granted(source, lock, ttl_ms=10_000))
    await queued(node, lock)
    place = (await node.keys(lock))[1]
    await node.ctl("lease", "revoke", f"{place['lease']:x}")

    async def another_place() -> bool:
        return any(key["create_revision"] > place["create_revision"] for key in await node.keys(lock))

    await eventually(another_place, what="another place")
    await source.release(lock, grant.handle)
    assert (await waiter).tokens > grant.tokens


@pytest.mark.realtime
async def test_a_waiter_outlives_its_ttl(node: EtcdBench, source: Source, lock: str) -> None:
    grant = await granted(source, lock)
    waiter = asyncio.create_task(granted(source, lock, ttl_ms=2000))
    await queued(node, lock)
    place = (await node.keys(lock))[1]
    await asyncio.wait([waiter], timeout=5.0)
    assert (await node.keys(lock))[1] == place
    await source.release(lock, grant.handle)
    mine = await waiter
    assert mine.handle == f"{place['lease']:x}:{place['create_revision']}"
    assert mine.tokens[0] > place["create_revision"]


async def test_a_look_at_a_held_lock_writes_nothing(node: EtcdBench, source: Source, lock: str) -> None:
    grant = await granted(source, lock)
    before = (await node.keys(lock)), await leases(node)
    held = await source.acquire(lock, owner="other", ttl_ms=TTL, tokens=1, wait_s=0)
    assert isinstance(held, Holder)
    holder = await node.ctl("lease", "timetolive", f"{(await node.keys(lock))[0]['lease']:x}")
    assert held.expires_ms is not None
    assert 1000 * holder["ttl"] <= held.expires_ms <= 60_000, "what is left to the holder, by etcd itself"
    assert await node.keys(lock) == before[0]
    assert await leases(node) <= before[1]
    await source.release(lock, grant.handle)
