"""Pruning, step by step (R6). The table is of the built-in source, whose tokens no lease knows of."""

import pytest
from tests.races.openings import BUILTIN, on_table, opened
from tests.support.interleave import Connection
from tests.support.lease_racing import granted
from tests.support.racing import ISSUED, Race, outcome

from fencepost.server.postgres import upkeep
from fencepost.server.postgres.leases import hash_secret
from fencepost.server.postgres.upkeep import Horizon, PruneStep

pytestmark = opened(BUILTIN)

AT_ONCE = 0.0
"""Seconds of retention: every mark is old enough."""


async def released(connection: Connection, race: Race, name: str) -> None:
    lease_id = await race.observer.fetchval("SELECT max(lease_id) FROM fencepost.leases WHERE names = $1", [name])
    assert await connection.fetchval("SELECT fencepost.release($1, $2, NULL)", lease_id, hash_secret(name)) is not None


async def absent(race: Race, key: str, token: int) -> None:
    """Leave a mark behind for a key that has no row."""
    assert await race.claim_absent(race.observer, key, token) is None


async def prune(connection: Connection, until: Horizon, keep: float = AT_ONCE) -> PruneStep:
    return await upkeep.prune_step(connection, until, keep, "")


async def floor(race: Race) -> int:
    found: int = await race.observer.fetchval("SELECT floor FROM fencepost.floors WHERE name = $1", race.fence.name)
    return found


async def marked(race: Race, key: str) -> bool:
    return await race.recorded(key) is not None


# What pruning must not let in


async def test_stale_insert_waits_for_the_mark_that_goes(race: Race) -> None:
    """The mark goes while a stale INSERT waits for it: the floor, read afterwards, refuses."""
    await absent(race, "k", 50)
    until = await upkeep.horizon(race.a)
    pruner = await race.begin(race.a)
    assert (await prune(race.a, until)).pruned == 1
    insert = await race.waits(race.b, outcome(race.insert(race.b, "k", 40)))
    await pruner.commit()
    assert await insert == "FP409"
    assert await race.row("k") is None
    assert not await marked(race, "k")


@opened(BUILTIN, on_table("epoch", "builtin"))
async def test_stale_writes_after_pruning_are_refused(race: Race) -> None:
    """INSERT, claim and the question of R5; a token above the floor passes, and equal to it by the rule."""
    await absent(race, "k", 50)
    until = await upkeep.horizon(race.a)
    assert (await prune(race.a, until)).pruned == 1
    assert await outcome(race.insert(race.b, "k", 49)) == "FP409"
    assert await race.claim_absent(race.b, "k", 49) == 50
    assert await race.verdict("k", 49) == "stale"
    assert (await outcome(race.insert(race.b, "k", 50)) == "FP409") is race.strict
    assert isinstance(await outcome(race.insert(race.b, "other", 51)), list)


async def test_an_insert_before_the_mark_goes_keeps_it(race: Race) -> None:
    """Pruning does not wait for a mark that another transaction is raising, and leaves it."""
    await absent(race, "k", 50)
    until = await upkeep.horizon(race.a)
    writer = await race.begin(race.b)
    await race.insert(race.b, "k", 60)
    await race.a.execute("SET lock_timeout = '1s'")
    assert await outcome(prune(race.a, until)) == PruneStep("orders0", 0, idle=False)
    await writer.commit()
    assert await race.recorded("k") == (60, False)
    assert await floor(race) == 50, "it may be higher than need be, never lower"
    await race.delete(race.b, "k", 70)
    assert await outcome(race.insert(race.b, "k", 65)) == "FP409"


# What pruning must leave to those who hold a lease


async def test_a_live_lease_stays_above_the_floor(race: Race) -> None:
    mine = await granted(race.a, "mine")
    await a_younger_mark(race, "k")
    until = await upkeep.horizon(race.a)
    assert (await prune(race.b, until)).pruned == 0
    assert isinstance(await outcome(race.insert(race.a, "other", mine)), list)


async def test_an_expired_lease_without_a_successor_stays_above_the_floor(race: Race) -> None:
    mine = await granted(race.a, "mine")
    await race.observer.execute("UPDATE fencepost.leases SET expires_at = clock_timestamp() - interval '1 s'")
    await a_younger_mark(race, "k")
    assert (await prune(race.b, await upkeep.horizon(race.a))).pruned == 0
    assert isinstance(await outcome(race.insert(race.a, "other", mine)), list)


async def a_younger_mark(race: Race, key: str) -> None:
    """Another client draws a newer token, leaves it as a mark, and is done."""
    token = await granted(race.c, "theirs")
    await absent(race, key, token)
    await released(race.c, race, "theirs")


