"""What the sweeper must leave and what it must not, one function each, as in leases.py."""

from collections.abc import Coroutine
from typing import Any

from tests.scenarios.leases import LeaseScenario, assert_lost, granted
from tests.support.interleave import Connection, start
from tests.support.lease_racing import LeaseRace, sweep_all

from fencepost.server.postgres import leases


async def at_once(race: LeaseRace, connection: Connection, work: Coroutine[Any, Any, int]) -> int:
    """Run what must not wait for a lock."""
    task = await start(race.observer, work, connection.get_server_pid())
    if not task.done():
        task.cancel()
        raise AssertionError("it waits for a lock")
    return task.result()


async def swept_lease_stays_lost(race: LeaseRace) -> None:
    """A lease whose lock row was swept is over: another client may have had the lock meanwhile."""
    old = granted(await race.acquire(race.a, "x", secret="old"))
    await race.expire(old.lease_id, 11)
    assert await sweep_all(race.observer, 3600) == 1
    assert await race.lock_rows() == {}
    await race.step_clock_back(old.lease_id)
    await assert_lost(race, old, "old")
    granted(await race.acquire(race.a, "x", secret="old"))


async def swept_lock_row_is_made_anew(race: LeaseRace) -> None:
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
    assert newest > max(late.minted)


async def sweep_skips_what_is_in_use(race: LeaseRace) -> None:
    """The sweeper waits for no transaction."""
    old = granted(await race.acquire(race.a, "x", secret="old"))
    await race.expire(old.lease_id, 11)
    taking = await race.begin(race.b)
    new = granted(await race.acquire(race.b, "x", secret="new"))
    sweep = await at_once(race, race.c, sweep_all(race.c, 0))
    assert sweep == 0
    await taking.commit()
    assert await race.holder("x") == new.lease_id


async def sweep_looks_again(race: LeaseRace) -> None:
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


async def idle_locks_leave_nothing(race: LeaseRace) -> None:
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
    assert (again.verdict, again.tokens) == ("repeated", live.tokens)
    assert await race.release(race.a, live.lease_id, "live")
    await race.observer.execute("UPDATE fencepost.gateways SET seen_at = now() - interval '61 s'")
    await sweep_all(race.observer, 0)
    assert await race.counts() == dict.fromkeys(("locks", "leases", "draws", "waiters", "gateways"), 0)


async def history_is_kept_as_long_as_asked(race: LeaseRace) -> None:
    """Of ended leases it is remembered who came after whom, and whose token is whose, for the time that is set."""
    old = granted(await race.acquire(race.a, "x", secret="old", owner="old"))
    minted = await race.mint(race.a, old.lease_id, "old", 2)
    assert minted
    await race.expire(old.lease_id)
    granted(await race.acquire(race.b, "x", secret="new", owner="new"))
    await sweep_all(race.observer, 3600)
    lost = await leases.find_ended(race.observer, old.lease_id or 0)
    assert lost is not None
    assert lost.superseded_by is not None
    assert '"new"' in lost.superseded_by
    for token in (*old.tokens, *minted.minted):
        owner = await race.observer.fetchval("SELECT owner FROM fencepost.issued_to($1)", token)
        assert owner == "old", f"token {token}: {owner}"
    await sweep_all(race.observer, 0)
    assert await leases.find_ended(race.observer, old.lease_id or 0) is None


SWEEP_SCENARIOS: tuple[LeaseScenario, ...] = (
    swept_lease_stays_lost, swept_lock_row_is_made_anew, sweep_skips_what_is_in_use, sweep_looks_again,
    idle_locks_leave_nothing, history_is_kept_as_long_as_asked,
)  # fmt: skip
