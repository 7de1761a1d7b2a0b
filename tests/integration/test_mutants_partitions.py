"""Mutants of the lines that follow partitions, and the test of direct_sql/test_partitions.py that sees each."""

from functools import partial

import asyncpg
from tests.direct_sql import test_partitions as seen_by
from tests.support.interleave import Connect
from tests.support.postgres import Unmade
from tests.support.racing import Race, SqlMutant, open_race, seen

from fencepost.server.fence.token import Rule
from fencepost.server.ops.protect import protect

FOLLOW = "fencepost.follow_partitions(text)"
ATTACH_ROWS = "fencepost.attach_rows(regclass, regclass, text, bigint, bigint, text)"
DETACH_ROWS = "fencepost.detach_rows(regclass, regclass, text, bigint)"
LEAVE = "fencepost.leave_marks(regclass, text[], bigint[])"
KNOWN = "fencepost.partitions_known(regclass)"
UNKNOWN = "fencepost.partitions_unknown(oid)"

again = partial(seen_by.test_without_event_triggers_protect_mends_what_was_attached, again=True)
detached = partial(seen_by.test_rows_that_are_detached_leave_their_marks, how="DETACH PARTITION part_1")


async def partitioned(connect: Connect, unmade: Unmade, rule: Rule, source: str) -> Race:
    race = await open_race(connect, unmade, rule, source=source)
    await race.observer.execute(seen_by.TABLE)
    await protect(race.observer, "parts")
    return race


MUTANTS = [
    SqlMutant("attached rows do not take up marks", ATTACH_ROWS, "  EXECUTE raise;", "", detached),
    SqlMutant("attached rows do not take up the floor", ATTACH_ROWS, "  EXECUTE lift;", "",
        seen_by.test_rows_that_are_attached_take_up_floor_and_marks),
    SqlMutant("the session's token judges the marks that are written", ATTACH_ROWS,
        "PERFORM set_config('fencepost.token', '', true), set", "PERFORM set",
        seen_by.test_rows_that_are_attached_take_up_floor_and_marks),
    SqlMutant("detached rows leave no marks", DETACH_ROWS, "PERFORM fencepost.leave_marks", "-- PERFORM", detached),
    SqlMutant("a mark that is left does not say that its row is gone", LEAVE, "row_absent = true, ", "", detached),
    SqlMutant("a detached partition cannot be truncated", FOLLOW, "'DROP TRIGGER zzz_fencepost_trunc ON %s'",
        "'ANALYZE %s'", detached),
    SqlMutant("claims in flight are not waited for", FOLLOW,
        "EXECUTE format('LOCK TABLE ONLY %s IN ACCESS EXCLUSIVE MODE', t.root);", "",
        seen_by.test_a_claim_that_has_looked_already_is_waited_for),
    SqlMutant("old snapshots attach and detach", FOLLOW, "current_setting('transaction_isolation') <> 'read committed'",
        "false", seen_by.test_an_old_snapshot_attaches_and_detaches_nothing),
    SqlMutant("what is known is not locked before it is read", KNOWN, "FOR NO KEY UPDATE", "",
        seen_by.test_two_partitions_that_come_at_once_are_both_known),
    SqlMutant("a partition that has been away is known", UNKNOWN, "t.oid > ALL", "t.oid > 0 OR t.oid > ALL", again),
]  # fmt: skip
test_a_mutant_of_the_functions_is_seen = seen(MUTANTS, partitioned, (AssertionError, asyncpg.PostgresError))
