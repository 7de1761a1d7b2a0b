"""The token source (R9): tokens, time and locks; whose a lease is; what the sweeper leaves; a clock that steps back."""

import asyncio
from dataclasses import replace
from typing import Any

from tests.races.openings import LEASES, QUEUE_OF_LOCKS, opened
from tests.support.interleave import start
from tests.support.lease_racing import MINUTE, LeaseRace, sweep_all
from tests.support.racing import outcome

from fencepost.server.postgres import leases
from fencepost.server.postgres.errors import LOCK_NOT_AVAILABLE
from fencepost.server.postgres.leases import Granted, Held, LeaseRow, LockRequest, Release, hash_secret
from fencepost.testing.servers.processes import PATIENCE

pytestmark = opened(LEASES)


def granted(answer: object) -> LeaseRow:
    """Give the lease that was granted, and not found again."""
    assert isinstance(answer, Granted), answer
    assert answer.verdict == "granted", answer
    return answer.lease


def in_the_way(answer: object) -> Held:
    assert isinstance(answer, Held), answer
    return answer


async def assert_lost(race: LeaseRace, lease: LeaseRow, secret: str) -> None:
    assert await race.renew(race.a, lease.lease_id, secret) is None, "renewed"
    assert await race.mint(race.a, lease.lease_id, secret) is None, "minted"
    assert await leases.inspect(race.a, lease.lease_id) is None, "it looks alive"
    assert await leases.find_ended(race.a, lease.lease_id) is not None, "it looks unknown, or alive"


async def test_token_is_drawn_after_the_wait(race: LeaseRace) -> None:
    """R9."""
    old = granted(await race.acquire(race.a, "x", secret="old"))
    minting = await race.begin(race.a)
    assert await race.mint(race.a, old.lease_id, "old")
    successor = await race.waits(race.b, race.acquire(race.b, "x", secret="new", tokens=2))
    late = await race.mint(race.a, old.lease_id, "old", 3)
    assert late is not None
    await race.expire(old.lease_id, by=race.a)
    await minting.commit()
    new = granted(await successor)
    assert min(new.tokens) > max(late.tokens)
    assert await race.mint(race.a, old.lease_id, "old") is None


async def test_clock_is_read_after_the_wait(race: LeaseRace) -> None:
    """R9: a request that waits for a lease's row until past its time has lost it, renewing as well as minting."""
    for name, extend in (("renewed", race.renew), ("minted", race.mint)):
        lease = granted(await race.acquire(race.a, name, secret=name * 2))
        await race.expire(lease.lease_id, ago=-2)
        foreign = await race.begin(race.c)
        await race.c.execute("SELECT FROM fencepost.leases WHERE lease_id = $1 FOR UPDATE", lease.lease_id)
        waiter = await race.waits(race.b, extend(race.b, lease.lease_id, name * 2))
        await race.run_out(lease.lease_id)
        await foreign.commit()
        assert await waiter is None, f"{name} after its time had run out"
        assert await race.holder(name) is None, name


async def test_superseded_lease_stays_lost(race: LeaseRace) -> None:
    """R9: once another one has the lock, no clock that steps back revives the old lease."""
    old = granted(await race.acquire(race.a, "x", secret="old"))
    await race.expire(old.lease_id)
    new = granted(await race.acquire(race.b, "x", secret="new"))
    await race.step_clock_back(old.lease_id)
    await assert_lost(race, old, "old")
    assert await race.holder("x") == new.lease_id
    again = in_the_way(await race.acquire(race.a, "x", secret="old"))
    assert (again.verdict, again.lease_id) == ("held", new.lease_id)


