"""Sessions of the source zookeeper that are suspended, lost or ended, and answers that get lost."""

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.protocol.states import KeeperState
from tests.conformance.zookeeper.queueing import Open, acquire, asleep, granted, queued
from tests.conformance.zookeeper_bench import ZooKeeperBench, running
from tests.support.postgres import cutting_proxy

from fencepost.server.locks import zookeeper_session
from fencepost.server.locks.source import Grant, SourceUnavailableError
from fencepost.server.locks.zookeeper import ZooKeeperSource
from fencepost.server.locks.zookeeper_session import parse
from fencepost.testing.faults.network import Link
from fencepost.testing.servers.processes import PATIENCE, eventually, free_port

pytestmark = pytest.mark.long("tests of ZooKeeper")


async def test_suspended_is_not_lost(zookeeper: ZooKeeperBench, open_source: Open, lock: str) -> None:
    source = await open_source(session_s=20)
    grant = await granted(source, lock)
    waiter = asyncio.create_task(granted(source, lock))
    await asleep(zookeeper, source, lock)  # a request under way when the servers stop has no answer in time
    await zookeeper.pause()
    try:
        with pytest.raises(SourceUnavailableError, match="did not answer"):
            await source.renew(lock, grant.handle, 1000)
    finally:
        await zookeeper.resume()
    assert await source.renew(lock, grant.handle, 1000) is True
    assert not waiter.done()
    await source.release(lock, grant.handle)
    assert (await waiter).tokens > grant.tokens


@pytest.mark.realtime
async def test_a_lost_session_is_lost_locks_and_a_new_session(
    zookeeper: ZooKeeperBench, open_source: Open, lock: str
) -> None:
    async with cutting_proxy(f"zookeeper://127.0.0.1:{zookeeper.port}") as (proxy, url):
        source, other = await open_source(url, session_s=2), await open_source()
        grant = await granted(source, lock)
        theirs = await granted(other, f"{lock}/theirs")
        waiter = asyncio.create_task(granted(source, f"{lock}/theirs"))
        await queued(zookeeper, f"{lock}/theirs", 2)
        proxy.refusing = True
        proxy.cut_all()
        successor = await granted(other, lock)
        assert successor.tokens > grant.tokens
        proxy.refusing = False
        assert await source.renew(lock, grant.handle, 1000) is False
        assert await source.mint(lock, grant.handle, 1) is None
        await source.release(lock, grant.handle)
        assert await other.renew(lock, successor.handle, 1000) is True
        assert not waiter.done()
        await other.release(f"{lock}/theirs", theirs.handle)
        assert (await waiter).tokens > theirs.tokens, "it queues again, in the new session"


async def test_a_create_whose_answer_was_lost_blocks_no_waiter(
    zookeeper: ZooKeeperBench, open_source: Open, lock: str
) -> None:
    async with cutting_proxy(f"zookeeper://127.0.0.1:{zookeeper.port}") as (proxy, url):
        source = await open_source(url)
        await source.release(lock, (await granted(source, lock)).handle)
        proxy.mute_after = b"__lock__"
        asked = asyncio.create_task(acquire(source, lock))
        await asyncio.wait_for(proxy.muted.wait(), PATIENCE)
        await queued(zookeeper, lock, 1)
        proxy.mute_after = None
        proxy.cut_all()
        assert isinstance(await asked, Grant), "the connection is back in time, so it tries again"
        assert len(await zookeeper.children(lock)) == 1


async def test_a_create_that_was_given_up_or_cancelled_is_removed_later(
    zookeeper: ZooKeeperBench, open_source: Open, lock: str
) -> None:
    """The session lives on, so nothing else would remove it."""
    source, locks = await open_source(), (lock, f"{lock}/cancelled")
    for each in locks:
        await source.release(each, (await granted(source, each)).handle)  # so that the lock's node is there
    await zookeeper.pause()
    try:
        given_up, cancelled = [asyncio.create_task(acquire(source, each)) for each in locks]
        await asyncio.wait([cancelled], timeout=0.2)
        cancelled.cancel()
        with pytest.raises(SourceUnavailableError):
            await given_up
        await asyncio.wait([cancelled])
        assert cancelled.cancelled()
    finally:
        await zookeeper.resume()
    other = await open_source()
    for each in locks:
        await granted(other, each)


