"""Every interleaving of tests/scenarios/races.py against the product, under both rules."""

import pytest
from tests.scenarios import races as scenarios
from tests.scenarios import races_answers as answers
from tests.scenarios.races import Scenario
from tests.support.interleave import Connect
from tests.support.racing import open_race
from tests.support.violations import judging

from fencepost.fencing.token import Rule

pytestmark = pytest.mark.versions

ALL = [
    scenarios.update_waits_for_update,
    scenarios.delete_waits_for_update,
    scenarios.insert_waits_for_delete,
    scenarios.deleted_key_remembers,
    scenarios.insert_waits_for_insert,
    scenarios.pruned_mark_leaves_a_floor,
    scenarios.old_snapshot_fails_at_the_floor,
    answers.claim_returns_what_it_fenced,
    answers.claim_meets_an_insert_under_way,
    answers.insert_meets_a_claim_under_way,
    answers.many_rows_are_all_or_nothing,
    answers.many_rows_follow_the_latest_version,
    answers.many_rows_lock_in_key_order,
    scenarios.spent_token_stays_spent_for_direct_sql,
    scenarios.echo_of_the_column_is_no_token,
    scenarios.key_cannot_change,
    answers.replaced_row_is_written_after_all,
    answers.refusal_is_stale_and_not_missing,
    answers.answer_follows_the_commit,
]


@pytest.mark.parametrize("rule", ["strict", "epoch"])
@pytest.mark.parametrize("scenario", ALL, ids=lambda scenario: scenario.__name__)
async def test_the_product_survives(scenario: Scenario, rule: Rule, connect: Connect, database: str) -> None:
    race = await open_race(connect, database, rule)
    with judging():
        await scenario(race)
