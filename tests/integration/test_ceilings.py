"""External tables have a ceiling: a token above it raises no mark, whatever brings it (R12)."""

from collections.abc import Awaitable, Callable

import pytest
from tests.scenarios import races_ceilings as scenarios
from tests.support.interleave import Connect
from tests.support.racing import Race, open_race
from tests.support.violations import judging

from fencepost.fencing.token import Rule

ALL = [
    scenarios.update_above_the_ceiling_is_refused,
    scenarios.direct_update_above_the_ceiling_is_refused,
    scenarios.insert_above_the_ceiling_is_refused,
    scenarios.delete_above_the_ceiling_is_refused,
    scenarios.claim_of_an_absent_key_above_the_ceiling_is_refused,
    scenarios.claim_while_the_ceiling_sinks_is_refused,
    scenarios.every_verb_of_the_gateway_reports_it,
    scenarios.a_leap_is_refused,
    scenarios.a_leap_is_measured_from_the_mark_that_is_there_then,
    scenarios.a_leap_is_measured_from_the_floor_too,
]


@pytest.mark.parametrize("rule", ["strict", "epoch"])
@pytest.mark.parametrize("scenario", ALL, ids=lambda each: each.__name__)
async def test_no_mark_rises_above_the_ceiling(
    scenario: Callable[[Race], Awaitable[None]], rule: Rule, connect: Connect, database: str
) -> None:
    race = await open_race(connect, database, rule)
    with judging():
        await scenario(race)
