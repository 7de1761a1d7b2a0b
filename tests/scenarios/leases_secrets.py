"""Whose a lease is, one function each, as in leases.py: by its secret, and by nothing else."""

from tests.scenarios.leases import LeaseScenario, granted
from tests.support.lease_racing import MINUTE, LeaseRace, sweep_all
from tests.support.racing import outcome

from fencepost.server.postgres.leases import Acquired


async def repeated_secret_is_the_same_lease(race: LeaseRace) -> None:
    """An acquire whose answer got lost is repeated with its secret: the same lease and tokens, while it lives."""
    first = granted(await race.acquire(race.a, "x", "y", secret="mine", tokens=3, owner="me"))
    minted = await race.mint(race.a, first.lease_id, "mine", 2)
    assert minted
    again = await outcome(race.acquire(race.b, "y", "x", secret="mine", tokens=7, owner="other", ttl_ms=1))
    assert isinstance(again, Acquired), again
    assert again.verdict == "repeated"
    assert (again.lease_id, again.tokens, again.owner) == (first.lease_id, first.tokens, "me")
    assert (again.ttl_ms, again.granted_at, again.expires_at) == (first.ttl_ms, first.granted_at, first.expires_at)
    assert 0 < (again.due_ms or 0) <= MINUTE
    assert await sweep_all(race.observer, 0) == 1, "only the mint's draw may go while the lease lives"
    swept = await outcome(race.acquire(race.b, "y", "x", secret="mine"))
    assert isinstance(swept, Acquired), swept
    assert swept.tokens == first.tokens


async def repeated_secret_of_other_locks_is_a_mismatch(race: LeaseRace) -> None:
    """A secret belongs to one request: other locks or other claims are refused while its lease lives."""
    first = granted(await race.acquire(race.a, "x", "y", secret="mine", claims=("t/1",)))
    for names, claims in ((("x",), ("t/1",)), (("x", "z"), ("t/1",)), (("x", "y"), ()), (("x", "y"), ("t/2",))):
        answer = await race.acquire(race.b, *names, secret="mine", claims=claims)
        assert answer.verdict == "mismatch", f"{names} {claims}: {answer}"
    again = await race.acquire(race.b, "x", "y", secret="mine", claims=("t/1",))
    assert (again.verdict, again.claim_token, again.tokens) == ("repeated", first.claim_token, first.tokens)
    assert first.claim_token is not None
    assert first.claim_token < min(first.tokens)


async def repeated_secret_after_expiry_is_a_new_lease(race: LeaseRace) -> None:
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


async def two_at_once_with_one_secret_are_one_lease(race: LeaseRace) -> None:
    """The repeated request may come while the first one is still under way."""
    first_under_way = await race.begin(race.a)
    first = granted(await race.acquire(race.a, "x", secret="mine"))
    repeat = await race.waits(race.b, race.acquire(race.b, "x", secret="mine"))
    other = await race.waits(race.c, outcome(race.acquire(race.c, "y", secret="mine")))
    await first_under_way.commit()
    again = await repeat
    assert (again.verdict, again.lease_id, again.tokens) == ("repeated", first.lease_id, first.tokens)
    assert await other == "23505", "another lock, the same secret: reported as a mismatch"
    assert (await race.counts())["leases"] == 1


async def lease_is_its_holders(race: LeaseRace) -> None:
    """Renewing, minting and releasing need the secret."""
    lease = granted(await race.acquire(race.a, "x", secret="mine"))
    assert await race.renew(race.b, lease.lease_id, "another") is None
    assert await race.mint(race.b, lease.lease_id, "another") is None
    assert await race.release(race.b, lease.lease_id, "another") is False
    assert await race.holder("x") == lease.lease_id
    assert await race.renew(race.a, lease.lease_id, "mine")


SECRET_SCENARIOS: tuple[LeaseScenario, ...] = (
    repeated_secret_is_the_same_lease, repeated_secret_of_other_locks_is_a_mismatch,
    repeated_secret_after_expiry_is_a_new_lease, two_at_once_with_one_secret_are_one_lease, lease_is_its_holders,
)  # fmt: skip
