"""A grant and its claims are one: from that moment the old holder is fenced, or nothing happened (R7, R9)."""

import asyncio
from typing import Any

import pytest
from tests.support.interleave import Connect
from tests.support.manual_clock import ManualClock
from tests.support.postgres import Unmade
from tests.support.racing import Race, open_race, outcome
from tests.support.use_cases import delete, grants_pid, keyed, open_gateway, patch, put, result_of

from fencepost.server.fence.problem_types import UNKNOWN_TABLE, UNPROTECTED_TABLE
from fencepost.server.fence.problems import Problem
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.leases import acquire_lease
from fencepost.server.ops.demo import LEASES_BEGIN
from fencepost.server.postgres.leases import Granted, LockRequest, hash_secret
from fencepost.server.times import Times
from fencepost.testing.servers.processes import PATIENCE, eventually

MINUTE = 60_000


@pytest.fixture
async def race(request: pytest.FixtureRequest, connect: Connect, unmade: Unmade) -> Race:
    """Race for a table under the rule strict, or under the one that a test asks for."""
    race = await open_race(connect, unmade, getattr(request, "param", "strict"))
    await race.observer.execute("SELECT fencepost.issue_beyond($1)", LEASES_BEGIN)
    return race


def asking(
    *locks: str, secret: str, claims: tuple[str, ...] = (), ttl_ms: int = MINUTE, wait_ms: int = 0, chosen: bool = True
) -> LockRequest:
    return LockRequest(locks, secret, secret, ttl_ms, 2, claims, wait_ms, chosen=chosen)


async def ask(gateway: Gateway, wanted: LockRequest) -> Granted | Problem:
    gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    return await acquire_lease(gateway, wanted, gone)


async def lease(gateway: Gateway, wanted: LockRequest) -> Granted:
    answer = await ask(gateway, wanted)
    assert isinstance(answer, Granted), answer
    return answer


async def expire(race: Race, granted: Granted) -> None:
    await race.observer.execute(
        "UPDATE fencepost.leases SET expires_at = clock_timestamp() - interval '1 s' WHERE lease_id = $1",
        granted.lease.lease_id,
    )


async def nothing_was_granted(race: Race) -> bool:
    held = "SELECT NOT EXISTS (SELECT FROM fencepost.locks WHERE lease_id IS NOT NULL)"
    return bool(
        await race.observer.fetchval(f"{held} AND NOT EXISTS (SELECT FROM fencepost.leases)")
        and await race.observer.fetchval("SELECT NOT EXISTS (SELECT FROM fencepost.draws)")
    )


