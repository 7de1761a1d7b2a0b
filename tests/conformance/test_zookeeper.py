"""What only the ZooKeeper source has: its queue's neighbours, sessions, lost answers."""

import asyncio
import contextlib
import json
import logging
import re
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.protocol.states import KeeperState
from kazoo.security import make_digest_acl
from tests.conformance.zookeeper_bench import ZooKeeperBench, client, running, said
from tests.support.cutting_proxy import cutting_proxy
from tests.support.interleave import eventually

from fencepost.locks.source import Grant, Holder, SourceError, SourceUnavailableError
from fencepost.locks.zookeeper import session as zookeeper_session
from fencepost.locks.zookeeper.nodes import parent_of
from fencepost.locks.zookeeper.source import ZooKeeperSource
from fencepost.locks.zookeeper.url import parse

pytestmark = pytest.mark.long("tests of ZooKeeper")

LONG = 30.0


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperBench]:
    with running(tmp_path_factory.mktemp("zookeeper-alone")) as bench:
        yield bench


Open = Callable[..., Any]


@pytest.fixture
async def open_source(zookeeper: ZooKeeperBench) -> AsyncIterator[Open]:
    async with AsyncExitStack() as stack:

        async def opened(url: str = "", session_s: float = 2) -> ZooKeeperSource:
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
async def kazoo(zookeeper: ZooKeeperBench) -> AsyncIterator[Any]:
    """Another program."""
    with client(zookeeper.port, timeout=30) as connected:
        yield connected


@pytest.fixture
def lock(request: pytest.FixtureRequest) -> str:
    return f"orders/{request.node.name}"


async def acquire(source: ZooKeeperSource, lock: str, wait_s: float = 0, owner: str = "us") -> Grant | Holder:
    return await source.acquire(lock, owner=owner, ttl_ms=1000, tokens=1, wait_s=wait_s)


async def granted(source: ZooKeeperSource, lock: str, wait_s: float = LONG) -> Grant:
    grant = await acquire(source, lock, wait_s)
    assert isinstance(grant, Grant), grant
    return grant


async def queued(zookeeper: ZooKeeperBench, lock: str, count: int) -> None:
    async def seen() -> bool:
        return len(await zookeeper.children(lock)) == count

    await eventually(seen, what=f"{count} places in the queue")


def path_of(lock: str, grant: Grant) -> str:
    return f"{parent_of('/fencepost', lock)}/{json.loads(grant.handle)['node']}"


# Other programs


@pytest.mark.parametrize("recipe", ["Lock", "WriteLock", "ReadLock"])
async def test_kazoos_recipes_wait_for_us_and_we_for_them(
    source: ZooKeeperSource, kazoo: Any, lock: str, recipe: str
) -> None:
    theirs = getattr(kazoo, recipe)(parent_of("/fencepost", lock), "them")
    grant = await granted(source, lock)
    assert not await asyncio.to_thread(theirs.acquire, blocking=False)
    await source.release(lock, grant.handle)
    assert await asyncio.to_thread(theirs.acquire, blocking=False)
    assert await acquire(source, lock) == Holder("them")
    waiter = asyncio.create_task(granted(source, lock))
    await asyncio.wait([waiter], timeout=0.1)
    assert not waiter.done()
    await asyncio.to_thread(theirs.release)
    assert (await waiter).tokens > grant.tokens


async def test_a_kazoo_program_gets_its_number_by_writing_on_its_node(
    source: ZooKeeperSource, kazoo: Any, lock: str
) -> None:
    """As the documentation says."""
    before = await granted(source, lock)
    await source.release(lock, before.handle)
    theirs = kazoo.Lock(parent_of("/fencepost", lock), "them")

    def their_token() -> int:
        with theirs:
            zxid: int = kazoo.set(f"{theirs.path}/{theirs.node}", theirs.data).mzxid
            return zxid

    token = await asyncio.to_thread(their_token)
    assert before.tokens[0] < token < (await granted(source, lock)).tokens[0]


async def test_a_node_that_an_operator_deletes_is_a_lost_lock(source: ZooKeeperSource, kazoo: Any, lock: str) -> None:
    grant = await granted(source, lock)
    waiter = asyncio.create_task(granted(source, lock))
    await asyncio.wait([waiter], timeout=0.1)
    await asyncio.to_thread(kazoo.delete, path_of(lock, grant))
    assert (await waiter).tokens > grant.tokens
    assert await source.renew(lock, grant.handle, 1000) is False
    assert await source.mint(lock, grant.handle, 1) is None


async def test_a_node_that_somebody_made_in_place_of_ours_is_not_ours(
    source: ZooKeeperSource, kazoo: Any, lock: str
) -> None:
    grant = await granted(source, lock)
    await asyncio.to_thread(kazoo.delete, path_of(lock, grant))
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


# The queue


