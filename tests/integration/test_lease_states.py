"""A lease's states: answers that get lost (R15), the queue of waiters, and what a review finds."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from tests.integration.test_lease_claims import MINUTE as MINUTE_MS
from tests.integration.test_lease_claims import ask, asking, lease
from tests.races.test_leases import granted
from tests.support.interleave import Connect, Connection, blocked, blocks_another_session
from tests.support.lease_gateways import HOUR, Side, Tries, in_line, let_gateways_be_silent, open_side, out_of_line
from tests.support.lease_racing import EXPIRED, MINUTE, LeaseRace, open_lease_race
from tests.support.manual_clock import ManualClock
from tests.support.postgres import Unmade
from tests.support.racing import Race, open_race, outcome
from tests.support.servers import until
from tests.support.use_cases import open_gateway

from fencepost.server.fence.caller import ASKING, UNKNOWN
from fencepost.server.fence.problems import Problem
from fencepost.server.locks.builtin import Queue
from fencepost.server.postgres import leases
from fencepost.server.postgres.errors import OutcomeUnknownError, UnavailableError
from fencepost.server.postgres.leases import Granted, LeaseRow, LockRequest, hash_secret
from fencepost.server.postgres.marks import in_key_order
from fencepost.server.times import TIMES, QueueTimes, Times
from fencepost.testing.servers.processes import PATIENCE, eventually

# An answer of the database that gets lost: a secret finds its lease again, and what is not known is not answered
# (R15).

GATEWAYS = "SELECT pid FROM pg_stat_activity WHERE application_name = 'fencepost' AND datname = current_database()"


@pytest.fixture
async def observer(connect: Connect) -> Connection:
    return await connect()


@pytest.fixture
async def side(database: str) -> AsyncIterator[Side]:
    async with open_side(database, pool_size=1) as side:
        yield side


def losing_answers(monkeypatch: pytest.MonkeyPatch, name: str, times: int) -> list[Any]:
    """Let the first answers of a statement get lost, after it was committed; returns them as they come."""
    real = getattr(leases, name)
    lost: list[Any] = []

    async def lose(*arguments: Any, **named: Any) -> Any:
        answer = await real(*arguments, **named)
        if len(lost) < times:
            lost.append(answer)
            raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")
        return answer

    monkeypatch.setattr(leases, name, lose)
    return lost


async def test_a_grant_whose_answer_got_lost_is_found_again(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = losing_answers(monkeypatch, "try_locks", 2)
    got = await side.acquire("x", secret="mine", tokens=2)
    assert [answer.verdict for answer in lost] == ["granted", "repeated"]
    assert (got.verdict, got.lease.id, got.lease.tokens) == ("repeated", lost[0].lease.id, lost[0].lease.tokens)


async def test_an_acquire_with_an_unknown_outcome_is_answered_so_and_its_repeat_finds_out(
    side: Side, observer: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = losing_answers(monkeypatch, "try_locks", 3)
    with pytest.raises(OutcomeUnknownError):
        await side.acquire("x", secret="mine")
    got = await side.acquire("x", secret="mine")
    assert (got.verdict, got.lease.id) == ("repeated", lost[0].lease.id)
    assert await observer.fetchval("SELECT count(*) FROM fencepost.leases") == 1


async def test_a_waiter_whose_backend_is_terminated_goes_on_waiting(
    side: Side, observer: Connection, connect: Connect
) -> None:
    foreign = await connect()
    await foreign.execute("BEGIN")
    await leases.try_locks(foreign, LockRequest(("x",), "holder", "holder", MINUTE), None, None, 0)
    waiting = asyncio.create_task(side.acquire("x", secret="waiter", wait_ms=HOUR))
    pid = await eventually(lambda: observer.fetchval(f"{GATEWAYS} AND wait_event_type = 'Lock'"), what="a blocked try")
    assert await observer.fetchval("SELECT pg_terminate_backend($1, 5000)", pid)
    again = await eventually(
        lambda: observer.fetchval(f"{GATEWAYS} AND wait_event_type = 'Lock' AND pid <> $1", pid), what="another try"
    )
    await blocked(again, observer)
    await foreign.execute("ROLLBACK")
    assert (await asyncio.wait_for(waiting, PATIENCE)).verdict == "granted"
    assert await observer.fetchval("SELECT count(*) FROM fencepost.leases") == 1


async def test_a_place_whose_answer_got_lost_is_one_place(
    side: Side, observer: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = granted(await side.acquire("x", secret="holder"))
    lost = losing_answers(monkeypatch, "try_locks", 1)
    waiting = asyncio.create_task(side.acquire("x", secret="waiter", wait_ms=HOUR))
    await in_line(observer, "waiter")
    await side.locks.release(holder.lease_id, hash_secret("holder"))
    assert (await asyncio.wait_for(waiting, PATIENCE)).verdict == "granted"
    assert [answer.verdict for answer in lost] == ["queued"]
    assert await observer.fetchval("SELECT last_value FROM fencepost.tickets") == 1
    await eventually(lambda: observer.fetchval("SELECT count(*) = 0 FROM fencepost.waiters"), what="an empty queue")


@pytest.mark.parametrize("verb", ["renew", "mint", "release"])
async def test_a_grant_whose_answer_the_holder_did_not_get_is_not_known(
    side: Side, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    got = granted(await side.acquire("x", secret="mine"))
    lease_id, secret = got.lease_id, hash_secret("mine")
    verbs: dict[str, Callable[[], Awaitable[object]]] = {
        "renew": lambda: side.locks.renew(lease_id, secret, None),
        "mint": lambda: side.locks.mint(lease_id, secret, 1),
        "release": lambda: side.locks.release(lease_id, secret),
    }
    ask = verbs[verb]
    losing_answers(monkeypatch, "release" if verb == "release" else "extend", 1)
    with pytest.raises(OutcomeUnknownError):
        await ask()
    assert await ask(), "asked again, it is as if the first answer had come"


async def test_a_leaving_that_could_not_be_sent_is_sent_by_a_heartbeat(
    side: Side, observer: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await side.acquire("x", secret="holder")
    gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiting = await side.wait(observer, "x", secret="waiter", gone=gone)

    async def fail(*_arguments: Any) -> None:
        raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")

    monkeypatch.setattr(leases, "leave", fail)
    gone.set_result(None)
    assert (await waiting).verdict == "queued"
    assert any("could not leave" in failure for failure in side.failures)
    await eventually(lambda: observer.fetchval("SELECT count(*) = 0 FROM fencepost.waiters"), what="an empty queue")


async def test_places_that_a_crash_brought_back_keep_nobody_from_the_lock(side: Side, observer: Connection) -> None:
    """Departures are not flushed, so that a crowd can leave: the gateway lives on, and the places count as its own."""
    holder = granted(await side.acquire("x", secret="holder"))
    waiting = await side.wait(observer, "x", secret="waiter")
    await observer.execute(
        "INSERT INTO fencepost.waiters SELECT -n, name, '', 'gone', gateway, gen_random_uuid(), queued_at,"
        " give_up_at FROM fencepost.waiters, generate_series(1, 100) n"
    )
    assert await side.locks.release(holder.lease_id, hash_secret("holder"))
    assert (await asyncio.wait_for(waiting, PATIENCE)).verdict == "granted"


# Waiting for locks at two gateways: in order, without a herd, and a waiter that goes away delays no other (R9).


@dataclass
class Two:
    """Two gateways, and a connection that looks on."""

    one: Side
    two: Side
    observer: Connection
    clock: ManualClock | None = None
    """If time stands still at both: no heartbeat wakes anybody, nor does the end of a lease."""

    async def release(self, lease: LeaseRow, secret: str) -> None:
        assert await self.two.locks.release(lease.lease_id, hash_secret(secret))

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


async def test_twenty_waiters_are_served_first_come_first_served_and_each_release_wakes_one(
    still: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = Tries()
    monkeypatch.setattr(leases, "try_locks", tries)
    holder = granted(await still.one.acquire("x", secret="holder"))
    served: list[str] = []
    tokens: list[int] = []

    async def be_served(waiting: asyncio.Task[Any], side: Side, secret: str) -> None:
        got = granted(await waiting)
        served.append(secret)
        tokens.append(got.tokens[0])
        assert await side.locks.release(got.lease_id, hash_secret(secret))

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


async def test_a_waiter_whose_last_try_meets_a_busy_lock_leaves_no_place(still: Two) -> None:
    granted(await still.one.acquire("x", secret="holder"))
    waiting = await still.one.wait(still.observer, "x", secret="waiter", wait_ms=10_000)
    async with still.observer.transaction():
        await still.observer.execute("SELECT FROM fencepost.locks FOR UPDATE")  # as a grant whose claims wait
        await still.advance(10)
        assert (await asyncio.wait_for(waiting, PATIENCE)).verdict == "held"
        assert await still.observer.fetchval("SELECT count(*) = 0 FROM fencepost.waiters")


async def test_heartbeats_have_connections_in_no_callers_name(still: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    names, beat, gone = list[str](), leases.beat, asyncio.get_running_loop().create_future()

    async def seen(*asked: Any) -> Any:
        names.append(ASKING.get())
        return await beat(*asked)

    monkeypatch.setattr(leases, "beat", seen)
    ASKING.set("ann")
    await still.one.acquire("x", secret="holder")
    waiting = await still.one.wait(still.observer, "x", secret="waiter", gone=gone)
    await still.advance(TIMES.queue.beat_every)
    await until(lambda: len(names) == 2, what="a heartbeat")
    gone.set_result(None)
    await waiting
    assert names == ["ann", UNKNOWN], "with the first one the waiter itself says that its gateway is there"


async def test_a_lost_notification_is_made_good_by_a_heartbeat(gateways: Two, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert len({acquired.lease.id for acquired in got}) == 1
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
    kept_for_an_hour = """
        WITH kept AS (SELECT ticket, kept_ms FROM fencepost.waiters WHERE owner = $1)
        UPDATE fencepost.waiters w SET kept_ms = 3600000, give_up_at = clock_timestamp() + interval '1 hour'
          FROM kept WHERE kept.ticket = w.ticket RETURNING kept.kept_ms"""
    for name in ("first", "never back"):
        assert (await gateways.one.acquire("x", secret=name, wait_ms=20, keep_place=True)).verdict == "queued", name
        assert await gateways.observer.fetchval(kept_for_an_hour, name) == 3000
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


# What a review found in leases, each with the interleaving that showed it.


@pytest.fixture
async def leasing(connect: Connect) -> LeaseRace:
    return await open_lease_race(connect)


@pytest.fixture
async def race(connect: Connect, unmade: Unmade) -> Race:
    race = await open_race(connect, unmade)
    await race.observer.execute("SELECT fencepost.issue_beyond(1000)")
    return race


async def test_a_waiter_whose_secret_got_another_lock_leaves_no_ghost(connect: Connect, database: str) -> None:
    observer = await connect()
    async with open_side(database) as side:
        holder = granted(await side.acquire("a", secret="holder"))
        waiting = await side.wait(observer, "a", secret="clumsy")
        assert (await side.acquire("b", secret="clumsy")).verdict == "granted"
        assert await side.locks.release(holder.lease_id, hash_secret("holder"))
        assert (await waiting).verdict == "mismatch"
        await out_of_line(observer, "clumsy")
        assert (await side.acquire("a", secret="next")).verdict == "granted"


async def test_a_place_is_for_exactly_its_locks(leasing: LeaseRace) -> None:
    await leasing.acquire(leasing.a, "a", secret="holder")
    await leasing.queue(leasing.b, "a", "b", secret="mine")
    await leasing.queue(leasing.b, "a", secret="mine")
    assert len(set(await leasing.tickets("mine"))) == 2, "the second must not take half of the first's place"


async def test_a_lease_that_is_being_renewed_is_not_ended_by_its_secrets_next_use(leasing: LeaseRace) -> None:
    mine = granted(await leasing.acquire(leasing.a, "a", secret="mine"))
    await leasing.expire(mine.lease_id, ago=-3)
    renewing = await leasing.begin(leasing.a)
    assert await leases.extend(leasing.a, mine.lease_id, hash_secret("mine"), ttl_ms=MINUTE_MS) is not None
    await leasing.run_out(mine.lease_id)  # as far as others can see
    other = await leasing.waits(leasing.b, outcome(leasing.acquire(leasing.b, "b", secret="mine")))
    await renewing.commit()
    assert await other == "23505", "which the gateway reports as a mismatch"
    assert await leasing.renew(leasing.a, mine.lease_id, "mine") is not None
    assert (await leasing.acquire(leasing.c, "a", secret="next")).verdict == "held"


async def test_a_waiter_whose_place_has_run_out_by_a_clock_that_stepped_tries_again(leasing: LeaseRace) -> None:
    await leasing.acquire(leasing.a, "a", secret="holder")
    visit = uuid4()
    await leasing.beat(visit)
    await leasing.queue(leasing.b, "a", secret="mine", visit=visit)
    assert (await leasing.beat(visit))[visit] > 0
    await leasing.observer.execute("UPDATE fencepost.waiters SET give_up_at = clock_timestamp() - interval '1 s'")
    assert await leasing.beat(visit) == {visit: 0}
    await leasing.queue(leasing.b, "a", secret="mine", visit=visit)
    assert (await leasing.beat(visit))[visit] > 0, "its new place counts, whatever is left of the old one"


async def test_tokens_of_a_lease_that_lives_on_are_remembered(leasing: LeaseRace) -> None:
    mine = granted(await leasing.acquire(leasing.a, "a", secret="mine"))
    minted = await leasing.mint(leasing.a, mine.lease_id, "mine")
    assert minted is not None
    await leasing.observer.execute("UPDATE fencepost.draws SET drawn_at = drawn_at - interval '2 h'")
    await leases.forget(leasing.observer, 3600, 0)
    named = "SELECT count(*) FROM fencepost.issued_to($1)"
    assert await leasing.observer.fetchval(named, minted.tokens[0]) == 1
    await leasing.observer.execute("UPDATE fencepost.draws SET drawn_at = drawn_at - interval '1 day'")
    await leases.forget(leasing.observer, 3600, 0)
    assert await leasing.observer.fetchval(named, minted.tokens[0]) == 0


async def test_a_lease_begins_when_its_claims_are_done(race: Race) -> None:
    await race.insert(race.a, "k", 30)
    async with open_gateway(race.dsn, times=Times(queue=QueueTimes(late_share=0))) as gateway:
        writing = await race.begin(race.a)
        await race.a.execute("SELECT FROM orders WHERE order_id = 'k' FOR UPDATE")
        task = asyncio.create_task(lease(gateway, asking("x", secret="mine", claims=("orders/k",))))
        await blocks_another_session(race.a, race.observer)
        began = await race.observer.fetchval("SELECT clock_timestamp()")
        await writing.rollback()
        begun = (await task).lease
        renewed = await gateway.locks.renew(begun.lease_id, hash_secret("mine"), None)
        assert renewed is not None
        assert datetime.fromisoformat(renewed.granted_at) > began


async def test_a_row_that_is_claimed_under_two_spellings_is_claimed_once(race: Race) -> None:
    await race.insert(race.a, "k", 30)
    async with open_gateway(race.dsn) as gateway:
        got = await lease(gateway, asking("x", secret="mine", claims=("orders/k", "orders/%6B", "public.orders/k")))
    assert [claim.resource for claim in got.claims] == ["orders/k"] * 3
    assert {claim.mark for claim in got.claims} == {got.claim_token}


async def test_a_grant_that_waits_for_a_row_keeps_no_lease_from_being_renewed(race: Race) -> None:
    await race.insert(race.a, "k", 30)
    async with open_gateway(race.dsn) as gateway:
        mine = await lease(gateway, asking("mine", secret="mine"))
        writing = await race.begin(race.a)
        await race.a.execute("SELECT FROM orders WHERE order_id = 'k' FOR UPDATE")
        stuck = [asyncio.create_task(ask(gateway, asking("x", secret=f"{n}", claims=("orders/k",)))) for n in range(3)]
        await blocks_another_session(race.a, race.observer)
        renewed = await asyncio.wait_for(gateway.locks.renew(mine.lease.lease_id, hash_secret("mine"), None), PATIENCE)
        assert renewed is not None
        await writing.rollback()
        assert sum(isinstance(answer, Granted) for answer in await asyncio.gather(*stuck)) == 1


async def test_a_request_that_does_not_wait_learns_that_the_lock_is_being_granted(race: Race) -> None:
    await race.insert(race.a, "k", 30)
    async with open_gateway(race.dsn, lease_pool_size=4) as gateway:
        writing = await race.begin(race.a)
        await race.a.execute("SELECT FROM orders WHERE order_id = 'k' FOR UPDATE")
        stuck = asyncio.create_task(ask(gateway, asking("x", secret="first", claims=("orders/k",))))
        await blocks_another_session(race.a, race.observer)
        refused = await asyncio.wait_for(ask(gateway, asking("x", secret="second")), PATIENCE)
        assert isinstance(refused, Problem)
        assert (refused.name, refused.extra["lock"], refused.extra["holder"]) == ("FP011", "x", None)
        assert "being granted" in refused.detail
        await writing.rollback()
        assert isinstance(await stuck, Granted)


async def test_a_repeat_under_another_name_is_not_a_repeat(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        wanted = asking("x", secret="hard-coded")
        await lease(gateway, wanted)
        refused = await ask(gateway, replace(wanted, owner="another"))
        assert isinstance(refused, Problem)
        assert refused.name == "FP016"


async def test_a_poll_does_not_throw_a_waiter_of_the_same_secret_out(leasing: LeaseRace) -> None:
    await leasing.acquire(leasing.a, "a", secret="holder")
    await leasing.queue(leasing.b, "a", secret="mine")
    assert (await leasing.acquire(leasing.c, "a", secret="mine")).verdict == "held"
    assert len(await leasing.tickets("mine")) == 1


async def test_locks_that_claim_the_same_thing_overtake_each_other_and_no_holder_notices(race: Race) -> None:
    await race.insert(race.a, "k", 30)
    async with open_gateway(race.dsn, pool_size=6) as gateway:

        async def take(number: int) -> None:
            for turn in range(8):
                secret = f"{number}-{turn}"
                answer = await ask(gateway, asking(f"lock-{number}", secret=secret, claims=("orders/k",)))
                assert isinstance(answer, Granted), answer
                assert await gateway.locks.release(answer.lease.lease_id, hash_secret(secret))

        await asyncio.gather(*(take(number) for number in range(6)))


async def test_claims_are_ordered_as_rows_are_by_their_typed_keys(connect: Connect, unmade: Unmade) -> None:
    ddl = "CREATE TABLE public.numbered (n integer PRIMARY KEY)"
    race = await open_race(connect, unmade, ddl=ddl, name="numbered")
    found = await in_key_order(race.a, race.table, [("10",), ("9",), ("010",)])
    assert found == [(1, "numbered/9"), (0, "numbered/10"), (2, "numbered/10")]
