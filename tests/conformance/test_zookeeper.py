"""The source zookeeper: sessions, the queue of a lock, permissions, and three servers."""

import asyncio
import contextlib
import json
import logging
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.protocol.states import KeeperState
from kazoo.security import make_digest_acl
from tests.conformance.benches import (
    ZooKeeperBench,
    leading,
    running_ensemble,
    running_zookeeper,
    zookeeper_client,
    zookeeper_says,
)
from tests.support.postgres import cutting_proxy
from tests.support.servers import or_skipped, until

from fencepost.server.locks import zookeeper_session
from fencepost.server.locks.source import Grant, Holder, SourceError, SourceUnavailableError
from fencepost.server.locks.zookeeper import ZooKeeperSource, parent_of
from fencepost.server.locks.zookeeper_session import parse
from fencepost.testing.faults.network import Link
from fencepost.testing.servers.lock_services import zookeeper as zookeeper_service
from fencepost.testing.servers.processes import PATIENCE, eventually, free_port
from fencepost.testing.servers.server import Server

pytestmark = pytest.mark.long("tests of ZooKeeper")

# A lock of the source zookeeper, its queue, and who waits in it.

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
    found = re.search(r"zk_watch_count\t(\d+)", await asyncio.to_thread(zookeeper_says, zookeeper.port, "mntr"))
    assert found is not None
    return int(found[1])


# A ZooKeeper of this file's own, and sources on it.


@pytest.fixture(scope="package")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperBench]:
    with running_zookeeper(tmp_path_factory.mktemp("zookeeper-alone")) as bench:
        yield bench


@pytest.fixture
def open_source(zookeeper: ZooKeeperBench, stack: AsyncExitStack) -> Open:
    async def opened(url: str = "", session_s: float = 30) -> ZooKeeperSource:
        url = url or f"zookeeper://127.0.0.1:{zookeeper.port}"
        source = ZooKeeperSource(parse(f"{url}?session_timeout_s={session_s}", "zk"))
        await source.open()
        stack.push_async_callback(source.close)
        return source

    return opened


@pytest.fixture
async def source(open_source: Open) -> ZooKeeperSource:
    opened: ZooKeeperSource = await open_source()
    return opened


@pytest.fixture
def lock(request: pytest.FixtureRequest) -> str:
    return f"orders/{request.node.name}"


# Sessions of the source zookeeper that are suspended, lost or ended, and answers that get lost.


async def test_suspended_is_not_lost(zookeeper: ZooKeeperBench, open_source: Open, lock: str) -> None:
    source = await open_source(session_s=20)
    grant = await granted(source, lock)
    waiter = asyncio.create_task(granted(source, lock))

    # The only waiter has set its watch and has the answer to that: a request under way when the servers stop has none
    # in time.
    async def watched() -> bool:
        return await watches(zookeeper) == 1

    await eventually(watched, what="the waiter's watch")
    await source.inspect(lock)  # answers of one connection come in order
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


async def test_a_mint_without_an_answer_is_drawn_again(zookeeper: ZooKeeperBench, open_source: Open, lock: str) -> None:
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

    async def timed() -> bool:
        return session._timer is not None  # noqa: SLF001

    monkeypatch.setattr(zookeeper_session, "KazooClient", noted)
    with running_zookeeper(tmp_path) as bench, Link("127.0.0.1", bench.port) as link:
        # The server goes on running, and keeps the session for longer than this outage is on a busy machine.
        source = ZooKeeperSource(parse(f"zookeeper://127.0.0.1:{link.port}?session_timeout_s=60", "zk"))
        session = source._session  # noqa: SLF001 - its timer, and what it calls
        await source.open()
        try:
            held = await granted(source, "orders/k")
            link.lead_to("127.0.0.1", free_port())
            await eventually(timed, what="a timer")
            session._seek()  # noqa: SLF001 - the sixty seconds are over
            await until(lambda: len(clients) == 2, what="a second client")
            link.lead_to("127.0.0.1", bench.port)
            await until(
                lambda: [each.client_state for each in clients] == [KeeperState.CONNECTED, KeeperState.CLOSED],
                what="the end of the second client",
            )
            assert await source.mint("orders/k", held.handle, 1)
        finally:
            await source.close()


# The queue of a lock in ZooKeeper: programs of others in it, watches, who leaves it.


@pytest.fixture
async def kazoo(zookeeper: ZooKeeperBench) -> AsyncIterator[Any]:
    """Another program."""
    with zookeeper_client(zookeeper.port, timeout=30) as connected:
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


async def test_a_kazoo_program_gets_its_number_by_its_node(source: ZooKeeperSource, kazoo: Any, lock: str) -> None:
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


# Permissions, what `doctor` reports, and which numbers are issued.


