"""Who gets an expired or released Lease."""

import asyncio

import pytest
from tests.conformance.kubernetes.operating import LOCK, Leases, Make, granted

from fencepost.server.locks.source import Grant, Holder
from fencepost.testing.servers.processes import PATIENCE, eventually

pytestmark = pytest.mark.long("tests of Kubernetes")


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


@pytest.mark.parametrize("deleted", [False, True])
async def test_a_waiter_sees_a_release_and_a_deletion_at_once(make: Make, leases: Leases, deleted: bool) -> None:
    source = make()
    grant = await granted(source, ttl_ms=3_600_000)
    waiter = asyncio.create_task(granted(make(), wait_s=600))
    await asyncio.wait([waiter], timeout=0.5)
    if deleted:
        leases.delete(LOCK)
    else:
        await source.release(LOCK, grant.handle)
    async with asyncio.timeout(PATIENCE):
        await waiter
