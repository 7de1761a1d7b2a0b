"""The catalogue of mutants: the product with a line changed that is there for safety, and the test that sees it.

`test_mutants.py` makes each of them in a fresh database and runs its test, which has to fail. If it passes, the line
is not needed, or a test is missing.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pkgutil import resolve_name
from typing import Any

import asyncpg
import pytest
from tests.direct_sql import test_partitions as partitions
from tests.direct_sql import test_races as direct_sql
from tests.integration import test_break_glass as break_glass
from tests.integration import test_races_ddl as claims_ddl
from tests.integration import test_security as security
from tests.races import test_batches as batches
from tests.races import test_bounds as bounds
from tests.races import test_generations as generations
from tests.races import test_idempotency as idempotency
from tests.races import test_lease_queue as lease_queue
from tests.races import test_leases as leases
from tests.races import test_moved_tokens as moved
from tests.races import test_next_rows as next_rows
from tests.races import test_one_rule as one_rule
from tests.races import test_pruning as pruning
from tests.races import test_queues as queues
from tests.races import test_rows as rows
from tests.races import test_scopes as scopes
from tests.races.openings import BEHIND_GLASS, BUILTIN, EPOCH, PARTITIONED, Opening, openings_of
from tests.support.interleave import Connection as Session
from tests.support.racing import change

from fencepost.server.fence.token import Rule, Token
from fencepost.server.gateway.attempt import judge
from fencepost.server.gateway.group_commit import AGAIN
from fencepost.server.postgres import keyed, marks
from fencepost.server.postgres.answers import Shown
from fencepost.server.postgres.connection import (
    TOKEN,
    Connection,
    Key,
    RowWrite,
    Wait,
    WriteStatement,
    compiled,
    key_part,
)
from fencepost.server.postgres.keyed import Change
from fencepost.server.postgres.marks import ElementState, KeyState
from fencepost.server.postgres.tables import Fence, ProtectedTable

InPython = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Mutant:
    """The product in which `old` is `new`, at `where`.

    `where` is an SQL function of the schema fencepost (with the types of its arguments where there are several), a
    view, or the full name of a text or of a function of Python that gives texts; `{stem}_upd` is a trigger function of
    `table`. Where `new` is a function, it changes what has the name `where`. Without `where`, `new` is SQL that is run.
    """

    name: str
    where: str
    old: str
    new: str | InPython
    seen_by: Callable[..., Awaitable[None]]
    under: Opening | None = None
    """What its test is opened with; None: what it is opened with first against the product."""
    more: tuple[tuple[str, str, str | InPython], ...] = ()
    """What is changed as well, as (where, old, new)."""
    table: str = "orders"
    fails_with: tuple[type[BaseException], ...] = (AssertionError,)

    @property
    def opening(self) -> Opening:
        return self.under or openings_of(self.seen_by)[0]

    async def make(self, connection: Session, monkeypatch: pytest.MonkeyPatch) -> None:
        """Change the product; a mutant that changes nothing would prove nothing."""
        for where, old, new in ((self.where, self.old, self.new), *self.more):
            if not isinstance(new, str):
                before = resolve_name(where)
                new(monkeypatch)
                assert resolve_name(where) is not before, f"{where} is as it was"
            elif where.startswith("fencepost.server."):
                monkeypatch.setattr(where, _with_other_text(resolve_name(where), old, new))
            elif where:
                await change(connection, where, old, new, self.table)
            else:
                find = "SELECT functions FROM fencepost.protected WHERE name = $1"
                stem = await connection.fetchval(find, self.table)
                await connection.execute(new.format(function=f'"{stem}_scope"', of=f'"{stem}_of"'))


def _with_other_text(genuine: Any, old: str, new: str) -> object:
    """Give a text, or a method that makes some, with `new` for `old`."""
    if isinstance(genuine, str):
        assert old in genuine, f"no {old!r} in {genuine!r}"
        return genuine.replace(old, new)

    def mutant(self: object) -> list[str]:
        made: list[str] = genuine(self)
        assert all(old in each for each in made), f"no {old!r} in {made}"
        return [each.replace(old, new) for each in made]

    return mutant


# Where safety stands.

REQUIRE_ISSUED = "fencepost.require_issued(text, bigint)"
REQUIRE_ISSUED_BY_SOURCE = "fencepost.require_issued(text, bigint, text)"
WAITERS = "fencepost.live_waiters"
TRIGGER = "{stem}_scope"

ONE = "drawn := ARRAY[nextval('fencepost.tokens')];"
MANY = "drawn := ARRAY(SELECT nextval('fencepost.tokens') FROM generate_series(1, p_count + claiming::int));"
SUPERSEDED = "SET ended_at = clock_timestamp(), secret_hash = NULL\n      WHERE x.lease_id = ANY (before)"

STILL_PROTECTED = "fencepost.server.postgres.marks._STILL_PROTECTED"

FLOORS_MAY_FALL = ("", "", "ALTER TABLE fencepost.floors DISABLE TRIGGER never_lower")
"""The trigger would refuse it, so each line covers for the other."""
THE_TRIGGER_JUDGES_NOTHING = (
    "{stem}_upd", "IF given OPERATOR(pg_catalog.>) OLD", "IF true OR given OPERATOR(pg_catalog.>) OLD",
)  # fmt: skip
"""It only stores what it is given: without it, the table's check would refuse the token's negative form."""


# Changes of Python.


def _without_skip_locked(text: str, parameters: Any) -> Any:
    return compiled(text.replace(" SKIP LOCKED", ""), parameters)


def put(where: str, other: object) -> InPython:
    """Have something else under this name."""
    return lambda monkeypatch: monkeypatch.setattr(where, other)


equal_passes = put("fencepost.server.postgres.marks.comparison", lambda _rule: "<=")


def claim_reads_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer a claim with a row read from the statement's snapshot."""
    update = keyed.update

    def mutant(table: ProtectedTable, change: Change, wait: Wait, *, careful: bool = False) -> Any:
        beside = f"(SELECT row_to_json(o) FROM {table.sql_name} AS o WHERE o.order_id = {key_part(0)})"
        with monkeypatch.context() as here:
            here.setattr(Shown, "one", lambda *_, **__: f"{beside}::text")
            return update(table, change, wait, careful=careful)

    monkeypatch.setattr(keyed, "update", mutant)


def check_and_write_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the mark, compare in Python, then write: two statements, and the triggers of an unwatched table."""
    run = WriteStatement.run

    async def mutant(statement: WriteStatement, connection: Connection, batch: Sequence[RowWrite]) -> Any:
        (write,) = batch
        (standing,) = await marks.ask(connection, tables[0], [write.key])
        if standing.live is None or standing.live >= write.token:
            return [None]
        return await run(statement, connection, batch)

    tables: list[ProtectedTable] = []
    update = keyed.update

    def unconditional(table: ProtectedTable, change: Change, wait: Wait, *, careful: bool = False) -> Any:
        tables.append(table)
        with monkeypatch.context() as here:
            here.setattr(marks, "comparison", lambda _rule: "<> 0 AND 0 <")
            return update(table, change, wait, careful=careful)

    monkeypatch.setattr(keyed, "update", unconditional)
    monkeypatch.setattr(WriteStatement, "run", mutant)


def claim_believes_the_catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask only where the table is known to be of the built-in source."""
    claim_absent = marks.claim_absent

    async def mutant(connection: Connection, table: ProtectedTable, key: Key, token: Token, resource: str) -> object:
        monkeypatch.setattr(marks, "EXTERNAL", "external" if table.fence.pinned else "builtin")
        return await claim_absent(connection, table, key, token, resource)

    monkeypatch.setattr(bounds, "claim_absent", mutant)


async def raise_the_mark_only(
    connection: Connection, table: ProtectedTable, _key: Key, token: int, resource: str
) -> int | None:
    refused: int | None = await connection.fetchval(
        "SELECT fencepost.raise_mark($1, $2, $3, true)", resource, token, table.fence.rule
    )
    return refused


async def no_marks(_connection: Connection, table: ProtectedTable, keys: Sequence[Key]) -> list[KeyState]:
    """Take "no row matched" for "there is no row"."""
    return [KeyState(f"{table.fence.name}/{key[0]}", None, None) for key in keys]


def look_without_lock(table: ProtectedTable, passes: str, _lock: str, _wait: str) -> str:
    """Look at the row as the statement's snapshot has it."""
    return f"EXISTS (SELECT FROM {table.sql_name} AS r WHERE {passes})"


def fence_only(state: KeyState, fence: Fence, write: RowWrite) -> object:
    """Judge a write under a condition as others are judged."""
    return judge(state, fence, write.token) or AGAIN


async def high_marks(_connection: Connection, table: ProtectedTable, keys: Sequence[Key]) -> list[KeyState]:
    """Take "no row matched" for "a newer holder has written"."""
    return [KeyState(f"{table.fence.name}/{key[0]}", 2**62, None) for key in keys]


async def ask_for_the_mark_only(
    connection: Connection, table: ProtectedTable, keys: Sequence[Key], *, ask: Any = marks.ask
) -> list[KeyState]:
    """Take a token that was never issued for one that would pass."""
    return [replace(each, issued=None) for each in await ask(connection, table, keys)]


async def ask_for_the_marks_only(
    connection: Connection, table: ProtectedTable, body: str, *, ask: Any = marks.ask_elements
) -> list[ElementState]:
    asked = await ask(connection, table, body)
    return [replace(each, standing=replace(each.standing, issued=None)) for each in asked]


def begin_in_any_isolation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a snapshot from before the table's lock, but for the lock that comes first."""
    transaction = asyncpg.Connection.transaction
    monkeypatch.setattr(asyncpg.Connection, "transaction", lambda self, **_: transaction(self))


# What a mutant of some kind has in common.

tried_once = partial(
    Mutant, more=(("fencepost.server.postgres.upkeep.TRIES", "", put("fencepost.server.postgres.upkeep.TRIES", 1)),)
)
"""A deadlock would be tried again, and not be seen."""
of_builtin = partial(Mutant, under=BUILTIN)
of_parts = partial(Mutant, under=PARTITIONED, fails_with=(AssertionError, asyncpg.PostgresError))
again = partial(partitions.test_without_event_triggers_protect_mends_what_was_attached, again=True)
detached = partial(partitions.test_rows_that_are_detached_leave_their_marks, how="DETACH PARTITION part_1")
of_names = partial(Mutant, more=(FLOORS_MAY_FALL, ("", "", "ALTER TABLE fencepost.marks DISABLE TRIGGER never_lower")))
of_items = partial(Mutant, table="items")
may_hang = partial(Mutant, fails_with=(AssertionError, TimeoutError))
glass = partial(Mutant, under=BEHIND_GLASS)


def swapped(name: str, where: str, other: object, seen_by: Callable[..., Awaitable[None]]) -> Mutant:
    """Python has `other` under the name `where`."""
    return Mutant(name, where, "", put(where, other), seen_by)


