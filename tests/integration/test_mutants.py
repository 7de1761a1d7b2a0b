"""Mutants of the functions that judge rows and marks, and the scenario that sees each."""

from tests.scenarios import races as scenarios
from tests.support.racing import SqlMutant, seen

RAISE_MARK = "fencepost.raise_mark(text, bigint, text, boolean)"
JUDGE_INSERT = "fencepost.judge_insert(text, text, bigint, text)"
JUDGE_DELETE = "fencepost.judge_delete(text, text, bigint, text, xid)"
JUDGE_UPDATE = "fencepost.judge_update(text, text, text, bigint, bigint, boolean, xid)"
IS_OWN_WRITE = "fencepost.is_own_write(xid)"


MUTANTS = [
    SqlMutant("INSERT ignores the mark that refuses it", JUDGE_INSERT, "IF mark IS NULL THEN",
        "IF true THEN", scenarios.insert_waits_for_delete),
    SqlMutant("INSERT ignores the floor", JUDGE_INSERT, "IF mark IS NULL THEN", "IF mark IS NULL THEN RETURN;",
        scenarios.pruned_mark_leaves_a_floor),
    SqlMutant("INSERT takes a token that equals the floor", JUDGE_INSERT,
        "IF mark IS NULL THEN", "IF mark IS NULL THEN rule := 'epoch';",
        scenarios.pruned_mark_leaves_a_floor),
    SqlMutant("an old snapshot reads an old floor", JUDGE_INSERT, "FOR SHARE", "",
        scenarios.old_snapshot_fails_at_the_floor),
    SqlMutant("DELETE leaves no mark", JUDGE_DELETE, "INSERT INTO fencepost.marks AS k",
        "RETURN given; INSERT INTO fencepost.marks AS k", scenarios.insert_waits_for_delete),
    SqlMutant("DELETE leaves the mark and does not record that the row is gone", JUDGE_DELETE,
        "row_absent = true, changed_at", "changed_at", scenarios.deleted_key_remembers),
    SqlMutant("a mark can be raised by any token", RAISE_MARK, "WHERE fencepost.verdict(p_rule,",
        "WHERE true OR fencepost.verdict(p_rule,", scenarios.insert_waits_for_delete),
    SqlMutant("a mark takes its own token again from another transaction", RAISE_MARK,
        "WHERE fencepost.verdict(p_rule,", "WHERE fencepost.verdict('epoch',", scenarios.insert_waits_for_delete),
    SqlMutant("an equal mark refuses under epoch", RAISE_MARK, "WHERE fencepost.verdict(p_rule,",
        "WHERE fencepost.verdict('strict',", scenarios.insert_waits_for_delete, "epoch"),
    SqlMutant("every transaction is ours, for UPDATE", JUDGE_UPDATE, "fencepost.is_own_write(writer)", "true",
        scenarios.spent_token_stays_spent_for_direct_sql),
    SqlMutant("every transaction is ours, for DELETE", JUDGE_DELETE, "fencepost.is_own_write(writer)", "true",
        scenarios.spent_token_stays_spent_for_direct_sql),
    SqlMutant("no transaction is ours", IS_OWN_WRITE,
        "RETURN coalesce(pg_xact_status(full_xid::text::xid8) = 'in progress', false);", "RETURN false;",
        scenarios.spent_token_stays_spent_for_direct_sql),
    SqlMutant("an echo of the column passes for a token", JUDGE_UPDATE, "nullif(new_mark, old_mark)", "new_mark",
        scenarios.echo_of_the_column_is_no_token, "epoch"),
    SqlMutant("the trigger takes an equal column value", "{stem}_upd", "given OPERATOR(pg_catalog.>) OLD",
        "given OPERATOR(pg_catalog.>=) OLD", scenarios.echo_of_the_column_is_no_token),
    SqlMutant("the key may change", JUDGE_UPDATE, "IF key_changed THEN", "IF false THEN", scenarios.key_cannot_change),
    SqlMutant("a changed key goes the fast way", "{stem}_upd", '_key"(NEW, OLD) AND', '_key"(OLD, OLD) AND',
        scenarios.key_cannot_change),
    SqlMutant("DELETE does not look at the row's mark, in the function and in the trigger", JUDGE_DELETE,
        "IF verdict <> 'accepted' THEN", "IF given IS NULL AND verdict <> 'accepted' THEN",
        scenarios.spent_token_stays_spent_for_direct_sql),
]  # fmt: skip


test_a_mutant_of_the_functions_is_seen = seen(MUTANTS)
