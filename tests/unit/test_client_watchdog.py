"""The watchdog on a clock that a test moves, and a mock gateway that fails as the test sets it."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.client.scripted import Fate, ScriptedGateway, scripted_lease
from tests.support.manual_clock import ManualClock, settled

from fencepost.client import LeaseLost, Retry
from fencepost.client.leases.lease import Lease
from fencepost.client.leases.watchdog import keep

NEVER = Fate(out=float("inf"))
REFUSED = Fate(lost_out=True)
RENEW = "POST /v1/leases/1/renew"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def gateway(clock: ManualClock) -> ScriptedGateway:
    return ScriptedGateway(clock, ttl=30.0)


@pytest.fixture
async def lease(gateway: ScriptedGateway, clock: ManualClock) -> AsyncIterator[Lease]:
    lease = scripted_lease(gateway)
    watchdog = asyncio.create_task(keep(lease, clock))
    yield lease
    watchdog.cancel()
    await asyncio.gather(watchdog, return_exceptions=True)


async def test_the_first_renewal_comes_at_a_third_of_the_ttl(
    lease: Lease, gateway: ScriptedGateway, clock: ManualClock
) -> None:
    await clock.advance(9.9)
    assert gateway.requests == []
    await clock.advance(0.2)
    assert gateway.requests == [RENEW]
    assert lease.remaining == pytest.approx(28.4)


async def test_an_outage_inside_the_ttl_is_survived(lease: Lease, gateway: ScriptedGateway, clock: ManualClock) -> None:
    gateway.script.extend([REFUSED] * 8)
    await clock.advance(25.0)
    assert lease.trusted
    assert len(gateway.requests) >= 9
    assert lease.remaining > 18


async def test_attempts_that_hang_leave_time_for_others(
    lease: Lease, gateway: ScriptedGateway, clock: ManualClock
) -> None:
    gateway.script.extend([NEVER, NEVER])
    await clock.advance(28.0)
    assert gateway.requests == [RENEW] * 3
    assert lease.trusted


async def test_silence_ends_trust_by_the_clock_and_is_reported(
    lease: Lease, gateway: ScriptedGateway, clock: ManualClock
) -> None:
    gateway.script.extend([NEVER] * 1000)
    lost = asyncio.ensure_future(lease.lost)
    await clock.advance(28.4)
    assert lease.trusted
    assert not lost.done()
    await clock.advance(0.1)
    assert not lease.trusted
    assert lost.result().reason == "expired"
    with pytest.raises(LeaseLost, match="could not be renewed in time") as raised:
        lease.check()
    assert raised.value.problem is None
    assert 2 <= len(gateway.requests) < 60, "no storm at the end"


async def test_410_ends_trust_at_once(lease: Lease, gateway: ScriptedGateway, clock: ManualClock) -> None:
    gateway.held = False
    await clock.advance(10.1)
    assert not lease.trusted
    assert (await lease.lost).reason == "gone"
    assert (await lease.lost).code == "FP012"
    assert gateway.requests == [RENEW], "a lost lease is not renewed"


async def test_a_machine_that_slept_past_the_ttl_trusts_nothing_when_it_wakes(
    lease: Lease, gateway: ScriptedGateway, clock: ManualClock
) -> None:
    await clock.advance(5.0)
    await clock.suspend(60.0)
    assert not lease.trusted
    assert (await lease.lost).reason == "expired"
    assert gateway.requests == []


async def test_no_wait_is_longer_than_a_second_so_that_sleep_is_noticed(lease: Lease, clock: ManualClock) -> None:
    await clock.advance(60.0)
    assert lease.trusted
    assert max(clock.slept) <= 1.0


async def test_an_answer_that_comes_after_the_end_of_trust_extends_nothing(
    gateway: ScriptedGateway, clock: ManualClock
) -> None:
    lease = scripted_lease(gateway)
    gateway.script.append(Fate(back=20.0))
    renewal = asyncio.create_task(lease.renew())
    await settled()
    await clock.suspend(29.0)
    assert not lease.trusted
    assert gateway.lease_is_held(), "the gateway did renew it"
    assert await renewal is False
    assert not lease.trusted


async def test_cancelling_a_wait_for_the_loss_is_harmless(
    lease: Lease, gateway: ScriptedGateway, clock: ManualClock
) -> None:
    waiting = asyncio.ensure_future(lease.lost)
    waiting.cancel()
    await settled()
    gateway.held = False
    await clock.advance(10.1)
    assert (await lease.lost).reason == "gone"


async def test_a_released_lease_reports_it(lease: Lease, gateway: ScriptedGateway) -> None:
    await lease.release()
    assert (await lease.lost).reason == "released"
    assert not lease.trusted
    with pytest.raises(LeaseLost, match="was released"):
        await lease.next_token()
    await lease.release()
    assert gateway.requests == ["DELETE /v1/leases/1"]


async def test_a_release_that_cannot_be_delivered_is_left_to_the_ttl(
    gateway: ScriptedGateway, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    lease = scripted_lease(gateway, retry=Retry())
    gateway.script.extend([NEVER] * 10)
    releasing = asyncio.create_task(lease.release())
    await clock.advance(5.1)
    assert releasing.done()
    await releasing
    assert "lease 1 of a could not be released: no answer within 5 s" in caplog.text
    assert lease.secret not in caplog.text
