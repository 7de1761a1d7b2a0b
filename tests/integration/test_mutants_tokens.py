"""Mutants of what keeps tokens out that were never issued, and moves tokens past marks."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial

import asyncpg
import pytest
from tests.scenarios import races_ceilings as ceilings
from tests.scenarios import races_tokens as scenarios
from tests.scenarios import tokens as moving
from tests.support.interleave import Connect
from tests.support.racing import PythonMutant, SqlMutant, seen

from fencepost.server.fence.token import Token
from fencepost.server.ops.ddl import RowDdl
from fencepost.server.postgres import marks
from fencepost.server.postgres import marks as asking
from fencepost.server.postgres.connection import Connection
from fencepost.server.postgres.marks import ElementState, KeyState
from fencepost.server.postgres.row_sql import Key
from fencepost.server.postgres.tables import ProtectedTable

ISSUE_BEYOND = "fencepost.issue_beyond(bigint)"
REQUIRE_ISSUED = "fencepost.require_issued(text, bigint)"

builtin = partial(SqlMutant, source="builtin")

SQL_MUTANTS = [
    builtin("the plain case takes any newer token", "{stem}_upd",
        "AND given OPERATOR(pg_catalog.<=) fencepost.issued()", "", ceilings.update_above_the_ceiling_is_refused),
    builtin("a token of a setting is not looked at", "{stem}_upd", "IF greatest(given, NEW.last_fence_token)",
        "IF false AND greatest(given, NEW.last_fence_token)", ceilings.direct_update_above_the_ceiling_is_refused),
    builtin("a good setting hides a made-up value beside it", "{stem}_upd", "greatest(given, NEW.last_fence_token)",
        "NEW.last_fence_token", ceilings.direct_update_above_the_ceiling_is_refused),
    builtin("INSERT takes any token", "{stem}_insmark", "IF NEW.last_fence_token OPERATOR",
        "IF false AND NEW.last_fence_token OPERATOR", ceilings.insert_above_the_ceiling_is_refused),
    builtin("DELETE takes any token", "{stem}_del", "IF token OPERATOR", "IF false AND token OPERATOR",
        ceilings.delete_above_the_ceiling_is_refused),
    builtin("every token was issued", REQUIRE_ISSUED, "IF p_token > issued THEN", "IF false THEN",
        ceilings.claim_of_an_absent_key_above_the_ceiling_is_refused),
    builtin("the newest token is none", REQUIRE_ISSUED, "IF p_token > issued THEN", "IF p_token >= issued THEN",
        ceilings.claim_of_an_absent_key_above_the_ceiling_is_refused),
    builtin("tokens are drawn while they move", ISSUE_BEYOND, "ALTER SEQUENCE fencepost.tokens CACHE 1;", "",
        scenarios.nextval_waits_for_the_tokens_to_move),
    builtin("a move does not look again once no transaction draws", ISSUE_BEYOND,
        "IF p_token > fencepost.issued() THEN PERFORM", "IF true THEN PERFORM", scenarios.tokens_never_move_back),
    builtin("a look that finds nothing to do holds on to the sequence", ISSUE_BEYOND,
        "(SELECT CASE WHEN t.is_called THEN t.last_value ELSE 0 END FROM fencepost.tokens t)", "fencepost.issued()",
        scenarios.two_moves_at_once_do_not_deadlock),
]  # fmt: skip


test_a_mutant_of_the_functions_is_seen = seen(SQL_MUTANTS)


def claim_does_not_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks, "EXTERNAL", "builtin")


def claim_believes_the_catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask only where the table is known to be of the built-in source."""
    claim_absent = marks.claim_absent

    async def mutant(connection: Connection, table: ProtectedTable, key: Key, token: Token, resource: str) -> object:
        monkeypatch.setattr(marks, "EXTERNAL", "external" if table.fence.pinned else "builtin")
        return await claim_absent(connection, table, key, token, resource)

    monkeypatch.setattr(scenarios, "claim_absent", mutant)


