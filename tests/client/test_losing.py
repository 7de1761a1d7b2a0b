"""Leases that get lost, gateways that go away, processes that sleep, calls that are cancelled."""

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, ExitStack, aclosing
from pathlib import Path

import anyio
import httpx
import pytest
from tests.client.transports import Counting
from tests.support.gateways import DemoGateway, gateway_process
from tests.support.interleave import connection_to
from tests.support.manual_clock import ManualClock
from tests.support.servers import until

from fencepost import Client, Leader, LeaseLost, OutcomeUnknown, Retry, StaleToken, SyncClient, SyncTerm, Unavailable
from fencepost.client import BadRequest, elections
from fencepost.testing import Link, cut, partitioned
from fencepost.testing.servers.processes import PATIENCE, eventually

# Leases that get lost, gateways that go away, answers that never come.

ORDER = "orders/order-123"


@pytest.mark.long("holders, leaders and gateways that are paused or killed")
async def test_a_gateway_that_is_killed_and_comes_back_inside_the_ttl_is_survived(
    demo_database: str, short_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "fencepost.client")
    async with (
        gateway_process(demo_database, short_dir) as gateway,
        Client(gateway.url, retry=Retry(PATIENCE)) as c,
        c.lock(ORDER, ttl=20) as lease,
    ):
        first = (await c.locks(ORDER))[0].expires_at
        assert first is not None
        gateway.crash()
        reading = asyncio.create_task(c.get("orders", "order-123"))
        await until(lambda: "renewal attempt 2 failed" in caplog.text)
        assert lease.trusted
        gateway.start()
        await gateway.serves()
        assert (await reading)["order_id"] == "order-123"

        async def renewed() -> bool:
            expires = (await c.locks(ORDER))[0].expires_at
            return expires is not None and expires > first

        await eventually(renewed)
        assert lease.trusted
        await c.patch("orders", "order-123", {"status": "paid"}, lease=lease)


@pytest.mark.long("holders, leaders and gateways that are paused or killed")
async def test_410_ends_the_lease_and_names_who_has_it_now(gateway_url: str, counting: Counting) -> None:
    async with (
        Client(gateway_url, transport=counting) as c,
        Client(gateway_url, owner="successor") as other,
        c.lock("job", ttl=10) as lease,
    ):
        async with httpx.AsyncClient(base_url=gateway_url, trust_env=False) as http:
            await http.delete(f"/v1/leases/{lease.id}", headers={"X-Lease-Secret": lease.secret})
        async with other.lock("job"):
            lost = await asyncio.wait_for(lease.lost, PATIENCE)
            assert (lost.reason, lost.code, lost.lease_id) == ("gone", "FP012", lease.id)
            assert lost.superseded_by is not None
            assert lost.superseded_by.holder == "successor"
            assert not lease.trusted
            for attempt in (
                lambda: c.patch("orders", "order-123", {"status": "paid"}, lease=lease),
                lambda: c.claim(ORDER, lease=lease), lambda: lease.claim(ORDER), lease.next_token,
            ):  # fmt: skip
                with pytest.raises(LeaseLost) as raised:
                    await attempt()
                assert raised.value.superseded_by == lost.superseded_by
            assert counting.count("P") == counting.count("POST /v1/leases"), "only upkeep was sent"
        assert counting.count("POST /v1/claims") == 0


