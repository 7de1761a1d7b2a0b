"""Waiting for locks at two gateways: in order, without a herd, and a waiter that goes away delays no other (R9)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest
from tests.support.interleave import Connect, Connection
from tests.support.lease_gateways import HOUR, Side, Tries, in_line, let_gateways_be_silent, open_side, out_of_line
from tests.support.lease_racing import EXPIRED, MINUTE
from tests.support.manual_clock import ManualClock

from fencepost.server.locks.builtin import Queue
from fencepost.server.postgres import leases
from fencepost.server.postgres.errors import UnavailableError
from fencepost.server.postgres.leases import Acquired, hash_secret
from fencepost.server.times import TIMES, Times
from fencepost.testing.servers.processes import PATIENCE, eventually

KEPT_FOR_AN_HOUR = """
WITH kept AS (SELECT ticket, kept_ms FROM fencepost.waiters WHERE owner = $1)
UPDATE fencepost.waiters w SET kept_ms = 3600000, give_up_at = clock_timestamp() + interval '1 hour'
  FROM kept WHERE kept.ticket = w.ticket RETURNING kept.kept_ms"""


@dataclass
class Two:
    """Two gateways, and a connection that looks on."""

    one: Side
    two: Side
    observer: Connection
    clock: ManualClock | None = None
    """If time stands still at both: no heartbeat wakes anybody, nor does the end of a lease."""

    async def release(self, acquired: Acquired, secret: str) -> None:
        assert await self.two.locks.release(acquired.lease_id or 0, hash_secret(secret))

    async def advance(self, seconds: float) -> None:
        """Let time go on."""
        assert self.clock is not None
        await self.clock.advance(seconds)

    async def waiting(self) -> list[str]:
        rows = await self.observer.fetch("SELECT DISTINCT ticket, owner FROM fencepost.live_waiters ORDER BY ticket")
        return [row[1] for row in rows]


async def two_gateways(stack: AsyncExitStack, database: str, connect: Connect, clock: ManualClock | None = None) -> Two:
    observer = await connect()
    await let_gateways_be_silent(observer)
    times = TIMES if clock is None else Times(clock=clock)
    one, two = [await stack.enter_async_context(open_side(database, times=times)) for _ in range(2)]
    return Two(one, two, observer, clock)


@pytest.fixture
async def gateways(database: str, connect: Connect) -> AsyncIterator[Two]:
    async with AsyncExitStack() as stack:
        yield await two_gateways(stack, database, connect)


@pytest.fixture
async def still(database: str, connect: Connect) -> AsyncIterator[Two]:
    """Two gateways at which time stands still."""
    async with AsyncExitStack() as stack:
        yield await two_gateways(stack, database, connect, ManualClock())


def granted(acquired: Acquired) -> Acquired:
    assert acquired.verdict == "granted", acquired
    return acquired


async def test_twenty_waiters_are_served_first_come_first_served_and_each_release_wakes_one(
    still: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = Tries()
    monkeypatch.setattr(leases, "try_locks", tries)
    holder = granted(await still.one.acquire("x", secret="holder"))
    served: list[str] = []
    tokens: list[int] = []

    async def be_served(waiting: asyncio.Task[Acquired], side: Side, secret: str) -> None:
        got = granted(await waiting)
        served.append(secret)
        tokens.append(got.tokens[0])
        assert await side.locks.release(got.lease_id or 0, hash_secret(secret))

    waiters = []
    names = [f"waiter {number}" for number in range(20)]
    for number, name in enumerate(names):
        side = (still.one, still.two)[number % 2]
        waiters.append(be_served(await side.wait(still.observer, "x", secret=name), side, name))
    assert await still.waiting() == names
    assert tries.total == 21
    await still.release(holder, "holder")
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*waiters)
    assert served == names
    assert tokens == sorted(tokens)
    assert tries.total == 41, "each waiter got in line, and was woken once"
    assert max(tries.by_secret.values()) == 2


async def test_no_waiter_is_woken_while_the_lock_is_held(still: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = Tries()
    monkeypatch.setattr(leases, "try_locks", tries)
    holder = granted(await still.one.acquire("x", secret="holder"))
    waiting = [
        await side.wait(still.observer, "x", secret=name, wait_ms=MINUTE)
        for name, side in (("first", still.one), ("second", still.two), ("third", still.one))
    ]
    # A heartbeat of each gateway names who is first, and wakes no waiter.
    await still.observer.execute("UPDATE fencepost.gateways SET seen_at = 'epoch'")
    await still.advance(TIMES.queue.beat_every)
    beats = "SELECT min(seen_at) > 'epoch' FROM fencepost.gateways"
    await eventually(lambda: still.observer.fetchval(beats), what="heartbeats")
    assert tries.total == 4
    await still.release(holder, "holder")
    granted(await asyncio.wait_for(waiting[0], PATIENCE))
    assert tries.total == 5
    for task in waiting[1:]:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_waiter_gets_the_lock_when_its_holders_time_runs_out(still: Two) -> None:
    held = granted(await still.one.acquire("x", secret="holder", ttl_ms=MINUTE))
    waiting = await still.two.wait(still.observer, "x", secret="waiter")
    second = await still.one.wait(still.observer, "x", secret="second")
    await still.observer.execute(EXPIRED, held.lease_id, 1)
    await still.advance(MINUTE / 1000)
    granted(await asyncio.wait_for(waiting, PATIENCE))
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    await out_of_line(still.observer, "second")


async def test_a_lost_notification_is_made_good_by_the_heartbeat(
    gateways: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Queue, "on_notify", lambda _queue, _payload: None)
    holder = granted(await gateways.one.acquire("x", secret="holder"))
    waiting = await gateways.two.wait(gateways.observer, "x", secret="waiter")
    await gateways.release(holder, "holder")
    granted(await asyncio.wait_for(waiting, PATIENCE))


async def test_a_waiter_that_hangs_up_leaves_at_once_and_the_next_is_served(gateways: Two) -> None:
    holder = granted(await gateways.one.acquire("x", secret="holder"))
    gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    first = await gateways.one.wait(gateways.observer, "x", secret="first", gone=gone)
    second = await gateways.two.wait(gateways.observer, "x", secret="second")
    gone.set_result(None)
    assert (await asyncio.wait_for(first, PATIENCE)).verdict == "queued"
    assert await gateways.waiting() == ["second"]
    await gateways.release(holder, "holder")
    granted(await asyncio.wait_for(second, PATIENCE))


async def test_who_has_hung_up_does_not_take_the_lock(still: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = Tries()
    monkeypatch.setattr(leases, "try_locks", tries)
    holder = granted(await still.one.acquire("x", secret="holder"))
    gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    first = await still.one.wait(still.observer, "x", secret="first", gone=gone)
    second = await still.two.wait(still.observer, "x", secret="second")
    with monkeypatch.context() as patch:
        patch.setattr(Queue, "on_notify", lambda _queue, _payload: None)
        await still.release(holder, "holder")
        gone.set_result(None)  # the lock is free, and it is the first
        assert (await asyncio.wait_for(first, PATIENCE)).verdict == "queued"
    await still.advance(TIMES.queue.beat_every)
    granted(await asyncio.wait_for(second, PATIENCE))
    assert tries.by_secret[hash_secret("first")] == 1


async def test_two_requests_with_one_secret_wait_together_and_get_one_lease(gateways: Two) -> None:
    holder = granted(await gateways.one.acquire("x", secret="holder"))
    both = [
        await side.wait(gateways.observer, "x", secret="waiter") for side in (gateways.one, gateways.two, gateways.one)
    ]
    await gateways.release(holder, "holder")
    got = await asyncio.wait_for(asyncio.gather(*both), PATIENCE)
    assert len({acquired.lease_id for acquired in got}) == 1
    assert sorted(acquired.verdict for acquired in got) == ["granted", "repeated", "repeated"]
    assert await gateways.waiting() == []


async def test_who_arrives_during_a_heartbeat_is_not_taken_for_gone(gateways: Two, connect: Connect) -> None:
    holder = granted(await gateways.one.acquire("x", secret="holder"))
    first = await gateways.one.wait(gateways.observer, "x", secret="first", wait_ms=1000)
    foreign = await connect()
    transaction = foreign.transaction()
    await transaction.start()
    await foreign.execute("SELECT FROM fencepost.gateways FOR UPDATE")
    beating = """SELECT EXISTS (SELECT FROM pg_stat_activity
                  WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%beat%')"""
    await eventually(lambda: gateways.observer.fetchval(beating), what="a heartbeat that hangs")
    second = asyncio.create_task(gateways.one.acquire("x", secret="second", wait_ms=HOUR))
    arrived = """SELECT EXISTS (SELECT FROM fencepost.live_waiters WHERE owner = 'second')
                      OR (SELECT count(*) FROM pg_stat_activity
                           WHERE datname = current_database() AND wait_event_type = 'Lock') > 1"""
    await eventually(lambda: gateways.observer.fetchval(arrived), what="a place, or the wait for the heartbeat's end")
    await transaction.rollback()
    await in_line(gateways.observer, "second")
    assert (await asyncio.wait_for(first, PATIENCE)).verdict == "held"
    assert await gateways.waiting() == ["second"]
    assert await gateways.observer.fetchval("SELECT last_value FROM fencepost.tickets") == 2, "it had to queue again"
    await gateways.release(holder, "holder")
    granted(await asyncio.wait_for(second, PATIENCE))


async def test_a_gateway_that_stops_sends_its_waiters_away_and_keeps_their_places(gateways: Two) -> None:
    holder = granted(await gateways.one.acquire("x", secret="holder"))
    first = await gateways.one.wait(gateways.observer, "x", secret="first")
    second = await gateways.two.wait(gateways.observer, "x", secret="second")
    gateways.one.queue.stop()
    with pytest.raises(UnavailableError, match="stopping"):
        await asyncio.wait_for(first, PATIENCE)
    with pytest.raises(UnavailableError, match="stopping"):
        await gateways.one.acquire("x", secret="late", wait_ms=1000)
    await gateways.one.queue.close()
    assert await gateways.waiting() == ["first", "second"]
    again = asyncio.create_task(gateways.two.acquire("x", secret="first", wait_ms=HOUR))
    await gateways.release(holder, "holder")
    got = granted(await asyncio.wait_for(again, PATIENCE))
    assert not second.done()
    await gateways.release(got, "first")
    granted(await asyncio.wait_for(second, PATIENCE))


async def test_a_kept_place_is_there_for_the_next_request_and_gone_when_none_comes(gateways: Two) -> None:
    holder = granted(await gateways.one.acquire("x", secret="holder"))
    for name in ("first", "never back"):
        assert (await gateways.one.acquire("x", secret=name, wait_ms=20, keep_place=True)).verdict == "queued", name
        assert await gateways.observer.fetchval(KEPT_FOR_AN_HOUR, name) == 3000
    assert (await gateways.one.acquire("x", secret="keeps nothing", wait_ms=20)).verdict == "held"
    last = await gateways.two.wait(gateways.observer, "x", secret="last")
    assert await gateways.waiting() == ["first", "never back", "last"]
    again = asyncio.create_task(gateways.two.acquire("x", secret="first", wait_ms=HOUR))
    await gateways.release(holder, "holder")
    got = granted(await asyncio.wait_for(again, PATIENCE))
    await gateways.release(got, "first")
    assert not last.done()
    await gateways.observer.execute("UPDATE fencepost.waiters SET give_up_at = clock_timestamp() WHERE kept_ms > 0")
    granted(await asyncio.wait_for(last, PATIENCE))


async def test_a_cancelled_waiter_leaves(gateways: Two) -> None:
    granted(await gateways.one.acquire("x", secret="holder"))
    first = await gateways.one.wait(gateways.observer, "x", secret="first")
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await out_of_line(gateways.observer, "first")
