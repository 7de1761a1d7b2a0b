"""Mutants of the gateway's statements, by monkeypatch, and the scenario that sees each."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.scenarios import races as scenarios
from tests.scenarios import races_answers as answers
from tests.support.interleave import Connect
from tests.support.postgres import Unmade
from tests.support.racing import PythonMutant, Race, assert_seen, mutate, open_race, seen

import fencepost.server.gateway.claims
from fencepost.server.postgres import keyed, many, marks
from fencepost.server.postgres.answers import Shown
from fencepost.server.postgres.connection import Connection
from fencepost.server.postgres.keyed import Change, FencedRow, WriteStatement
from fencepost.server.postgres.marks import KeyState
from fencepost.server.postgres.row_sql import TOKEN, Key, RowWrite, key_part
from fencepost.server.postgres.tables import ProtectedTable


def equal_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks, "comparison", lambda _rule: "<=")


def one_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the rows that take the token, whatever the others' marks are."""
    assert many._PASSES == "(SELECT passes FROM verdict)"  # noqa: SLF001 - the line to break
    monkeypatch.setattr(many, "_PASSES", f"(SELECT true OR passes FROM verdict) AND r.last_fence_token < {TOKEN}")


def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Judge the rows by the snapshot, before the write has waited for them."""
    monkeypatch.setattr(many, "lock_clause", lambda *_: "")


def no_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lock in heap order."""
    monkeypatch.setattr(many, "_key", lambda _table: "NULL::int")


def claim_reads_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer a claim with a row read from the statement's snapshot."""
    update = keyed.update

    def mutant(table: ProtectedTable, change: keyed.Change, wait: keyed.Wait, *, careful: bool = False) -> Any:
        beside = f"(SELECT row_to_json(o) FROM {table.sql_name} AS o WHERE o.order_id = {key_part(0)})"
        with monkeypatch.context() as here:
            here.setattr(Shown, "one", lambda *_, **__: f"{beside}::text")
            return update(table, change, wait, careful=careful)

    monkeypatch.setattr(keyed, "update", mutant)


def claim_does_not_look_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def mutant(connection: Connection, table: ProtectedTable, _key: Key, token: int, resource: str) -> int | None:
        refused: int | None = await connection.fetchval(
            "SELECT fencepost.raise_mark($1, $2, $3, true)", resource, token, table.fence.rule
        )
        return refused

    monkeypatch.setattr(fencepost.server.gateway.claims, "claim_absent", mutant)


def zero_rows_is_no_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take "no row matched" for "there is no row"."""

    async def mutant(_connection: Connection, table: ProtectedTable, keys: Sequence[Key]) -> list[KeyState]:
        return [KeyState(f"{table.fence.name}/{key[0]}", None, None) for key in keys]

    monkeypatch.setattr(marks, "ask", mutant)


def zero_rows_is_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take "no row matched" for "a newer holder has written"."""

    async def mutant(_connection: Connection, table: ProtectedTable, keys: Sequence[Key]) -> list[KeyState]:
        return [KeyState(f"{table.fence.name}/{key[0]}", 2**62, None) for key in keys]

    monkeypatch.setattr(marks, "ask", mutant)


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

    def unconditional(table: ProtectedTable, change: Change, wait: keyed.Wait, *, careful: bool = False) -> Any:
        tables.append(table)
        with monkeypatch.context() as here:
            here.setattr(marks, "comparison", lambda _rule: "<> 0 AND 0 <")
            return update(table, change, wait, careful=careful)

    monkeypatch.setattr(keyed, "update", unconditional)
    monkeypatch.setattr(WriteStatement, "run", mutant)


MUTANTS = [
    PythonMutant(equal_passes, scenarios.update_waits_for_update),
    PythonMutant(one_is_enough, answers.many_rows_are_all_or_nothing),
    PythonMutant(no_locks, answers.many_rows_are_all_or_nothing),
    PythonMutant(no_order, answers.many_rows_lock_in_key_order),
    PythonMutant(claim_reads_beside, answers.claim_returns_what_it_fenced),
    PythonMutant(claim_does_not_look_again, answers.claim_meets_an_insert_under_way),
    PythonMutant(zero_rows_is_no_question, answers.refusal_is_stale_and_not_missing),
    PythonMutant(zero_rows_is_no_question, answers.replaced_row_is_written_after_all),
    PythonMutant(zero_rows_is_stale, answers.replaced_row_is_written_after_all),
    PythonMutant(check_and_write_apart, scenarios.update_waits_for_update),
]
test_a_mutant_of_the_statements_is_seen = seen(MUTANTS)


@pytest.mark.long("mutants of the product")
async def test_an_answer_that_precedes_the_commit_is_seen(
    connect: Connect, unmade: Unmade, monkeypatch: pytest.MonkeyPatch
) -> None:
    race = await open_race(connect, unmade)
    rows = WriteStatement.rows
    open_transactions = []

    async def mutant(statement: WriteStatement, connection: Connection, write: RowWrite) -> list[FencedRow]:
        if not statement.sql.startswith("UPDATE"):
            return await rows(statement, connection, write)
        open_transactions.append(await race.begin(race.c))
        return await rows(statement, race.c, write)

    monkeypatch.setattr(WriteStatement, "rows", mutant)
    await assert_seen(answers.answer_follows_the_commit, race)
    assert len(open_transactions) == 1
    await open_transactions[0].rollback()


async def let_the_trigger_judge_nothing(race: Race) -> None:
    """It only stores what it is given: without it, the table's check would refuse the token's negative form."""
    await mutate(
        race, "{stem}_upd", "IF given OPERATOR(pg_catalog.>) OLD", "IF true OR given OPERATOR(pg_catalog.>) OLD"
    )


async def test_without_the_triggers_the_statement_alone_refuses_a_stale_update(
    connect: Connect, unmade: Unmade
) -> None:
    """Two lines of defence: this is the gateway's own."""
    race = await open_race(connect, unmade)
    await let_the_trigger_judge_nothing(race)
    await scenarios.update_waits_for_update(race)


@pytest.mark.long("mutants of the product")
@pytest.mark.parametrize("mutation", [equal_passes, check_and_write_apart], ids=lambda each: each.__name__)
async def test_without_the_triggers_a_mutant_of_the_statement_writes_over_its_successor(
    mutation: Callable[[pytest.MonkeyPatch], None], connect: Connect, unmade: Unmade, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And this shows that the line matters: the trigger does not save it here."""
    race = await open_race(connect, unmade)
    await let_the_trigger_judge_nothing(race)
    mutation(monkeypatch)
    await assert_seen(scenarios.update_waits_for_update, race)
