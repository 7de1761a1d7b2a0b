"""Pruning of marks (R6): the scenarios, a mutant of each safety line, and the pass that a gateway makes."""

from functools import partial

import pytest
from tests.scenarios import pruning as scenarios
from tests.support.interleave import Connect, Connection
from tests.support.postgres import Unmade
from tests.support.racing import (
    ISSUED,
    WITHOUT_FLOORS,
    Scenario,
    SqlMutant,
    assert_seen,
    mutate,
    open_race,
    outcome,
    owner,
    seen,
)
from tests.support.use_cases import open_gateway
from tests.support.violations import judging

from fencepost.server.fence.token import Rule
from fencepost.server.ops.protect import protect
from fencepost.server.postgres import upkeep
from fencepost.server.postgres.upkeep import Pruner

PRUNE = "fencepost.prune_marks(bigint, xid8, double precision, text, integer)"
HORIZON = "fencepost.prune_horizon()"


@pytest.mark.parametrize(
    ("rule", "scenario"),
    [("epoch", scenarios.stale_writes_after_pruning_are_refused), *(("strict", each) for each in scenarios.SCENARIOS)],
    ids=lambda each: getattr(each, "__name__", each),
)
async def test_pruning(scenario: Scenario, rule: Rule, connect: Connect, unmade: Unmade) -> None:
    race = await open_race(connect, unmade, rule, source="builtin")
    with judging():
        await scenario(race)


builtin = partial(SqlMutant, source="builtin")

MUTANTS = [
    builtin("the floor stays", PRUNE, "SET floor = greatest(f.floor, raised_to)", "SET floor = f.floor",
        scenarios.stale_insert_waits_for_the_mark_that_goes),
    builtin("the floor stays one short", PRUNE, "SET floor = greatest(f.floor, raised_to)",
        "SET floor = greatest(f.floor, raised_to - 1)", scenarios.stale_writes_after_pruning_are_refused),
    builtin("pruning waits for marks", PRUNE, "FOR UPDATE SKIP LOCKED", "FOR UPDATE",
        scenarios.an_insert_before_the_mark_goes_keeps_it),
    builtin("live leases are not looked at", PRUNE, "WHERE x.ended_at IS NULL ORDER BY", "WHERE false ORDER BY",
        scenarios.a_live_lease_stays_above_the_floor),
    builtin("the oldest token of a live lease may be on the floor", PRUNE,
        "x.ended_at IS NULL ORDER BY d.first_token LIMIT 1) - 1)",
        "x.ended_at IS NULL ORDER BY d.first_token LIMIT 1) + 1)", scenarios.a_live_lease_stays_above_the_floor),
    builtin("an expired lease is over", PRUNE, "WHERE x.ended_at IS NULL ORDER BY",
        "WHERE x.ended_at IS NULL AND x.expires_at > clock_timestamp() ORDER BY",
        scenarios.an_expired_lease_without_a_successor_stays_above_the_floor),
    builtin("grants under way are not waited for", PRUNE,
        "coalesce(pg_snapshot_xmin(pg_current_snapshot()) < p_before, true)", "false",
        scenarios.a_grant_under_way_stays_above_the_floor),
    builtin("the horizon is the snapshot's", HORIZON, "before := pg_current_xact_id();",
        "before := pg_snapshot_xmax(pg_current_snapshot());",
        scenarios.a_grant_younger_than_the_newest_that_has_ended_stays_above_the_floor),
    builtin("tokens of after the horizon go too", PRUNE, "AND k.last_fence_token <= cap", "",
        scenarios.tokens_from_after_the_horizon_are_left_alone),
    builtin("young marks go too", PRUNE, "AND k.changed_at <= cutoff", "",
        scenarios.only_old_marks_of_keys_without_a_row_go),
    builtin("marks of live rows go too", PRUNE, "k.row_absent AND ", "",
        scenarios.only_old_marks_of_keys_without_a_row_go),
    builtin("a source is asked for once", PRUNE,
        "IF EXISTS (SELECT FROM fencepost.protected p WHERE p.source <> 'builtin'",
        "IF false AND EXISTS (SELECT FROM fencepost.protected p WHERE p.source <> 'builtin'",
        scenarios.a_table_that_changes_its_source_meanwhile_is_not_pruned),
    builtin("two prune at once", PRUNE, "NOT pg_try_advisory_xact_lock(hashtextextended('fencepost.prune', 0))",
        "false", scenarios.two_pruners_do_not_wait_for_each_other),
]  # fmt: skip


test_a_mutant_of_pruning_is_seen = seen(MUTANTS)


@pytest.mark.long("mutants of the product")
async def test_a_mutant_that_prunes_every_source_is_seen(connect: Connect, unmade: Unmade) -> None:
    """The source is asked for twice, and each line covers for the other."""
    race = await open_race(connect, unmade, source="builtin")
    await mutate(race, PRUNE, "p.source = 'builtin'", "true")
    await mutate(race, PRUNE, "p.source <> 'builtin'", "false")
    await assert_seen(scenarios.a_table_of_another_source_is_not_pruned, race)


