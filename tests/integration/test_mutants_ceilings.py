"""Mutants of what keeps a token above the ceiling out, and of what lowers a mark."""

import pytest
from tests.scenarios import races_ceilings as scenarios
from tests.support.interleave import Connect
from tests.support.postgres import Unmade
from tests.support.racing import Race, Scenario, SqlMutant, open_race, outcome, seen

from fencepost.server.postgres.upkeep import Reset, ResetError, reset

BEYOND = "fencepost.beyond(text, bigint, bigint, bigint, bigint, bigint)"
MEET = "fencepost.meet_ceiling(text, text, bigint, bigint, bigint)"
HELD = "fencepost.held_mark(text, bigint)"
IS_RESET = "fencepost.is_reset(text, bigint, bigint)"
BELOW = "fencepost.highest_below(text, text, bigint)"


async def lowered_by_hand(race: Race) -> None:
    """A mark falls only where this transaction's own record allows it."""
    await race.insert(race.a, "k", 2**61)
    await race.insert(race.a, "other", 40)
    await reset(race.observer, "orders/k", 60, "INC-7")
    await race.update(race.a, "k", 2**61)
    async with race.observer.transaction():
        await race.observer.execute("SELECT set_config('fencepost.break_glass', 'INC-7', true)")
        await race.observer.execute("UPDATE public.orders SET last_fence_token = 60 WHERE order_id = 'k'")
    assert await race.live_mark("k") == 2**61


async def reset_waits(race: Race) -> None:
    """A claim under way of a key without a row ends first, and is seen."""
    await race.claim_absent(race.a, "k", 50)
    holder = await race.begin(race.a)
    assert await race.claim_absent(race.a, "k", 2**61) is None
    resetting = await race.waits(race.b, reset(race.b, "orders/k", 60, "INC-7"))
    await holder.commit()
    assert await resetting == Reset("orders/k", 2**61, 60)


async def reset_by_hand_stays_above_other_marks(race: Race) -> None:
    """Also for a role that may break the glass and calls the function itself."""
    await race.claim_absent(race.a, "k", 2**61)
    await race.claim_absent(race.a, "other", 70)
    async with race.observer.transaction():
        await race.observer.execute("SELECT set_config('fencepost.break_glass', 'INC-7', true)")
        await outcome(race.observer.execute("SELECT fencepost.reset_mark('orders', 'orders/k', $1, 60)", 2**61))
    assert await race.recorded("k") == (2**61, True)


async def reset_stays_above_other_marks(race: Race) -> None:
    await race.claim_absent(race.a, "k", 2**61)
    await race.claim_absent(race.a, "other", 70)
    refused = False
    try:
        await reset(race.observer, "orders/k", 60, "INC-7")
    except ResetError:
        refused = True
    assert refused, "it was lowered below another mark"


MUTANTS = [
    SqlMutant("the plain case takes any newer token", "{stem}_upd", "AND NOT (given OPERATOR(pg_catalog.>)",
        "AND NOT (false AND given OPERATOR(pg_catalog.>)", scenarios.update_above_the_ceiling_is_refused),
    SqlMutant("a token of a setting is not compared", "{stem}_upd", "IF given OPERATOR(pg_catalog.>)",
        "IF false AND given OPERATOR(pg_catalog.>)", scenarios.direct_update_above_the_ceiling_is_refused),
    SqlMutant("a good setting hides a made-up value beside it", "{stem}_upd",
        "given := greatest(given, NEW.last_fence_token)", "given := NEW.last_fence_token",
        scenarios.direct_update_above_the_ceiling_is_refused),
    SqlMutant("INSERT takes any token", "{stem}_insmark", "IF NEW.last_fence_token OPERATOR(pg_catalog.>) '4",
        "IF false AND NEW.last_fence_token OPERATOR(pg_catalog.>) '4", scenarios.insert_above_the_ceiling_is_refused),
    SqlMutant("DELETE takes any token", "{stem}_del", "IF token OPERATOR", "IF false AND token OPERATOR",
        scenarios.delete_above_the_ceiling_is_refused),
    SqlMutant("nothing is above the ceiling", BEYOND, "IF p_token > p_max_token THEN", "IF false THEN",
        scenarios.claim_of_an_absent_key_above_the_ceiling_is_refused),
    SqlMutant("no leap is too far", BEYOND, "IF p_token - base > p_max_jump THEN", "IF false THEN",
        scenarios.a_leap_is_refused),
    SqlMutant("a leap is not measured from the floor", BEYOND, "greatest(p_mark, p_floor, 0)", "greatest(p_mark, 0)",
        scenarios.a_leap_is_measured_from_the_floor_too),
    SqlMutant("a leap is measured from a mark that is not waited for", MEET,
        "coalesce(fencepost.meet_mark(p_resource), 0)",
        "coalesce((SELECT k.last_fence_token FROM fencepost.marks k WHERE k.resource = p_resource), 0)",
        scenarios.a_leap_is_measured_from_the_mark_that_is_there_then),
    SqlMutant("a reset does not wait for the mark", HELD, "FOR UPDATE", "", reset_waits),
    SqlMutant("a mark falls without a record", IS_RESET, "RETURN EXISTS (SELECT", "RETURN true OR EXISTS (SELECT",
        lowered_by_hand),
    SqlMutant("a reset ignores other marks", BELOW, "AND k.last_fence_token < p_below", "AND false",
        reset_stays_above_other_marks),
    SqlMutant("a reset by hand ignores other marks", "fencepost.reset_mark(text, text, bigint, bigint)",
        "IF p_new < lowest THEN", "IF false THEN", reset_by_hand_stays_above_other_marks),
]  # fmt: skip


test_a_mutant_of_the_functions_is_seen = seen(MUTANTS)


@pytest.mark.parametrize(
    "scenario", [lowered_by_hand, reset_waits, reset_stays_above_other_marks, reset_by_hand_stays_above_other_marks]
)
async def test_what_sees_them_passes(scenario: Scenario, connect: Connect, unmade: Unmade) -> None:
    await scenario(await open_race(connect, unmade))
