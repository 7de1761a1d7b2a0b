"""What a review found in leases, each with the interleaving that showed it."""

import asyncio
from dataclasses import replace
from datetime import datetime
from uuid import uuid4

import pytest
from tests.integration.test_lease_claims import MINUTE, ask, asking, lease
from tests.support.interleave import Connect, blocks_another_session
from tests.support.lease_gateways import open_side, out_of_line
from tests.support.lease_racing import LeaseRace, open_lease_race
from tests.support.postgres import Unmade
from tests.support.racing import Race, open_race, outcome
from tests.support.use_cases import open_gateway

from fencepost.server.fence.problems import Problem
from fencepost.server.gateway.leases import Granted
from fencepost.server.postgres import leases
from fencepost.server.postgres.leases import hash_secret
from fencepost.server.postgres.marks import in_key_order
from fencepost.server.times import QueueTimes, Times
from fencepost.testing.servers.processes import PATIENCE


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
        holder = await side.acquire("a", secret="holder")
        waiting = await side.wait(observer, "a", secret="clumsy")
        assert (await side.acquire("b", secret="clumsy")).verdict == "granted"
        assert await side.locks.release(holder.lease_id or 0, hash_secret("holder"))
        assert (await waiting).verdict == "mismatch"
        await out_of_line(observer, "clumsy")
        assert (await side.acquire("a", secret="next")).verdict == "granted"


async def test_a_place_is_for_exactly_its_locks(leasing: LeaseRace) -> None:
    await leasing.acquire(leasing.a, "a", secret="holder")
    await leasing.queue(leasing.b, "a", "b", secret="mine")
    await leasing.queue(leasing.b, "a", secret="mine")
    assert len(set(await leasing.tickets("mine"))) == 2, "the second must not take half of the first's place"


async def test_a_lease_that_is_being_renewed_is_not_ended_by_its_secrets_next_use(leasing: LeaseRace) -> None:
    mine = await leasing.acquire(leasing.a, "a", secret="mine")
    await leasing.expire(mine.lease_id, ago=-3)
    renewing = await leasing.begin(leasing.a)
    assert await leases.extend(leasing.a, mine.lease_id or 0, hash_secret("mine"), ttl_ms=MINUTE) is not None
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
    mine = await leasing.acquire(leasing.a, "a", secret="mine")
    minted = await leasing.mint(leasing.a, mine.lease_id, "mine")
    assert minted is not None
    await leasing.observer.execute("UPDATE fencepost.draws SET drawn_at = drawn_at - interval '2 h'")
    await leases.forget(leasing.observer, 3600, 0)
    named = "SELECT count(*) FROM fencepost.issued_to($1)"
    assert await leasing.observer.fetchval(named, minted.minted[0]) == 1
    await leasing.observer.execute("UPDATE fencepost.draws SET drawn_at = drawn_at - interval '1 day'")
    await leases.forget(leasing.observer, 3600, 0)
    assert await leasing.observer.fetchval(named, minted.minted[0]) == 0


async def test_a_lease_begins_when_its_claims_are_done(race: Race) -> None:
    await race.insert(race.a, "k", 30)
    async with open_gateway(race.dsn, times=Times(queue=QueueTimes(late_share=0))) as gateway:
        writing = await race.begin(race.a)
        await race.a.execute("SELECT FROM orders WHERE order_id = 'k' FOR UPDATE")
        task = asyncio.create_task(lease(gateway, asking("x", secret="mine", claims=("orders/k",))))
        await blocks_another_session(race.a, race.observer)
        began = await race.observer.fetchval("SELECT clock_timestamp()")
        await writing.rollback()
        granted = await task
        assert granted.lease.lease_id is not None
        renewed = await gateway.locks.renew(granted.lease.lease_id, hash_secret("mine"), None)
        assert renewed is not None
        assert datetime.fromisoformat(renewed.granted_at) > began


async def test_a_row_that_is_claimed_under_two_spellings_is_claimed_once(race: Race) -> None:
    await race.insert(race.a, "k", 30)
    async with open_gateway(race.dsn) as gateway:
        granted = await lease(gateway, asking("x", secret="mine", claims=("orders/k", "orders/%6B", "public.orders/k")))
    assert [claim.resource for claim in granted.claims] == ["orders/k"] * 3
    assert {claim.mark for claim in granted.claims} == {granted.lease.claim_token}


async def test_a_grant_that_waits_for_a_row_keeps_no_lease_from_being_renewed(race: Race) -> None:
    await race.insert(race.a, "k", 30)
    async with open_gateway(race.dsn) as gateway:
        mine = await lease(gateway, asking("mine", secret="mine"))
        writing = await race.begin(race.a)
        await race.a.execute("SELECT FROM orders WHERE order_id = 'k' FOR UPDATE")
        stuck = [asyncio.create_task(ask(gateway, asking("x", secret=f"{n}", claims=("orders/k",)))) for n in range(3)]
        await blocks_another_session(race.a, race.observer)
        assert mine.lease.lease_id is not None
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
                assert answer.lease.lease_id is not None
                assert await gateway.locks.release(answer.lease.lease_id, hash_secret(secret))

        await asyncio.gather(*(take(number) for number in range(6)))


async def test_claims_are_ordered_as_rows_are_by_their_typed_keys(connect: Connect, unmade: Unmade) -> None:
    ddl = "CREATE TABLE public.numbered (n integer PRIMARY KEY)"
    race = await open_race(connect, unmade, ddl=ddl, name="numbered")
    found = await in_key_order(race.a, race.table, [("10",), ("9",), ("010",)])
    assert found == [(1, "numbered/9"), (0, "numbered/10"), (2, "numbered/10")]
