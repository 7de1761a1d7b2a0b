"""When a holder may still believe in its lease, never longer than the database does; and the watchdog that keeps it."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.client.scripted import Fate, ScriptedGateway, scripted_lease
from tests.support.manual_clock import ManualClock, settled

from fencepost.client import LeaseLost, Retry
from fencepost.client.lease import Lease, Timings, Trust, keep


def test_trust_ends_at_start_plus_ttl_minus_margin() -> None:
    clock = ManualClock(0.0)
    trust = Trust(clock, Timings.of(30.0), started=0.0)
    assert trust.until == 28.5
    assert trust.renew_at == 10.0
    assert trust.remaining == 28.5


async def test_a_renewal_counts_from_its_start_and_an_older_one_takes_nothing_back() -> None:
    clock = ManualClock(0.0)
    trust = Trust(clock, Timings.of(30.0, 0.0), started=0.0)
    await clock.advance(20.0)
    assert trust.record_renewal(15.0)
    assert trust.until == 45.0
    assert trust.record_renewal(12.0)
    assert trust.until == 45.0


async def test_once_it_has_ended_it_never_comes_back_not_by_a_clock_that_goes_back_either() -> None:
    clock = ManualClock(0.0)
    trust = Trust(clock, Timings.of(30.0), started=0.0)
    await clock.advance(28.4)
    assert trust.holds()
    await clock.advance(0.2)
    assert not trust.holds()
    assert not trust.record_renewal(28.6)
    assert trust.remaining == 0.0
    await clock.suspend(-20.0)
    assert not trust.holds()
    assert not trust.record_renewal(9.0)


@pytest.mark.parametrize(("ttl", "margin"), [(30.0, 1.5), (0.1, 0.02), (3600.0, 180.0)])
def test_the_margin_is_five_percent_and_at_least_20_ms(ttl: float, margin: float) -> None:
    assert Timings.of(ttl).margin == pytest.approx(margin)


@pytest.mark.parametrize(
    ("ttl", "margin", "names"),
    [
        (0.0, None, "ttl=0.0"),
        (-1.0, None, "ttl=-1.0"),
        (float("nan"), None, "ttl=nan"),
        (float("inf"), None, "ttl=inf"),
        (0.0004, 0.0, "ttl=0.0004"),
        (30.0, -1.0, "margin=-1.0"),
        (30.0, float("nan"), "margin=nan"),
        (30.0, 20.0, "ttl=30.0, margin=20.0"),
        (0.03, None, "ttl=0.03, margin=0.02"),
    ],
)
def test_timings_that_make_no_sense_are_refused_by_name(ttl: float, margin: float | None, names: str) -> None:
    with pytest.raises(ValueError, match=names.replace(".", r"\.")):
        Timings.of(ttl, margin)


@dataclass(frozen=True)
class Pause:
    """Time that passes; `suspended`: on a machine that sleeps."""

    seconds: float
    suspended: bool = False


delays = st.sampled_from([0.0, 0.001, 0.2, 1.0, 3.0, 9.0, 31.0, float("inf")])
fates = st.builds(Fate, out=delays, back=delays, lost_out=st.booleans(), lost_back=st.booleans())
pauses = st.builds(Pause, st.sampled_from([0.01, 0.7, 3.0, 9.9, 19.0, 28.4, 40.0]), st.booleans())


@given(st.lists(fates, max_size=12), st.lists(pauses, max_size=8), st.sampled_from([0.0, 0.02, 1.5]), st.booleans())
@example([Fate(back=9.0)], [], 0.0, True)  # the one renewal's answer was 9 s old when it came
@example([Fate(out=4.0, back=5.0)] * 12, [], 0.0, True)
@example([Fate(lost_back=True)] * 12, [], 0.0, False)
@example([Fate(back=9.0)] * 12, [Pause(10.0), Pause(28.4, suspended=True), Pause(0.7)], 0.0, False)
def test_under_any_schedule_trust_ends_before_the_lease_does(
    script: list[Fate], schedule: list[Pause], margin: float, silent_then: bool
) -> None:
    """The real watchdog and the real lease, on a gateway that delays, loses and answers late."""

    async def play() -> None:
        clock = ManualClock()
        gateway = ScriptedGateway(clock, ttl=30.0, script=[*script, *[Fate(out=float("inf"))] * (1000 * silent_then)])
        lease = scripted_lease(gateway, margin=margin)
        watchdog = asyncio.create_task(keep(lease, clock))
        was_lost = False
        for pause in [*schedule, *[Pause(1.0)] * 45]:
            await (clock.suspend(pause.seconds) if pause.suspended else clock.advance(pause.seconds))
            held = gateway.lease_is_held()
            assert held or not lease.trusted, "trusted after the lease had expired"
            assert not (was_lost and lease.trusted), "trust came back"
            was_lost = not lease.trusted
        await settled()
        watchdog.cancel()
        await asyncio.gather(watchdog, return_exceptions=True)

    asyncio.run(play())


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
