"""The interleavings of scoped writes, against the product; test_scope_mutants runs them against mutants of it."""

from collections.abc import Awaitable, Callable

import pytest
from tests.scenarios import scopes as scenarios
from tests.scenarios import scopes_direct as direct
from tests.support.interleave import Connect
from tests.support.postgres import Unmade
from tests.support.racing import Race, open_race, outcome
from tests.support.violations import judging

from fencepost.server.fence.token import Rule
from fencepost.server.ops.protect import protect, unprotect

Scenario = Callable[[Race], Awaitable[None]]


OF_EQUAL_TOKENS = (
    scenarios.first_touch_is_ordered,
    scenarios.direct_sql_is_judged,
    scenarios.pruned_scope_leaves_a_floor,
)
ALL = [("strict", each) for each in scenarios.ALL + direct.ALL] + [("epoch", each) for each in OF_EQUAL_TOKENS]


@pytest.mark.parametrize(("rule", "scenario"), ALL, ids=lambda each: getattr(each, "__name__", each))
async def test_a_scenario(connect: Connect, unmade: Unmade, scenario: Scenario, rule: Rule) -> None:
    race = await scenarios.scoped_race(connect, unmade, rule)
    with judging():
        await scenario(race)


async def test_a_token_that_was_never_issued_is_refused(connect: Connect, unmade: Unmade) -> None:
    race = await scenarios.scoped_race(connect, unmade, "strict", "builtin")
    with judging():
        await scenarios.tokens_that_were_never_issued_are_refused(race)


async def test_no_stale_token_gets_in_by_entering_and_leaving_a_scope(connect: Connect, unmade: Unmade) -> None:
    race = await open_race(connect, unmade, ddl=scenarios.DDL, name="items")
    a, owner = race.a, race.observer
    assert await race.direct(a, "INSERT INTO items VALUES (1, 42)", 30) == "ok"
    assert await race.direct(a, "INSERT INTO items VALUES (2, 7); DELETE FROM items WHERE id = 2", 20) == "ok"
    await protect(owner, "items", scope="account/{account_id}")
    assert await race.direct(a, "UPDATE items SET n = 1 WHERE id = 1", 30) == "FP409"
    assert await race.direct(a, "INSERT INTO items VALUES (2, 7)", 20) == "FP409"
    assert await race.direct(a, "UPDATE items SET n = 1 WHERE id = 1", 40) == "ok"
    for leave in (unprotect(owner, "items"), protect(owner, "items", scope="")):
        await leave
        await protect(owner, "items", scope="")
        assert await race.direct(a, "UPDATE items SET n = 2 WHERE id = 1", 40) == "FP409"
        assert await race.direct(a, "INSERT INTO items VALUES (5, 42)", 40) == "FP409"
        await protect(owner, "items", scope="account/{account_id}")
        assert await race.direct(a, "UPDATE items SET n = 2 WHERE id = 1", 40) == "FP409"
    assert await race.direct(a, "UPDATE items SET n = 2 WHERE id = 1", 41) == "ok"


async def test_only_the_gateway_may_enter(connect: Connect, unmade: Unmade) -> None:
    race = await scenarios.scoped_race(connect, unmade, "strict")
    await race.observer.execute("CREATE ROLE scope_stranger")
    try:
        await race.a.execute("SET ROLE scope_stranger")
        assert await outcome(race.a.fetch("SELECT fencepost.enter('account', '{account/1}', 9)")) == "42501"
        await race.a.execute("RESET ROLE")
    finally:
        await race.observer.execute("DROP ROLE scope_stranger")