async def test_opposite_orders_do_not_deadlock(race: LeaseRace) -> None:
    """Several locks are taken in one order, however they are named, also where a collation would sort otherwise."""
    for first, second in (("a", "b"), ("C", "d"), ("z", "ä")):
        before = granted(await race.acquire(race.a, first, second, secret="before" + first))
        assert await race.release(race.a, before.lease_id, "before" + first), (first, second)
        foreign = await race.begin(race.c)
        await race.c.execute("SELECT FROM fencepost.locks WHERE name = $1 FOR UPDATE", first)
        one = await race.waits(race.a, outcome(race.acquire(race.a, first, second, secret="one" + first)))
        two = await race.waits(race.b, outcome(race.acquire(race.b, second, first, secret="two" + first)))
        await foreign.rollback()
        answers = [await one, await two]
        verdicts = [answer if isinstance(answer, str) else answer.verdict for answer in answers]
        assert verdicts == ["granted", "held"], f"{first}, {second}: {verdicts}"


async def test_a_batch_passes_by_what_others_have_locked(race: LeaseRace) -> None:
    """R20: no grant of several in one transaction waits for another transaction: for a lock's row, or its lease's."""

    async def answer(*names: str) -> Any:
        batch = [LockRequest((name,), "old" if name == "d" else name * 32, "o", MINUTE) for name in names]
        return await asyncio.wait_for(outcome(leases.try_each(race.b, batch)), PATIENCE)

    async def taken(*names: str) -> Any:
        answers = await answer(*names)
        assert isinstance(answers, list), f"it waited: {answers}"
        return answers

    held = granted(await race.acquire(race.a, "a", secret="old"))
    idle = granted(await race.acquire(race.a, "c", secret="idle"))
    assert await race.release(race.a, idle.lease_id, "idle")
    foreign = await race.begin(race.c)
    await race.c.execute("SELECT FROM fencepost.leases WHERE lease_id = $1 FOR UPDATE", held.lease_id)
    await race.c.execute("SELECT FROM fencepost.locks WHERE name = 'c' FOR UPDATE")
    first, free, *others = await taken("a", "b", "c", "d")
    assert (first, *others) == (None,) * 3, "a lock's lease, a lock's row, and the lease that a secret had before"
    await foreign.rollback()
    foreign = await race.begin(race.c)
    granted(await race.acquire(race.c, "elsewhere", secret="a" * 32))
    first, _, third = await taken("a", "b", "c")
    assert (first, granted(third).names) == (None, ("c",)), "another grant under the same secret is in the way of one"
    await race.c.execute("SELECT FROM fencepost.leases WHERE lease_id = $1 FOR UPDATE", held.lease_id)
    ending = leases.release_each(race.b, [Release(held.lease_id, hash_secret("old"))], race.gateway)
    assert await asyncio.wait_for(ending, PATIENCE) == [(True, None)]
    assert await answer("elsewhere") == LOCK_NOT_AVAILABLE, "it is being made: given up"
    await foreign.rollback()
    first, again, third = await taken("a", "b", "c")
    assert in_the_way(first).lease_id == held.lease_id
    assert (again.verdict, again.lease.tokens) == ("repeated", granted(free).tokens)


async def test_all_or_none(race: LeaseRace) -> None:
    """One of three locks is held: nothing is granted, and the others stay free."""
    holder = granted(await race.acquire(race.a, "b", secret="holder"))
    answer = in_the_way(await race.acquire(race.b, "c", "a", "b", secret="wants three"))
    assert (answer.verdict, answer.lock, answer.lease_id) == ("held", "b", holder.lease_id)
    assert {name: lease for name, lease in (await race.lock_rows()).items() if lease is not None} == {
        "b": holder.lease_id
    }
    assert await leases.lock_counts(race.observer) == (1, 0)
    assert (await race.counts())["leases"] == 1
    granted(await race.acquire(race.c, "a", "c", secret="takes the others"))
    third = in_the_way(await race.acquire(race.b, "a", "b", "c", secret="wants three"))
    assert (third.verdict, third.lock) == ("held", "a"), "the first one that is held"
    expired = granted(await race.acquire(race.a, "d", secret="expired"))
    await race.expire(expired.lease_id)
    fourth = in_the_way(await race.acquire(race.b, "b", "d", secret="wants two"))
    assert (fourth.verdict, fourth.lock, fourth.lease_id) == ("held", "b", holder.lease_id)
    assert await race.renew(race.a, holder.lease_id, "holder")


