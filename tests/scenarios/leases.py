"""Interleavings that the token source must survive, one function each: AssertionError when a rule is broken.

They run twice: against the product (tests/integration/test_lease_races.py), where they pass, and against mutants of
its safety lines (test_lease_mutants.py), where they must not. Here: tokens, time and locks. Secrets, sweeping and the
queue have files of their own.
"""

from collections.abc import Awaitable, Callable

from tests.support.lease_racing import MINUTE, SHORT, LeaseRace
from tests.support.racing import outcome

from fencepost.gateway.leases.acquire import hash_secret
from fencepost.storage.leases import builtin as leases
from fencepost.storage.leases.builtin import Acquired, Lease

LeaseScenario = Callable[[LeaseRace], Awaitable[None]]


def granted(answer: Acquired | str) -> Acquired:
    assert isinstance(answer, Acquired), answer
    assert answer.verdict == "granted", answer
    return answer


def in_time(extended: Lease | None) -> Lease:
    """Expect that a lease of SHORT is alive yet: on a busy machine it may not be, and that breaks no rule."""
    if extended is None:
        raise TimeoutError("the lease ended too early for this test")
    return extended


async def assert_lost(race: LeaseRace, lease: Acquired, secret: str) -> None:
    assert await race.renew(race.a, lease.lease_id, secret) is None, "renewed"
    assert await race.mint(race.a, lease.lease_id, secret) is None, "minted"
    assert await leases.inspect(race.a, lease.lease_id or 0) is None, "it looks alive"
    assert await leases.find_ended(race.a, lease.lease_id or 0) is not None, "it looks unknown, or alive"


async def token_is_drawn_after_the_wait(race: LeaseRace) -> None:
    """R9: the holder mints in a transaction that outlives its lease; a transaction that waits for it gets a higher
    token.
    """
    old = granted(await race.acquire(race.a, "x", secret="old", ttl_ms=SHORT))
    minting = await race.begin(race.a)
    in_time(await race.mint(race.a, old.lease_id, "old"))
    successor = await race.waits(race.b, race.acquire(race.b, "x", secret="new", tokens=2))
    late = in_time(await race.mint(race.a, old.lease_id, "old", 3))
    await race.run_out(old.lease_id)
    await minting.commit()
    new = granted(await successor)
    assert min(new.tokens) > max(late.minted)
    assert await race.mint(race.a, old.lease_id, "old") is None


async def clock_is_read_after_the_wait(race: LeaseRace) -> None:
    """R9: a request that waits for a lease's row until past its time has lost it, renewing as well as minting."""
    for name, extend in (("renewed", race.renew), ("minted", race.mint)):
        lease = granted(await race.acquire(race.a, name, secret=name * 2, ttl_ms=SHORT))
        foreign = await race.begin(race.c)
        await race.c.execute("SELECT FROM fencepost.leases WHERE lease_id = $1 FOR UPDATE", lease.lease_id)
        waiter = await race.waits(race.b, extend(race.b, lease.lease_id, name * 2))
        await race.run_out(lease.lease_id)
        await foreign.commit()
        assert await waiter is None, f"{name} after its time had run out"
        assert await race.holder(name) is None, name


async def acquirer_reads_the_clock_after_the_wait(race: LeaseRace) -> None:
    """R9: an acquirer that waits while the holder renews finds it held; while the time runs out, free."""
    first = granted(await race.acquire(race.a, "x", secret="first", ttl_ms=SHORT))
    renewing = await race.begin(race.a)
    in_time(await leases.extend(race.a, first.lease_id or 0, hash_secret("first"), ttl_ms=MINUTE))
    waiter = await race.waits(race.b, race.acquire(race.b, "x", secret="second"))
    await race.run_out(first.lease_id)  # as far as others can see
    await renewing.commit()
    assert (await waiter).verdict == "held"


async def superseded_lease_stays_lost(race: LeaseRace) -> None:
    """R9: once another one has the lock, no clock that steps back revives the old lease."""
    old = granted(await race.acquire(race.a, "x", secret="old"))
    await race.expire(old.lease_id)
    new = granted(await race.acquire(race.b, "x", secret="new"))
    await race.step_clock_back(old.lease_id)
    await assert_lost(race, old, "old")
    assert await race.holder("x") == new.lease_id
    again = await race.acquire(race.a, "x", secret="old")
    assert again.verdict == "held"
    assert again.lease_id == new.lease_id