async def test_a_grant_under_way_stays_above_the_floor(race: Race) -> None:
    """It has drawn and not committed: its lease cannot be seen, and its token is below the horizon."""
    grant = await race.begin(race.a)
    mine = await granted(race.a, "mine")
    await a_younger_mark(race, "k")
    until = await upkeep.horizon(race.b)
    assert until.issued > mine
    await prune(race.b, until)
    await grant.commit()
    await prune(race.b, until)
    assert isinstance(await outcome(race.insert(race.a, "other", mine)), list)
    await released(race.a, race, "mine")
    assert (await prune(race.b, until)).pruned == 1, "no transaction is in the way any more"


async def test_a_grant_younger_than_the_newest_that_has_ended_stays_above_the_floor(race: Race) -> None:
    """A transaction that is under way may have a number above the snapshot's xmax."""
    older = await race.begin(race.c)
    await race.c.execute("SELECT pg_current_xact_id()")
    grant = await race.begin(race.a)
    mine = await granted(race.a, "mine")
    theirs = await granted(race.c, "theirs")
    await older.commit()  # now the newest that has ended is older than the grant
    until = await upkeep.horizon(race.b)
    await absent(race, "k", theirs)
    await released(race.c, race, "theirs")
    await prune(race.b, until)
    await grant.commit()
    assert isinstance(await outcome(race.insert(race.a, "other", mine)), list)


async def test_tokens_from_after_the_horizon_are_left_alone(race: Race) -> None:
    until = await upkeep.horizon(race.a)
    grant = await race.begin(race.a)
    mine = await granted(race.a, "mine")
    await a_younger_mark(race, "k")
    await prune(race.b, until)
    await grant.commit()
    assert isinstance(await outcome(race.insert(race.a, "other", mine)), list)


async def test_a_horizon_is_not_asked_for_in_a_transaction_that_has_its_number_already(race: Race) -> None:
    early = await race.begin(race.b)
    await race.b.execute("SELECT pg_current_xact_id()")
    grant = await race.begin(race.a)
    await granted(race.a, "mine")
    with pytest.raises(RuntimeError, match="in a transaction that had written"):
        await upkeep.horizon(race.b)
    await early.rollback()
    await grant.rollback()


# What is pruned at all


async def test_only_old_marks_of_keys_without_a_row_go(race: Race) -> None:
    await absent(race, "gone", 50)
    await race.insert(race.a, "lives", 51)
    until = await upkeep.horizon(race.a)
    assert (await prune(race.a, until, keep=3600)).pruned == 0
    assert await floor(race) == 0
    assert (await prune(race.a, until)).pruned == 1
    assert (await marked(race, "gone"), await marked(race, "lives")) == (False, True)
    assert await floor(race) == 50


async def test_a_table_of_another_source_is_not_pruned(race: Race) -> None:
    await absent(race, "k", 50)
    await race.observer.execute("UPDATE fencepost.protected SET source = 'external'")
    until = await upkeep.horizon(race.a)
    assert (await prune(race.a, until)).pruned == 0
    assert await marked(race, "k")
    assert await floor(race) == 0


async def test_a_table_that_changes_its_source_meanwhile_is_not_pruned(race: Race) -> None:
    await absent(race, "k", 50)
    until = await upkeep.horizon(race.a)
    change = await race.begin(race.b)
    await race.b.execute("UPDATE fencepost.protected SET source = 'external'")
    pruner = await race.waits(race.a, prune(race.a, until))
    await change.commit()
    assert (await pruner).pruned == 0
    assert await marked(race, "k")


async def test_two_pruners_do_not_wait_for_each_other(race: Race) -> None:
    for number in range(3):
        await absent(race, f"k{number}", 50 + number)
    until = await upkeep.horizon(race.a)
    one = await race.begin(race.a)
    assert (await prune(race.a, until)).pruned == 3
    await race.b.execute("SET lock_timeout = '1s'")
    assert await outcome(prune(race.b, until)) == PruneStep(None, 0, idle=True)
    await one.commit()
    assert await prune(race.b, until) == PruneStep("orders0", 0, idle=False)
    assert await floor(race) == 52


# With generations (R19)


async def test_pruning_waits_for_a_generation_that_is_being_raised(race: Race) -> None:
    await absent(race, "k", ISSUED)
    until = await upkeep.horizon(race.a)
    raising = await race.begin(race.b)
    first = await upkeep.raise_generation(race.b, "test") << 48
    pruner = await race.waits(race.a, prune(race.a, until))
    await raising.commit()
    assert (await pruner).pruned == 1
    assert await floor(race) == first - 1