@pytest.mark.long("holders, leaders and gateways that are paused or killed")
async def test_silence_ends_trust_while_the_lease_is_still_held(
    gateway_url: str, link: Link, faults: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    async with Client(link.url, clock=clock) as c, Client(gateway_url) as direct, AsyncExitStack() as time:
        async with c.lock("job", ttl=600, margin=300) as lease:
            faults.enter_context(partitioned(link))
            await time.enter_async_context(clock.running())
            lost = await asyncio.wait_for(lease.lost, PATIENCE)
            held = (await direct.locks("job"))[0].held
            assert held, "trust ended before the lease did"
            assert lost.reason == "expired"
            assert lost.problem is None
            with pytest.raises(LeaseLost):
                await c.patch("orders", "order-123", {"status": "paid"}, lease=lease)
        assert "could not be released" in caplog.text
        assert lease.secret not in caplog.text


@pytest.mark.long("holders, leaders and gateways that are paused or killed")
async def test_a_failing_release_does_not_hide_the_bodys_error(link: Link, faults: ExitStack) -> None:
    clock = ManualClock()
    async with Client(link.url, clock=clock) as c, AsyncExitStack() as time:

        async def work() -> None:
            async with c.lock("job", ttl=60):
                faults.enter_context(partitioned(link))
                await time.enter_async_context(clock.running())
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await work()


@pytest.mark.long("holders, leaders and gateways that are paused or killed")
async def test_a_lost_answer_to_a_write_is_asked_for_again_and_the_write_is_done_once(
    link: Link, counting: Counting, shared: DemoGateway
) -> None:
    async with Client(link.url, transport=counting) as c, c.lock(ORDER) as lease:
        await c.get("orders", "order-123")
        with cut(link, matching="PATCH /"):
            row = await c.patch("orders", "order-123", {"status": "paid"}, lease=lease)
        assert row["status"] == "paid"
        assert counting.count("PATCH") == 2
        assert (await c.fence(ORDER)).mark is not None
    async with connection_to(shared.dsn) as connection:
        assert await connection.fetchval("SELECT count(*) FROM fencepost.idempotency") == 1


@pytest.mark.long("holders, leaders and gateways that are paused or killed")
async def test_a_lost_answer_that_is_not_asked_for_again_is_an_unknown_outcome_and_the_fence_shows_it(
    link: Link, counting: Counting
) -> None:
    async with Client(link.url, transport=counting, retry=Retry(patience=0)) as c, c.lock(ORDER) as lease:
        await c.get("orders", "order-123")
        with cut(link, matching="PATCH /"), pytest.raises(OutcomeUnknown) as unknown:
            await c.patch("orders", "order-123", {"status": "paid"}, lease=lease)
        assert counting.count("PATCH") == 1
        assert unknown.value.resource == ORDER
        mark = (await c.fence(ORDER)).mark
        assert mark == unknown.value.presented_token, "it landed"
        key = unknown.value.idempotency_key
        assert key
        again = await c.patch("orders", "order-123", {"status": "paid"}, lease=lease, idempotency_key=key)
        assert again["status"] == "paid"
        assert (await c.fence(ORDER)).mark == mark, "it was not done again"
        await c.patch("orders", "order-123", {"status": "shipped"}, lease=lease)


@pytest.mark.long("holders, leaders and gateways that are paused or killed")
async def test_given_up_for_want_of_an_answer_gives_the_lock_back(gateway_url: str, link: Link) -> None:
    async with Client(link.url, retry=Retry(patience=0)) as c, Client(gateway_url) as direct:
        await c.locks()
        with cut(link), pytest.raises(Unavailable):
            await c.lock("job", ttl=60).__aenter__()
        assert await direct.locks("job") == []


# `client.elect(…)`, `client.leader(…)` and `client.leaders(…)` against a live gateway.


async def seen(leaders: AsyncIterator[Leader | None]) -> str | None:
    """Return the owner of the next leader."""
    leader = await asyncio.wait_for(anext(leaders), PATIENCE)
    return None if leader is None else leader.owner


@pytest.mark.long("holders, leaders and gateways that are paused or killed")
async def test_a_leader_writes_under_its_term_and_its_successors_is_higher(gateway_url: str) -> None:
    async with Client(gateway_url, owner="a") as a, Client(gateway_url, owner="b") as b:
        assert await a.leader("jobs/nightly") is None
        campaign = b.elect("jobs/nightly")
        async with a.elect("jobs/nightly") as first:
            leader = await b.leader("jobs/nightly")
            assert leader is not None
            assert (leader.term, leader.owner, leader.lease_id) == (first.term, "a", first.id)
            assert first.election == "jobs/nightly"
            await a.patch("orders", "order-123", {"note": "by a"}, lease=first)
            old_token = await first.next_token()
            succeeding = asyncio.create_task(campaign.__aenter__())

            async def b_waits() -> bool:
                return bool((await a.locks("election/jobs/nightly"))[0].waiters)

            await eventually(b_waits, what="a candidate")
        second = await asyncio.wait_for(succeeding, PATIENCE)
        assert second.term > first.term
        await second.claim(ORDER)
        with pytest.raises(StaleToken):
            await a.patch("orders", "order-123", {"note": "by a"}, token=old_token)
        await b.patch("orders", "order-123", {"note": "by b"}, lease=second)
        await campaign.__aexit__(None, None, None)
        assert await a.leader("jobs/nightly") is None


@pytest.mark.long("holders, leaders and gateways that are paused or killed")
async def test_observers_see_who_leads_and_each_change(client: Client, gateway_url: str) -> None:
    async with Client(gateway_url, owner="b") as b, aclosing(client.leaders("scheduler")) as leaders:
        assert await seen(leaders) is None
        async with client.elect("scheduler", owner="a"):
            assert await seen(leaders) == "a"
        assert await seen(leaders) is None
        async with b.elect("scheduler"):
            assert await seen(leaders) == "b"


@pytest.mark.long("holders, leaders and gateways that are paused or killed")
async def test_observers_connect_again_and_get_nothing_twice(demo_database: str, short_dir: Path) -> None:
    async with (
        gateway_process(demo_database, short_dir) as gateway,
        Client(gateway.url, retry=Retry(patience=PATIENCE)) as c,
        aclosing(c.leaders("scheduler")) as leaders,
    ):
        async with c.elect("scheduler", ttl=60, owner="a"):
            assert await seen(leaders) == "a"
            waiting = asyncio.create_task(seen(leaders))
            gateway.crash()
            gateway.start()
            await gateway.serves()
        assert await waiting is None
        async with c.elect("scheduler", owner="b"):
            assert await seen(leaders) == "b"


@pytest.mark.long("holders, leaders and gateways that are paused or killed")
async def test_a_silent_stream_is_cut_off_and_connected_again(gateway_url: str, link: Link, faults: ExitStack) -> None:
    async with (
        Client(link.url, retry=Retry(patience=5, first=0.1, longest=0.1)) as c,
        Client(gateway_url, owner="a") as direct,
        aclosing(elections.leaders(c._exchange, "scheduler", None, silence=1)) as leaders,  # noqa: SLF001
    ):
        assert await seen(leaders) is None
        async with direct.elect("scheduler"):
            assert await seen(leaders) == "a"
        faults.enter_context(partitioned(link))

        async def to_the_end() -> None:
            while True:
                await seen(leaders)

        with pytest.raises(Unavailable):
            await to_the_end()


@pytest.mark.long("holders, leaders and gateways that are paused or killed")
async def test_observing_what_cannot_be_asked_is_an_error(gateway_url: str) -> None:
    async with Client(gateway_url) as c:
        with pytest.raises(BadRequest):
            await anext(c.leaders("scheduler", source="no_such"))
        with pytest.raises(BadRequest):
            await c.leader("")
        with pytest.raises(ValueError, match="elect"):
            c.elect("")
    with pytest.raises(Unavailable):
        await anext(c.leaders("scheduler"))


@pytest.mark.long("holders, leaders and gateways that are paused or killed")
async def test_the_same_without_async(gateway_url: str) -> None:
    def story() -> None:
        with SyncClient(gateway_url, owner="a") as c:
            leaders = c.leaders("scheduler")
            assert next(leaders) is None
            with c.elect("scheduler") as term:
                assert isinstance(term, SyncTerm)
                leader = next(leaders)
                assert leader is not None
                assert (leader.term, leader.owner) == (term.term, "a")
                assert term.election == "scheduler"
                assert c.leader("scheduler") is not None
                c.patch("orders", "order-123", {"status": "paid"}, lease=term)
            assert next(leaders) is None
            leaders.close()
            left_open = c.leaders("scheduler")
            next(left_open)
        left_open.close()

    await asyncio.to_thread(story)


# Suspended machines: trust ends early, never late.


def may_unshare() -> str | None:
    """Return why a time namespace cannot be had here; None if it can."""
    try:
        done = subprocess.run(["unshare", "-T", "--boottime", "1", "true"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "no unshare: apt-get install util-linux"
    return f"no time namespaces: {done.stderr.strip()}" if done.returncode else None


REFUSED = may_unshare()


async def run(*command: str) -> dict[str, object]:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, errors = await asyncio.wait_for(process.communicate(), 2 * PATIENCE)
    assert process.returncode == 0, errors.decode()
    found: dict[str, object] = json.loads(out)
    return found


@pytest.mark.skipif(REFUSED is not None, reason=REFUSED or "")
async def test_a_laptop_that_slept_past_the_ttl_writes_nothing_when_it_wakes(gateway_url: str) -> None:
    """CLOCK_BOOTTIME is an hour ahead at once; CLOCK_MONOTONIC, which the event loop goes by, has seen nothing."""
    script = Path(__file__).with_name("time_namespace.py")
    found = await run(sys.executable, str(script), gateway_url, "3600")
    assert found == {
        "monotonic_jumped": 0, "boottime_jumped": 3600, "trusted_before": True, "trusted": False, "write": "expired",
        "lost": "expired", "status": "paid",
    }  # fmt: skip


# Cancellation: of bodies whose lease is lost, of waiters, and of everything at any moment.


async def lock_is_free(client: Client, name: str) -> None:
    """Return when no client holds the lock or waits for it."""

    async def idle() -> bool:
        return await client.locks(name) == []

    await eventually(idle, what=f"{name} being free")


@pytest.mark.long("calls that are cancelled at any moment")
async def test_cancel_on_loss_cancels_the_body_and_raises_lease_lost(link: Link, faults: ExitStack) -> None:
    clock = ManualClock()
    async with Client(link.url, clock=clock) as c, AsyncExitStack() as time:
        task = asyncio.current_task()
        assert task is not None

        async def work() -> None:
            async with c.lock("job", ttl=60, cancel_on_loss=True):
                faults.enter_context(partitioned(link))
                await time.enter_async_context(clock.running())
                await asyncio.get_running_loop().create_future()

        with pytest.raises(LeaseLost) as lost:
            await work()
        assert lost.value.reason == "expired"
        assert isinstance(lost.value.__cause__, asyncio.CancelledError)
        assert task.cancelling() == 0


@pytest.mark.long("calls that are cancelled at any moment")
async def test_of_two_nested_leases_the_outer_one_raises_when_both_are_lost(link: Link, faults: ExitStack) -> None:
    clock = ManualClock()
    async with Client(link.url, clock=clock) as c, AsyncExitStack() as time:

        async def work() -> None:
            async with (
                c.lock("outer", ttl=60, cancel_on_loss=True),
                c.lock("inner", ttl=60, cancel_on_loss=True) as inner,
            ):
                faults.enter_context(partitioned(link))
                await time.enter_async_context(clock.running())
                try:
                    await asyncio.get_running_loop().create_future()
                finally:
                    await inner.lost

        with pytest.raises(LeaseLost, match="outer"):
            await work()
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0


@pytest.mark.long("calls that are cancelled at any moment")
async def test_cancelled_again_while_it_releases_the_release_goes_on(gateway_url: str) -> None:
    async with Client(gateway_url) as direct:
        for turns in range(8):
            async with Client(gateway_url) as c:
                task = await working(c)
                task.cancel()
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert await direct.locks() == [], turns


async def working(c: Client) -> "asyncio.Task[None]":
    """Begin to work under a lease, for ever."""
    entered = asyncio.Event()

    async def work() -> None:
        async with c.lock("job", cancel_on_loss=True):
            entered.set()
            await asyncio.get_running_loop().create_future()

    task = asyncio.create_task(work())
    await entered.wait()
    return task


@pytest.mark.long("calls that are cancelled at any moment")
async def test_cancelled_when_the_grant_is_on_its_way_gives_the_lock_back(gateway_url: str, link: Link) -> None:
    async with Client(link.url) as c, Client(gateway_url) as direct:

        async def held() -> bool:
            return any(state.held for state in await direct.locks("job"))

        with partitioned(link, direction="to-client"):
            acquiring = asyncio.create_task(c.lock("job", ttl=60).__aenter__())
            await eventually(held)
            acquiring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await acquiring
        assert await direct.locks("job") == []


@pytest.mark.long("calls that are cancelled at any moment")
async def test_cancelled_at_any_moment_an_acquire_leaves_nothing_behind(gateway_url: str) -> None:
    """So many turns of the event loop after its beginning: connecting, sending, waiting, answered."""
    cancelled = 0
    async with Client(gateway_url) as direct:
        for turns in range(0, 100, 2):
            async with Client(gateway_url) as c:
                lock = c.lock(f"job-{turns}", ttl=60)
                acquiring = asyncio.create_task(lock.__aenter__())
                for _ in range(turns):
                    await asyncio.sleep(0)
                acquiring.cancel()
                try:
                    await acquiring
                except asyncio.CancelledError:
                    cancelled += 1
                else:
                    await lock.__aexit__(None, None, None)
            await lock_is_free(direct, f"job-{turns}")
    assert cancelled > 10


@pytest.mark.long("calls that are cancelled at any moment")
async def test_a_cancel_scope_of_anyio_is_obeyed_at_any_moment(gateway_url: str) -> None:
    """Its cancellation is delivered again and again, to every await: the clean-up must not depend on awaiting."""
    async with Client(gateway_url) as direct, direct.lock("job"):
        for turns in range(0, 90, 5):
            async with Client(gateway_url) as c:
                with anyio.CancelScope() as scope:
                    canceller = asyncio.create_task(_after(turns, scope.cancel))
                    async with asyncio.timeout(PATIENCE), c.lock("job", wait=None):
                        raise AssertionError("the lock was held")
                await canceller
                assert scope.cancelled_caught

            async def queue_is_empty() -> bool:
                return not (await direct.locks("job"))[0].waiters

            await eventually(queue_is_empty, what=f"an empty queue, cancelled after {turns} turns")


async def _after(turns: int, act: Callable[[], None]) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)
    act()