async def test_nodes_of_a_source_with_credentials_are_its_own(
    zookeeper: ZooKeeperBench, open_source: Open, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    ours = f"zookeeper://us:se%40cret@127.0.0.1:{zookeeper.port}/with/credentials"
    source = await open_source(ours)
    grant = await granted(source, "it")
    assert await (await open_source(ours)).renew("it", grant.handle, 1000) is True
    assert not any("Any client" in advice for advice in await source.advice())
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
    with zookeeper_client(port, auth_data=[("digest", "us:se@cret")]) as other:
        return other.get_acls("/with/credentials/fencepost/it")


async def test_doctor_reports_what_is_unsafe(
    zookeeper: ZooKeeperBench, source: ZooKeeperSource, open_source: Open, lock: str
) -> None:
    await granted(source, lock)
    found = await source.advice()
    assert any("Any client that reaches" in advice for advice in found)
    assert any("single server" in advice for advice in found)
    assert not any("session_timeout_s" in advice for advice in found)
    changed = await (await open_source(session_s=100)).advice()
    assert any("changes session_timeout_s=100 to 60 s" in advice for advice in changed)
    beside = await (await open_source(f"zookeeper://127.0.0.1:{zookeeper.port},127.0.0.1:1")).advice()
    assert any("127.0.0.1:1 does not answer" in advice for advice in beside)


async def test_issued_by_another_process_is_known_and_before_anything_was(
    source: ZooKeeperSource, open_source: Open, zookeeper: ZooKeeperBench, lock: str
) -> None:
    other = await open_source()
    for _ in range(10):
        minted = (await granted(source, lock)).tokens
        assert await other.issued(minted[-1])
        lock += "-"
    new = await open_source(f"zookeeper://127.0.0.1:{zookeeper.port}/quite/new")
    assert not await new.issued(2**47)
    assert await new.issued(1)


# The ZooKeeper source on three servers, and on one that removes empty containers.


@asynccontextmanager
async def opened(*ports: int, session_s: float = 10) -> AsyncIterator[ZooKeeperSource]:
    hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
    source = ZooKeeperSource(parse(f"zookeeper://{hosts}?session_timeout_s={session_s}", "zk"))
    await source.open()
    try:
        yield source
    finally:
        await source.close()


async def granted_by(source: ZooKeeperSource, lock: str, tokens: int = 1) -> Grant:
    """Take a lock, trying again while the servers elect a leader."""

    async def taken() -> Grant | None:
        try:
            grant = await source.acquire(lock, owner="us", ttl_ms=1000, tokens=tokens, wait_s=PATIENCE)
        except SourceUnavailableError:
            return None
        assert isinstance(grant, Grant), grant
        return grant

    return await eventually(taken)


@pytest.fixture
def ensemble(tmp_path: Path) -> Iterator[dict[int, Server]]:
    with running_ensemble(tmp_path) as servers:
        yield servers


async def test_a_hold_and_its_waiter_outlive_the_leader(ensemble: dict[int, Server]) -> None:
    leader = leading(ensemble)
    others = [port for port in ensemble if port != leader]
    async with opened(*ensemble) as holder, opened(*others) as second, opened(leader, *others) as third:
        grant = await granted_by(holder, "it", tokens=3)
        waiter = asyncio.create_task(granted_by(second, "it"))
        with zookeeper_client(others[0]) as looking:

            async def waits() -> bool:
                return len(await asyncio.to_thread(looking.get_children, parent_of("/fencepost", "it"))) == 2

            await eventually(waits, what="a waiter")
        ensemble[leader].crash()

        async def renewed() -> bool:
            try:
                assert await third.renew("it", grant.handle, 1000) is True, "the session has moved, and lives"
            except SourceUnavailableError:
                return False
            return True

        await eventually(renewed)
        minted = await holder.mint("it", grant.handle, 2)
        assert minted is not None
        assert minted[0] >> 32 > grant.tokens[-1] >> 32, "a new leader, a new epoch"
        assert await second.issued(minted[-1])
        assert not waiter.done()
        await third.release("it", grant.handle)
        assert (await waiter).tokens[0] > minted[-1]


async def test_a_leader_that_has_lost_its_followers_neither_grants_nor_refuses(ensemble: dict[int, Server]) -> None:
    """It does not know it for a while, and still answers what needs no majority."""
    leader = leading(ensemble)
    async with opened(leader) as source:
        grant = await granted_by(source, "it")
        for port, one in ensemble.items():
            if port != leader:
                one.pause()
        asked = asyncio.gather(
            source.issued(grant.tokens[-1] + 1), source.mint("it", grant.handle, 1), return_exceptions=True
        )
        assert all(isinstance(each, SourceUnavailableError) for each in await asked)


async def test_an_empty_lock_is_removed_and_its_numbers_go_on(tmp_path: Path) -> None:
    port = free_port()
    with or_skipped():
        one = zookeeper_service(tmp_path, jvm=("-Dznode.container.checkIntervalMs=200",), port=port).server
    one.start()
    try:
        one.wait()
        async with opened(port) as source:
            before = await granted_by(source, "it")
            await source.release("it", before.handle)
            with zookeeper_client(port) as other:

                async def gone() -> bool:
                    return await asyncio.to_thread(other.exists, parent_of("/fencepost", "it")) is None

                await eventually(gone)
            assert (await granted_by(source, "it")).tokens > before.tokens
    finally:
        one.stop()