async def test_a_release_that_could_not_be_sent_is_sent_later(
    zookeeper: ZooKeeperBench, open_source: Open, lock: str
) -> None:
    async with cutting_proxy(f"zookeeper://127.0.0.1:{zookeeper.port}") as (proxy, url):
        source = await open_source(url)
        grant = await granted(source, lock)
        proxy.refusing = True
        proxy.cut_all()
        with pytest.raises(SourceUnavailableError, match="no connection"):
            await source.release(lock, grant.handle)
        proxy.refusing = False
        assert await granted(await open_source(), lock)


async def test_a_mint_whose_answer_was_lost_is_drawn_again(
    zookeeper: ZooKeeperBench, open_source: Open, lock: str
) -> None:
    async with cutting_proxy(f"zookeeper://127.0.0.1:{zookeeper.port}") as (proxy, url):
        source = await open_source(url)
        grant = await granted(source, lock)
        proxy.mute_after = json.loads(grant.handle)["node"].encode()
        asked = asyncio.create_task(source.mint(lock, grant.handle, 3))
        await asyncio.wait_for(proxy.muted.wait(), PATIENCE)
        proxy.mute_after = None
        proxy.cut_all()
        minted = await asked
        assert minted is not None
        assert grant.tokens[0] < minted[0] < minted[1] < minted[2]


async def test_a_client_whose_thread_has_died_is_replaced(source: ZooKeeperSource, lock: str) -> None:
    await granted(source, lock)
    session = source._session  # noqa: SLF001 - the thread to end
    await asyncio.to_thread(session._client.stop)  # noqa: SLF001

    async def back() -> Grant | None:
        with contextlib.suppress(SourceUnavailableError):
            return await granted(source, lock)
        return None

    assert await eventually(back)


async def test_a_closed_source_reports_it_also_to_a_waiter(
    zookeeper: ZooKeeperBench, source: ZooKeeperSource, open_source: Open, lock: str
) -> None:
    grant = await granted(await open_source(), lock)
    waiter = asyncio.create_task(acquire(source, lock, PATIENCE))
    await queued(zookeeper, lock, 2)
    await source.close()
    with pytest.raises(SourceUnavailableError, match="closed"):
        await waiter
    with pytest.raises(SourceUnavailableError, match="closed"):
        await acquire(source, lock)
    assert await zookeeper.children(lock) == [json.loads(grant.handle)["node"]]


async def test_a_session_that_outlives_an_outage_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second client finds the servers as well, but the first one is not refused."""
    clients: list[Any] = []

    def noted(**how: Any) -> Any:
        clients.append(KazooClient(**how))
        return clients[-1]

    async def two() -> bool:
        return len(clients) == 2

    async def timed() -> bool:
        return session._timer is not None  # noqa: SLF001

    async def one() -> bool:
        return [each.client_state for each in clients] == [KeeperState.CONNECTED, KeeperState.CLOSED]

    monkeypatch.setattr(zookeeper_session, "KazooClient", noted)
    with running(tmp_path) as bench, Link("127.0.0.1", bench.port) as link:
        # The server goes on running, and keeps the session for longer than this outage is on a busy machine.
        source = ZooKeeperSource(parse(f"zookeeper://127.0.0.1:{link.port}?session_timeout_s=60", "zk"))
        session = source._session  # noqa: SLF001 - its timer, and what it calls
        await source.open()
        try:
            held = await granted(source, "orders/k")
            link.lead_to("127.0.0.1", free_port())
            await eventually(timed, what="a timer")
            session._seek()  # noqa: SLF001 - the sixty seconds are over
            await eventually(two, what="a second client")
            link.lead_to("127.0.0.1", bench.port)
            await eventually(one, what="the end of the second client")
            assert await source.mint("orders/k", held.handle, 1)
        finally:
            await source.close()
