"""The rule (R1, R2) and the bounds of tokens (R12, R19) stand in several places, which judge alike."""

from contextlib import aclosing
from dataclasses import dataclass

import pytest
from tests.scenarios.one_rule import BOUNDS, CASES, Case, World, a_world, differences
from tests.support.interleave import Connect
from tests.support.postgres import Unmade
from tests.support.racing import mutate
from tests.support.violations import assert_none

from fencepost.server.fence import token as verdict
from fencepost.server.fence.token import Rule
from fencepost.server.postgres import marks


@pytest.mark.parametrize("rule", ["strict", "epoch"])
@pytest.mark.parametrize("bounds", CASES)
async def test_every_place_judges_alike(connect: Connect, unmade: Unmade, rule: Rule, bounds: str) -> None:
    world = await a_world(connect, unmade, rule, BOUNDS[bounds])
    assert_none([each async for each in differences(world, CASES[bounds])])


async def assert_a_difference(world: World, cases: tuple[Case, ...]) -> None:
    async with aclosing(differences(world, cases)) as found:
        assert await anext(found, None), "no case is judged otherwise"


ACCEPTS = "fencepost.accepts(text, bigint, bigint)"
VERDICT = "fencepost.verdict(text, bigint, bigint, boolean)"
ENFORCE = "fencepost.enforce(text, text, text, text, bigint, bigint)"
UPDATES = "fencepost.judge_update(text, text, text, bigint, bigint, boolean, xid)"
INSERTS = "fencepost.judge_insert(text, text, bigint, text)"
DELETES = "fencepost.judge_delete(text, text, bigint, text, xid)"
RAISES = "fencepost.raise_mark(text, bigint, text, boolean)"
ENTERS = "fencepost.enter(text, text[], bigint, oid, text)"
ENTERS_EACH = "fencepost.enter_each(text, text[], bigint[], oid, text)"
ISSUED = "fencepost.require_issued(text, bigint)"
OF_SOURCE = "fencepost.require_issued(text, bigint, text)"
BEYOND = "fencepost.beyond(text, bigint, bigint, bigint, bigint, bigint)"


@dataclass(frozen=True)
class Mutant:
    """`old` becomes `new` in a function. `{stem}` is the start of the names of the table's own functions."""

    function: str
    old: str
    new: str
    bounds: str = "default"
    rule: Rule = "strict"


MUTANTS = [
    Mutant(ACCEPTS, "mark < token", "mark <= token"), Mutant(ACCEPTS, "mark < token", "mark + 1 < token"),
    Mutant(ACCEPTS, "mark = token", "false", rule="epoch"), Mutant(ACCEPTS, "rule = 'epoch'", "rule = 'strict'"),
    Mutant(VERDICT, "'spent'", "'stale'"), Mutant(ENFORCE, "verdict = 'own'", "verdict <> 'no token'"),
    Mutant(UPDATES, "verdict(rule,", "verdict('epoch',"),
    Mutant(UPDATES, "verdict(rule,", "verdict('strict',", rule="epoch"),
    Mutant(INSERTS, "verdict(rule,", "verdict('epoch',"), Mutant(DELETES, "verdict(p_rule,", "verdict('epoch',"),
    Mutant(RAISES, "verdict(p_rule,", "verdict('epoch',"), Mutant(ENTERS, "accepts(found_rule,", "accepts('epoch',"),
    Mutant(ENTERS_EACH, "h.last_fence_token < u.token", "h.last_fence_token <= u.token"),
    Mutant(ENTERS_EACH, "BETWEEN oldest AND highest", "BETWEEN oldest AND highest + 1", "issued"),
    Mutant(ENTERS_EACH, "BETWEEN oldest AND highest", "BETWEEN oldest - 1 AND highest", "generation"),
    Mutant(ENTERS_EACH, "<= found_jump", "<= found_jump + 1", "jump"),
    Mutant(ISSUED, "p_token > issued", "p_token > issued + 1", "issued"),
    Mutant(ISSUED, "p_token < oldest", "p_token < oldest - 1", "generation"),
    Mutant(OF_SOURCE, "p_token > issued", "p_token > issued + 1", "service"),
    Mutant(OF_SOURCE, "p_token < oldest", "p_token < oldest - 1", "service's generation"),
    Mutant(BEYOND, "p_token > p_max_token", "p_token > p_max_token + 1", "ceiling"),
    Mutant(BEYOND, "base > p_max_jump", "base > p_max_jump + 1", "jump"),
    Mutant(BEYOND, "greatest(p_mark, p_floor, 0)", "greatest(p_mark, 0)", "jump"),
    Mutant("{stem}_upd", "given OPERATOR(pg_catalog.>) OLD", "given <> OLD"),
    Mutant("{stem}_upd", "(pg_catalog.<=) fencepost.issued()", "(pg_catalog.<) 1 + fencepost.issued() + 1", "issued"),
    Mutant("{stem}_upd", "(pg_catalog.>=) fencepost.oldest()", "(pg_catalog.>) 0", "generation"),
    Mutant("{stem}_upd", "(pg_catalog.>) '50'", "(pg_catalog.>) '51'", "ceiling"),
    Mutant("{stem}_insmark", "(pg_catalog.>) '50'", "(pg_catalog.>) '51'", "ceiling"),
    Mutant("{stem}_del", "(pg_catalog.>) '10'", "(pg_catalog.>) '11'", "jump"),
]  # fmt: skip


@pytest.mark.long("mutants of the product")
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.function.partition('(')[0]}-{mutant.new}")
async def test_a_place_in_the_database_that_differs_is_seen(connect: Connect, unmade: Unmade, mutant: Mutant) -> None:
    world = await a_world(connect, unmade, mutant.rule, BOUNDS[mutant.bounds])
    await mutate(world.race, mutant.function, mutant.old, mutant.new)
    await assert_a_difference(world, CASES[mutant.bounds])


@pytest.mark.long("mutants of the product")
@pytest.mark.parametrize(
    ("module", "name", "other", "bounds", "rule"),
    [
        (verdict, "accepts", lambda _rule, mark, token: mark <= token, "default", "strict"),
        (verdict, "accepts", lambda _rule, mark, token: mark < token, "default", "epoch"),
        (marks, "comparison", lambda _rule: "<=", "default", "strict"),
        (marks, "comparison", lambda _rule: "<", "default", "epoch"),
    ],
)
async def test_a_place_in_python_that_differs_is_seen(
    connect: Connect, unmade: Unmade, monkeypatch: pytest.MonkeyPatch, module: object, name: str, other: object,
    bounds: str, rule: Rule,
) -> None:  # fmt: skip
    world = await a_world(connect, unmade, rule, BOUNDS[bounds])
    monkeypatch.setattr(module, name, other)
    await assert_a_difference(world, CASES[bounds])
