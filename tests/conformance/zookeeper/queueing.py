"""A lock of the source zookeeper, its queue, and who waits in it."""

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

from tests.conformance.zookeeper_bench import ZooKeeperBench, admin

from fencepost.server.locks.source import Grant, Holder
from fencepost.server.locks.zookeeper import ZooKeeperSource, parent_of
from fencepost.testing.servers.processes import PATIENCE, eventually

Open = Callable[..., Any]


async def acquire(source: ZooKeeperSource, lock: str, wait_s: float = 0, owner: str = "us") -> Grant | Holder:
    return await source.acquire(lock, owner=owner, ttl_ms=1000, tokens=1, wait_s=wait_s)


async def granted(source: ZooKeeperSource, lock: str, wait_s: float = PATIENCE) -> Grant:
    grant = await acquire(source, lock, wait_s)
    assert isinstance(grant, Grant), grant
    return grant


async def queued(zookeeper: ZooKeeperBench, lock: str, count: int) -> None:
    async def seen() -> bool:
        return len(await zookeeper.children(lock)) == count

    await eventually(seen, what=f"{count} places in the queue")


def path_of(lock: str, grant: Grant) -> str:
    return f"{parent_of('/fencepost', lock)}/{json.loads(grant.handle)['node']}"


async def watches(zookeeper: ZooKeeperBench) -> int:
    found = re.search(r"zk_watch_count\t(\d+)", await asyncio.to_thread(admin, zookeeper.port, "mntr"))
    assert found is not None
    return int(found[1])


async def asleep(zookeeper: ZooKeeperBench, source: ZooKeeperSource, lock: str) -> None:
    """Return once the only waiter of this source has set its watch and has the answer to that."""

    async def watched() -> bool:
        return await watches(zookeeper) == 1

    await eventually(watched, what="the waiter's watch")
    await source.inspect(lock)  # answers of one connection come in order