# Whose a lease is: by its secret, and by nothing else


async def test_repeated_secret_is_the_same_lease(race: LeaseRace) -> None:
    """An acquire whose answer got lost is repeated with its secret: the same lease and tokens, while it lives."""
    first = granted(await race.acquire(race.a, "x", "y", secret="mine", tokens=3, owner="me"))
    minted = await race.mint(race.a, first.lease_id, "mine", 2)
    assert minted
    again = await outcome(race.acquire(race.b, "y", "x", secret="mine", tokens=7, owner="other", ttl_ms=1))
    assert isinstance(again, Granted), again
    assert again.verdict == "repeated"
    assert 0 < again.lease.remaining_ms <= MINUTE
    assert replace(again.lease, remaining_ms=first.remaining_ms) == first
    assert await sweep_all(race.observer, 0) == 1, "only the mint's draw may go while the lease lives"
    swept = await outcome(race.acquire(race.b, "y", "x", secret="mine"))
    assert isinstance(swept, Granted), swept
    assert swept.lease.tokens == first.tokens


async def test_repeated_secret_of_other_locks_is_a_mismatch(race: LeaseRace) -> None:
    """A secret belongs to one request: other locks or other claims are refused while its lease lives."""
    first = await race.acquire(race.a, "x", "y", secret="mine", claims=("t/1",))
    for names, claims in ((("x",), ("t/1",)), (("x", "z"), ("t/1",)), (("x", "y"), ()), (("x", "y"), ("t/2",))):
        answer = await race.acquire(race.b, *names, secret="mine", claims=claims)
        assert answer.verdict == "mismatch", f"{names} {claims}: {answer}"
    again = await race.acquire(race.b, "x", "y", secret="mine", claims=("t/1",))
    assert (first.verdict, again.verdict) == ("granted", "repeated")
    assert (again.claim_token, again.lease.tokens) == (first.claim_token, first.lease.tokens)
    assert first.claim_token < min(first.lease.tokens)


async def test_repeated_secret_after_expiry_is_a_new_lease(race: LeaseRace) -> None:
    """A lease that is over is not found again: its secret makes a new one, of whatever locks."""
    first = granted(await race.acquire(race.a, "x", secret="mine"))
    await race.expire(first.lease_id)
    second = granted(await race.acquire(race.a, "x", secret="mine"))
    assert min(second.tokens) > max(first.tokens)
    assert await race.renew(race.a, first.lease_id, "mine") is None
    assert await race.renew(race.a, second.lease_id, "mine")
    await race.expire(second.lease_id)
    third = granted(await outcome(race.acquire(race.a, "y", secret="mine")))
    await race.step_clock_back(second.lease_id)
    assert await race.renew(race.a, second.lease_id, "mine") is None, "two leases of one secret"
    assert await race.release(race.a, third.lease_id, "mine")
    fourth = granted(await race.acquire(race.a, "y", secret="mine"))
    assert fourth.lease_id != third.lease_id


async def test_two_at_once_with_one_secret_are_one_lease(race: LeaseRace) -> None:
    """The repeated request may come while the first one is still under way."""
    first_under_way = await race.begin(race.a)
    first = granted(await race.acquire(race.a, "x", secret="mine"))
    repeat = await race.waits(race.b, race.acquire(race.b, "x", secret="mine"))
    other = await race.waits(race.c, outcome(race.acquire(race.c, "y", secret="mine")))
    await first_under_way.commit()
    again = await repeat
    assert (again.verdict, again.lease.id, again.lease.tokens) == ("repeated", first.id, first.tokens)
    assert await other == "23505", "another lock, the same secret: reported as a mismatch"
    assert (await race.counts())["leases"] == 1


async def test_lease_is_its_holders(race: LeaseRace) -> None:
    """Renewing, minting and releasing need the secret."""
    lease = granted(await race.acquire(race.a, "x", secret="mine"))
    assert await race.renew(race.b, lease.lease_id, "another") is None
    assert await race.mint(race.b, lease.lease_id, "another") is None
    assert await race.release(race.b, lease.lease_id, "another") is False
    assert await race.holder("x") == lease.lease_id
    assert await race.renew(race.a, lease.lease_id, "mine")


