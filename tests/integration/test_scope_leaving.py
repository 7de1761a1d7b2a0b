"""Marks go along when a table leaves a scope or enters one, whatever it and its columns are called by then (R6, R8)."""

import pytest
from tests.scenarios.scopes import entered, mark, scoped_race
from tests.support.interleave import Connect
from tests.support.racing import Race

from fencepost.storage.inspecting.tables import examine_tables
from fencepost.storage.protecting.protect import protect, unprotect

UPDATE = "UPDATE {} SET n = n + 1"


@pytest.fixture
async def race(connect: Connect, database: str) -> Race:
    race = await scoped_race(connect, database, "strict")
    await entered(race, race.a, 200, "account/42")
    return race


async def unprotected_and_renamed(race: Race) -> None:
    await unprotect(race.observer, "items")
    await race.observer.execute("ALTER TABLE items RENAME TO things")


async def test_a_table_that_was_renamed_while_unprotected_has_the_marks_of_its_scope(race: Race) -> None:
    await unprotected_and_renamed(race)
    await protect(race.observer, "things")
    assert await race.direct(race.a, UPDATE.format("things"), 150) == "FP409"
    assert await race.direct(race.a, "INSERT INTO things VALUES (9, 42)", 150) == "FP409", (
        "nor do deleted keys lose theirs"
    )
    assert await race.direct(race.a, UPDATE.format("things"), 201) == "ok"
    assert await race.direct(race.a, "INSERT INTO things VALUES (9, 42)", 202) == "ok"
    # Done with: another table of the old name begins anew.
    await race.observer.execute("CREATE TABLE items (id int PRIMARY KEY, n int)")
    await race.observer.execute("INSERT INTO items VALUES (1, 1)")
    await protect(race.observer, "items")
    assert await race.direct(race.a, UPDATE.format("things"), 150) == "FP409"


@pytest.mark.parametrize("scope", ["", "acc/{account_id}"])
async def test_another_table_that_took_the_name_does_not_take_the_marks(race: Race, scope: str) -> None:
    await unprotected_and_renamed(race)
    await race.observer.execute("CREATE TABLE items (id int PRIMARY KEY, n int); INSERT INTO items VALUES (1, 1)")
    await protect(race.observer, "items")
    assert await race.direct(race.a, UPDATE.format("items"), 5) == "ok"
    await protect(race.observer, "things", scope=scope)
    assert await race.direct(race.a, UPDATE.format("things"), 150) == "FP409"
    assert await race.direct(race.a, "INSERT INTO things VALUES (9, 43)", 150) == "FP409"


async def test_renamed_while_unprotected_it_takes_its_marks_into_another_scope(race: Race) -> None:
    await unprotected_and_renamed(race)
    await protect(race.observer, "things", scope="acc/{account_id}")
    assert await race.direct(race.a, UPDATE.format("things"), 150) == "FP409"
    assert await race.direct(race.a, UPDATE.format("things"), 201) == "ok"


async def test_marks_of_deleted_keys_follow_a_table_that_was_renamed_while_unprotected(race: Race) -> None:
    await race.observer.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    await protect(race.observer, "t")
    assert await race.direct(race.a, "INSERT INTO t VALUES (1, 1)", 30) == "ok"
    assert await race.direct(race.a, "DELETE FROM t", 40) == "ok"
    await unprotect(race.observer, "t")
    await race.observer.execute("ALTER TABLE t RENAME TO u")
    await protect(race.observer, "u")
    assert await race.direct(race.a, "INSERT INTO u VALUES (1, 1)", 35) == "FP409"
    assert await race.direct(race.a, "INSERT INTO u VALUES (1, 1)", 41) == "ok"


async def test_what_is_written_to_the_column_meanwhile_is_of_no_account(race: Race) -> None:
    """It is left over from a protection by rows; in a scope it judges nothing."""
    await protect(race.observer, "items", scope="")
    await protect(race.observer, "items", scope="account/{account_id}")
    garbage = "UPDATE items SET last_fence_token = 9000000000000000000"
    assert await race.direct(race.a, garbage, 300) == "ok"
    await protect(race.observer, "items", scope="acc/{account_id}")
    assert await mark(race, "acc/42") is None
    assert await race.direct(race.a, UPDATE.format("items"), 300) == "FP409", "below the floor that it brought"
    assert await race.direct(race.a, garbage, 301) == "ok"
    await protect(race.observer, "items", scope="")
    assert await race.direct(race.a, UPDATE.format("items"), 301) == "FP409"
    assert await race.direct(race.a, UPDATE.format("items"), 302) == "ok"


async def test_columns_that_have_swapped_names_fence_every_scope_up_to_the_highest_mark(race: Race) -> None:
    """By now the template means another column: `protect` has no marks where they would belong."""
    await race.observer.execute("ALTER TABLE items ADD other int NOT NULL DEFAULT 7")
    for old, new in (("account_id", "was"), ("other", "account_id")):
        await race.observer.execute(f"ALTER TABLE items RENAME {old} TO {new}")
    broken = [each.text for each in await examine_tables(race.observer) if each.level == "error"]
    assert len(broken) == 1
    assert "columns of its scope account/{account_id} are others now: it is read from was" in broken[0]
    await protect(race.observer, "items")
    assert [each for each in await examine_tables(race.observer) if each.level == "error"] == []
    assert await race.direct(race.a, UPDATE.format("items"), 150) == "FP409"
    assert await race.direct(race.a, UPDATE.format("items"), 201) == "ok"
    assert await mark(race, "account/7") == 201
    await protect(race.observer, "items")
    assert await race.direct(race.a, "INSERT INTO items (id, was, account_id) VALUES (9, 1, 8)", 190) == "FP409"