async def test_each_waiter_watches_the_one_before_it_and_a_mint_wakes_nobody(
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


async def test_who_leaves_the_queue_takes_nobody_along(
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


async def watches(zookeeper: ZooKeeperBench) -> int:
    found = re.search(r"zk_watch_count\t(\d+)", await asyncio.to_thread(said, zookeeper.port, "mntr"))
    assert found is not None
    return int(found[1])


async def test_tokens_of_one_request_are_different_and_rise(source: ZooKeeperSource, lock: str) -> None:
    grant = await source.acquire(lock, owner="us", ttl_ms=1000, tokens=50, wait_s=0)
    assert isinstance(grant, Grant)
    assert list(grant.tokens) == sorted(set(grant.tokens))
    assert len(grant.tokens) == 50


# Sessions and lost answers


async def test_suspended_is_not_lost(zookeeper: ZooKeeperBench, open_source: Open, lock: str) -> None:
    source = await open_source(session_s=20)
    grant = await granted(source, lock)
    waiter = asyncio.create_task(granted(source, lock))
    await queued(zookeeper, lock, 2)
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


async def test_a_lost_session_is_lost_locks_and_a_new_session(
    zookeeper: ZooKeeperBench, open_source: Open, lock: str
) -> None:
    async with cutting_proxy(f"zookeeper://127.0.0.1:{zookeeper.port}") as (proxy, url):
        source, other = await open_source(url, session_s=1), await open_source()
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


async def test_a_create_whose_answer_was_lost_blocks_nobody(
    zookeeper: ZooKeeperBench, open_source: Open, lock: str
) -> None:
    async with cutting_proxy(f"zookeeper://127.0.0.1:{zookeeper.port}") as (proxy, url):
        source = await open_source(url, session_s=30)
        await source.release(lock, (await granted(source, lock)).handle)
        proxy.mute_after = b"__lock__"
        asked = asyncio.create_task(acquire(source, lock))
        await asyncio.wait_for(proxy.muted.wait(), LONG)
        await queued(zookeeper, lock, 1)
        proxy.mute_after = None
        proxy.cut_all()
        assert isinstance(await asked, Grant), "the connection is back in time, so it tries again"
        assert len(await zookeeper.children(lock)) == 1


async def test_a_create_that_was_given_up_is_removed_later(
    zookeeper: ZooKeeperBench, open_source: Open, lock: str
) -> None:
    """The session lives on, so nothing else would remove it."""
    source = await open_source(session_s=30)
    await source.release(lock, (await granted(source, lock)).handle)  # so that the lock's node is there
    await zookeeper.pause()
    try:
        with pytest.raises(SourceUnavailableError):
            await acquire(source, lock)
    finally:
        await zookeeper.resume()
    await granted(await open_source(session_s=30), lock)


async def test_a_release_that_could_not_be_said_is_said_later(
    zookeeper: ZooKeeperBench, open_source: Open, lock: str
) -> None:
    async with cutting_proxy(f"zookeeper://127.0.0.1:{zookeeper.port}") as (proxy, url):
        source = await open_source(url, session_s=30)
        grant = await granted(source, lock)
        proxy.refusing = True
        proxy.cut_all()
        with pytest.raises(SourceUnavailableError, match="no connection"):
            await source.release(lock, grant.handle)
        proxy.refusing = False
        assert await granted(await open_source(session_s=30), lock)


async def test_a_cancelled_acquire_that_is_not_answered_leaves_nothing(
    zookeeper: ZooKeeperBench, open_source: Open, lock: str
) -> None:
    source = await open_source(session_s=30)
    await source.release(lock, (await granted(source, lock)).handle)
    await zookeeper.pause()
    try:
        asked = asyncio.create_task(acquire(source, lock))
        await asyncio.wait([asked], timeout=0.2)
        asked.cancel()
        await asyncio.wait([asked])
        assert asked.cancelled()
    finally:
        await zookeeper.resume()
    await granted(await open_source(), lock)


async def test_a_mint_whose_answer_was_lost_is_drawn_again(
    zookeeper: ZooKeeperBench, open_source: Open, lock: str
) -> None:
    async with cutting_proxy(f"zookeeper://127.0.0.1:{zookeeper.port}") as (proxy, url):
        source = await open_source(url, session_s=30)
        grant = await granted(source, lock)
        proxy.mute_after = json.loads(grant.handle)["node"].encode()
        asked = asyncio.create_task(source.mint(lock, grant.handle, 3))
        await asyncio.wait_for(proxy.muted.wait(), LONG)
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

    assert await eventually(back, within=LONG)


async def test_a_closed_source_says_so(open_source: Open, lock: str) -> None:
    source = await open_source()
    await granted(source, lock)
    await source.close()
    with pytest.raises(SourceUnavailableError, match="closed"):
        await acquire(source, lock)


async def test_a_waiter_is_told_when_its_source_is_closed(
    zookeeper: ZooKeeperBench, source: ZooKeeperSource, open_source: Open, lock: str
) -> None:
    grant = await granted(await open_source(), lock)
    waiter = asyncio.create_task(acquire(source, lock, LONG))
    await queued(zookeeper, lock, 2)
    await source.close()
    with pytest.raises(SourceUnavailableError, match="closed"):
        await waiter
    assert await zookeeper.children(lock) == [json.loads(grant.handle)["node"]]


# Permissions, doctor, numbers


async def test_nodes_of_a_source_with_credentials_are_its_own(
    zookeeper: ZooKeeperBench, open_source: Open, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    ours = f"zookeeper://us:se%40cret@127.0.0.1:{zookeeper.port}/with/credentials"
    source = await open_source(ours)
    grant = await granted(source, "it")
    assert await (await open_source(ours)).renew("it", grant.handle, 1000) is True
    assert not any("Anybody" in advice for advice in await source.advice())
    stranger = await open_source(ours.replace("us:se%40cret@", ""))
    with pytest.raises(SourceError, match="no permission") as error:
        await acquire(stranger, "it")
    assert not isinstance(error.value, SourceUnavailableError)
    with pytest.raises(SourceError, match="no permission"):
        await stranger.mint("it", grant.handle, 1)
    assert "se@cret" not in caplog.text
    acls, _ = await asyncio.to_thread(client_acls, zookeeper.port)
    assert acls == [make_digest_acl("us", "se@cret", all=True)]


def client_acls(port: int) -> Any:
    with client(port, auth_data=[("digest", "us:se@cret")]) as other:
        return other.get_acls("/with/credentials/fencepost/it")


async def test_doctor_is_told_what_is_unsafe(
    zookeeper: ZooKeeperBench, source: ZooKeeperSource, open_source: Open, lock: str
) -> None:
    await granted(source, lock)
    found = await source.advice()
    assert any("Anybody who reaches" in advice for advice in found)
    assert any("single server" in advice for advice in found)
    assert not any("session_timeout_s" in advice for advice in found)
    changed = await (await open_source(session_s=100)).advice()
    assert any("changes session_timeout_s=100 to 60 s" in advice for advice in changed)
    beside = await (await open_source(f"zookeeper://127.0.0.1:{zookeeper.port},127.0.0.1:1")).advice()
    assert any("127.0.0.1:1 does not answer" in advice for advice in beside)


async def test_issued_is_known_before_anything_was(open_source: Open, zookeeper: ZooKeeperBench) -> None:
    source = await open_source(f"zookeeper://127.0.0.1:{zookeeper.port}/quite/new")
    assert not await source.issued(2**47)
    assert await source.issued(1)


async def test_issued_by_another_process_is_known(source: ZooKeeperSource, open_source: Open, lock: str) -> None:
    other = await open_source()
    for _ in range(10):
        minted = (await granted(source, lock)).tokens
        assert await other.issued(minted[-1])
        lock += "-"


async def comes_back(source: ZooKeeperSource, lock: str) -> Grant:
    """Wait until the source grants again."""

    async def taken() -> Grant | None:
        with contextlib.suppress(SourceUnavailableError):
            return await granted(source, lock, 0)
        return None

    return await eventually(taken, within=60, what="a grant")


async def test_servers_that_lost_their_data_are_used_again_by_the_same_process(tmp_path: Path) -> None:
    """They refuse whoever has seen a later transaction than they have, and do not say so."""
    with running(tmp_path) as bench:
        source = ZooKeeperSource(parse(bench.url, "zk"))
        await source.open()
        try:
            seen = await source.acquire("orders/k", owner="us", ttl_ms=1000, tokens=50, wait_s=LONG)
            assert isinstance(seen, Grant)
            await asyncio.to_thread(bench.server.stop)
            shutil.rmtree(bench.data)
            bench.data.mkdir()
            await bench.restart()
            anew = await comes_back(source, "orders/other")
            assert anew.tokens[0] < seen.tokens[-1], "which freezes the source"
            assert await source.mint("orders/k", seen.handle, 1) is None
            assert await source.mint("orders/other", anew.handle, 1)
        finally:
            await source.close()


async def test_a_session_that_outlives_an_outage_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second client finds the servers as well, but the first one is not refused."""
    clients: list[Any] = []

    def noted(**how: Any) -> Any:
        clients.append(KazooClient(**how))
        return clients[-1]

    async def two() -> bool:
        return len(clients) == 2

    async def one() -> bool:
        return [each.client_state for each in clients] == [KeeperState.CONNECTED, KeeperState.CLOSED]

    monkeypatch.setattr(zookeeper_session, "KazooClient", noted)
    with running(tmp_path) as bench:
        source = ZooKeeperSource(parse(bench.url, "zk"))
        await source.open()
        try:
            held = await granted(source, "orders/k")
            await bench.crash()
            await eventually(two, what="a second client")
            await bench.restart()
            await eventually(one, what="the end of the second client")
            assert await source.mint("orders/k", held.handle, 1)
        finally:
            await source.close()
