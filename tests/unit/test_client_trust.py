"""The token that requests carry: when it is asked for, and when it is asked for again."""

import asyncio
import base64
import json
import re
import threading
from collections.abc import AsyncIterator, Generator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.client.transports import Fate, ScriptedGateway, scripted_lease
from tests.support.manual_clock import ManualClock, settled

from fencepost.client import (
    Client,
    LeaseLost,
    Token,
    Unauthenticated,
    Unavailable,
    token_from_environment,
    token_from_file,
)
from fencepost.client.http import Credentials, Retry, end_of
from fencepost.client.lease import Lease, Timings, Trust, keep
from fencepost.testing.servers.processes import PATIENCE, eventually

NOW = 1_800_000_000.0


def jwt(ends: object) -> str:
    claims = base64.urlsafe_b64encode(json.dumps({"exp": ends}).encode()).rstrip(b"=").decode()
    return f"e30.{claims}.c2ln"


class Giver:
    """Gives these one after the other, and the last one again; an exception is raised."""

    def __init__(self, *tokens: str | Exception) -> None:
        self._tokens = tokens
        self.asked = 0

    def __call__(self) -> str:
        self.asked += 1
        found = self._tokens[min(self.asked, len(self._tokens)) - 1]
        if isinstance(found, Exception):
            raise found
        return found


class Gateway(httpx.AsyncBaseTransport):
    """A mock that accepts some tokens."""

    def __init__(self, *accepted: str) -> None:
        self.accepted = {f"Bearer {each}" for each in accepted}
        self.seen: list[str | None] = []
        self.done: list[str] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        presented = request.headers.get("authorization")
        self.seen.append(presented)
        if presented in self.accepted:
            self.done.append(f"{request.method} {request.url.path}")
            return httpx.Response(200, json=[])
        problem = {"code": "FP037", "detail": "The token has ended.", "status": 401}
        return httpx.Response(401, json=problem, headers={"content-type": "application/problem+json"})


def test_the_end_of_a_jwt_is_read_and_nothing_else_of_it() -> None:
    assert end_of(jwt(NOW)) == NOW
    for other in ("fp_a_b", "a.b.c", jwt(None), jwt("soon"), jwt([]), "e30.W10.x", "..", "a.b", "é.é.é", jwt({})):
        assert end_of(other) is None, other


async def test_a_token_is_asked_for_once_by_all() -> None:
    give = Giver("one")
    credentials = Credentials(give, ManualClock())
    assert set(await asyncio.gather(*(credentials.current() for _ in range(20)))) == {"one"}
    assert give.asked == 1


@pytest.mark.parametrize(("ends_in", "renewed_after"), [(3600, 3570), (100, 80)])
async def test_a_jwt_is_renewed_before_it_ends(ends_in: float, renewed_after: float) -> None:
    clock = ManualClock()
    start = clock.now()
    give = Giver(jwt(NOW + ends_in), jwt(NOW + 9000))
    credentials = Credentials(give, clock, wall=lambda: NOW + clock.now() - start)
    first = await credentials.current()
    await clock.advance(renewed_after - 1)
    assert (await credentials.current(), give.asked) == (first, 1)
    await clock.advance(1)
    second = await asyncio.gather(*(credentials.current() for _ in range(5)))
    assert (set(second), give.asked) == ({jwt(NOW + 9000)}, 2)