async def lease_superseded_on_one_of_its_locks_is_lost(race: LeaseRace) -> None:
    """A lease of several locks is one lease: who takes one of them after its time ends all of it."""
    old = granted(await race.acquire(race.a, "x", "y", secret="old"))
    await race.expire(old.lease_id)
    new = granted(await race.acquire(race.b, "y", secret="new"))
    await race.step_clock_back(old.lease_id)
    await assert_lost(race, old, "old")
    assert await race.release(race.a, old.lease_id, "old")
    assert await race.holder("y") == new.lease_id
    granted(await race.acquire(race.c, "x", secret="third"))


async def release_lets_in_who_waits_for_it(race: LeaseRace) -> None:
    """R9: an acquirer that waits while the holder releases gets the lock, and tokens rise."""
    old = granted(await race.acquire(race.a, "x", secret="old"))
    late = await race.mint(race.a, old.lease_id, "old", 5)
    assert late
    releasing = await race.begin(race.a)
    assert await race.release(race.a, old.lease_id, "old")
    waiter = await race.waits(race.b, race.acquire(race.b, "x", secret="new"))
    await releasing.commit()
    new = granted(await waiter)
    assert min(new.tokens) > max(late.minted)
    assert await race.lock_rows() == {"x": new.lease_id}


async def release_waits_for_its_successor(race: LeaseRace) -> None:
    """The old holder releases while another one takes the lock over: the new one's lock stays."""
    old = granted(await race.acquire(race.a, "x", secret="old"))
    await race.expire(old.lease_id)
    taking = await race.begin(race.b)
    new = granted(await race.acquire(race.b, "x", secret="new"))
    release = await race.waits(race.a, race.release(race.a, old.lease_id, "old"))
    await taking.commit()
    assert await release is True
    assert await race.lock_rows() == {"x": new.lease_id}
    assert await race.renew(race.b, new.lease_id, "new")
    assert await race.release(race.a, old.lease_id, "old") is True
    assert await race.holder("x") == new.lease_id


async def opposite_orders_do_not_deadlock(race: LeaseRace) -> None:
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


async def release_and_acquire_do_not_deadlock(race: LeaseRace) -> None:
    """Leases are locked in one order too, and a request that releases locks in between delays no other."""
    first = granted(await race.acquire(race.a, "a", secret="first"))
    second = granted(await race.acquire(race.a, "b", secret="second"))
    foreign = await race.begin(race.c)
    await race.c.execute("SELECT FROM fencepost.leases WHERE lease_id = $1 FOR UPDATE", first.lease_id)
    release = await race.waits(race.a, outcome(race.release(race.a, first.lease_id, "first")))
    acquire = await race.waits(race.b, outcome(race.acquire(race.b, "b", "a", secret="next")))
    await foreign.rollback()
    assert await release is True
    answer = await acquire
    assert isinstance(answer, Acquired), answer
    assert (answer.verdict, answer.lock, answer.lease_id) == ("held", "b", second.lease_id)


async def all_or_none(race: LeaseRace) -> None:
    """One of three locks is held: nothing is granted, and the others stay free."""
    holder = granted(await race.acquire(race.a, "b", secret="holder"))
    answer = await race.acquire(race.b, "c", "a", "b", secret="wants three")
    assert (answer.verdict, answer.lock, answer.lease_id) == ("held", "b", holder.lease_id)
    assert {name: lease for name, lease in (await race.lock_rows()).items() if lease is not None} == {
        "b": holder.lease_id
    }
    assert await leases.lock_counts(race.observer) == (1, 0)
    assert (await race.counts())["leases"] == 1
    granted(await race.acquire(race.c, "a", "c", secret="takes the others"))
    third = await race.acquire(race.b, "a", "b", "c", secret="wants three")
    assert (third.verdict, third.lock) == ("held", "a"), "the first one that is held"
    expired = granted(await race.acquire(race.a, "d", secret="expired"))
    await race.expire(expired.lease_id)
    fourth = await race.acquire(race.b, "b", "d", secret="wants two")
    assert (fourth.verdict, fourth.lock, fourth.lease_id) == ("held", "b", holder.lease_id)
    assert await race.renew(race.a, holder.lease_id, "holder")


SCENARIOS: tuple[LeaseScenario, ...] = (
    token_is_drawn_after_the_wait,
    clock_is_read_after_the_wait,
    acquirer_reads_the_clock_after_the_wait,
    superseded_lease_stays_lost,
    lease_superseded_on_one_of_its_locks_is_lost,
    release_lets_in_who_waits_for_it,
    release_waits_for_its_successor,
    opposite_orders_do_not_deadlock,
    release_and_acquire_do_not_deadlock,
    all_or_none,
)
