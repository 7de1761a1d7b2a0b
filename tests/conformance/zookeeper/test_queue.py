"""The queue of a lock in ZooKeeper: programs of others in it, watches, who leaves it."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.conformance.zookeeper.queueing import acquire, granted, path_of, queued, watches
from tests.conformance.zookeeper_bench import ZooKeeperBench, client

from fencepost.server.locks.source import Holder
from fencepost.server.locks.zookeeper import ZooKeeperSource, parent_of
from fencepost.testing.servers.processes import eventually

pytestmark = pytest.mark.long("tests of ZooKeeper")


@pytest.fixture
async def kazoo(zookeeper: ZooKeeperBench) -> AsyncIterator[Any]:
    """Another program."""
    with client(zookeeper.port, timeout=30) as connected:
        yield connected


@pytest.mark.parametrize("recipe", ["Lock", "WriteLock", "ReadLock"])
async def test_kazoos_recipes_wait_for_us_and_we_for_them(
    zookeeper: ZooKeeperBench, source: ZooKeeperSource, kazoo: Any, lock: str, recipe: str
) -> None:
    theirs = getattr(kazoo, recipe)(parent_of("/fencepost", lock), "them")
    grant = await granted(source, lock)
    assert not await asyncio.to_thread(theirs.acquire, blocking=False)
    await source.release(lock, grant.handle)
    assert await asyncio.to_thread(theirs.acquire, blocking=False)
    assert await acquire(source, lock) == Holder("them")
    waiter = asyncio.create_task(granted(source, lock))
    await queued(zookeeper, lock, 2)
    assert not waiter.done()
    await asyncio.to_thread(theirs.release)
    assert (await waiter).tokens > grant.tokens


async def test_a_kazoo_program_gets_its_number_by_writing_on_its_node(
    source: ZooKeeperSource, kazoo: Any, lock: str
) -> None:
    """As documented."""
    before = await granted(source, lock)
    await source.release(lock, before.handle)
    theirs = kazoo.Lock(parent_of("/fencepost", lock), "them")

    def their_token() -> int:
        with theirs:
            zxid: int = kazoo.set(f"{theirs.path}/{theirs.node}", theirs.data).mzxid
            return zxid

    token = await asyncio.to_thread(their_token)
    assert before.tokens[0] < token < (await granted(source, lock)).tokens[0]


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_node_that_an_operator_deletes_is_a_lost_lock_also_where_another_is_in_its_place(
    zookeeper: ZooKeeperBench, source: ZooKeeperSource, kazoo: Any, lock: str, replaced: bool
) -> None:
    grant = await granted(source, lock)
    waiter = asyncio.create_task(granted(source, lock))
    await queued(zookeeper, lock, 2)
    await asyncio.to_thread(kazoo.delete, path_of(lock, grant))
    assert (await waiter).tokens > grant.tokens
    if replaced:
        await asyncio.to_thread(kazoo.create, path_of(lock, grant), b"not ours")
    assert await source.renew(lock, grant.handle, 1000) is False
    assert await source.mint(lock, grant.handle, 1) is None


async def test_a_waiter_whose_place_is_deleted_queues_again(
    zookeeper: ZooKeeperBench, source: ZooKeeperSource, kazoo: Any, lock: str
) -> None:
    grant = await granted(source, lock)
    waiter = asyncio.create_task(granted(source, lock))
    await queued(zookeeper, lock, 2)
    ours = json.loads(grant.handle)["node"]
    (place,) = [child for child in await zookeeper.children(lock) if child != ours]
    await asyncio.to_thread(kazoo.delete, f"{parent_of('/fencepost', lock)}/{place}")
    await source.release(lock, grant.handle)
    assert await waiter


async def test_each_waiter_watches_the_one_before_it_and_a_mint_wakes_no_waiter(
    zookeeper: ZooKeeperBench, source: ZooKeeperSource, lock: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fired: list[Any] = []
    monkeypatch.setattr(source._session, "on_watch", fired.append)  # noqa: SLF001
    grant = await granted(source, lock)
    waiters = []
    for count in (2, 3, 4):
        waiters.append(asyncio.create_task(granted(source, lock)))
        await queued(zookeeper, lock, count)

    async def watched() -> list[str]:
        return [] if await watches(zookeeper) != 3 else sorted(path[-10:] for path in source._session._sleepers)  # noqa: SLF001 - `wchp` does not list watches on children

    numbers = sorted(child[-10:] for child in await zookeeper.children(lock))
    assert await eventually(watched, what="three watches") == numbers[:3]
    assert await source.mint(lock, grant.handle, 3)
    await source.inspect(lock)  # an event is on its way before the next answer
    assert not fired
    for waiter in waiters:
        waiter.cancel()
    await asyncio.wait(waiters)
    await queued(zookeeper, lock, 1)


async def test_who_leaves_the_queue_takes_no_other_along(
    zookeeper: ZooKeeperBench, source: ZooKeeperSource, lock: str
) -> None:
    grant = await granted(source, lock)
    waiter = asyncio.create_task(granted(source, lock))
    await queued(zookeeper, lock, 2)
    places = set(await zookeeper.children(lock))
    assert await acquire(source, lock) == Holder("us")
    leaver = asyncio.create_task(granted(source, lock))
    await queued(zookeeper, lock, 3)
    leaver.cancel()
    await asyncio.wait([leaver])
    assert set(await zookeeper.children(lock)) == places
    assert await source.renew(lock, grant.handle, 1000) is True
    await source.release(lock, grant.handle)
    assert await waiter
