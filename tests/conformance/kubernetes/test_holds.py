"""Leases that an operator deletes, expired locks that are taken again, and what a token is."""

import pytest
from tests.conformance.kubernetes.operating import LOCK, Leases, Make, granted

from fencepost.server.locks import kubernetes_api
from fencepost.server.locks.source import Holder

pytestmark = pytest.mark.long("tests of Kubernetes")


async def test_a_lease_that_an_operator_deletes_is_lost_and_not_made_again_by_its_holder(
    make: Make, leases: Leases
) -> None:
    source = make()
    grant = await granted(source, tokens=5, ttl_ms=30_000)
    leases.delete(LOCK)
    # It has seen the Lease, and asks for the update straight away: the API server creates what a PUT does not find.
    assert await source.mint(LOCK, grant.handle, 1) is None
    assert leases.get(LOCK) == {}
    assert await source.renew(LOCK, grant.handle, 30_000) is False
    await source.release(LOCK, grant.handle)
    assert leases.get(LOCK) == {}
    after = await granted(make(), tokens=2)
    assert after.tokens[0] > grant.tokens[-1]
    assert await source.mint(LOCK, grant.handle, 1) is None


async def test_who_takes_his_own_expired_lock_again_gets_a_newer_token_under_a_new_identity(
    make: Make, leases: Leases
) -> None:
    source = make()
    first = await granted(source, owner="one and the same")
    second = await granted(source, owner="one and the same", wait_s=20)
    assert second.tokens[0] > first.tokens[0]
    assert second.handle != first.handle
    assert leases.get(LOCK)["spec"]["leaseTransitions"] == 1
    assert await source.mint(LOCK, first.handle, 1) is None


async def test_a_clock_that_stands_still_draws_new_numbers_all_the_same(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An update that changes nothing is no write: two mints in one microsecond would be one number."""
    monkeypatch.setattr(kubernetes_api, "wall_clock", lambda: "2026-01-02T03:04:05.000006Z")
    source = make()
    grant = await granted(source, tokens=3)
    minted = await source.mint(LOCK, grant.handle, 3)
    assert minted is not None
    drawn = [*grant.tokens, *minted]
    assert drawn == sorted(set(drawn))


async def test_a_token_is_the_resource_version_that_its_own_update_drew(make: Make, leases: Leases) -> None:
    source = make()
    for count in (1, 3):
        grant = await granted(source, tokens=count, ttl_ms=30_000)
        assert str(grant.tokens[-1]) == leases.get(LOCK)["metadata"]["resourceVersion"], count
        minted = await source.mint(LOCK, grant.handle, count)
        assert minted is not None, count
        assert str(minted[-1]) == leases.get(LOCK)["metadata"]["resourceVersion"], count
        await source.release(LOCK, grant.handle)


@pytest.mark.parametrize("time", ["2999-01-01T00:00:00.000000Z", None])
async def test_times_in_a_lease_decide_nothing(make: Make, leases: Leases, time: str | None) -> None:
    source = make()
    grant = await granted(source, ttl_ms=2000)
    lease = leases.get(LOCK)
    lease["spec"] |= {"renewTime": time, "acquireTime": time}
    leases.put(lease)
    other = make()
    held = await other.acquire(LOCK, owner="other", ttl_ms=1000, tokens=1, wait_s=0)
    assert isinstance(held, Holder)
    assert held.expires_ms is not None
    assert 1000 < held.expires_ms <= 2000, "it has yet to be seen unchanged for its whole length"
    assert (await granted(other, wait_s=20)).tokens[0] > grant.tokens[0]
