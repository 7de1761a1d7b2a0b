"""Programs that lock with `etcdctl lock`, in one queue with the gateway."""

import asyncio
import json
import signal
import subprocess
from pathlib import Path

import pytest
from tests.conformance.etcd.asking import TTL, granted, queued
from tests.conformance.etcd_bench import EtcdBench

from fencepost.server.locks.source import Holder, Source

pytestmark = pytest.mark.long("tests of etcd")


async def locking(node: EtcdBench, *words: str) -> asyncio.subprocess.Process:
    """Start `etcdctl lock` with these words."""
    return await asyncio.create_subprocess_exec(
        *("etcdctl", f"--endpoints={node.endpoints[0]}", "lock", *words),
        env={"ETCDCTL_API": "3", "PATH": "/usr/bin:/bin"},
        stdout=subprocess.PIPE,
    )


async def test_etcdctl_lock_waits_for_us_and_its_revision_is_a_token(
    node: EtcdBench, source: Source, lock: str, tmp_path: Path
) -> None:
    grant = await granted(source, lock)
    say = tmp_path / "say"
    say.write_text("echo $ETCD_LOCK_REV\n")
    other = await locking(node, node.lock_name(lock), "sh", str(say))
    await queued(node, lock)
    more = await source.mint(lock, grant.handle, 3)
    assert more is not None
    await source.release(lock, grant.handle)
    reported, _ = await other.communicate()
    revision = int(reported)
    assert revision > more[-1]
    assert await source.issued(revision)
    assert (await granted(source, lock)).tokens[0] > revision


async def test_we_wait_for_etcdctl_lock(node: EtcdBench, source: Source, lock: str) -> None:
    other = await locking(node, "--ttl=60", node.lock_name(lock))
    assert other.stdout is not None
    key = (await other.stdout.readline()).decode().strip()
    assert key.startswith(f"{node.lock_name(lock)}/")
    held = await source.acquire(lock, owner="us", ttl_ms=TTL, tokens=1, wait_s=0.2)
    assert isinstance(held, Holder)
    assert held.owner is None
    waiter = asyncio.create_task(granted(source, lock))
    await queued(node, lock)
    other.send_signal(signal.SIGINT)
    await waiter
    await other.wait()


async def test_a_program_mints_under_etcdctl_lock_as_documented(
    node: EtcdBench, source: Source, lock: str, tmp_path: Path
) -> None:
    """docs/sources/etcd.md: the command that draws a token."""
    before = await granted(source, lock)
    await source.release(lock, before.handle)
    mint = tmp_path / "mint"
    mint.write_text(
        f"etcdctl --endpoints={node.endpoints[0]} put --ignore-value --ignore-lease $ETCD_LOCK_KEY -w json\n"
    )
    other = await locking(node, node.lock_name(lock), "sh", str(mint))
    reported, _ = await other.communicate()
    drawn = json.loads(reported)["header"]["revision"]
    assert drawn > before.tokens[0]
    assert (await granted(source, lock)).tokens[0] > drawn
