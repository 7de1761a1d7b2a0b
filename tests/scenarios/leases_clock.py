"""The database's clock steps back by an hour, one function each, as in leases.py."""

from tests.scenarios.leases import LeaseScenario, granted
from tests.support.lease_racing import MINUTE, LeaseRace

from fencepost.server.postgres import leases

KEEP_MS = MINUTE // 2


async def left(race: LeaseRace, lease_id: int | None) -> float:
    """Seconds until the lease is over, by its row."""
    seconds: float = await race.observer.fetchval(
        "SELECT extract(epoch FROM expires_at - clock_timestamp())::float FROM fencepost.leases WHERE lease_id = $1",
        lease_id,
    )
    return seconds


async def lease_never_shows_more_than_its_ttl(race: LeaseRace) -> None:
    """Wherever the lease is looked at: by its id, in the list, as a repeated acquire, as who is in the way."""
    held = granted(await race.acquire(race.a, "x", secret="holder"))
    await race.clock_steps_back()
    lease = await leases.inspect(race.b, held.lease_id or 0)
    assert lease is not None
    assert 0 < lease.remaining_ms <= MINUTE
    [state] = await leases.lock_states(race.b, None, None, 10)
    assert 0 < (state.remaining_ms or 0) <= MINUTE
    far_off = "SELECT expires_at > clock_timestamp() + interval '61 s' FROM fencepost.{}"
    for shown in ("lease($1)", "lock_states(NULL, NULL, 10, NULL) WHERE lease_id = $1"):
        assert not await race.observer.fetchval(far_off.format(shown), held.lease_id)
    again = await race.acquire(race.a, "x", secret="holder")
    assert (again.verdict, again.lease_id) == ("repeated", held.lease_id)
    assert 0 < (again.due_ms or 0) <= MINUTE
    await race.clock_steps_back()
    refused = await race.acquire(race.b, "x", secret="other")
    assert (refused.verdict, refused.lease_id) == ("held", held.lease_id)
    assert 0 < (refused.due_ms or 0) <= MINUTE


async def lease_in_the_way_counts_from_the_request_that_meets_it(race: LeaseRace) -> None:
    """Its holder may be dead: the hour must not be waited for. And not cut short: the holder may count on its TTL."""
    held = granted(await race.acquire(race.a, "x", secret="holder"))
    await race.clock_steps_back()
    assert (await race.acquire(race.b, "x", secret="other")).verdict == "held"
    assert 50 < await left(race, held.lease_id) <= MINUTE / 1000


async def holder_mints_on_and_its_lease_counts_anew(race: LeaseRace) -> None:
    held = granted(await race.acquire(race.a, "x", secret="holder"))
    await race.clock_steps_back()
    minted = await race.mint(race.a, held.lease_id, "holder")
    assert minted is not None
    assert 50_000 < minted.remaining_ms <= MINUTE
    assert 50 < await left(race, held.lease_id) <= MINUTE / 1000


async def waiter_is_sent_to_try_and_the_lease_counts_anew(race: LeaseRace) -> None:
    """A waiter sleeps until it is notified: by a heartbeat, which has when the lease is over."""
    held = granted(await race.acquire(race.a, "x", secret="holder"))
    visit = await race.queue(race.b, "x", secret="waiter")
    await race.clock_steps_back()
    assert await race.beat(visit) == {visit: 0}
    assert (await race.acquire(race.b, "x", secret="waiter", visit=visit, wait_ms=MINUTE)).verdict == "queued"
    answer = await race.beat(visit)
    assert 50_000 < answer[visit] <= MINUTE
    assert 50 < await left(race, held.lease_id) <= MINUTE / 1000


async def sweeping_counts_leases_anew_that_no_request_meets(race: LeaseRace) -> None:
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


async def kept_place_of_before_is_no_place_in_the_queue(race: LeaseRace) -> None:
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


async def kept_place_of_before_is_there_for_the_waiter_that_comes_back(race: LeaseRace) -> None:
    granted(await race.acquire(race.a, "x", secret="holder"))
    kept = await race.queue(race.b, "x", secret="kept")
    ticket = await race.tickets("kept")
    await leases.leave(race.b, kept, KEEP_MS)
    await race.clock_steps_back()
    await race.beat()
    await race.queue(race.b, "x", secret="kept")
    assert await race.tickets("kept") == ticket
    assert await race.waiting("x") == ["kept"], "and it is no kept place any more"


async def kept_place_of_before_is_swept(race: LeaseRace) -> None:
    granted(await race.acquire(race.a, "x", secret="holder"))
    kept = await race.queue(race.b, "x", secret="kept")
    waits = await race.queue(race.b, "x", secret="waits")
    await leases.leave(race.b, kept, KEEP_MS)
    await race.clock_steps_back()
    await race.beat(waits)
    assert await leases.sweep(race.observer) == 1
    assert (await race.tickets("kept"), await race.waiting("x")) == ([], ["waits"])


CLOCK_SCENARIOS: tuple[LeaseScenario, ...] = (
    lease_never_shows_more_than_its_ttl, lease_in_the_way_counts_from_the_request_that_meets_it,
    holder_mints_on_and_its_lease_counts_anew, waiter_is_sent_to_try_and_the_lease_counts_anew,
    sweeping_counts_leases_anew_that_no_request_meets, kept_place_of_before_is_no_place_in_the_queue,
    kept_place_of_before_is_there_for_the_waiter_that_comes_back, kept_place_of_before_is_swept,
)  # fmt: skip