# What the sweeper must leave and what it must not


async def test_swept_lease_stays_lost(race: LeaseRace) -> None:
    """A lease whose lock row was swept is over: another client may have had the lock meanwhile."""
    old = granted(await race.acquire(race.a, "x", secret="old"))
    await race.expire(old.lease_id, 11)
    assert await sweep_all(race.observer, 3600) == 1
    assert await race.lock_rows() == {}
    await race.step_clock_back(old.lease_id)
    await assert_lost(race, old, "old")
    granted(await race.acquire(race.a, "x", secret="old"))


async def test_swept_lock_row_is_made_anew(race: LeaseRace) -> None:
    """R9: the lock row is deleted under an acquirer that waits for it; it makes a new one, and tokens still rise."""
    old = granted(await race.acquire(race.a, "x", secret="old"))
    late = await race.mint(race.a, old.lease_id, "old", 5)
    assert late
    await race.expire(old.lease_id, 11)
    sweeping = await race.begin(race.a)
    assert await sweep_all(race.a, 3600) == 1
    waiter = await race.waits(race.b, race.acquire(race.b, "x", secret="new"))
    another = await race.waits(race.c, race.acquire(race.c, "x", secret="another"))
    await sweeping.commit()
    verdicts = sorted([(await waiter).verdict, (await another).verdict])
    assert verdicts == ["granted", "held"]
    assert (await race.lock_rows())["x"] is not None
    newest = await race.observer.fetchval("SELECT max(last_token) FROM fencepost.leases WHERE ended_at IS NULL")
    assert newest > max(late.tokens)


async def test_sweep_skips_what_is_in_use(race: LeaseRace) -> None:
    """The sweeper waits for no transaction."""
    old = granted(await race.acquire(race.a, "x", secret="old"))
    await race.expire(old.lease_id, 11)
    taking = await race.begin(race.b)
    new = granted(await race.acquire(race.b, "x", secret="new"))
    # Run what must not wait for a lock.
    task = await start(race.observer, sweep_all(race.c, 0), race.c.get_server_pid())
    if not task.done():
        task.cancel()
        raise AssertionError("it waits for a lock")
    sweep = task.result()
    assert sweep == 0
    await taking.commit()
    assert await race.holder("x") == new.lease_id


async def test_sweep_looks_again(race: LeaseRace) -> None:
    """A lock that was idle when the sweeper first looked, and is held when it gets there, stays."""
    idle = {name: granted(await race.acquire(race.a, name, secret=name * 3)) for name in ("a", "b")}
    for lease in idle.values():
        await race.expire(lease.lease_id, 11)
    foreign = await race.begin(race.a)
    await race.a.execute("SELECT FROM fencepost.leases WHERE lease_id = $1 FOR UPDATE", idle["a"].lease_id)
    sweep = await race.waits(race.c, sweep_all(race.c, 0))
    new = granted(await race.acquire(race.b, "b", secret="new"))
    await foreign.rollback()
    await sweep
    assert await race.lock_rows() == {"b": new.lease_id}
    assert await race.renew(race.b, new.lease_id, "new")
    assert (await race.acquire(race.a, "b", secret="another")).verdict == "held"