@pytest.mark.long("mutants of the product")
async def test_a_mutant_that_lowers_the_floor_is_seen(connect: Connect, unmade: Unmade) -> None:
    """The trigger of fencepost.floors would refuse it, so each line covers for the other."""
    race = await open_race(connect, unmade, source="builtin")
    await mutate(race, PRUNE, "SET floor = greatest(f.floor, raised_to)", "SET floor = raised_to")
    await race.observer.execute("ALTER TABLE fencepost.floors DISABLE TRIGGER never_lower")
    await assert_seen(scenarios.pruning_waits_for_a_generation_that_is_being_raised, race)


async def test_a_horizon_taken_early_would_be_wrong(connect: Connect, unmade: Unmade) -> None:
    """The mutant of the other line of prune_horizon: a number from before a draw below the horizon."""
    race = await open_race(connect, unmade, source="builtin")
    await mutate(race, HORIZON, "IF pg_current_xact_id_if_assigned() IS NOT NULL THEN RETURN; END IF;", "")
    with pytest.raises(pytest.fail.Exception):
        await scenarios.a_horizon_is_not_asked_for_in_a_transaction_that_has_its_number_already(race)


async def test_batches_walk_over_all_marks_of_all_tables(connect: Connect) -> None:
    connection = await owner(connect)
    for name in ("a", "a/b", "b", "c"):
        await connection.execute(f'CREATE TABLE "{name}" (id int PRIMARY KEY)')
        await protect(connection, name, source="external" if name == "b" else "builtin")
    await connection.execute("SELECT setval('fencepost.tokens', 1000)")
    await connection.execute(
        "SELECT fencepost.raise_mark(fencepost.enc(t) || '/' || n, 100 + n, 'strict', true)"
        " FROM unnest(ARRAY['a', 'a/b', 'b', 'c']) t, generate_series(1, 7) n"
    )
    until = await upkeep.horizon(connection)
    position: str | None = ""
    pruned = []
    while position is not None:
        batch = await upkeep.prune_step(connection, until, 0, position, 3)
        pruned.append(batch.pruned)
        position = batch.reached
    assert (sum(pruned), max(pruned)) == (21, 3)
    left = await connection.fetch("SELECT DISTINCT split_part(resource, '/', 1) FROM fencepost.marks")
    assert [row[0] for row in left] == ["b"]
    floors = await connection.fetch("SELECT name, floor FROM fencepost.floors ORDER BY name")
    assert [tuple(row) for row in floors] == [("a", 107), ("a/b", 107), ("b", 0), ("c", 107)]


async def test_a_gateway_prunes_on_its_second_pass_and_goes_on(connect: Connect, database: str) -> None:
    race = await open_race(connect, database, source="builtin")
    async with open_gateway(database) as gateway:
        pruner = Pruner(gateway.database)
        await scenarios.absent(race, "k", 50)
        assert await pruner.run(0) == 0, "the first pass only asks for the horizon"
        assert await pruner.run(0) == 1
        assert await pruner.run(0) == 0
        await scenarios.absent(race, "k", 60)
        assert await pruner.run(3600) == 0
        assert await pruner.run(0) == 1


async def scoped(connect: Connect) -> Connection:
    """Register a table of the scope account/…; its triggers do not matter here."""
    connection = await owner(connect)
    await connection.execute("CREATE TABLE items (id int PRIMARY KEY, account_id int NOT NULL)")
    await connection.execute(
        "INSERT INTO fencepost.protected (relation, name, rule, source, key_columns, functions, scope)"
        " VALUES ('items', 'items', 'strict', 'builtin', '{id}', 'items', 'account/{account_id}')"
    )
    await connection.execute("INSERT INTO fencepost.floors (name) VALUES ('items'), ('account')")
    await connection.execute("SELECT setval('fencepost.tokens', $1)", ISSUED)
    return connection


async def enter(connection: Connection, account: int, token: int) -> int | str | None:
    """Enter a scope as a write does; None."""
    transaction = connection.transaction()
    await transaction.start()
    refused: int | str | None = await outcome(
        connection.fetchval(
            "SELECT refused_by FROM fencepost.enter('account', ARRAY[$1], $2)", f"account/{account}", token
        )
    )
    await (transaction.commit() if refused is None else transaction.rollback())
    return refused


async def test_a_pruned_scope_refuses_older_holders(connect: Connect) -> None:
    connection = await scoped(connect)
    assert await enter(connection, 42, 50) is None
    until = await upkeep.horizon(connection)
    assert (await upkeep.prune_step(connection, until, 0, "")).pruned == 1
    assert await connection.fetchval("SELECT count(*) FROM fencepost.marks") == 0
    assert await enter(connection, 42, 40) == 50
    assert await enter(connection, 43, 50) == 50, "the first touch of another scope, below the floor"
    assert await enter(connection, 42, 51) is None


async def test_a_raised_generation_voids_tokens_for_scopes(connect: Connect) -> None:
    connection = await scoped(connect)
    assert await enter(connection, 42, 50) is None
    first = await upkeep.raise_generation(connection, "test") << 48
    assert [await enter(connection, account, 60) for account in (42, 43)] == [first - 1] * 2
    await connection.execute(WITHOUT_FLOORS)  # and without the floor
    assert [await enter(connection, account, 60) for account in (42, 43)] == ["FP409"] * 2
    token = await connection.fetchval("SELECT nextval('fencepost.tokens')")
    assert await enter(connection, 42, token) is None
