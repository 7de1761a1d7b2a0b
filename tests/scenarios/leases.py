"""Interleavings of tokens, time and locks that the token source must survive: AssertionError when a rule is broken."""

from collections.abc import Awaitable, Callable

from tests.support.lease_racing import LeaseRace
from tests.support.racing import outcome

from fencepost.server.postgres import leases
from fencepost.server.postgres.leases import Acquired

LeaseScenario = Callable[[LeaseRace], Awaitable[None]]


def granted(answer: Acquired | str) -> Acquired:
    assert isinstance(answer, Acquired), answer
    assert answer.verdict == "granted", answer
    return answer


async def assert_lost(race: LeaseRace, lease: Acquired, secret: str) -> None:
    assert await race.renew(race.a, lease.lease_id, secret) is None, "renewed"
    assert await race.mint(race.a, lease.lease_id, secret) is None, "minted"
    assert await leases.inspect(race.a, lease.lease_id or 0) is None, "it looks alive"
    assert await leases.find_ended(race.a, lease.lease_id or 0) is not None, "it looks unknown, or alive"


async def token_is_drawn_after_the_wait(race: LeaseRace) -> None:
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
    assert min(new.tokens) > max(late.minted)
    assert await race.mint(race.a, old.lease_id, "old") is None


async def clock_is_read_after_the_wait(race: LeaseRace) -> None:
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
    token_is_drawn_after_the_wait, clock_is_read_after_the_wait, superseded_lease_stays_lost,
    opposite_orders_do_not_deadlock, all_or_none,
)  # fmt: skip