async def test_idle_locks_leave_nothing(race: LeaseRace) -> None:
    """Everything that ended leases left goes; what a live lease needs stays."""
    live = granted(await race.acquire(race.a, "live", secret="live", tokens=2))
    assert await race.mint(race.a, live.lease_id, "live")
    released = granted(await race.acquire(race.a, "released", secret="released"))
    assert await race.release(race.a, released.lease_id, "released")
    expired = granted(await race.acquire(race.a, "expired", "too", secret="expired"))
    await race.expire(expired.lease_id, 11)
    await race.acquire(race.a, "live", "only asked for", secret="nobody")
    await race.queue(race.b, "live", secret="waiter")
    await race.observer.execute("UPDATE fencepost.waiters SET give_up_at = now() - interval '11 s'")
    assert await race.waiting("live") == []
    await sweep_all(race.observer, 0)
    assert await race.lock_rows() == {"live": live.lease_id}
    assert await race.counts() == {"locks": 1, "leases": 1, "draws": 1, "waiters": 0, "gateways": 1}
    again = await race.acquire(race.c, "live", secret="live")
    assert (again.verdict, again.lease.tokens) == ("repeated", live.tokens)
    assert await race.release(race.a, live.lease_id, "live")
    await race.observer.execute("UPDATE fencepost.gateways SET seen_at = now() - interval '61 s'")
    await sweep_all(race.observer, 0)
    assert await race.counts() == dict.fromkeys(("locks", "leases", "draws", "waiters", "gateways"), 0)


async def test_history_is_kept_as_long_as_asked(race: LeaseRace) -> None:
    """Of ended leases it is remembered who came after whom, and whose token is whose, for the time that is set."""
    old = granted(await race.acquire(race.a, "x", secret="old", owner="old"))
    minted = await race.mint(race.a, old.lease_id, "old", 2)
    assert minted
    await race.expire(old.lease_id)
    granted(await race.acquire(race.b, "x", secret="new", owner="new"))
    await sweep_all(race.observer, 3600)
    lost = await leases.find_ended(race.observer, old.lease_id)
    assert lost is not None
    assert lost.superseded_by is not None
    assert '"new"' in lost.superseded_by
    for token in (*old.tokens, *minted.tokens):
        owner = await race.observer.fetchval("SELECT owner FROM fencepost.issued_to($1)", token)
        assert owner == "old", f"token {token}: {owner}"
    await sweep_all(race.observer, 0)
    assert await leases.find_ended(race.observer, old.lease_id) is None


# The database's clock steps back by an hour

KEEP_MS = MINUTE // 2


async def left(race: LeaseRace, lease_id: int) -> float:
    """Seconds until the lease is over, by its row."""
    seconds: float = await race.observer.fetchval(
        "SELECT extract(epoch FROM expires_at - clock_timestamp())::float FROM fencepost.leases WHERE lease_id = $1",
        lease_id,
    )
    return seconds


@opened(QUEUE_OF_LOCKS)
async def test_lease_never_shows_more_than_its_ttl(race: LeaseRace) -> None:
    """Wherever the lease is looked at: by its id, in the list, as a repeated acquire, as who is in the way."""
    held = granted(await race.acquire(race.a, "x", secret="holder"))
    await race.clock_steps_back()
    lease = await leases.inspect(race.b, held.lease_id)
    assert lease is not None
    assert 0 < lease.remaining_ms <= MINUTE
    [state] = await leases.lock_states(race.b, None, None, 10)
    assert 0 < (state.remaining_ms or 0) <= MINUTE
    far_off = "SELECT expires_at > clock_timestamp() + interval '61 s' FROM fencepost.{}"
    for shown in ("lease($1)", "lock_states(NULL, NULL, 10, NULL) WHERE lease_id = $1"):
        assert not await race.observer.fetchval(far_off.format(shown), held.lease_id)
    again = await race.acquire(race.a, "x", secret="holder")
    assert (again.verdict, again.lease.lease_id) == ("repeated", held.lease_id)
    assert 0 < again.lease.remaining_ms <= MINUTE
    await race.clock_steps_back()
    refused = in_the_way(await race.acquire(race.b, "x", secret="other"))
    assert (refused.verdict, refused.lease_id) == ("held", held.lease_id)
    assert 0 < (refused.due_ms or 0) <= MINUTE


@opened(QUEUE_OF_LOCKS)
async def test_lease_in_the_way_counts_from_the_request_that_meets_it(race: LeaseRace) -> None:
    """Its holder may be dead: the hour must not be waited for. And not cut short: the holder may count on its TTL."""
    held = granted(await race.acquire(race.a, "x", secret="holder"))
    await race.clock_steps_back()
    assert (await race.acquire(race.b, "x", secret="other")).verdict == "held"
    assert 50 < await left(race, held.lease_id) <= MINUTE / 1000


