"""Mutants of the safety lines of break-glass (R14), and the test that fails with each."""

from collections.abc import Awaitable, Callable

import pytest
from tests.integration.break_glass import test_marks, test_operators, test_races, test_records
from tests.support.racing import Race, mutate

BREAK = "break_glass()"
ENFORCE = "PERFORM fencepost.enforce("
UPDATES_JUDGED = "judge_update(text, text, text, bigint, bigint, boolean, xid)"
INSERTS_JUDGED = "judge_insert(text, text, bigint, text)"
DELETES_JUDGED = "judge_delete(text, text, bigint, text, xid)"
ENFORCES = "enforce(text, text, text, text, bigint, bigint)"
RECORDS = "record_break_glass(text, text, text)"


# Function, line, what becomes of it, and the test that sees it.
MUTANTS = [
    (BREAK, "NOT has_function_privilege(session_user, 'fencepost.may_break_glass()', 'EXECUTE')", "false",
     test_operators.test_a_role_without_privileges_learns_what_it_lacks),
    (BREAK, "has_function_privilege(session_user,", "has_function_privilege(current_user,",
     test_operators.test_a_function_that_runs_as_its_owner_does_not_open_the_case_for_its_caller),
    (BREAK, "OR reason = ''", "", test_operators.test_an_empty_reason_leaves_the_glass_whole),
    (RECORDS, "pg_trigger_depth() = 0", "false", test_records.test_no_record_hides_another),
    (RECORDS, "concat_ws(E'\\n', current_setting('fencepost.break_glass'), ",
     "concat(", test_records.test_no_record_hides_another),
    (RECORDS, "'fencepost.break_glass'), current_query())", "'fencepost.break_glass'))",
     test_records.test_one_record_for_a_transaction_a_table_a_verb_and_a_statement),
    (RECORDS, "IF NOT fencepost.break_glass() THEN", "IF false THEN",
     test_operators.test_a_role_that_may_not_break_the_glass_records_and_learns_nothing),
    (RECORDS, "current_query()", "''", test_records.test_a_record_names_who_why_and_how),
    (UPDATES_JUDGED, ENFORCE, "PERFORM concat(",
     test_marks.test_an_operator_writes_without_a_token_and_no_mark_falls),
    (DELETES_JUDGED, ENFORCE, "PERFORM concat(",
     test_marks.test_an_operator_writes_without_a_token_and_no_mark_falls),
    (INSERTS_JUDGED, f"{ENFORCE}'no token',", "PERFORM concat(",
     test_marks.test_an_insert_under_the_marks_own_token_does_not_pass_unrecorded),
    (ENFORCES, "PERFORM fencepost.record_break_glass(", "PERFORM concat(",
     test_marks.test_an_operator_writes_without_a_token_and_no_mark_falls),
    (UPDATES_JUDGED, "RETURN greatest(old_mark, token)", "RETURN coalesce(token, 0)",
     test_marks.test_an_operator_writes_without_a_token_and_no_mark_falls),
    (DELETES_JUDGED, "greatest(old_mark, given)", "coalesce(given, 0)",
     test_marks.test_a_deleted_key_stays_deleted_for_the_stale_holder),
    (DELETES_JUDGED, "IF token = 0 THEN", "IF true THEN",
     test_races.test_an_operator_who_waits_for_a_newer_holder_keeps_the_newer_mark),
    (INSERTS_JUDGED, "rule := 'epoch';", "",
     test_marks.test_an_operator_writes_without_a_token_and_no_mark_falls),
    (INSERTS_JUDGED, "CASE WHEN p_token = 0 THEN fencepost.meet_mark(p_resource)", "CASE WHEN p_token = 0 THEN NULL",
     test_races.test_a_claim_waits_for_a_row_that_is_inserted_behind_glass),
    (INSERTS_JUDGED, "IF mark IS NULL THEN", "IF true THEN",
     test_races.test_a_row_behind_glass_waits_for_a_claim_and_does_not_undercut_it),
    ("meet_mark(text)", "DELETE FROM fencepost.marks k WHERE k.resource = p_resource;", "",
     test_marks.test_a_new_row_is_met_by_the_first_token_of_its_key),
    ("mark_behind_glass(text, text, bigint)", "fencepost.mark_without_row(tab, p_resource)", "0",
     test_marks.test_an_operator_writes_without_a_token_and_no_mark_falls),
    ("mark_behind_glass(text, text, bigint)", "greatest(given, ", "greatest(",
     test_marks.test_a_token_beside_the_reason_counts_where_it_is_newer),
    ("mark_without_row(text, text)", "AND k.row_absent", "AND false",
     test_marks.test_an_operator_writes_without_a_token_and_no_mark_falls),
    ("append_only()", "RAISE EXCEPTION", "RETURN NULL; RAISE EXCEPTION",
     test_records.test_the_log_is_append_only_for_its_owner_too),
]  # fmt: skip


@pytest.mark.long("mutants of the product")
@pytest.mark.parametrize(
    ("function", "old", "new", "scenario"), MUTANTS, ids=[f"{each[0].partition('(')[0]}: {each[1]}" for each in MUTANTS]
)
async def test_a_mutant_of_the_functions_is_seen(
    function: str, old: str, new: str, scenario: Callable[[Race], Awaitable[None]], plain: Race
) -> None:
    await mutate(plain, f"fencepost.{function}", old, new)
    with pytest.raises(AssertionError):
        await scenario(plain)
