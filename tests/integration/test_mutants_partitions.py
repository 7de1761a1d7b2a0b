"""Mutants of the lines that follow partitions, and the test of direct_sql/test_partitions.py that sees each."""

from collections.abc import Awaitable, Callable
from functools import partial

import asyncpg
import pytest
from tests.direct_sql import test_partitions as seen_by
from tests.integration.test_mutants import mutate
from tests.support.interleave import Connect
from tests.support.racing import Race, open_race
from tests.support.ready_made import Unmade

from fencepost.storage.protecting.protect import protect

FOLLOW = "fencepost.follow_partitions(text)"
ATTACH_ROWS = "fencepost.attach_rows(regclass, regclass, text, bigint, bigint, text)"
DETACH_ROWS = "fencepost.detach_rows(regclass, regclass, text, bigint)"
LEAVE = "fencepost.leave_marks(regclass, text[], bigint[])"
KNOWN = "fencepost.partitions_known(regclass)"
UNKNOWN = "fencepost.partitions_unknown(oid)"

again = partial(seen_by.test_without_event_triggers_protect_mends_what_was_attached, again=True)
detached = partial(seen_by.test_rows_that_are_detached_leave_their_marks, how="DETACH PARTITION part_1")


MUTANTS: list[tuple[str, str, str, str, Callable[[Race], Awaitable[None]]]] = [
    ("attached rows do not take up marks", ATTACH_ROWS, "  EXECUTE raise;", "", detached),
    ("attached rows do not take up the floor", ATTACH_ROWS, "  EXECUTE lift;", "",
        seen_by.test_rows_that_are_attached_take_up_floor_and_marks),
    ("the session's token judges the marks that are written", ATTACH_ROWS,
        "PERFORM set_config('fencepost.token', '', true), set", "PERFORM set",
        seen_by.test_rows_that_are_attached_take_up_floor_and_marks),
    ("detached rows leave no marks", DETACH_ROWS, "PERFORM fencepost.leave_marks", "-- PERFORM", detached),
    ("a mark that is left does not say that its row is gone", LEAVE, "row_absent = true, ", "", detached),
    ("a detached partition cannot be truncated", FOLLOW, "'DROP TRIGGER zzz_fencepost_trunc ON %s'",
        "'ANALYZE %s'", detached),
    ("claims in flight are not waited for", FOLLOW,
        "EXECUTE format('LOCK TABLE ONLY %s IN ACCESS EXCLUSIVE MODE', t.root);", "",
        seen_by.test_a_claim_that_has_looked_already_is_waited_for),
    ("old snapshots attach and detach", FOLLOW, "current_setting('transaction_isolation') <> 'read committed'",
        "false", seen_by.test_an_old_snapshot_attaches_and_detaches_nothing),
    ("what is known is not locked before it is read", KNOWN, "FOR NO KEY UPDATE", "",
        seen_by.test_two_partitions_that_come_at_once_are_both_known),
    ("a partition that has been away is known", UNKNOWN, "t.oid > ALL", "t.oid > 0 OR t.oid > ALL", again),
]  # fmt: skip


@pytest.mark.long("mutants of the product")
@pytest.mark.parametrize(("function", "old", "new", "test"), [m[1:] for m in MUTANTS], ids=[m[0] for m in MUTANTS])
async def test_a_mutant_of_the_functions_is_seen(
    function: str, old: str, new: str, test: Callable[[Race], Awaitable[None]], connect: Connect, unmade: Unmade
) -> None:
    race = await open_race(connect, unmade, "strict")
    await race.observer.execute(seen_by.TABLE)
    await protect(race.observer, "parts")
    await mutate(race, function, old, new)
    with pytest.raises((AssertionError, asyncpg.PostgresError)):
        await test(race)
