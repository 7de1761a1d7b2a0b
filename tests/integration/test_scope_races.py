"""The interleavings of scoped writes, against the product and against mutants of each of its safety lines."""

from collections.abc import Awaitable, Callable

import pytest
from tests import scope_scenarios as scenarios
from tests.interleave import Connect
from tests.racing import Race, open_race, outcome

from fencepost.fencing.token import Rule
from fencepost.storage.protect import protect, unprotect

Scenario = Callable[[Race], Awaitable[None]]

ENTER = "fencepost.enter(text, text[], bigint)"
JUDGE = "fencepost.judge_scope(text, text, text, text)"

MUTANTS = {
    "the mark is not raised": (ENTER, "refused_by := fencepost.raise_mark(scope, p_token, found_rule, true);",
                               "refused_by := NULL;", scenarios.first_touch_is_ordered, "external"),
    "the floor is not asked": (ENTER, "IF NOT (lowest < p_token OR", "IF false AND NOT (lowest < p_token OR",
                               scenarios.pruned_scope_leaves_a_floor, "external"),
    "an old snapshot reads an old floor": (ENTER, "f.name = p_prefix FOR SHARE", "f.name = p_prefix",
                                           scenarios.old_snapshot_fails, "external"),
    "scopes are taken in another order": (ENTER, "ORDER BY 1 LOOP", "ORDER BY 1 DESC LOOP",
                                          scenarios.crossing_writers_do_not_deadlock, "external"),
    "unissued tokens pass": (ENTER, "IF passed AND found_source", "IF false AND found_source",
                             scenarios.tokens_that_were_never_issued_are_refused, "builtin"),
    "everybody has entered": (JUDGE, "AND k.xid = pg_current_xact_id()", "",
                              scenarios.direct_sql_is_judged, "external"),
    "the refusal is not raised": (JUDGE, "IF refused IS NOT NULL", "IF false",
                                  scenarios.direct_sql_is_judged, "external"),
    "no token passes": (JUDGE, "IF token IS NULL THEN", "IF token IS NULL THEN RETURN;",
                        scenarios.direct_sql_is_judged, "external"),
}  # fmt: skip


async def scoped_race(connect: Connect, database: str, rule: Rule, source: str = "external") -> Race:
    race = await open_race(connect, database, rule, ddl=scenarios.DDL, name="items", source=source)
    await scenarios.prepare(race)
    return race


@pytest.mark.parametrize("rule", ["strict", "lease"])
@pytest.mark.parametrize("scenario", scenarios.ALL, ids=lambda each: each.__name__)
async def test_a_scenario(connect: Connect, database: str, scenario: Scenario, rule: Rule) -> None:
    await scenario(await scoped_race(connect, database, rule))


async def test_a_token_that_was_never_issued_is_refused(connect: Connect, database: str) -> None:
    await scenarios.tokens_that_were_never_issued_are_refused(await scoped_race(connect, database, "strict", "builtin"))


@pytest.mark.parametrize("name", MUTANTS)
async def test_a_mutant_is_seen(connect: Connect, database: str, name: str) -> None:
    function, old, new, scenario, source = MUTANTS[name]
    race = await scoped_race(connect, database, "strict", source)
    definition = await race.observer.fetchval("SELECT pg_get_functiondef($1::text::regprocedure)", function)
    assert old in definition
    await race.observer.execute(definition.replace(old, new))
    with pytest.raises(AssertionError):
        await scenario(race)


async def test_no_stale_token_gets_in_by_entering_and_leaving_a_scope(connect: Connect, database: str) -> None:
    race = await open_race(connect, database, ddl=scenarios.DDL, name="items")
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


async def test_only_the_gateway_may_enter(connect: Connect, database: str) -> None:
    race = await scoped_race(connect, database, "strict")
    await race.observer.execute("CREATE ROLE scope_stranger")
    try:
        await race.a.execute("SET ROLE scope_stranger")
        assert await outcome(race.a.fetch("SELECT fencepost.enter('account', '{account/1}', 9)")) == "42501"
        await race.a.execute("RESET ROLE")
    finally:
        await race.observer.execute("DROP ROLE scope_stranger")
