"""Every interleaving of tests/scenarios/races_tokens.py against the product, under both rules.

And some of those of fences, which a table of the built-in source survives as well.
"""

import pytest
from tests.scenarios import races as fences
from tests.scenarios import races_answers as answers
from tests.scenarios import races_tokens as scenarios
from tests.scenarios.races import Scenario
from tests.support.interleave import Connect
from tests.support.racing import open_race
from tests.support.violations import judging

from fencepost.fencing.token import Rule

TOKENS = [
    scenarios.unissued_update_is_refused,
    scenarios.unissued_update_by_direct_sql_is_refused,
    scenarios.unissued_insert_is_refused,
    scenarios.unissued_delete_is_refused,
    scenarios.unissued_claim_of_an_absent_key_is_refused,
    scenarios.claim_under_an_old_catalog_is_refused,
    scenarios.unissued_is_reported_before_missing,
    scenarios.token_that_is_drawn_while_its_write_waits_is_issued,
]
SEQUENCE = [
    scenarios.nextval_waits_for_the_tokens_to_move,
    scenarios.tokens_never_move_back,
    scenarios.two_moves_at_once_do_not_deadlock,
]
FENCES = [
    fences.update_waits_for_update,
    fences.delete_waits_for_update,
    fences.insert_waits_for_delete,
    fences.spent_token_stays_spent_for_direct_sql,
    fences.echo_of_the_column_is_no_token,
    fences.key_cannot_change,
    answers.claim_meets_an_insert_under_way,
    answers.many_rows_are_all_or_nothing,
]


@pytest.mark.parametrize("rule", ["strict", "epoch"])
@pytest.mark.parametrize("scenario", TOKENS, ids=lambda scenario: scenario.__name__)
async def test_a_table_of_the_builtin_source_survives(
    scenario: Scenario, rule: Rule, connect: Connect, database: str
) -> None:
    race = await open_race(connect, database, rule, source="builtin")
    with judging():
        await scenario(race)


@pytest.mark.parametrize("scenario", FENCES, ids=lambda scenario: scenario.__name__)
async def test_it_is_fenced_like_any_other(scenario: Scenario, connect: Connect, database: str) -> None:
    race = await open_race(connect, database, source="builtin")
    with judging():
        await scenario(race)


@pytest.mark.parametrize("scenario", SEQUENCE, ids=lambda scenario: scenario.__name__)
async def test_the_sequence_survives(scenario: Scenario, connect: Connect, database: str) -> None:
    race = await open_race(connect, database, source="builtin")
    with judging():
        await scenario(race)
