"""The ZooKeeper source on three servers, and on one that removes empty containers."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest
from tests.conformance.zookeeper_bench import admin, client
from tests.support.servers import or_skipped

from fencepost.server.locks.source import Grant, SourceUnavailableError
from fencepost.server.locks.zookeeper import ZooKeeperSource, parent_of
from fencepost.server.locks.zookeeper_session import parse
from fencepost.testing.servers.lock_services import zookeeper
from fencepost.testing.servers.processes import PATIENCE, eventually, free_port
from fencepost.testing.servers.server import Server

pytestmark = pytest.mark.long("tests of ZooKeeper")


@asynccontextmanager
async def opened(*ports: int, session_s: float = 10) -> AsyncIterator[ZooKeeperSource]:
    hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
    source = ZooKeeperSource(parse(f"zookeeper://{hosts}?session_timeout_s={session_s}", "zk"))
    await source.open()
    try:
        yield source
    finally:
        await source.close()


async def granted(source: ZooKeeperSource, lock: str, tokens: int = 1) -> Grant:
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
    ports = {number: (free_port(), free_port(), free_port()) for number in (1, 2, 3)}
    peers = [f"server.{number}=127.0.0.1:{peer}:{vote}" for number, (_, peer, vote) in ports.items()]
    more = "\n".join(("initLimit=50", "syncLimit=20", *peers))
    with ExitStack() as stack:
        servers = {}
        for number, (port, _, _) in ports.items():
            with or_skipped():
                servers[port] = zookeeper(tmp_path / str(number), more, port=port).server
            (tmp_path / str(number) / "data" / "myid").write_text(str(number))
            servers[port].start()
            stack.callback(servers[port].stop)
        for one in servers.values():
            one.wait()
        yield servers


def leading(ensemble: dict[int, Server]) -> int:
    (leader,) = [port for port in ensemble if "Mode: leader" in admin(port, "srvr")]
    return leader


async def test_a_hold_and_its_waiter_outlive_the_leader(ensemble: dict[int, Server]) -> None:
    leader = leading(ensemble)
    others = [port for port in ensemble if port != leader]
    async with opened(*ensemble) as holder, opened(*others) as second, opened(leader, *others) as third:
        grant = await granted(holder, "it", tokens=3)
        waiter = asyncio.create_task(granted(second, "it"))
        with client(others[0]) as looking:

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
        grant = await granted(source, "it")
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
        one = zookeeper(tmp_path, jvm=("-Dznode.container.checkIntervalMs=200",), port=port).server
    one.start()
    try:
        one.wait()
        async with opened(port) as source:
            before = await granted(source, "it")
            await source.release("it", before.handle)
            with client(port) as other:

                async def gone() -> bool:
                    return await asyncio.to_thread(other.exists, parent_of("/fencepost", "it")) is None

                await eventually(gone)
            assert (await granted(source, "it")).tokens > before.tokens
    finally:
        one.stop()
