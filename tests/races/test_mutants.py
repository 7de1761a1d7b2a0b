"""Each mutant of the catalogue (mutants.py) is seen by its test."""

import pytest
from tests.races import test_rows as rows
from tests.races.mutants import MUTANTS, Mutant
from tests.races.openings import openings_of
from tests.support.interleave import Connect
from tests.support.racing import Race, assert_seen
from tests.support.violations import Violation

from fencepost.server.postgres.connection import Connection, FencedRow, RowWrite, WriteStatement


@pytest.mark.long("mutants of the product")
@pytest.mark.parametrize(
    ("mutant", "race"),
    [pytest.param(each, each.opening, id=each.name.replace(" ", "-")) for each in MUTANTS],
    indirect=["race"],
)
async def test_a_mutant_is_seen(
    mutant: Mutant, race: object, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    await mutant.make(await connect(), monkeypatch)
    await assert_seen(mutant.seen_by, race, mutant.fails_with)


def test_a_mutant_has_a_name_of_its_own_and_is_opened_as_the_product_is() -> None:
    names = [each.name for each in MUTANTS]
    assert len(set(names)) == len(names)
    for each in MUTANTS:
        if each.seen_by.__module__.startswith("tests.races."):
            assert each.opening.name in {opening.name for opening in openings_of(each.seen_by)}, each.name


def test_what_a_test_of_the_product_asserts_is_a_violation(request: pytest.FixtureRequest) -> None:
    def fails() -> None:
        raise AssertionError("the second holder")

    test = pytest.Function.from_parent(request.node.parent, name="fails", callobj=fails)
    with pytest.raises(Violation, match="the second holder"):
        test.ihook.pytest_pyfunc_call(pyfuncitem=test)
    test.add_marker(pytest.mark.long("mutants of the product"))
    with pytest.raises(AssertionError, match="the second holder") as raised:
        test.ihook.pytest_pyfunc_call(pyfuncitem=test)
    assert type(raised.value) is AssertionError


@pytest.mark.long("mutants of the product")
async def test_an_answer_that_precedes_the_commit_is_seen(race: Race, monkeypatch: pytest.MonkeyPatch) -> None:
    """No row: the transaction that stays open is to be ended."""
    write_rows = WriteStatement.rows
    open_transactions = []

    async def mutant(statement: WriteStatement, connection: Connection, write: RowWrite) -> list[FencedRow]:
        if not statement.sql.startswith("UPDATE"):
            return await write_rows(statement, connection, write)
        open_transactions.append(await race.begin(race.c))
        return await write_rows(statement, race.c, write)

    monkeypatch.setattr(WriteStatement, "rows", mutant)
    await assert_seen(rows.test_answer_follows_the_commit, race)
    assert len(open_transactions) == 1
    await open_transactions[0].rollback()