def instead(name: str, sql: str, seen_by: Callable[..., Awaitable[None]]) -> Mutant:
    """SQL is run: `{function}` is that of the scope's trigger of `items`, `{of}` the one that makes the scope."""
    return Mutant(name, "", "", sql, seen_by, table="items")


def looked_again(name: str, old: str, new: str, change: Callable[[Session], Awaitable[None]]) -> Mutant:
    """The last look at the table, before a claim is answered, overlooks this change of its protection."""
    test = partial(claims_ddl.test_the_last_look_sees_that_the_table_is_protected_otherwise, change=change)
    return Mutant(name, STILL_PROTECTED, old, new, test, Opening("customers", claims_ddl.with_customers))


def judged(name: str, where: str, old: str, new: str | InPython, of: str = "default", rule: Rule = "strict") -> Mutant:
    """One of the places that judge differs, in the cases of these bounds."""
    return Mutant(name, where, old, new, one_rule.test_every_place_judges_alike, one_rule.under(rule, of))


MUTANTS: list[Mutant] = [
    # Rows, and the marks of keys without a row
    Mutant("INSERT ignores the mark that refuses it", "judge_insert", "IF mark IS NULL THEN", "IF true THEN",
        rows.test_insert_waits_for_delete),
    Mutant("INSERT ignores the floor", "judge_insert", "IF mark IS NULL THEN", "IF mark IS NULL THEN RETURN;",
        rows.test_pruned_mark_leaves_a_floor),
    Mutant("INSERT takes a token that equals the floor", "judge_insert", "IF mark IS NULL THEN",
        "IF mark IS NULL THEN rule := 'epoch';", rows.test_pruned_mark_leaves_a_floor),
    Mutant("an old snapshot reads an old floor", "judge_insert", "FOR SHARE", "",
        rows.test_old_snapshot_fails_at_the_floor),
    Mutant("a plain INSERT ignores the mark that refuses it", "{stem}_insmark", "IF FOUND THEN", "IF true THEN",
        rows.test_insert_waits_for_delete),
    Mutant("a plain INSERT takes a token that equals the floor", "{stem}_insmark", "f.floor < NEW.", "f.floor <= NEW.",
        rows.test_pruned_mark_leaves_a_floor),
    Mutant("a plain INSERT of an old snapshot reads an old floor", "{stem}_insmark", "= 'read committed'", "<> ''",
        rows.test_old_snapshot_fails_at_the_floor),
    Mutant("DELETE leaves no mark", "judge_delete", "INSERT INTO fencepost.marks AS k",
        "RETURN given; INSERT INTO fencepost.marks AS k", rows.test_insert_waits_for_delete),
    Mutant("DELETE leaves the mark and does not record that the row is gone", "judge_delete",
        "row_absent = true, changed_at", "changed_at", rows.test_deleted_key_remembers),
    Mutant("a mark can be raised by any token", "raise_mark", "WHERE fencepost.verdict(p_rule,",
        "WHERE true OR fencepost.verdict(p_rule,", rows.test_insert_waits_for_delete),
    Mutant("a mark takes its own token again from another transaction", "raise_mark", "WHERE fencepost.verdict(p_rule,",
        "WHERE fencepost.verdict('epoch',", rows.test_insert_waits_for_delete),
    Mutant("an equal mark refuses under epoch", "raise_mark", "WHERE fencepost.verdict(p_rule,",
        "WHERE fencepost.verdict('strict',", rows.test_insert_waits_for_delete, EPOCH),
    Mutant("every transaction is ours, for UPDATE", "judge_update", "fencepost.is_own_write(writer)", "true",
        rows.test_spent_token_stays_spent_for_direct_sql),
    Mutant("every transaction is ours, for DELETE", "judge_delete", "fencepost.is_own_write(writer)", "true",
        rows.test_spent_token_stays_spent_for_direct_sql),
    Mutant("no transaction is ours", "is_own_write",
        "RETURN coalesce(pg_xact_status(full_xid::text::xid8) = 'in progress', false);", "RETURN false;",
        rows.test_spent_token_stays_spent_for_direct_sql),
    Mutant("an echo of the column passes for a token", "judge_update", "nullif(new_mark, old_mark)", "new_mark",
        rows.test_echo_of_the_column_is_no_token, EPOCH),
    Mutant("the trigger takes an equal column value", "{stem}_upd", "given OPERATOR(pg_catalog.>) OLD",
        "given OPERATOR(pg_catalog.>=) OLD", rows.test_echo_of_the_column_is_no_token),
    Mutant("the key may change", "judge_update", "IF key_changed THEN", "IF false THEN", rows.test_key_cannot_change),
    Mutant("a changed key goes the fast way", "{stem}_upd", '_key"(NEW, OLD) AND', '_key"(OLD, OLD) AND',
        rows.test_key_cannot_change),
    Mutant("DELETE does not look at the row's mark, in the function and in the trigger", "judge_delete",
        "IF verdict <> 'accepted' THEN", "IF given IS NULL AND verdict <> 'accepted' THEN",
        rows.test_spent_token_stays_spent_for_direct_sql),
    Mutant("an equal token passes", "fencepost.server.postgres.marks.comparison", "", equal_passes,
        rows.test_update_waits_for_update),
    Mutant("an equal token passes, and the trigger judges nothing", "fencepost.server.postgres.marks.comparison", "",
        equal_passes, rows.test_update_waits_for_update, more=(THE_TRIGGER_JUDGES_NOTHING,)),
    Mutant("check and write are two statements", "fencepost.server.postgres.keyed.update", "", check_and_write_apart,
        rows.test_update_waits_for_update),
    Mutant("check and write are two statements, and the trigger judges nothing",
        "fencepost.server.postgres.keyed.update", "", check_and_write_apart, rows.test_update_waits_for_update,
        more=(THE_TRIGGER_JUDGES_NOTHING,)),
    Mutant("one row that takes the token is enough", "fencepost.server.postgres.many._PASSES",
        "(SELECT passes FROM verdict)", f"(SELECT true OR passes FROM verdict) AND r.last_fence_token < {TOKEN}",
        rows.test_many_rows_are_all_or_nothing),
    swapped("many rows are judged by the snapshot", "fencepost.server.postgres.many.lock_clause", lambda *_: "",
        rows.test_many_rows_are_all_or_nothing),
    swapped("many rows are locked in heap order", "fencepost.server.postgres.many._key", lambda _table: "NULL::int",
        rows.test_many_rows_lock_in_key_order),
    Mutant("a claim reads its row beside", "fencepost.server.postgres.keyed.update", "", claim_reads_beside,
        rows.test_claim_returns_what_it_fenced),
    swapped("a claim does not look again", "fencepost.server.gateway.attempt.claim_absent", raise_the_mark_only,
        rows.test_claim_meets_an_insert_under_way),
    swapped("no row matched, so there is none: stale is missing", "fencepost.server.postgres.marks.ask", no_marks,
        rows.test_refusal_is_stale_and_not_missing),
    swapped("no row matched, so there is none: a row that was replaced is missing",
        "fencepost.server.postgres.marks.ask", no_marks, rows.test_replaced_row_is_written_after_all),
    swapped("no row matched, so a newer holder has written", "fencepost.server.postgres.marks.ask", high_marks,
        rows.test_replaced_row_is_written_after_all),
    swapped("a condition is looked at before and not by the statement", "fencepost.server.postgres.keyed._condition",
        lambda *_: "", rows.test_a_condition_is_judged_by_the_row_as_it_was_left),
    swapped("a DELETE under a condition is looked at by the snapshot", "fencepost.server.postgres.keyed._lock_row",
        look_without_lock, rows.test_a_condition_is_judged_by_the_row_as_it_was_left),
    swapped("a row that is missing meets a condition", "fencepost.server.gateway.attempt._judge_condition",
        fence_only, rows.test_a_row_that_is_deleted_meanwhile_meets_no_condition),
    Mutant("every row is there", "{stem}_insmark", "IF gone THEN", "IF false THEN",
        rows.test_a_row_is_deleted_by_its_trigger),
    Mutant("every row that was touched is gone", "{stem}_insmark", "IF gone THEN", "IF NEW.xmax <> '0' THEN",
        rows.test_a_row_is_inserted_and_touched),
    # The ceiling of an external table, and what lowers a mark
    Mutant("the plain case takes any newer token", "{stem}_upd", "AND NOT (given OPERATOR(pg_catalog.>)",
        "AND NOT (false AND given OPERATOR(pg_catalog.>)", bounds.test_update_above_the_ceiling_is_refused),
    Mutant("a token of a setting is not compared", "{stem}_upd", "IF given OPERATOR(pg_catalog.>)",
        "IF false AND given OPERATOR(pg_catalog.>)", bounds.test_direct_update_above_the_ceiling_is_refused),
    Mutant("a good setting hides a made-up value beside it", "{stem}_upd",
        "given := greatest(given, NEW.last_fence_token)", "given := NEW.last_fence_token",
        bounds.test_direct_update_above_the_ceiling_is_refused),
    Mutant("INSERT takes any token", "{stem}_insmark", "IF NEW.last_fence_token OPERATOR(pg_catalog.>) '4",
        "IF false AND NEW.last_fence_token OPERATOR(pg_catalog.>) '4", bounds.test_insert_above_the_ceiling_is_refused),
    Mutant("DELETE takes any token", "{stem}_del", "IF token OPERATOR", "IF false AND token OPERATOR",
        bounds.test_delete_above_the_ceiling_is_refused),
    Mutant("nothing is above the ceiling", "beyond", "IF p_token > p_max_token THEN", "IF false THEN",
        bounds.test_claim_of_an_absent_key_above_the_ceiling_is_refused),
    Mutant("no leap is too far", "beyond", "IF p_token - base > p_max_jump THEN", "IF false THEN",
        bounds.test_a_leap_is_refused),
    Mutant("a leap is not measured from the floor", "beyond", "greatest(p_mark, p_floor, 0)", "greatest(p_mark, 0)",
        bounds.test_a_leap_is_measured_from_the_floor_too),
    Mutant("a leap is measured from a mark that is not waited for", "meet_ceiling",
        "coalesce(fencepost.meet_mark(p_resource), 0)",
        "coalesce((SELECT k.last_fence_token FROM fencepost.marks k WHERE k.resource = p_resource), 0)",
        bounds.test_a_leap_is_measured_from_the_mark_that_is_there_then),
    Mutant("a reset does not wait for the mark", "held_mark", "FOR UPDATE", "",
        bounds.test_a_reset_waits_for_a_claim_under_way),
    Mutant("a mark falls without a record", "is_reset", "RETURN EXISTS (SELECT", "RETURN true OR EXISTS (SELECT",
        bounds.test_a_mark_is_not_lowered_by_hand),
    Mutant("a reset ignores other marks", "highest_below", "AND k.last_fence_token < p_below", "AND false",
        bounds.test_a_reset_stays_above_other_marks),
    Mutant("a reset by hand ignores other marks", "fencepost.reset_mark(text, text, bigint, bigint)",
        "IF p_new < lowest THEN", "IF false THEN", bounds.test_a_reset_by_hand_stays_above_other_marks),
    # Tokens that the built-in source has issued
    of_builtin("the plain case takes tokens that were never issued", "{stem}_upd",
        "AND given OPERATOR(pg_catalog.<=) fencepost.issued()", "", bounds.test_update_above_the_ceiling_is_refused),
    of_builtin("a token of a setting is not looked at", "{stem}_upd", "IF greatest(given, NEW.last_fence_token)",
        "IF false AND greatest(given, NEW.last_fence_token)", bounds.test_direct_update_above_the_ceiling_is_refused),
    of_builtin("a good setting hides a value beside it that was never issued", "{stem}_upd",
        "greatest(given, NEW.last_fence_token)", "NEW.last_fence_token",
        bounds.test_direct_update_above_the_ceiling_is_refused),
    of_builtin("INSERT takes tokens that were never issued", "{stem}_insmark", "IF NEW.last_fence_token OPERATOR",
        "IF false AND NEW.last_fence_token OPERATOR", bounds.test_insert_above_the_ceiling_is_refused),
    of_builtin("DELETE takes tokens that were never issued", "{stem}_del", "IF token OPERATOR",
        "IF false AND token OPERATOR", bounds.test_delete_above_the_ceiling_is_refused),
    of_builtin("every token was issued", REQUIRE_ISSUED, "IF p_token > issued THEN", "IF false THEN",
        bounds.test_claim_of_an_absent_key_above_the_ceiling_is_refused),
    of_builtin("the newest token is none", REQUIRE_ISSUED, "IF p_token > issued THEN", "IF p_token >= issued THEN",
        bounds.test_claim_of_an_absent_key_above_the_ceiling_is_refused),
    of_builtin("tokens are drawn while they move", "issue_beyond", "ALTER SEQUENCE fencepost.tokens CACHE 1;", "",
        bounds.test_nextval_waits_for_the_tokens_to_move),
    of_builtin("a move does not look again once no transaction draws", "issue_beyond",
        "IF p_token > fencepost.issued() THEN PERFORM", "IF true THEN PERFORM", bounds.test_tokens_never_move_back),
    of_builtin("a look that finds nothing to do holds on to the sequence", "issue_beyond",
        "(SELECT CASE WHEN t.is_called THEN t.last_value ELSE 0 END FROM fencepost.tokens t)", "fencepost.issued()",
        bounds.test_two_moves_at_once_do_not_deadlock),
    of_builtin("a claim does not ask whether its token was issued", "fencepost.server.postgres.marks.EXTERNAL",
        "external", "builtin", bounds.test_claim_of_an_absent_key_above_the_ceiling_is_refused),
    of_builtin("a claim believes the catalog", "tests.races.test_bounds.claim_absent", "", claim_believes_the_catalog,
        bounds.test_claim_under_an_old_catalog_is_refused),
    swapped("the question for the mark forgets what was issued", "fencepost.server.postgres.marks.ask",
        ask_for_the_mark_only, bounds.test_unissued_is_reported_before_missing),
    swapped("the question for the marks of a POST forgets what was issued",
        "fencepost.server.postgres.marks.ask_elements", ask_for_the_marks_only,
        bounds.test_unissued_is_reported_before_missing),
    # Tokens that move past the marks of a table
    Mutant("no rows are asked", "meet_marks", "IF p.scope IS NULL AND", "IF false AND", moved.test_the_mark_of_a_row),
    Mutant("no partitions are asked", "highest_mark_of_rows", "FROM %s AS r", "FROM ONLY %s AS r",
        moved.test_the_marks_of_partitions),
    Mutant("no marks of deleted rows are asked", "highest_mark", "WHERE starts_with(m.resource,",
        "WHERE false AND starts_with(m.resource,", moved.test_the_mark_of_a_deleted_row),
    Mutant("the floor is not asked before the tokens move", "highest_mark", "f.name, f.floor,", "f.name, 0,",
        moved.test_the_floor_of_pruned_marks),
    Mutant("the lowest mark counts", "highest_mark_of_rows", "ORDER BY r.last_fence_token DESC",
        "ORDER BY r.last_fence_token", moved.test_the_mark_of_a_row),
    Mutant("hidden rows are overlooked", "highest_mark_of_rows", "SET row_security TO 'off'",
        "SET row_security TO 'on'", moved.test_a_mark_that_a_policy_hides_is_not_overlooked),
    Mutant("the tokens stay where they are", "meet_marks", "PERFORM fencepost.issue_beyond(high.mark)", "PERFORM 1",
        moved.test_the_mark_of_a_claim),
    Mutant("the tokens are moved in another isolation", "asyncpg.Connection.transaction", "", begin_in_any_isolation,
        moved.test_a_write_under_way_is_waited_for, more=(
            ("fencepost.lock_statements(fencepost.protected)", "'LOCK TABLE %s IN ACCESS EXCLUSIVE MODE'",
                "'SELECT %L'"),
            ("fencepost.run_plan(text[])", "<> 'read committed'", "= 'none'"))),
    # Names of tables, and texts of keys
    of_names("the marks of the table that had the name are not copied", "take_name", "PERFORM fencepost.copy_marks(",
        "PERFORM format('%s %s', ", security.test_a_table_that_takes_a_name_leaves_its_marks_to_the_table_that_had_it),
    of_names("the floor does not follow its table", "take_name", "SET relation = left_by.relation,",
        "SET relation = NULL,", security.test_the_floor_of_a_table_that_was_renamed_follows_it_past_another_one),
    of_names("that the floor covers rows does not follow", "take_name", "covers_rows = left_by.covers_rows OR",
        "covers_rows = ", security.test_the_floor_of_a_table_that_was_renamed_follows_it_past_another_one),
    of_names("only the first of a circle is looked at", "take_name", "left_by := next_by;", "EXIT;",
        security.test_tables_that_have_moved_on_in_a_circle_all_keep_their_marks),
    of_names("marks leave a name that another table has", "move_marks", "fencepost.name_of(c.oid) = p_old", "false",
        security.test_marks_stay_with_a_name_that_another_table_has_by_now),
    of_names("marks leave a name whose table lives on", "move_marks", "OR c.oid = (SELECT", "OR 0 = (SELECT",
        security.test_a_table_that_left_its_marks_under_a_name_keeps_them_when_the_name_is_left_again),
    of_names("the lower mark counts", "copy_marks", "greatest(k.last", "least(k.last",
        security.test_tables_that_have_swapped_their_names_both_keep_their_marks),
    of_names("the lower floor counts", "copy_marks", "greatest(f.floor", "least(f.floor",
        security.test_of_two_floors_the_higher_counts),
    Mutant("a key of any type will do", "same_texts", "SELECT p_was = p_now", "SELECT true OR p_was = p_now",
        security.test_a_key_of_another_type_is_fenced_up_to_the_highest_mark),
    Mutant("a key that is a shorter text will do", "same_texts", "<= substring(p_now", ">= substring(p_now",
        security.test_a_key_of_another_type_is_fenced_up_to_the_highest_mark),
    Mutant("a key that is a longer text will not do", "same_texts", "<= substring(p_now", ">= substring(p_now",
        security.test_a_key_whose_values_have_the_same_texts_in_a_wider_type_keeps_its_marks),
    Mutant("columns of a key are known by their names", "same_key", "was -> 'number' = is_now -> 'number'",
        "was -> 'name' = is_now -> 'name'", security.test_another_column_of_the_key_s_name_is_another_key),
    Mutant("columns of a key are no more the same when they are renamed", "same_key",
        "CASE WHEN p_was -> 'relation' = p_now -> 'relation'", "CASE WHEN false",
        security.test_a_renamed_key_keeps_its_marks),
    Mutant("the order of a key's columns does not matter", "fencepost.key_of(oid)", "ORDER BY k.n", "ORDER BY a.attnum",
        security.test_also_if_it_was_turned_while_nothing_protected_it),
    # A table that is protected otherwise while a key of it is claimed
    looked_again("the scope is not looked at", "AND p.scope IS NULL", "", claims_ddl.with_a_scope),
    looked_again("the rule is not looked at", "p.rule = $6", "$6::text IS NOT NULL", claims_ddl.with_the_other_rule),
    looked_again("the name is not looked at", "AND p.name = $4", "", claims_ddl.under_the_name_it_has_no_more),
    looked_again("any table of the name will do", "fencepost.key_of(p.relation)::text = $5", "$5::text <> ''",
        claims_ddl.another_table),
    looked_again("the key is not looked at", "fencepost.key_of(p.relation)::text = $5", "$5::text <> ''",
        claims_ddl.with_a_key_of_another_type),
    looked_again("a table that is not protected will do", "WHEN p.relation IS NULL THEN", "WHEN false THEN",
        claims_ddl.not_at_all),
    # Two connections with direct SQL
    Mutant("an UPDATE that waited takes any token", "judge_update", "IF verdict <> 'accepted'",
        "IF token IS NULL AND verdict <> 'accepted'",
        direct_sql.test_a_write_that_waits_for_an_update_is_judged_by_its_mark),
    Mutant("a DELETE that waited takes any token", "judge_delete", "IF verdict <> 'accepted'",
        "IF given IS NULL AND verdict <> 'accepted'",
        direct_sql.test_a_write_that_waits_for_an_update_is_judged_by_its_mark),
    Mutant("an INSERT that waited for a DELETE ignores the mark", "judge_insert", "IF mark IS NULL THEN",
        "IF true THEN", direct_sql.test_an_insert_that_waits_for_a_delete_is_judged_by_the_mark_that_it_left),
    Mutant("an INSERT that waited for one that is undone ignores the mark", "judge_insert", "IF mark IS NULL THEN",
        "IF true THEN", direct_sql.test_an_insert_that_waits_for_one_that_is_undone_is_judged_by_the_mark_before),
    Mutant("a DELETE leaves the lowest mark", "judge_delete", "VALUES (p_resource, token,", "VALUES (p_resource, 1,",
        direct_sql.test_a_write_that_waits_for_a_delete_finds_no_row_and_leaves_its_mark),
    # Partitions
    of_parts("attached rows do not take up marks", "attach_rows", "  EXECUTE raise;", "", detached),
    of_parts("attached rows do not take up the floor", "attach_rows", "  EXECUTE lift;", "",
        partitions.test_rows_that_are_attached_take_up_floor_and_marks),
    of_parts("the session's token judges the marks that are written", "attach_rows",
        "PERFORM set_config('fencepost.token', '', true), set", "PERFORM set",
        partitions.test_rows_that_are_attached_take_up_floor_and_marks),
    of_parts("detached rows leave no marks", "detach_rows", "PERFORM fencepost.leave_marks", "-- PERFORM", detached),
    of_parts("a mark that is left does not say that its row is gone", "leave_marks", "row_absent = true, ", "",
        detached),
    of_parts("a detached partition cannot be truncated", "follow_partitions",
        "'DROP TRIGGER zzz_fencepost_trunc ON %s'", "'ANALYZE %s'", detached),
    of_parts("claims in flight are not waited for", "follow_partitions",
        "EXECUTE format('LOCK TABLE ONLY %s IN ACCESS EXCLUSIVE MODE', t.root);", "",
        partitions.test_a_claim_that_has_looked_already_is_waited_for),
    of_parts("old snapshots attach and detach", "follow_partitions",
        "current_setting('transaction_isolation') <> 'read committed'", "false",
        partitions.test_an_old_snapshot_attaches_and_detaches_nothing),
    of_parts("what is known is not locked before it is read", "partitions_known", "FOR NO KEY UPDATE", "",
        partitions.test_two_partitions_that_come_at_once_are_both_known),
    of_parts("a partition that has been away is known", "partitions_unknown", "t.oid > ALL", "t.oid > 0 OR t.oid > ALL",
        again),
    # Pruning
    Mutant("the floor stays", "prune_marks", "SET floor = greatest(f.floor, raised_to)", "SET floor = f.floor",
        pruning.test_stale_insert_waits_for_the_mark_that_goes),
    Mutant("the floor stays one short", "prune_marks", "SET floor = greatest(f.floor, raised_to)",
        "SET floor = greatest(f.floor, raised_to - 1)", pruning.test_stale_writes_after_pruning_are_refused),
    Mutant("pruning waits for marks", "prune_marks", "FOR UPDATE SKIP LOCKED", "FOR UPDATE",
        pruning.test_an_insert_before_the_mark_goes_keeps_it),
    Mutant("live leases are not looked at", "prune_marks", "WHERE x.ended_at IS NULL ORDER BY", "WHERE false ORDER BY",
        pruning.test_a_live_lease_stays_above_the_floor),
    Mutant("the oldest token of a live lease may be on the floor", "prune_marks",
        "x.ended_at IS NULL ORDER BY d.first_token LIMIT 1) - 1)",
        "x.ended_at IS NULL ORDER BY d.first_token LIMIT 1) + 1)", pruning.test_a_live_lease_stays_above_the_floor),
    Mutant("an expired lease is over", "prune_marks", "WHERE x.ended_at IS NULL ORDER BY",
        "WHERE x.ended_at IS NULL AND x.expires_at > clock_timestamp() ORDER BY",
        pruning.test_an_expired_lease_without_a_successor_stays_above_the_floor),
    Mutant("grants under way are not waited for", "prune_marks",
        "coalesce(pg_snapshot_xmin(pg_current_snapshot()) < p_before, true)", "false",
        pruning.test_a_grant_under_way_stays_above_the_floor),
    Mutant("the horizon is the snapshot's", "prune_horizon", "before := pg_current_xact_id();",
        "before := pg_snapshot_xmax(pg_current_snapshot());",
        pruning.test_a_grant_younger_than_the_newest_that_has_ended_stays_above_the_floor),
    Mutant("tokens of after the horizon go too", "prune_marks", "AND k.last_fence_token <= cap", "",
        pruning.test_tokens_from_after_the_horizon_are_left_alone),
    Mutant("young marks go too", "prune_marks", "AND k.changed_at <= cutoff", "",
        pruning.test_only_old_marks_of_keys_without_a_row_go),
    Mutant("marks of live rows go too", "prune_marks", "k.row_absent AND ", "",
        pruning.test_only_old_marks_of_keys_without_a_row_go),
    Mutant("a source is asked for once", "prune_marks",
        "IF EXISTS (SELECT FROM fencepost.protected p WHERE p.source <> 'builtin'",
        "IF false AND EXISTS (SELECT FROM fencepost.protected p WHERE p.source <> 'builtin'",
        pruning.test_a_table_that_changes_its_source_meanwhile_is_not_pruned),
    Mutant("two prune at once", "prune_marks", "NOT pg_try_advisory_xact_lock(hashtextextended('fencepost.prune', 0))",
        "false", pruning.test_two_pruners_do_not_wait_for_each_other),
    # each line covers for the other
    Mutant("every source is pruned, and none is asked for again", "prune_marks", "p.source = 'builtin'", "true",
        pruning.test_a_table_of_another_source_is_not_pruned,
        more=(("prune_marks", "p.source <> 'builtin'", "false"),)),
    Mutant("pruning lowers the floor, and no trigger refuses it", "prune_marks",
        "SET floor = greatest(f.floor, raised_to)", "SET floor = raised_to",
        pruning.test_pruning_waits_for_a_generation_that_is_being_raised, more=(FLOORS_MAY_FALL,)),
    Mutant("the horizon is of a transaction that has its number already", "prune_horizon",
        "IF pg_current_xact_id_if_assigned() IS NOT NULL THEN RETURN; END IF;", "",
        pruning.test_a_horizon_is_not_asked_for_in_a_transaction_that_has_its_number_already,
        fails_with=(pytest.fail.Exception,)),
    # Generations
    tried_once("the plain case takes tokens of any generation", "{stem}_upd",
        "AND given OPERATOR(pg_catalog.>=) fencepost.oldest()", "",
        generations.test_update_under_an_old_token_is_refused),
    tried_once("a token of a setting may be of any generation", "{stem}_upd",
        "IF NEW.last_fence_token OPERATOR(pg_catalog.<) fencepost.oldest()", "IF false",
        generations.test_update_under_an_old_token_is_refused),
    tried_once("leases go on to be counted from where the copy left off", "raise_generation",
        "EXECUTE format('ALTER SEQUENCE fencepost.lease_ids START %s RESTART', first + 140737488355329);", "",
        generations.test_a_grant_under_way_is_over_once_the_generation_is_raised),
    tried_once("INSERT takes tokens of any generation", "{stem}_insmark", "OPERATOR(pg_catalog.<) fencepost.oldest()",
        "OPERATOR(pg_catalog.<) 0", generations.test_insert_under_an_old_token_is_refused),
    tried_once("DELETE takes tokens of any generation", "{stem}_del", "OPERATOR(pg_catalog.<) fencepost.oldest()",
        "OPERATOR(pg_catalog.<) 0", generations.test_delete_under_an_old_token_is_refused),
    tried_once("claims take tokens of any generation", "fencepost.require_issued(text, bigint)",
        "IF p_token < oldest AND", "IF false AND",
        generations.test_a_claim_under_an_old_token_is_refused_without_the_floor),
    tried_once("floors stay", "raise_generation", "SET floor = greatest(f.floor, first - 1)", "SET floor = f.floor",
        generations.test_keys_without_a_row_are_refused),
    tried_once("every table's floor rises", "raise_generation", "p.source = 'builtin'", "true",
        generations.test_an_external_table_takes_its_tokens_as_before),
    tried_once("leases go on", "raise_generation", "WHERE x.ended_at IS NULL;", "WHERE false;",
        generations.test_a_grant_under_way_is_over_once_the_generation_is_raised),
    tried_once("grants are met in the other order", "raise_generation",
        "LOCK TABLE fencepost.locks, fencepost.leases IN EXCLUSIVE MODE;", "",
        generations.test_a_mint_that_has_its_lease_and_no_token_yet_does_not_deadlock),
    tried_once("tokens that were moved far are not looked at", "raise_generation", "fencepost.issued() >> 48", "0",
        generations.test_a_generation_goes_beyond_tokens_that_were_moved_far),
    tried_once("the next number is taken", "raise_generation", "floor(random() * ", "floor(0 * ",
        generations.test_two_histories_raise_different_numbers),
    tried_once("the sequence goes on from where it was", "raise_generation",
        "EXECUTE format('ALTER SEQUENCE fencepost.tokens MINVALUE %s START %s RESTART', first, first);",
        "PERFORM setval('fencepost.tokens', first);", generations.test_update_under_an_old_token_is_refused),
    Mutant("a raise lowers floors, and no trigger refuses it", "raise_generation",
        "SET floor = greatest(f.floor, first - 1)", "SET floor = first - 1",
        generations.test_a_floor_that_is_higher_does_not_fall, more=(FLOORS_MAY_FALL,)),
    # Leases
    # Tokens
    Mutant("tokens are drawn before the locks are locked", "acquire", ONE, "NULL;",
        leases.test_token_is_drawn_after_the_wait, more=(("acquire", MANY, "NULL;"),
              ("acquire", "  FOREACH n IN ARRAY wanted LOOP", f"  {MANY}\n  FOREACH n IN ARRAY wanted LOOP"))),
    Mutant("the holder's lease is not locked", "acquire", "ORDER BY x.lease_id FOR UPDATE", "ORDER BY x.lease_id",
        leases.test_token_is_drawn_after_the_wait),
    Mutant("grants leave no draw", "acquire",
        "INSERT INTO fencepost.draws (first_token, tokens, lease_id, drawn_at)"
        " VALUES (drawn[1], drawn, r.lease_id, r.granted_at);", "", leases.test_repeated_secret_is_the_same_lease),
    Mutant("mints leave no draw", "extend", """INSERT INTO fencepost.draws (first_token, tokens, lease_id, drawn_at)
    VALUES (drawn[1], drawn, p_lease_id, clock_timestamp());""", "", leases.test_history_is_kept_as_long_as_asked),
    # Time
    Mutant("the clock is read before the wait", "extend", "x.secret_hash = p_hash FOR UPDATE;",
        "x.secret_hash = p_hash;", leases.test_clock_is_read_after_the_wait),
    Mutant("the clock is not read", "extend", "AND x.expires_at > clock_timestamp();", ";",
        leases.test_clock_is_read_after_the_wait),
    Mutant("a lease that another one superseded has not ended", "acquire", SUPERSEDED,
        "SET secret_hash = NULL\n      WHERE x.lease_id = ANY (before)", leases.test_superseded_lease_stays_lost),
    Mutant("a lease that has ended looks alive", "lease", "AND x.ended_at IS NULL", "",
        leases.test_superseded_lease_stays_lost),
    Mutant("a superseded lease keeps its secret, and what has ended can be renewed", "acquire", SUPERSEDED,
        "SET ended_at = clock_timestamp()\n      WHERE x.lease_id = ANY (before)",
        leases.test_superseded_lease_stays_lost, more=(("extend", "AND x.ended_at IS NULL AND", "AND"),)),
    Mutant("a swept lease keeps its secret, and what has ended can be renewed", "sweep",
        "SET ended_at = clock_timestamp(), secret_hash = NULL", "SET ended_at = clock_timestamp()",
        leases.test_swept_lease_stays_lost, more=(("extend", "AND x.ended_at IS NULL AND", "AND"),)),
    # Secrets
    Mutant("any secret renews", "extend", "x.lease_id = p_lease_id AND x.secret_hash = p_hash",
        "x.lease_id = p_lease_id", leases.test_lease_is_its_holders),
    Mutant("any secret releases", "release", "AND x.secret_hash = p_hash AND", "AND", leases.test_lease_is_its_holders),
    Mutant("a repeated secret is not recognised", "acquire", "IF FOUND AND l.ended_at IS NULL AND",
        "IF false AND l.ended_at IS NULL AND", leases.test_repeated_secret_is_the_same_lease),
    Mutant("a repeated secret finds a lease that is over", "acquire",
        "IF FOUND AND l.ended_at IS NULL AND l.expires_at > clock_timestamp() THEN", "IF FOUND THEN",
        leases.test_repeated_secret_after_expiry_is_a_new_lease),
    Mutant("a repeated secret takes any locks and claims", "acquire", "l.names = wanted AND l.claims = claimed", "true",
        leases.test_repeated_secret_of_other_locks_is_a_mismatch),
    Mutant("the secret's earlier lease goes on", "acquire", "IF l.lease_id IS NOT NULL THEN", "IF false THEN",
        leases.test_repeated_secret_after_expiry_is_a_new_lease),
    # Several locks
    Mutant("locks are taken as they are named", "acquire",
        'ARRAY(SELECT DISTINCT x COLLATE "C" FROM unnest(wanted) x ORDER BY 1)', "wanted",
        leases.test_opposite_orders_do_not_deadlock),
    Mutant("a batch waits for a lock's row", "acquire_each", "WHERE k.name = p_names[i] FOR UPDATE SKIP LOCKED",
        "WHERE k.name = p_names[i]", leases.test_a_batch_passes_by_what_others_have_locked),
    Mutant("a batch waits for a lease's row", "acquire_each", "WHERE x.lease_id = theirs FOR UPDATE SKIP LOCKED",
        "WHERE x.lease_id = theirs", leases.test_a_batch_passes_by_what_others_have_locked),
    Mutant("a batch waits for the lease that a secret had before", "acquire_each", "OR x.secret_hash = p_hashes[i]", "",
        leases.test_a_batch_passes_by_what_others_have_locked),
    Mutant("a batch waits for a grant under the same secret", "acquire_each",
        "OR NOT pg_try_advisory_xact_lock(fencepost.secret_lock(p_hashes[i]))", "",
        leases.test_a_batch_passes_by_what_others_have_locked),
    # The next row
    Mutant("a look waits for a row that is locked", "fencepost.server.postgres.next_rows.compiled", "",
        put("fencepost.server.postgres.next_rows.compiled", _without_skip_locked),
        next_rows.test_a_row_that_another_transaction_has_is_passed_by),
    Mutant("the attempts of another row's taker count", "attempts_of", "AND x.names = ARRAY[p_name]", "",
        next_rows.test_attempts_are_counted_since_another_wrote_to_the_row),
    Mutant("only the first token of a lease is one of its row's", "attempts_of", "p_mark = ANY (d.tokens)",
        "p_mark = d.tokens[1]", next_rows.test_attempts_are_counted_since_another_wrote_to_the_row),
    Mutant("a repeated request does not find its row", "taken_by", "ON x.secret_hash = hash AND",
        "ON false AND x.secret_hash = hash AND", next_rows.test_a_repeated_request_finds_its_row_again),
    Mutant("a request does not see that another one is under way", "taken_by",
        "is_busy := NOT pg_try_advisory_xact_lock(fencepost.secret_lock(hash));", "is_busy := false;",
        next_rows.test_a_repeated_request_finds_its_row_again),
    Mutant("a withdrawn secret takes rows", "taken_by",
        "EXISTS (SELECT FROM fencepost.withdrawn w WHERE w.secret_hash = hash)", "false",
        next_rows.test_who_has_gone_or_withdrawn_holds_no_row),
    Mutant("a row that is put aside keeps its count", "put_aside", ", attempt = NULL", "",
        next_rows.test_a_row_that_is_still_asked_for_when_it_is_put_aside_is_counted_anew),
    Mutant("a grant of a row tells all that there is one", "acquire_each",
        "PERFORM set_config('fencepost.taking', 'on', true);", "NULL;",
        next_rows.test_a_take_tells_nobody_that_there_are_rows),
    Mutant("only the last lock counts", "acquire", "before := before || other;", "before := ARRAY[other];",
        leases.test_all_or_none),
    # Sweeping, and the queues of locks
    # Sweeping
    Mutant("the sweeper waits", "sweep", "PERFORM FROM fencepost.locks k WHERE k.name = n FOR UPDATE SKIP LOCKED;",
        "PERFORM FROM fencepost.locks k WHERE k.name = n FOR UPDATE;", leases.test_sweep_skips_what_is_in_use),
    Mutant("the sweeper does not look again", "sweep",
        "AND NOT EXISTS (SELECT FROM fencepost.leases x WHERE x.lease_id = k.lease_id AND x.ended_at IS NULL);", ";",
        leases.test_sweep_looks_again),
    Mutant("the first draw of a live lease is forgotten", "forget", "d.first_token = x.first_token OR ", "",
        leases.test_repeated_secret_is_the_same_lease),
    Mutant("what has ended is not forgotten", "forget", "AND x.ended_at < cutoff", "AND false",
        leases.test_idle_locks_leave_nothing),
    # The queue
    Mutant("a free lock is anybody's", "acquire", "WHERE fencepost.first_waiter(u) < coalesce",
        "WHERE false AND fencepost.first_waiter(u) < coalesce", lease_queue.test_no_request_passes_those_that_wait),
    Mutant("one free lock of two is enough to pass", "acquire", "WHERE fencepost.first_waiter(u) < coalesce",
        "WHERE u = wanted[cardinality(wanted)] AND cardinality(wanted) > 1 AND fencepost.first_waiter(u) < coalesce",
        lease_queue.test_several_locks_are_not_starved),
    Mutant("release wakes no waiter", "release", "RETURN fencepost.wake(released, p_gateway);", "RETURN '{}';",
        lease_queue.test_release_wakes_the_first_and_no_other),
    Mutant("the last of the queue is woken", "wake", "ORDER BY x.ticket LIMIT 1", "ORDER BY x.ticket DESC LIMIT 1",
        lease_queue.test_release_wakes_the_first_and_no_other),
    Mutant("the waiters of the gateway that releases are woken by NOTIFY", "wake", "IF w.gateway = p_gateway THEN",
        "IF false THEN", lease_queue.test_release_notifies_its_own_gateway_directly),
    Mutant("leaving does not wait for who is getting in line", "leave",
        "WHERE k.name = ANY (left_behind) ORDER BY k.name FOR UPDATE;", "WHERE false;",
        lease_queue.test_who_gets_in_line_while_the_first_leaves_is_woken),
    Mutant("leaving wakes no waiter", "leave", "PERFORM fencepost.wake(left_behind, NULL);", "NULL;",
        lease_queue.test_leaving_wakes_the_next),
    Mutant("a heartbeat wakes no waiter", "beat", "PERFORM fencepost.wake(left_behind, NULL);", "NULL;",
        lease_queue.test_leaving_wakes_the_next),
    Mutant("retiring wakes no waiter", "retire", "PERFORM fencepost.wake(left_behind, NULL);", "NULL;",
        lease_queue.test_leaving_wakes_the_next),
    Mutant("a last try wakes no waiter", "acquire", "IF FOUND THEN PERFORM fencepost.wake(wanted, NULL); END IF;", "",
        lease_queue.test_leaving_wakes_the_next),
    Mutant("waiters that gave up count", WAITERS, "> clock_timestamp()) AND", "IS NOT NULL) AND",
        lease_queue.test_no_request_waits_for_the_dead),
    Mutant("waiters of a silent gateway count", WAITERS, "gateway IS NULL) OR", "gateway IS NULL) OR true OR",
        lease_queue.test_no_request_waits_for_the_dead),
    Mutant("a repeat is not the one that is woken", "acquire", "SET gateway = p_gateway, visit = p_visit,",
        "SET gateway = p_gateway,", lease_queue.test_repeat_keeps_the_place),
    Mutant("a repeat queues anew", "acquire", "WHERE w.secret_hash = p_hash AND w.give_up_at > clock_timestamp()",
        "WHERE false", lease_queue.test_repeat_keeps_the_place),
    Mutant("the first of two requests takes the place along", "acquire", "WHERE w.visit = p_visit;",
        "WHERE w.ticket = r.ticket;", lease_queue.test_earlier_request_does_not_take_the_place_along),
    Mutant("a place that was given up is there again", "acquire",
        "WHERE w.secret_hash = p_hash AND w.give_up_at > clock_timestamp()", "WHERE w.secret_hash = p_hash",
        lease_queue.test_place_is_kept_for_a_while),
    Mutant("a place is not kept", "leave", "IF p_keep_ms > 0 THEN", "IF false THEN",
        lease_queue.test_place_is_kept_for_a_while),
    Mutant("a heartbeat says nothing to those without a place", "beat", "FROM unnest(p_visits) v WHERE",
        "FROM unnest(p_visits) v WHERE false AND", lease_queue.test_beat_notifies_those_without_a_place),
    Mutant("a heartbeat names those who are first for one lock of two", "beat", "HAVING count(*) =",
        "HAVING count(*) <=", lease_queue.test_beat_names_who_is_first),
    Mutant("a lease in the way keeps the time that it had before the clock stepped back", "acquire",
        "SET expires_at = fencepost.within_ttl(x.expires_at, x.ttl_ms)", "SET expires_at = x.expires_at",
        leases.test_lease_in_the_way_counts_from_the_request_that_meets_it),
    Mutant("a lease shows the time that it had before the clock stepped back", "lease",
        "fencepost.within_ttl(x.expires_at, x.ttl_ms) w", "(SELECT x.expires_at) w",
        leases.test_lease_never_shows_more_than_its_ttl),
    Mutant("a mint keeps the time that the lease had before the clock stepped back", "extend",
        "ELSE fencepost.within_ttl(x.expires_at, x.ttl_ms) END", "ELSE x.expires_at END",
        leases.test_holder_mints_on_and_its_lease_counts_anew),
    Mutant("a waiter sleeps for as long as the clock stepped back", "beat", "ELSE 0 END", "ELSE 3600000 END",
        leases.test_waiter_is_sent_to_try_and_the_lease_counts_anew),
    Mutant("leases that no request meets keep the time that they had before the clock stepped back", "sweep",
        "SET expires_at = fencepost.within_ttl(x.expires_at, x.ttl_ms)", "SET expires_at = x.expires_at",
        leases.test_sweeping_counts_leases_anew_that_no_request_meets),
    Mutant("a kept place counts for as long as the clock stepped back", WAITERS, "kept_ms IS NULL) OR",
        "kept_ms IS NULL) OR true OR", leases.test_kept_place_of_before_is_no_place_in_the_queue),
    Mutant("for how long a place is kept is not written down", "leave", "kept_ms = p_keep_ms,", "",
        leases.test_kept_place_of_before_is_no_place_in_the_queue),
    Mutant("a place that was kept is one for good", "acquire", "visit = p_visit, kept_ms = NULL,", "visit = p_visit,",
        leases.test_kept_place_of_before_is_there_for_the_waiter_that_comes_back),
    Mutant("a kept place stays for as long as the clock stepped back", "sweep",
        "OR w.give_up_at > clock_timestamp() + w.kept_ms * interval '1 ms'", "",
        leases.test_kept_place_of_before_is_swept),
    # Scopes
    of_items("the mark is not raised", "enter", "refused_by := fencepost.raise_mark(scope, p_token, found_rule, true);",
        "refused_by := NULL;", scopes.test_first_touch_is_ordered),
    of_items("the mark looks like that of a row", "enter", "found_rule, true)", "found_rule, false)",
        scopes.test_pruned_scope_leaves_a_floor),
    of_items("the rule is always epoch", "enter", "p_token, found_rule, true", "p_token, 'epoch', true",
        scopes.test_first_touch_is_ordered),
    of_items("the rule is always strict", "enter", "p_token, found_rule, true", "p_token, 'strict', true",
        scopes.test_first_touch_is_ordered, scopes.EPOCH),
    of_items("the floor is not asked", "enter", "IF NOT fencepost.accepts(found_rule, lowest, p_token)", "IF false",
        scopes.test_pruned_scope_leaves_a_floor),
    of_items("the floor's own token passes", "enter", "accepts(found_rule, lowest,", "accepts('epoch', lowest,",
        scopes.test_pruned_scope_leaves_a_floor),
    of_items("the floor's own token is refused under epoch", "enter", "accepts(found_rule, lowest,",
        "accepts('strict', lowest,", scopes.test_pruned_scope_leaves_a_floor, scopes.EPOCH),
    of_items("the floor is read before the mark is waited for", "enter",
        "refused_by := fencepost.raise_mark(scope, p_token, found_rule, true);\n    IF refused_by IS NULL THEN",
        "SELECT f.floor INTO lowest FROM fencepost.floors f WHERE f.name = p_prefix;"
        " refused_by := fencepost.raise_mark(scope, p_token, found_rule, true);"
        " IF refused_by IS NULL AND lowest >= p_token THEN refused_by := lowest; END IF; IF false THEN",
        scopes.test_a_stale_first_touch_waits_for_the_pruning_and_meets_the_floor),
    of_items("an old snapshot reads an old floor of a scope", "enter", "f.name = p_prefix FOR SHARE",
        "f.name = p_prefix", scopes.test_old_snapshot_fails),
    of_items("an old snapshot reads an old rule", "enter", "LIMIT 1 FOR SHARE", "LIMIT 1",
        scopes.test_an_old_snapshot_reads_no_old_rule),
    of_items("a scope of no table is entered", "enter", "IF NOT FOUND THEN", "IF false THEN",
        scopes.test_a_scope_of_no_table_is_not_entered),
    of_items("the table's scope is not looked up again", "enter", "IF p_table IS NOT NULL AND", "IF false AND",
        scopes.test_a_table_that_left_the_scope_is_not_entered_for),
    of_items("a table leaves the scope while it is entered", "enter", "PERFORM pg_advisory_xact_lock_shared(",
        "PERFORM hashtextextended('', 0), (", scopes.test_a_table_that_left_the_scope_is_not_entered_for),
    of_items("scopes are taken in another order", "enter", "ORDER BY 1 LOOP", "ORDER BY 1 DESC LOOP",
        scopes.test_crossing_writers_do_not_deadlock),
    of_items("unissued tokens pass", "enter", "IF passed AND found_source", "IF false AND found_source",
        scopes.test_tokens_that_were_never_issued_are_refused),
    of_items("every transaction has entered", "judge_scope",
        "AND k.xid = pg_current_xact_id() AND fencepost.is_own_write(k.xmin)", "", scopes.test_direct_sql_is_judged),
    of_items("no transaction has entered", "judge_scope", "IF FOUND THEN RETURN; END IF;", "",
        scopes.test_cascades_are_judged_by_the_scopes_of_what_they_reach),
    of_items("the refusal is not raised", "judge_scope", "IF refused IS NOT NULL", "IF false",
        scopes.test_direct_sql_is_judged),
    of_items("no token passes", "judge_scope", "IF token IS NULL THEN", "IF token IS NULL THEN RETURN;",
        scopes.test_direct_sql_is_judged),
    of_items("the glass is always broken", "judge_scope", "IF token IS NULL THEN\n    PERFORM fencepost.enforce(",
        "IF true THEN\n    PERFORM concat(", scopes.test_direct_sql_is_judged),
    of_items("broken glass is not recorded", "judge_scope", "PERFORM fencepost.enforce('no token',", "PERFORM concat(",
        scopes.test_broken_glass_is_recorded_and_a_claim_waits_for_it),
    of_items("broken glass is recorded once per scope only", "judge_scope", "PERFORM fencepost.meet_mark(p_scope);",
        "UPDATE fencepost.marks k SET xid = pg_current_xact_id() WHERE k.resource = p_scope;",
        scopes.test_broken_glass_is_recorded_and_a_claim_waits_for_it),
    of_items("broken glass takes no lock on the mark", "judge_scope", "PERFORM fencepost.meet_mark(p_scope);", "",
        scopes.test_broken_glass_is_recorded_and_a_claim_waits_for_it),
    of_items("rows without a scope pass", "no_scope", "RAISE EXCEPTION", "RETURN; RAISE EXCEPTION",
        scopes.test_direct_sql_is_judged),
    of_items("rows change their scope", TRIGGER, "IF scope IS DISTINCT FROM ", "IF false AND scope IS DISTINCT FROM ",
        scopes.test_direct_sql_is_judged),
    of_items("a null in the template is let through", TRIGGER, "IF scope IS NULL THEN", "IF false THEN",
        scopes.test_direct_sql_is_judged),
    of_items("the trigger judges no write", TRIGGER, "PERFORM fencepost.judge_scope(", "--",
        scopes.test_direct_sql_is_judged),
    instead("rows are not looked at again after an INSERT", "DROP TRIGGER zzz_fencepost_scope_ins ON items",
        scopes.test_a_later_trigger_moves_no_row_into_a_scope_unjudged),
    instead("rows are not looked at again after an UPDATE", "DROP TRIGGER zzz_fencepost_scope_upd ON items",
        scopes.test_a_later_trigger_moves_no_row_into_a_scope_unjudged),
    instead("nothing depends on the columns of the scope",
        "DROP TRIGGER zzz_fencepost_scope_upd ON items;"
        "CREATE OR REPLACE FUNCTION fencepost.{of}(r items) RETURNS text LANGUAGE plpgsql IMMUTABLE AS"
        " $$ BEGIN RETURN 'account/' || r.account_id; END $$", scopes.test_a_column_of_the_scope_keeps_its_type),
    instead("the scope is read by the columns' names",
        "CREATE OR REPLACE FUNCTION fencepost.{of}(r items) RETURNS text LANGUAGE plpgsql IMMUTABLE AS"
        " $$ BEGIN RETURN 'account/' || r.account_id; END $$", scopes.test_a_renamed_column_stays_the_scopes),
    instead("TRUNCATE passes", "DROP TRIGGER zzz_fencepost_trunc ON items", scopes.test_direct_sql_is_judged),
    instead("DELETE is not judged",
        "CREATE OR REPLACE TRIGGER zzz_fencepost_scope BEFORE INSERT OR UPDATE ON items FOR EACH ROW"
        " EXECUTE FUNCTION fencepost.{function}()", scopes.test_direct_sql_is_judged),
    instead("UPDATE is not judged",
        "CREATE OR REPLACE TRIGGER zzz_fencepost_scope BEFORE INSERT OR DELETE ON items FOR EACH ROW"
        " EXECUTE FUNCTION fencepost.{function}()", scopes.test_direct_sql_is_judged),
    # Triggers that see their own row only
    swapped("a trigger's function that was replaced is believed", "fencepost.server.postgres.keyed.or_changed_code",
        lambda _: "", batches.test_a_body_that_is_replaced_unheard_sees_no_neighbour),
    Mutant("a vouched trigger's token is the next row's", "fencepost.server.postgres.row_sql._NOTHING_LEFT",
        "OPERATOR(pg_catalog.=) ''", "IS NOT NULL", batches.test_an_owner_vouches_for_triggers_that_are_not_understood),
    swapped("every trigger shares", "fencepost.server.postgres.catalog_cache.sees_own_row_only", lambda *_: True,
        batches.test_which_bodies_see_their_own_row_only),
    swapped("a function may have any option", "fencepost.server.postgres.trigger_reader._OPTIONS",
        re.compile(r"[^\n]*\n"), batches.test_which_triggers_and_what_stands_in_the_place_of_a_name),
    *(
        Mutant(name, f"fencepost.server.postgres.catalog_cache.{where}", old, new,
            batches.test_which_triggers_and_what_stands_in_the_place_of_a_name)
        for name, where, old, new in (
            ("a trigger may fire at any time", "RELATIONS", "t.tgtype & 67 = 3", "true"),
            ("an owner may vouch for triggers of statements", "RELATIONS", "t.tgtype & 1 = 1 AND ", ""),
            ("an owner may vouch for deferrable triggers", "RELATIONS", " AND NOT t.tgdeferrable))", "))"),
            ("WHEN may call anything of PostgreSQL's", "RELATIONS", "AND q.provolatile = 'i'", ""),
            ("WHEN may call users' functions", "RELATIONS", "AND q.oid < 16384", ""),
            ("WHEN may make a value of any domain", "RELATIONS", "|COERCETODOMAIN", ""),
            ("what is in pg_catalog is PostgreSQL's", "SHADOWED", "f.oid >= 16384 AND f.proname",
                "f.pronamespace <> 'pg_catalog'::regnamespace AND f.proname"),
            ("a constant is of no type of a user's", "SHADOWED", "(f.provolatile = 'i' OR l.lanname IN", "('c' IN"),
            ("an enum becomes nothing else", "SHADOWED", " OR s.typtype = 'e'", ""),
            ("no operator is in another's place", "SHADOWED", "o.oprname = ANY($1::text[])", "false"),
            ("no function is in another's place", "SHADOWED", "f.proname = ANY($1::text[])", "false"),
            ("no type is in another's place", "SHADOWED", "y.typname = ANY($1::text[])", "false"),
            ("no cast is in another's place", "SHADOWED", "k.castfunc >= 16384", "false"),
        )
    ),
    # Batches
    may_hang("unissued tokens enter where there is a mark", "enter_each", "AND u.token BETWEEN oldest AND highest) x",
        ") x", batches.test_an_unissued_token_stays_out_where_there_is_a_mark),
    may_hang("unissued tokens enter where there is none", "enter_each", "AND p_token BETWEEN oldest AND highest\n",
        "\n", batches.test_an_unissued_token_stays_out_where_there_is_no_mark),
    may_hang("the floor is asked once", "enter_each", "WHERE lowest < u.token AND u.token", "WHERE u.token",
        batches.test_a_floor_counts_above_a_mark),
    may_hang("the floor is not asked again", "enter_each",
        "IF NOT fencepost.accepts(found_rule, lowest, first_entered)", "IF false",
        batches.test_a_floor_that_rises_meanwhile_undoes_what_was_entered),
    may_hang("what enters first is not held against the floor", "enter_each",
        "entered[number] := true;\n    first_entered := least(first_entered, p_token);", "entered[number] := true;",
        batches.test_a_floor_that_rises_meanwhile_undoes_what_was_entered),
    may_hang("any token passes a mark", "enter_each", "AND h.last_fence_token < u.token\n", "\n",
        batches.test_a_mark_refuses),
    may_hang("a mark's own token passes", "enter_each", "h.last_fence_token < u.token\n",
        "h.last_fence_token <= u.token\n", batches.test_a_mark_refuses),
    may_hang("the rule is always strict, in a batch", "enter_each", "p_token, found_rule, true",
        "p_token, 'strict', true", batches.test_a_mark_refuses, batches.EPOCH),
    may_hang("marks are waited for", "enter_each", "FOR UPDATE SKIP LOCKED) h", "FOR UPDATE) h",
        batches.test_a_mark_that_is_locked_is_not_waited_for),
    may_hang("marks are waited for one by one", "enter_each", "k.resource = scope FOR UPDATE SKIP LOCKED",
        "k.resource = scope FOR UPDATE", batches.test_a_mark_that_is_locked_is_not_waited_for),
    may_hang("a mark that is held is not there", "enter_each", "verdict := 'busy';\n      ELSIF",
        "verdict := 'entered';\n      ELSIF", batches.test_a_mark_that_is_locked_is_not_waited_for),
    may_hang("two enter one scope", "enter_each", "ELSIF FOUND AND EXISTS", "ELSIF false AND EXISTS",
        batches.test_one_operation_enters_a_scope_and_the_mark_is_its_token, batches.EPOCH),
    may_hang("the mark looks like that of a row, in a batch", "enter_each", "row_absent = true", "row_absent = false",
        batches.test_one_operation_enters_a_scope_and_the_mark_is_its_token),
    may_hang("the table's scope is not looked up again, in a batch", "enter_each", "AND p.scope = p_template", "",
        batches.test_a_scope_of_no_table_is_not_entered),
    may_hang("the key's lock is not asked", "idem_begin_each", "CASE WHEN u.ours THEN 'new' ELSE 'in flight' END",
        "'new'", batches.test_keys_are_distinguished),
    may_hang("the key's lock outlives a refusal", "idem_begin_each", "pg_try_advisory_xact_lock",
        "pg_try_advisory_lock", batches.test_keys_are_distinguished),
    may_hang("any payload will do, in a batch", "idem_begin_each", "WHEN i.payload_hash <> u.hash THEN 'reused'", "",
        batches.test_keys_are_distinguished),
    may_hang("a replay leaves nothing in the log", "idem_begin_each",
        "OR pg_logical_emit_message(true, 'fencepost', '') IS NOT NULL", "OR true",
        batches.test_keys_are_distinguished),
    # Idempotency-Key
    may_hang("the key's lock is not tried", "idem_begin", "IF NOT pg_try_advisory_xact_lock",
        "IF false AND NOT pg_try_advisory_xact_lock", idempotency.test_two_racers_with_one_key_land_once),
    may_hang("the lock outlives a refusal", "idem_begin", "pg_try_advisory_xact_lock", "pg_try_advisory_lock",
        idempotency.test_a_refusal_gives_its_key_back),
    may_hang("the first look-up is missing", "idem_begin", "IF NOT FOUND THEN\n    IF NOT pg_try",
        "IF true THEN\n    IF NOT pg_try",
        idempotency.test_a_write_that_landed_is_replayed_after_its_lock_changed_hands),
    may_hang("any payload will do", "idem_begin", "IF r.payload_hash <> p_hash", "IF false",
        idempotency.test_a_key_is_for_one_payload),
    may_hang("nothing is recorded", "idem_record", "THEN 'applied' END", "THEN 'applied' END WHERE false",
        idempotency.test_a_write_that_landed_is_replayed_after_the_lock_changed_hands),
    may_hang("new records are forgotten", "prune_idempotency",
        "WHERE i.created_at < clock_timestamp() - p_keep_s * interval '1 s'", "WHERE true",
        idempotency.test_only_old_records_are_forgotten),
    Mutant("the error of a record that is there is not known", "fencepost.server.gateway.idempotency.RECORD", "",
        put("fencepost.server.gateway.idempotency.RECORD", ("another", "key", "23505")),
        idempotency.test_a_lock_that_was_got_around_ends_in_a_replay),
    Mutant("the second look-up is missing, and the error of a record that is there is not known", "idem_begin",
        f"    {idempotency.LOOK_UP_AGAIN}\n    IF NOT FOUND", "    IF true",
        idempotency.test_a_record_that_commits_between_look_up_and_lock_is_seen,
        more=(("fencepost.server.gateway.idempotency.RECORD", "",
               put("fencepost.server.gateway.idempotency.RECORD", ("another", "key", "23505"))),)),
    # Queues
    Mutant("a loss of an earlier generation quarantines", "queue_quarantine",
        "b.generation <= coalesce(p_generation, b.generation)", "true",
        queues.test_a_loss_that_was_found_before_the_raise_quarantines_no_more),
    Mutant("an append does not lock its key", "queue_append", "pg_advisory_xact_lock(k.lock)", "k.lock",
        queues.test_an_append_waits_for_an_earlier_one_of_its_key),
    Mutant("done deletes all up to an offset", "queue_done", "q.partition = t.partition AND q.position = t.position",
        "q.partition = t.partition AND q.position <= t.position", queues.test_done_leaves_what_was_committed_meanwhile),
    Mutant("a partition is read from what was taken last", "queue_take", "WHERE x.partition = o.partition\n",
        "WHERE x.partition = o.partition AND x.position > coalesce((SELECT max(m) FROM unnest(p_taken) m), -1)\n",
        queues.test_a_lower_offset_is_taken_after_a_higher_one),
    Mutant("a member takes what is another's", "queue_take", " AND o.member = p_member AND o.until > clock_timestamp()",
        "", queues.test_an_owner_that_was_paused_takes_nothing_of_its_successors),
    Mutant("a member takes after its time", "queue_take", " AND o.until > clock_timestamp()", "",
        queues.test_an_owner_that_was_paused_takes_nothing_of_its_successors),
    Mutant("a partition of a live member is free", "queue_own", "x.until < clock_timestamp() OR", "true OR",
        queues.test_an_owner_that_was_paused_takes_nothing_of_its_successors),
    Mutant("a member gives up what it is busy with", "queue_own", " AND x.partition <> ALL (p_busy)", "",
        queues.test_members_share_and_keep_what_they_are_busy_with),
    Mutant("members wait for each other", "queue_own", "LIMIT greatest(share - has, 0) FOR UPDATE SKIP LOCKED",
        "LIMIT greatest(share - has, 0) FOR UPDATE", queues.test_members_that_come_at_once_do_not_wait_for_each_other),
    Mutant("a late answer is a fault", "queue_check",
        "IF p_before IS NULL OR cardinality(p_before) = 0 THEN verdict := 'again';",
        "IF p_before IS NULL OR cardinality(p_before) = 0 THEN verdict := 'quarantined';",
        queues.test_a_late_answer_is_no_fault),
    Mutant("who comes second to a first look takes it for a fault", "queue_check",
        "p_before IS NULL OR cardinality(p_before) = 0", "p_before IS NULL", queues.test_two_first_looks_are_no_fault),
    Mutant("a late answer is compared with what was recorded since", "queue_check",
        "p_incarnation, p_before, p_ends, p_before_epochs, p_epochs",
        "p_incarnation, q.ends, p_ends, q.leader_epochs, p_epochs", queues.test_a_late_answer_is_no_fault),
    Mutant("the first look of a generation may be from before it", "queue_check",
        "IF p_generation IS NULL THEN verdict := 'again'; RETURN; END IF;", "",
        queues.test_tokens_up_to_the_ends_are_issued),
    Mutant("ends may fall", "queue_fault", "WHERE u.is_now < u.was ORDER BY u.o LIMIT 1;",
        "WHERE false ORDER BY u.o LIMIT 1;", queues.test_a_log_that_lost_messages_quarantines),
    Mutant("leader epochs may go back", "queue_fault", "WHERE u.is_now < u.was ORDER BY u.o LIMIT 1;",
        "WHERE false ORDER BY u.o LIMIT 1;", queues.test_a_leader_epoch_that_went_back_quarantines),
    Mutant("any log of the name will do", "queue_fault", "IF p_was <> p_incarnation THEN", "IF false THEN",
        queues.test_a_log_that_was_made_again_quarantines),
    Mutant("partitions may be added", "queue_fault", "IF cardinality(p_recorded) <> cardinality(p_ends) THEN",
        "IF false THEN", queues.test_a_log_that_got_other_partitions_quarantines),
    Mutant("what was taken before a generation was raised is written", "queue_check",
        "IF generation <> p_generation THEN verdict := 'raised'; RETURN; END IF;", "",
        queues.test_a_check_waits_for_a_raise_under_way),
    Mutant("a check does not lock the source", "queue_check",
        "IF locked = 1 THEN PERFORM FROM fencepost.sources s WHERE s.name = p_source FOR NO KEY UPDATE; END IF;", "",
        queues.test_a_check_waits_for_a_raise_under_way),
    Mutant("the database's own log outlives its failover", "queue_register",
        "CASE p_kind WHEN 'postgres' THEN 'database' ELSE 'lock' END", "'lock'",
        queues.test_a_raised_generation_of_the_database_is_one_of_its_own_log),
    Mutant("records of messages are forgotten like all others", "prune_idempotency",
        "i.caller <> 'queue' OR fencepost.queue_forgettable(i.key)", "true",
        queues.test_records_go_when_they_are_committed_and_not_before),
    Mutant("a record is forgotten before it is known what is committed", "queue_forgettable", "p.committed IS NULL OR ",
        "", queues.test_after_a_raise_what_is_committed_is_asked_anew),
    Mutant("the first message that is not committed counts as committed", "queue_forgettable",
        "BETWEEN p.committed AND", "BETWEEN p.committed + 1 AND",
        queues.test_records_go_when_they_are_committed_and_not_before),
    Mutant("what was committed is of any generation", "queue_committed", "IS DISTINCT FROM p_generation THEN RETURN",
        "IS NULL THEN RETURN", queues.test_after_a_raise_what_is_committed_is_asked_anew),
    Mutant("what is said during a raise is of the new generation", "queue_committed",
        "PERFORM FROM fencepost.sources s WHERE s.name = p_source FOR SHARE;", "",
        queues.test_what_is_said_during_a_raise_is_of_the_generation_before),
    Mutant("a raise leaves what was committed", "fencepost.queue_forget(text)", ", committed = NULL", "",
        queues.test_after_a_raise_what_is_committed_is_asked_anew),
    Mutant("a caller's record is forgotten while a copy waits", "prune_idempotency",
        "coalesce(i.owner, i.claimed) IS NULL", "true",
        queues.test_a_callers_record_goes_when_no_copy_of_its_time_waits),
    Mutant("a moment counts before all that came is decided", "queue_looked",
        "(u.below BETWEEN u.wanted AND u.upto) IS NOT TRUE", "u.below IS NULL",
        queues.test_a_callers_record_goes_when_no_copy_of_its_time_waits),
    Mutant("a position of another log counts", "queue_looked", "u.below BETWEEN u.wanted AND u.upto",
        "u.below >= u.wanted", queues.test_a_callers_record_goes_when_no_copy_of_its_time_waits),
    Mutant("a look at another log counts", "queue_looked", " AND q.incarnation = p_incarnation", "",
        queues.test_a_callers_record_goes_when_no_copy_of_its_time_waits),
    Mutant("a record goes at once", "queue_looked", "forget_to = q.applied_to", "forget_to = q.looked_at",
        queues.test_a_callers_record_goes_when_no_copy_of_its_time_waits),
    Mutant("looks come at once", "queue_looked", " - interval '1 minute'", " + interval '1 minute'",
        queues.test_a_callers_record_goes_when_no_copy_of_its_time_waits),
    Mutant("looks wait until a clock that was set back is there again", "queue_looked",
        "q.looked_at > to_timestamp(p_at) + interval '10 minutes'", "false",
        queues.test_a_clock_that_is_set_back_holds_no_records_back),
    Mutant("clocks are one", "fencepost.queue_no_copy_waits(text, timestamptz)", " + interval '10 minutes'", "",
        queues.test_a_callers_record_goes_when_no_copy_of_its_time_waits),
    Mutant("the first message that is not committed is one that is", "queue_is_committed", "p.committed > p_offset",
        "p.committed >= p_offset", queues.test_records_go_when_they_are_committed_and_not_before),
    # Break-glass
    glass("who may not break the glass breaks it", "break_glass",
        "NOT has_function_privilege(session_user, 'fencepost.may_break_glass()', 'EXECUTE')", "false",
        break_glass.test_a_role_without_privileges_learns_what_it_lacks),
    glass("who calls a function breaks the glass as its owner", "break_glass", "has_function_privilege(session_user,",
        "has_function_privilege(current_user,",
        break_glass.test_a_function_that_runs_as_its_owner_does_not_open_the_case_for_its_caller),
    glass("no reason is a reason", "break_glass", "OR reason = ''", "",
        break_glass.test_an_empty_reason_leaves_the_glass_whole),
    glass("statements are recorded by their table's triggers too", "record_break_glass", "pg_trigger_depth() = 0",
        "false", break_glass.test_no_record_hides_another),
    glass("a record names its statement and not its reason", "record_break_glass",
        "concat_ws(E'\\n', current_setting('fencepost.break_glass'), ", "concat(",
        break_glass.test_no_record_hides_another),
    glass("a record names its reason and not its statement", "record_break_glass",
        "'fencepost.break_glass'), current_query())", "'fencepost.break_glass'))",
        break_glass.test_one_record_for_a_transaction_a_table_a_verb_and_a_statement),
    glass("who may not break the glass records", "record_break_glass", "IF NOT fencepost.break_glass() THEN",
        "IF false THEN", break_glass.test_a_role_that_may_not_break_the_glass_records_and_learns_nothing),
    glass("a record has no statement", "record_break_glass", "current_query()", "''",
        break_glass.test_a_record_names_who_why_and_how),
    glass("an UPDATE without a token is not recorded", "judge_update", "PERFORM fencepost.enforce(", "PERFORM concat(",
        break_glass.test_an_operator_writes_without_a_token_and_no_mark_falls),
    glass("a DELETE without a token is not recorded", "judge_delete", "PERFORM fencepost.enforce(", "PERFORM concat(",
        break_glass.test_an_operator_writes_without_a_token_and_no_mark_falls),
    glass("an INSERT without a token is not recorded", "judge_insert", "PERFORM fencepost.enforce('no token',",
        "PERFORM concat(", break_glass.test_an_insert_under_the_marks_own_token_does_not_pass_unrecorded),
    glass("a plain INSERT is not recorded", "{stem}_insmark", "AND (current_setting('fencepost.break_glass', true)",
        "AND true OR (current_setting('fencepost.break_glass', true)",
        break_glass.test_an_insert_under_the_marks_own_token_does_not_pass_unrecorded),
    glass("no use is recorded", "enforce", "PERFORM fencepost.record_break_glass(", "PERFORM concat(",
        break_glass.test_an_operator_writes_without_a_token_and_no_mark_falls),
    glass("an UPDATE behind glass lowers the mark", "judge_update", "RETURN greatest(old_mark, token)",
        "RETURN coalesce(token, 0)", break_glass.test_an_operator_writes_without_a_token_and_no_mark_falls),
    glass("a DELETE behind glass leaves a lower mark", "judge_delete", "greatest(old_mark, given)",
        "coalesce(given, 0)", break_glass.test_a_deleted_key_stays_deleted_for_the_stale_holder),
    glass("a DELETE behind glass is judged by the mark of before", "judge_delete", "IF token = 0 THEN", "IF true THEN",
        break_glass.test_an_operator_who_waits_for_a_newer_holder_keeps_the_newer_mark),
    glass("a row that is made behind glass does not take the key's mark", "judge_insert", "rule := 'epoch';", "",
        break_glass.test_an_operator_writes_without_a_token_and_no_mark_falls),
    glass("a row that is made behind glass does not wait for the mark", "judge_insert",
        "CASE WHEN p_token = 0 THEN fencepost.meet_mark(p_resource)", "CASE WHEN p_token = 0 THEN NULL",
        break_glass.test_a_claim_waits_for_a_row_that_is_inserted_behind_glass),
    glass("a row that is made behind glass undercuts the mark", "judge_insert", "IF mark IS NULL THEN", "IF true THEN",
        break_glass.test_a_row_behind_glass_waits_for_a_claim_and_does_not_undercut_it),
    glass("a row that is made behind glass leaves its mark behind", "fencepost.meet_mark(text)",
        "DELETE FROM fencepost.marks k WHERE k.resource = p_resource;", "",
        break_glass.test_a_new_row_is_met_by_the_first_token_of_its_key),
    glass("a row that is made behind glass starts at 0", "fencepost.mark_behind_glass(text, text, bigint)",
        "fencepost.mark_without_row(tab, p_resource)", "0",
        break_glass.test_an_operator_writes_without_a_token_and_no_mark_falls),
    glass("a token beside the reason does not count", "fencepost.mark_behind_glass(text, text, bigint)",
        "greatest(given, ", "greatest(", break_glass.test_a_token_beside_the_reason_counts_where_it_is_newer),
    glass("the mark of a key without a row is not read", "fencepost.mark_without_row(text, text)", "AND k.row_absent",
        "AND false", break_glass.test_an_operator_writes_without_a_token_and_no_mark_falls),
    glass("the log can be changed", "fencepost.append_only()", "RAISE EXCEPTION", "RETURN NULL; RAISE EXCEPTION",
        break_glass.test_the_log_is_append_only_for_its_owner_too),
    # Each place that judges
    judged("the mark's own token is newer", "accepts", "mark < token", "mark <= token"),
    judged("the next token is not newer", "accepts", "mark < token", "mark + 1 < token"),
    judged("the mark's own token is refused under epoch", "accepts", "mark = token", "false", rule="epoch"),
    judged("the rules are mixed up", "accepts", "rule = 'epoch'", "rule = 'strict'"),
    judged("spent is called stale", "verdict", "'spent'", "'stale'"),
    judged("every refusal of a write with a token passes", "enforce", "verdict = 'own'", "verdict <> 'no token'"),
    judged("UPDATE is judged by epoch", "judge_update", "verdict(rule,", "verdict('epoch',"),
    judged("UPDATE is judged by strict under epoch", "judge_update", "verdict(rule,", "verdict('strict',",
        rule="epoch"),
    judged("INSERT is judged by epoch", "judge_insert", "verdict(rule,", "verdict('epoch',"),
    judged("DELETE is judged by epoch", "judge_delete", "verdict(p_rule,", "verdict('epoch',"),
    judged("marks are raised by epoch", "raise_mark", "verdict(p_rule,", "verdict('epoch',"),
    judged("scopes are entered by epoch", "enter", "accepts(found_rule,", "accepts('epoch',"),
    judged("scopes are entered by epoch in a batch", "enter_each", "h.last_fence_token < u.token",
        "h.last_fence_token <= u.token"),
    judged("one token too many was issued in a batch", "enter_each", "BETWEEN oldest AND highest",
        "BETWEEN oldest AND highest + 1", "issued"),
    judged("one token of the generation before counts in a batch", "enter_each", "BETWEEN oldest AND highest",
        "BETWEEN oldest - 1 AND highest", "generation"),
    judged("leaps in a batch go one further", "enter_each", "<= found_jump", "<= found_jump + 1", "jump"),
    judged("one token too many was issued", REQUIRE_ISSUED, "p_token > issued", "p_token > issued + 1", "issued"),
    judged("one token of the generation before counts", REQUIRE_ISSUED, "p_token < oldest", "p_token < oldest - 1",
        "generation"),
    judged("one token too many was issued by the service", REQUIRE_ISSUED_BY_SOURCE, "p_token > issued",
        "p_token > issued + 1", "service"),
    judged("one token of the service's generation before counts", REQUIRE_ISSUED_BY_SOURCE, "p_token < oldest",
        "p_token < oldest - 1", "service's generation"),
    judged("the ceiling is one higher", "beyond", "p_token > p_max_token", "p_token > p_max_token + 1", "ceiling"),
    judged("leaps go one further", "beyond", "base > p_max_jump", "base > p_max_jump + 1", "jump"),
    judged("leaps are not measured from the floor, where all judge", "beyond", "greatest(p_mark, p_floor, 0)",
        "greatest(p_mark, 0)", "jump"),
    judged("the plain case takes an older token", "{stem}_upd", "given OPERATOR(pg_catalog.>) OLD", "given <> OLD"),
    judged("the plain case takes one token too many that was issued", "{stem}_upd",
        "(pg_catalog.<=) fencepost.issued()", "(pg_catalog.<) 1 + fencepost.issued() + 1", "issued"),
    judged("the plain case takes a token of the generation before", "{stem}_upd", "(pg_catalog.>=) fencepost.oldest()",
        "(pg_catalog.>) 0", "generation"),
    judged("the plain case has a ceiling that is one higher", "{stem}_upd", "(pg_catalog.>) '50'",
        "(pg_catalog.>) '51'", "ceiling"),
    judged("INSERT has a ceiling that is one higher", "{stem}_insmark", "(pg_catalog.>) '50'", "(pg_catalog.>) '51'",
        "ceiling"),
    judged("leaps of a DELETE go one further", "{stem}_del", "(pg_catalog.>) '10'", "(pg_catalog.>) '11'", "jump"),
    judged("Python takes the mark's own token", "fencepost.server.fence.token.accepts", "",
        put("fencepost.server.fence.token.accepts", lambda _rule, mark, token: mark <= token)),
    judged("Python refuses the mark's own token under epoch", "fencepost.server.fence.token.accepts", "",
        put("fencepost.server.fence.token.accepts", lambda _rule, mark, token: mark < token), rule="epoch"),
    judged("statements take the mark's own token", "fencepost.server.postgres.marks.comparison", "", equal_passes),
    judged("statements refuse the mark's own token under epoch", "fencepost.server.postgres.marks.comparison", "",
        put("fencepost.server.postgres.marks.comparison", lambda _rule: "<"), rule="epoch"),
]  # fmt: skip