async def test_a_renewal_that_fails_leaves_the_token_that_there_is(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    start = clock.now()
    give = Giver(jwt(NOW + 100), OSError("the identity provider is away"), jwt(NOW + 500))
    credentials = Credentials(give, clock, wall=lambda: NOW + clock.now() - start)
    first = await credentials.current()
    assert first is not None
    await clock.advance(90)
    assert [await credentials.current() for _ in range(3)] == [first] * 3
    assert give.asked == 2, "it is not asked again at once"
    assert "the identity provider is away" in caplog.text
    assert first not in caplog.text
    await clock.advance(1)
    assert await credentials.current() == jwt(NOW + 500)


async def test_a_clock_that_is_wrong_asks_for_no_token_again_and_again() -> None:
    give = Giver(jwt(NOW - 1000))
    credentials = Credentials(give, ManualClock(), wall=lambda: NOW)
    for _ in range(5):
        await credentials.current()
    assert give.asked == 1


async def coroutine() -> str:
    await asyncio.sleep(0)
    return "good"


class Later:
    """An awaitable that is no coroutine."""

    def __await__(self) -> Generator[None, None, str]:
        yield
        return "good"


@pytest.mark.parametrize("token", ["good", lambda: "good", coroutine, Later])
async def test_every_form_of_a_token(token: Token) -> None:
    gateway = Gateway("good")
    async with Client("http://x", token=token, transport=gateway) as client:
        await client.select("orders")
        await client.select("orders")
    assert gateway.seen == ["Bearer good"] * 2


async def test_a_refused_token_is_asked_for_once_more() -> None:
    give, gateway = Giver("old", "new"), Gateway("new")
    async with Client("http://x", token=give, transport=gateway) as client:
        await client.select("orders")
        await client.select("orders")
    assert (gateway.seen, give.asked) == (["Bearer old", "Bearer new", "Bearer new"], 2)


async def test_a_stream_is_opened_with_the_next_token() -> None:
    """The mock's streams end at once and have no events: the observer opens the next one."""
    gateway = Gateway("new")

    async def opened() -> bool:
        return len(gateway.done) > 1

    retry = Retry(first=0.001, longest=0.001)
    async with Client("http://x", token=Giver("old", "new"), transport=gateway, retry=retry) as client:
        observing = asyncio.create_task(anext(client.leaders("scheduler")))
        await eventually(opened, what="a second stream")
        observing.cancel()
        await asyncio.wait([observing])
    assert gateway.seen[:3] == ["Bearer old", "Bearer new", "Bearer new"]


async def test_many_refusals_at_once_ask_once() -> None:
    give, gateway = Giver("old", "new", "newer"), Gateway("old")
    async with Client("http://x", token=give, transport=gateway) as client:
        await client.select("orders")
        gateway.accepted = {"Bearer new"}
        await asyncio.gather(*(client.select("orders") for _ in range(10)))
    assert give.asked == 2


async def test_a_token_that_stays_refused_is_an_error_of_its_own() -> None:
    for token, sent in (("bad", 1), (Giver("bad"), 1), (Giver("bad", "worse"), 2)):
        gateway = Gateway()
        async with Client("http://x", token=token, transport=gateway) as client:
            with pytest.raises(Unauthenticated, match=r"The token has ended\. \(FP037\)") as raised:
                await client.select("orders")
        assert (raised.value.status, raised.value.code, len(gateway.seen)) == (401, "FP037", sent)


async def test_an_acquire_that_is_refused_for_its_token_is_withdrawn_as_soon_as_there_is_another() -> None:
    give, gateway = Giver("old", "old", "new"), Gateway("new")
    async with Client("http://x", token=give, transport=gateway) as client:
        with pytest.raises(Unauthenticated):  # its key was rotated while it waited, and the gateway keeps the grant
            await client.lock("job").__aenter__()
    assert gateway.done == ["DELETE /v1/leases"]


async def test_what_gives_no_token_sends_nothing() -> None:
    gateway = Gateway("good")
    for give in (Giver(OSError("no network")), Giver(""), Giver("two words"), Giver("e\nvil")):
        once = Retry(patience=0)
        async with Client("http://x", token=give, transport=gateway, retry=once) as client:
            with pytest.raises(Unavailable, match="no token could be had"):
                await client.select("orders")
    assert gateway.seen == []
    give = Giver(OSError("no network"), "good")
    async with Client("http://x", token=give, transport=gateway, retry=Retry(PATIENCE, 0.001, 0.001)) as client:
        await client.select("orders")


def test_a_token_that_cannot_be_sent_is_refused_and_not_shown() -> None:
    for bad in ("", "zwei Wörter", "a b", "a\r\nX: y"):
        with pytest.raises(ValueError, match="a token is printable ASCII") as raised:
            Client("http://x", token=bad)
        assert not bad or bad not in str(raised.value)
    with pytest.raises(ValueError, match="there is a header Authorization already"):
        Client("http://x", token="a", headers={"authorization": "Basic x"})


def test_a_file_is_read_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_text("one\n")
    give = token_from_file(file)
    assert give() == "one"
    file.write_text("\ufefftwo\n\n", "utf-8")
    assert give() == "two", "a byte order mark is no part of it"
    for bad, why in ((b" \n", "it is empty"), (b"a\nb\n", "it has more than a token"), (b"\xff", "it is no text")):
        file.write_bytes(bad)
        with pytest.raises(ValueError, match=f"^{re.escape(str(file))}: {why}"):
            give()
    file.write_text("two")
    for name in ("FENCEPOST_API_TOKEN", "FENCEPOST_API_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    assert token_from_environment() is None
    monkeypatch.setenv("FENCEPOST_API_TOKEN", "three")
    assert token_from_environment() == "three"
    monkeypatch.setenv("FENCEPOST_API_TOKEN_FILE", str(file))
    with pytest.raises(ValueError, match="are both set"):
        token_from_environment()
    monkeypatch.delenv("FENCEPOST_API_TOKEN")
    found = token_from_environment()
    assert callable(found)
    assert found() == "two"


async def test_a_slow_callable_holds_nothing_else_up() -> None:
    asked, go_on = threading.Event(), threading.Event()

    def give() -> str:
        asked.set()
        assert go_on.wait(30)
        return "good"

    async with Client("http://x", token=give, transport=Gateway("good")) as client:
        reading = asyncio.create_task(client.select("orders"))
        await asyncio.to_thread(asked.wait, 30)  # the event loop is free, or this would hang
        go_on.set()
        await reading


# When a holder may still believe in its lease, never longer than the database does; and the watchdog that keeps it.


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


@given(
    st.lists(st.builds(Fate, out=delays, back=delays, lost_out=st.booleans(), lost_back=st.booleans()), max_size=12),
    st.lists(st.builds(Pause, st.sampled_from([0.01, 0.7, 3.0, 9.9, 19.0, 28.4, 40.0]), st.booleans()), max_size=8),
    st.sampled_from([0.0, 0.02, 1.5]),
    st.booleans(),
)
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
    refused = Fate(lost_out=True)
    gateway.script.extend([refused] * 8)
    await clock.advance(25.0)
    assert lease.trusted
    assert len(gateway.requests) >= 9
    assert lease.remaining > 18


async def test_attempts_that_hang_leave_time_to_others(
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