@opened(QUEUE_OF_LOCKS)
async def test_holder_mints_on_and_its_lease_counts_anew(race: LeaseRace) -> None:
    held = granted(await race.acquire(race.a, "x", secret="holder"))
    await race.clock_steps_back()
    minted = await race.mint(race.a, held.lease_id, "holder")
    assert minted is not None
    assert 50_000 < minted.remaining_ms <= MINUTE
    assert 50 < await left(race, held.lease_id) <= MINUTE / 1000


@opened(QUEUE_OF_LOCKS)
async def test_waiter_is_sent_to_try_and_the_lease_counts_anew(race: LeaseRace) -> None:
    """A waiter sleeps until it is notified: by a heartbeat, which has when the lease is over."""
    held = granted(await race.acquire(race.a, "x", secret="holder"))
    visit = await race.queue(race.b, "x", secret="waiter")
    await race.clock_steps_back()
    assert await race.beat(visit) == {visit: 0}
    assert (await race.acquire(race.b, "x", secret="waiter", visit=visit, wait_ms=MINUTE)).verdict == "queued"
    answer = await race.beat(visit)
    assert 50_000 < answer[visit] <= MINUTE
    assert 50 < await left(race, held.lease_id) <= MINUTE / 1000


@opened(QUEUE_OF_LOCKS)
async def test_sweeping_counts_leases_anew_that_no_request_meets(race: LeaseRace) -> None:
    held = granted(await race.acquire(race.a, "x", secret="holder"))
    busy = granted(await race.acquire(race.a, "y", secret="busy"))
    await race.clock_steps_back()
    writing = await race.begin(race.c)
    await race.c.execute("SELECT FROM fencepost.leases WHERE lease_id = $1 FOR UPDATE", busy.lease_id)
    assert await leases.sweep(race.observer) == 0, "and waits for no row"
    assert 50 < await left(race, held.lease_id) <= MINUTE / 1000
    await writing.commit()
    assert await left(race, busy.lease_id) > MINUTE / 1000
    assert await race.holder("x") == held.lease_id


@opened(QUEUE_OF_LOCKS)
async def test_kept_place_of_before_is_no_place_in_the_queue(race: LeaseRace) -> None:
    """The one that kept it has had its time, or comes back and has it."""
    holder = granted(await race.acquire(race.a, "x", secret="holder"))
    kept = await race.queue(race.b, "x", secret="kept")
    await leases.leave(race.b, kept, KEEP_MS)
    assert await race.waiting("x") == ["kept"]
    await race.clock_steps_back()
    await race.beat()
    assert await race.waiting("x") == []
    assert await race.release(race.a, holder.lease_id, "holder")
    granted(await race.acquire(race.c, "x", secret="passer-by"))


@opened(QUEUE_OF_LOCKS)
async def test_kept_place_of_before_is_there_for_the_waiter_that_comes_back(race: LeaseRace) -> None:
    granted(await race.acquire(race.a, "x", secret="holder"))
    kept = await race.queue(race.b, "x", secret="kept")
    ticket = await race.tickets("kept")
    await leases.leave(race.b, kept, KEEP_MS)
    await race.clock_steps_back()
    await race.beat()
    await race.queue(race.b, "x", secret="kept")
    assert await race.tickets("kept") == ticket
    assert await race.waiting("x") == ["kept"], "and it is no kept place any more"


@opened(QUEUE_OF_LOCKS)
async def test_kept_place_of_before_is_swept(race: LeaseRace) -> None:
    granted(await race.acquire(race.a, "x", secret="holder"))
    kept = await race.queue(race.b, "x", secret="kept")
    waits = await race.queue(race.b, "x", secret="waits")
    await leases.leave(race.b, kept, KEEP_MS)
    await race.clock_steps_back()
    await race.beat(waits)
    assert await leases.sweep(race.observer) == 1
    assert (await race.tickets("kept"), await race.waiting("x")) == ([], ["waits"])