@pytest.mark.parametrize("race", ["strict", "epoch"], indirect=True)
async def test_the_old_holder_is_fenced_though_the_new_one_has_written_nothing(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        await race.insert(race.a, "k", 30)
        old = await lease(gateway, asking("orders/k", secret="old", claims=("orders/k",)))
        first, second = old.lease.tokens
        assert old.claim_token is not None
        assert old.claim_token < first < second
        assert result_of(await patch(gateway, keyed("k", first, n=1))) == "ok"
        await expire(race, old)
        new = await lease(gateway, asking("orders/k", secret="new", claims=("orders/k",)))
        assert new.claims[0].mark == new.claim_token
        assert '"n":1' in new.claims[0].rows[0].replace(" ", "")
        for write in (patch, put, delete):
            assert result_of(await write(gateway, keyed("k", second, status="late"))) == "FP001"
        assert await race.live_mark("k") == new.claim_token
        row = await race.row("k")
        assert row is not None
        assert row["n"] == 1
        assert result_of(await patch(gateway, keyed("k", new.lease.tokens[0], n=2))) == "ok"


async def test_the_claim_waits_for_a_write_of_the_old_holder_and_returns_what_it_wrote(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        await race.insert(race.a, "k", 30)
        old = await lease(gateway, asking("x", secret="old"))
        await expire(race, old)
        writing = await race.begin(race.a)
        assert await race.update(race.a, "k", old.lease.tokens[0], n=7)
        pid = await grants_pid(gateway)
        grant = await race.waits_at(pid, lease(gateway, asking("x", secret="new", claims=("orders/k",))))
        assert bool(
            await race.observer.fetchval("SELECT NOT EXISTS (SELECT FROM fencepost.leases WHERE owner = $1)", "new")
        )
        await writing.commit()
        new = await grant
        assert '"n":7' in new.claims[0].rows[0].replace(" ", "")
        assert result_of(await patch(gateway, keyed("k", old.lease.tokens[1], n=8))) == "FP001"


async def test_an_acquire_is_withdrawn_while_claims_wait_on_all_connections_for_those(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        await race.insert(race.a, "k", 30)
        writing = await race.begin(race.a)
        await race.update(race.a, "k", 31)
        wanted, pid = asking("x", secret="new", claims=("orders/k",)), await grants_pid(gateway)
        grant = await race.waits_at(pid, ask(gateway, wanted))
        assert (await asyncio.wait_for(gateway.locks.withdraw(wanted.secret_hash), PATIENCE)).under_way
        await writing.commit()
        await grant


@pytest.mark.parametrize(("waited", "left_ms"), [(5, MINUTE - 5000), (7, MINUTE)])  # by then it begins anew
async def test_a_grant_whose_claim_waited_says_how_much_time_is_left(race: Race, waited: float, left_ms: int) -> None:
    clock = ManualClock()
    async with open_gateway(race.dsn, times=Times(clock=clock)) as gateway:
        await race.insert(race.a, "k", 30)
        writing = await race.begin(race.a)
        await race.update(race.a, "k", 31)
        pid = await grants_pid(gateway)
        grant = await race.waits_at(pid, lease(gateway, asking("x", secret="new", claims=("orders/k",))))
        await clock.advance(waited)
        await writing.commit()
        assert (await grant).lease.remaining_ms == left_ms
        drawn = "SELECT d.drawn_at >= x.granted_at FROM fencepost.draws d JOIN fencepost.leases x USING (lease_id)"
        assert await race.observer.fetchval(drawn), "no token was issued before its lease began"


async def test_a_refused_claim_undoes_the_grant(race: Race) -> None:
    await race.observer.execute("CREATE TABLE public.unprotected (id int PRIMARY KEY)")
    await race.insert(race.a, "k", 5_000_000)
    await race.insert(race.a, "gone", 4_000_000)
    await race.delete(race.a, "gone", 5_000_000)
    await race.insert(race.a, "other", 30)
    async with open_gateway(race.dsn) as gateway:
        for refusal, *claims in (
            ("FP008", "orders/other", "orders/k"),
            ("FP008", "orders/gone"),
            ("FP005", "orders/other", "unprotected/1"),
            ("FP007", "nowhere/1", "orders/other"),
            ("FP016", "orders/other", "orders/a,b"),
        ):
            answer = await ask(gateway, asking("x", "y", secret="mine", claims=tuple(claims)))
            assert isinstance(answer, Problem), claims
            assert answer.name == refusal, claims
            if refusal == "FP008":
                assert answer.current_token == 5_000_000, claims
                assert answer.resource in claims
            assert await nothing_was_granted(race), claims
            assert await race.live_mark("other") == 30, claims
        # Nothing is left of it: the same secret gets the same locks without the claims, at once.
        assert (await lease(gateway, asking("y", "x", secret="mine"))).verdict == "granted"


async def test_a_waiter_whose_claim_is_refused_lets_the_next_one_in(race: Race) -> None:
    await race.insert(race.a, "k", 5_000_000)
    async with open_gateway(race.dsn, pool_size=4) as gateway:
        holder = await lease(gateway, asking("x", secret="holder"))
        first = asyncio.create_task(ask(gateway, asking("x", secret="one", claims=("orders/k",), wait_ms=20_000)))
        waits = "SELECT count(*) = $1 FROM fencepost.live_waiters"
        await eventually(lambda: race.observer.fetchval(waits, 1), what="the first in line")
        second = asyncio.create_task(ask(gateway, asking("x", secret="two", wait_ms=20_000)))
        await eventually(lambda: race.observer.fetchval(waits, 2), what="the second in line")
        await expire(race, holder)
        gateway.locks.queue.on_listening()  # as after every reconnection: everybody looks
        refused = await asyncio.wait_for(first, PATIENCE)
        assert isinstance(refused, Problem)
        assert refused.name == "FP008"
        gateway.locks.queue.on_listening()
        assert isinstance(await asyncio.wait_for(second, PATIENCE), Granted)
        await gateway.locks.queue.close()


async def test_a_deadlock_with_a_claim_is_tried_again_and_never_reported(race: Race) -> None:
    for key in ("k1", "k2"):
        await race.insert(race.a, key, 30)
    await race.observer.execute(
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET deadlock_timeout = ''400ms''', current_database()); END $$"
    )
    await race.a.execute("SET deadlock_timeout = '30s'")  # so that the grant is the one that finds out
    async with open_gateway(race.dsn) as gateway:
        pid = await grants_pid(gateway)
        deadlocks = "SELECT count(*) FROM pg_stat_activity WHERE pid = $1 AND wait_event_type = 'Lock'"
        foreign = await race.begin(race.a)
        await race.update(race.a, "k2", 31)
        await race.a.execute("SET LOCAL lock_timeout = 0")
        # While the grant has k1 and waits for k2, the other one goes for k1: the first to look for the deadlock is the
        # victim.
        grant = asyncio.create_task(ask(gateway, asking("x", secret="mine", claims=("orders/k2", "orders/k1"))))
        await eventually(lambda: race.observer.fetchval(deadlocks, pid), what="the grant waiting for k2")
        assert written_or_reported(await outcome(race.update(race.a, "k1", 31))) == "ok"
        assert not grant.done()
        await foreign.commit()
        answer = await grant
        assert isinstance(answer, Granted), answer
        assert [claim.mark for claim in answer.claims] == [answer.claim_token] * 2
        assert await race.observer.fetchval("SELECT count(*) FROM fencepost.leases") == 1
    met = "SELECT deadlocks > 0 FROM pg_stat_database WHERE datname = current_database()"
    await eventually(lambda: race.observer.fetchval(met), what="a deadlock in the statistics")


def written_or_reported(answer: object) -> object:
    return answer if answer is None or isinstance(answer, str) else "ok"


async def test_a_repeated_secret_gives_the_claims_again_with_the_rows_of_now(race: Race) -> None:
    await race.insert(race.a, "k", 30)
    async with open_gateway(race.dsn) as gateway:
        claims = ("orders/absent", "orders/k")
        first = await lease(gateway, asking("x", secret="mine", claims=claims))
        assert result_of(await patch(gateway, keyed("k", first.lease.tokens[0], n=9))) == "ok"
        again = await lease(gateway, asking("x", secret="mine", claims=("orders/k", "orders/absent")))
        assert again.verdict == "repeated"
        assert (again.lease.lease_id, again.lease.tokens) == (first.lease.lease_id, first.lease.tokens)
        assert [claim.resource for claim in again.claims] == ["orders/k", "orders/absent"], "in the request's order"
        assert [claim.mark for claim in again.claims] == [first.lease.tokens[0], first.claim_token]
        assert '"n":9' in again.claims[0].rows[0].replace(" ", "")
        assert again.claims[1].rows == []
        assert await race.live_mark("k") == first.lease.tokens[0], "claiming again would spend a token"


async def test_a_secret_that_is_used_for_other_locks_is_refused_even_at_the_same_time(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        await lease(gateway, asking("x", secret="mine"))
        other = await ask(gateway, asking("y", secret="mine"))
        assert isinstance(other, Problem)
        assert (other.name, other.detail.split(":")[0]) == ("FP016", "X-Lease-Secret")
        under_way = await race.begin(race.a)
        await race.a.execute(
            "SELECT fencepost.acquire('{a}', $1, 'o', 60000, 1, '{}', NULL, NULL, 0, '{}')", hash_secret("both")
        )
        pid = await grants_pid(gateway)
        waiting = await race.waits_at(pid, ask(gateway, asking("b", secret="both")))
        await under_way.commit()
        refused = await waiting
        assert isinstance(refused, Problem)
        assert (refused.name, refused.detail.split(":")[0]) == ("FP016", "X-Lease-Secret")


async def test_a_client_that_hangs_up_before_it_gets_its_secret_gives_the_lock_back(race: Race) -> None:
    gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    gone.set_result(None)
    async with open_gateway(race.dsn) as gateway:
        await acquire_lease(gateway, asking("x", secret="made up here", chosen=False), gone)
        assert (await lease(gateway, asking("x", secret="another"))).verdict == "granted"
        gone = asyncio.get_running_loop().create_future()
        gone.set_result(None)
        await acquire_lease(gateway, asking("y", secret="its own", chosen=True), gone)
        assert (await lease(gateway, asking("y", secret="its own"))).verdict == "repeated"


async def test_all_tables_are_read_again_for_a_claim_only_where_its_own_is_another_one(race: Race) -> None:
    async with open_gateway(race.dsn) as gateway:
        known, wanted = gateway.catalog.current, asking("x", secret="mine", claims=("later/1",))
        refused: Any = await ask(gateway, wanted)
        assert (refused.type, gateway.catalog.current) == (UNKNOWN_TABLE, known)
        await race.observer.execute("CREATE TABLE public.later (id integer PRIMARY KEY)")
        refused = await ask(gateway, wanted)
        assert refused.type is UNPROTECTED_TABLE, "it is asked for once more"
