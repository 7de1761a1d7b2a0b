"""Permissions, what `doctor` reports, and which numbers are issued."""

import asyncio
import logging
from typing import Any

import pytest
from kazoo.security import make_digest_acl
from tests.conformance.zookeeper.queueing import Open, acquire, granted
from tests.conformance.zookeeper_bench import ZooKeeperBench, client

from fencepost.server.locks.source import SourceError, SourceUnavailableError
from fencepost.server.locks.zookeeper import ZooKeeperSource

pytestmark = pytest.mark.long("tests of ZooKeeper")


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
    with client(port, auth_data=[("digest", "us:se@cret")]) as other:
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
