"""Who gets an expired or released Lease, and that no two have it."""

import asyncio
import itertools
import json
import sys
from pathlib import Path

import pytest
from tests.conformance.kubernetes.operating import LOCK, Leases, Make, granted

from fencepost.locks.source import Grant, Holder
from fencepost.testing.servers.waiting import PATIENCE, eventually

pytestmark = pytest.mark.long("tests of Kubernetes")


ROOT = Path(__file__).parents[3]


async def test_those_who_only_ask_now_and_then_get_an_expired_lock_too(make: Make) -> None:
    await granted(make())
    other = make()

    async def asks() -> bool:
        return isinstance(await other.acquire(LOCK, owner="other", ttl_ms=1000, tokens=1, wait_s=0), Grant)

    assert not await asks()
    await eventually(asks, what="the lock of a holder that does not renew")


@pytest.mark.realtime
async def test_a_mint_keeps_waiters_away_as_a_renewal_does(make: Make) -> None:
    source = make()
    grant = await granted(source)
    waiter = asyncio.create_task(make().acquire(LOCK, owner="other", ttl_ms=1000, tokens=1, wait_s=2.5))
    while not waiter.done():
        assert await source.mint(LOCK, grant.handle, 1) is not None
        await asyncio.wait([waiter], timeout=0.25)
    assert isinstance(await waiter, Holder)


async def test_a_waiter_sees_a_release_at_once(make: Make) -> None:
    source = make()
    grant = await granted(source, ttl_ms=3_600_000)
    waiter = asyncio.create_task(granted(make(), wait_s=600))
    await asyncio.wait([waiter], timeout=0.5)
    await source.release(LOCK, grant.handle)
    async with asyncio.timeout(PATIENCE):
        await waiter


async def test_a_waiter_sees_a_deletion_at_once(make: Make, leases: Leases) -> None:
    await granted(make(), ttl_ms=3_600_000)
    waiter = asyncio.create_task(granted(make(), wait_s=600))
    await asyncio.wait([waiter], timeout=0.5)
    leases.delete(LOCK)
    async with asyncio.timeout(PATIENCE):
        await waiter


async def test_two_processes_race_and_never_are_both_in(url: str) -> None:
    async def race() -> list[list[int]]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.kube.racer", url, LOCK, "10"), cwd=ROOT, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await process.communicate()
        drawn: list[list[int]] = json.loads(output)
        return drawn

    rounds = sorted(itertools.chain.from_iterable(await asyncio.gather(race(), race())))
    assert len(rounds) == 20
    # Sorted by their first number, no round reaches into the next: no client drew while another held the lock.
    drawn = list(itertools.chain.from_iterable(rounds))
    assert drawn == sorted(set(drawn))
