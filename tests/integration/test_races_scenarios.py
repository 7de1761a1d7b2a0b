"""Every interleaving of tests/scenarios/races*.py against the product."""

import pytest
from tests.scenarios import races, races_ceilings, races_tokens
from tests.scenarios import races_answers as answers
from tests.support.interleave import Connect
from tests.support.postgres import Unmade
from tests.support.racing import Scenario, open_race
from tests.support.violations import judging

from fencepost.server.fence.token import Rule

BUILTIN = [
    races.update_waits_for_update, races.delete_waits_for_update, races.insert_waits_for_delete,
    races.spent_token_stays_spent_for_direct_sql, races.echo_of_the_column_is_no_token, races.key_cannot_change,
    answers.claim_meets_an_insert_under_way, answers.many_rows_are_all_or_nothing,
]  # fmt: skip
"""Which a table of the built-in source survives as well."""
FENCES = [
    *BUILTIN, races.deleted_key_remembers, races.pruned_mark_leaves_a_floor,
    races.old_snapshot_fails_at_the_floor, answers.claim_returns_what_it_fenced, answers.insert_meets_a_claim_under_way,
    answers.claim_meets_a_claim_under_way, answers.many_rows_follow_the_latest_version,
    answers.many_rows_lock_in_key_order, answers.replaced_row_is_written_after_all,
    answers.refusal_is_stale_and_not_missing, answers.answer_follows_the_commit,
]  # fmt: skip
CEILINGS = [
    races_ceilings.update_above_the_ceiling_is_refused, races_ceilings.direct_update_above_the_ceiling_is_refused,
    races_ceilings.insert_above_the_ceiling_is_refused, races_ceilings.delete_above_the_ceiling_is_refused,
    races_ceilings.claim_of_an_absent_key_above_the_ceiling_is_refused,
    races_ceilings.claim_while_the_ceiling_sinks_is_refused, races_ceilings.every_verb_of_the_gateway_reports_it,
    races_ceilings.a_leap_is_refused, races_ceilings.a_leap_is_measured_from_the_mark_that_is_there_then,
    races_ceilings.a_leap_is_measured_from_the_floor_too,
]  # fmt: skip
TOKENS = [
    *CEILINGS[:5], races_tokens.claim_under_an_old_catalog_is_refused,
    races_tokens.unissued_is_reported_before_missing, races_tokens.nextval_waits_for_the_tokens_to_move,
    races_tokens.tokens_never_move_back, races_tokens.two_moves_at_once_do_not_deadlock,
]  # fmt: skip
OF_EQUAL_TOKENS = [
    races.update_waits_for_update, races.delete_waits_for_update, races.insert_waits_for_delete,
    races.deleted_key_remembers, races.pruned_mark_leaves_a_floor, races.spent_token_stays_spent_for_direct_sql,
    answers.claim_returns_what_it_fenced, answers.insert_meets_a_claim_under_way, answers.claim_meets_a_claim_under_way,
    races.echo_of_the_column_is_no_token,
]  # fmt: skip
"""Which say what becomes of a token that equals the mark."""
ALL = [
    *(pytest.param("strict", "external", each, marks=pytest.mark.versions) for each in FENCES),
    *(("epoch", "external", each) for each in OF_EQUAL_TOKENS),
    *(("strict", "external", each) for each in CEILINGS),
    *(("strict", "builtin", each) for each in TOKENS + BUILTIN),
]


@pytest.mark.parametrize(("rule", "source", "scenario"), ALL, ids=lambda each: getattr(each, "__name__", each))
async def test_the_product_survives(
    rule: Rule, source: str, scenario: Scenario, connect: Connect, unmade: Unmade
) -> None:
    race = await open_race(connect, unmade, rule, source=source)
    with judging():
        await scenario(race)