def verdict_does_not_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a token that was never issued for one that would pass."""
    ask = asking.ask

    async def mutant(connection: Connection, table: ProtectedTable, keys: Sequence[Key]) -> list[KeyState]:
        return [replace(each, issued=None) for each in await ask(connection, table, keys)]

    monkeypatch.setattr(asking, "ask", mutant)


def insert_does_not_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    ask_elements = asking.ask_elements

    async def mutant(connection: Connection, table: ProtectedTable, body: str) -> list[ElementState]:
        asked = await ask_elements(connection, table, body)
        return [replace(each, standing=replace(each.standing, issued=None)) for each in asked]

    monkeypatch.setattr(asking, "ask_elements", mutant)


STATEMENT_MUTANTS = [
    PythonMutant(claim_does_not_ask, ceilings.claim_of_an_absent_key_above_the_ceiling_is_refused, source="builtin"),
    PythonMutant(claim_believes_the_catalog, scenarios.claim_under_an_old_catalog_is_refused, source="builtin"),
    PythonMutant(verdict_does_not_ask, scenarios.unissued_is_reported_before_missing, source="builtin"),
    PythonMutant(insert_does_not_ask, scenarios.unissued_is_reported_before_missing, source="builtin"),
]
test_a_mutant_of_the_statements_is_seen = seen(STATEMENT_MUTANTS)


def move_mutated(monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    """Change the statement of the plan that moves the tokens."""
    statements = RowDdl.meet_marks

    def mutant(ddl: RowDdl) -> list[str]:
        made = statements(ddl)
        assert all(old in each for each in made), f"no {old!r}"
        return [each.replace(old, new) for each in made]

    monkeypatch.setattr(RowDdl, "meet_marks", mutant)


MOVING_MUTANTS: dict[str, tuple[str, str, Callable[[Connect], Awaitable[None]]]] = {
    "no rows are asked": ("WHERE NOT (SELECT fencepost.is_own_write",
        "WHERE false AND NOT (SELECT fencepost.is_own_write", moving.mark_of_a_row),
    "no partitions are asked": ('FROM "public"."p" AS r', 'FROM ONLY "public"."p" AS r', moving.marks_of_partitions),
    "no marks of deleted rows are asked": ("WHERE starts_with(m.resource,", "WHERE false AND starts_with(m.resource,",
        moving.mark_of_a_deleted_row),
    "the floor is not asked": ("SELECT 'The floor of t', f.floor", "SELECT 'The floor of t', 0",
        moving.floor_of_pruned_marks),
    "the lowest mark counts": ("ORDER BY r.last_fence_token DESC", "ORDER BY r.last_fence_token", moving.mark_of_a_row),
    "hidden rows are overlooked": ("set_config('row_security', 'off', true)", "set_config('row_security', 'on', true)",
        moving.mark_that_a_policy_hides),
    "the tokens stay where they are": ("PERFORM fencepost.issue_beyond(high.mark)", "PERFORM 1",
        moving.mark_of_a_claim),
}  # fmt: skip


@pytest.mark.long("mutants of the product")
@pytest.mark.parametrize("name", MOVING_MUTANTS)
async def test_a_mutant_of_the_move_is_seen(name: str, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new, scenario = MOVING_MUTANTS[name]
    move_mutated(monkeypatch, old, new)
    with pytest.raises(AssertionError):
        await scenario(connect)


@pytest.mark.long("mutants of the product")
async def test_a_plan_in_another_isolation_is_seen(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its snapshot would be from before the table's lock, but for the lock that comes first."""
    monkeypatch.setattr(RowDdl, "begin", lambda _: [])
    transaction = asyncpg.Connection.transaction
    monkeypatch.setattr(asyncpg.Connection, "transaction", lambda self, **_: transaction(self))
    with pytest.raises(AssertionError):
        await moving.write_under_way(connect)
