"""Tables are renamed, replaced and swapped while nothing protects them: each keeps its marks and its floor (R6)."""

import pytest
from tests.support.interleave import Connect
from tests.support.postgres import Unmade
from tests.support.racing import Race, open_race

from fencepost.server.ops.protect import protect, unprotect

TABLE = "CREATE TABLE {} (id int PRIMARY KEY, account_id int NOT NULL DEFAULT 1, lowest int, own int)"


@pytest.fixture
async def race(connect: Connect, unmade: Unmade) -> Race:
    race = await open_race(connect, unmade, "strict")
    await race.observer.execute("SET search_path = public")
    return race


async def made(race: Race, table: str, *, scope: str | None = None) -> None:
    await race.observer.execute(TABLE.format(table))
    await protect(race.observer, table, scope=scope)


async def row_mark(race: Race, table: str) -> int:
    mark: int = await race.observer.fetchval(f"SELECT last_fence_token FROM {table} WHERE id = 1")
    return mark


async def deleted_under(race: Race, table: str, token: int, key: int = 1) -> None:
    assert await race.direct(race.a, f"INSERT INTO {table} (id) VALUES ({key})", token - 1) == "ok"
    assert await race.direct(race.a, f"DELETE FROM {table} WHERE id = {key}", token) == "ok"


async def refuses_up_to(race: Race, table: str, mark: int) -> None:
    """Key 1, which has no row, takes tokens above its mark only."""
    insert = f"INSERT INTO {table} (id) VALUES (1)"
    assert await race.direct(race.a, insert, mark - 10) == "FP409"
    assert await race.direct(race.a, insert, mark) == "FP409"
    assert await race.direct(race.a, insert, mark + 1) == "ok"


async def test_a_floor_does_nothing_to_the_rows_of_another_table_of_its_name(race: Race) -> None:
    """Its own table left a scope, was renamed, and is gone."""
    await made(race, "fl", scope="account/{account_id}")
    assert await race.direct(race.a, "INSERT INTO fl (id) VALUES (1)", 20) == "ok"
    await unprotect(race.observer, "fl")
    await race.observer.execute("ALTER TABLE fl RENAME TO fl_old")
    await made(race, "fl")
    assert await race.direct(race.a, "INSERT INTO fl (id) VALUES (1)", 100) == "ok"
    await race.observer.execute("DROP TABLE fl_old")
    await protect(race.observer, "fl")
    assert await row_mark(race, "fl") == 100
    await race.observer.execute("ALTER TABLE fl DISABLE TRIGGER USER")
    await protect(race.observer, "fl")
    assert await row_mark(race, "fl") == 100


async def renamed_and_replaced(race: Race) -> None:
    """Key 1 of the table a was deleted under 50; the table is b by now, and another one is a."""
    await made(race, "a")
    await deleted_under(race, "a", 50)
    await unprotect(race.observer, "a")
    await race.observer.execute("ALTER TABLE a RENAME TO b")


async def test_a_table_that_takes_a_name_leaves_its_marks_to_the_table_that_had_it(race: Race) -> None:
    await renamed_and_replaced(race)
    await made(race, "a")
    await protect(race.observer, "b")
    await refuses_up_to(race, "b", 50)
    await refuses_up_to(race, "a", 50)


async def test_also_if_it_was_renamed_while_protected_and_is_unprotected(race: Race) -> None:
    await renamed_and_replaced(race)
    await made(race, "c")
    await deleted_under(race, "c", 30)
    await race.observer.execute("ALTER TABLE c RENAME TO a")
    await unprotect(race.observer, "a")
    await protect(race.observer, "b")
    await protect(race.observer, "a")
    await refuses_up_to(race, "b", 50)
    await refuses_up_to(race, "a", 50)


async def test_tables_that_have_swapped_their_names_both_keep_their_marks(race: Race) -> None:
    for table, token in (("a", 50), ("b", 70)):
        await made(race, table)
        await deleted_under(race, table, token)
        await unprotect(race.observer, table)
    await race.observer.execute("ALTER TABLE a RENAME TO x; ALTER TABLE b RENAME TO a; ALTER TABLE x RENAME TO b")
    await protect(race.observer, "a")
    await protect(race.observer, "b")
    await refuses_up_to(race, "a", 70)
    assert await race.direct(race.a, "INSERT INTO b (id) VALUES (1)", 50) == "FP409"


async def test_tables_that_have_moved_on_in_a_circle_all_keep_their_marks(race: Race) -> None:
    for key, table in enumerate(("a", "b", "c")):
        await made(race, table)
        await deleted_under(race, table, 50, key)
        await unprotect(race.observer, table)
    await race.observer.execute(
        "ALTER TABLE a RENAME TO x; ALTER TABLE c RENAME TO a; ALTER TABLE b RENAME TO c; ALTER TABLE x RENAME TO b"
    )
    for table in ("a", "b", "c"):
        await protect(race.observer, table)
    for key, table in enumerate(("b", "c", "a")):
        assert await race.direct(race.a, f"INSERT INTO {table} (id) VALUES ({key})", 50) == "FP409", table


async def test_marks_stay_with_a_name_that_another_table_has_by_now(race: Race) -> None:
    """They follow the table that was renamed, and fence the one in its place as well."""
    await renamed_and_replaced(race)
    await race.observer.execute(TABLE.format("a"))
    await protect(race.observer, "b")
    await protect(race.observer, "a")
    await refuses_up_to(race, "b", 50)
    await refuses_up_to(race, "a", 50)


async def test_the_floor_of_a_table_that_was_renamed_follows_it_past_another_one(race: Race) -> None:
    """The mark that its row had before the scope stands for nothing."""
    await made(race, "fl")
    assert await race.direct(race.a, "INSERT INTO fl (id) VALUES (1)", 10) == "ok"
    await protect(race.observer, "fl", scope="account/{account_id}")
    assert await race.direct(race.a, "UPDATE fl SET own = 1", 20) == "ok"
    await unprotect(race.observer, "fl")
    await race.observer.execute("ALTER TABLE fl RENAME TO fl_old")
    await made(race, "fl")
    await unprotect(race.observer, "fl")
    await race.observer.execute("DROP TABLE fl; ALTER TABLE fl_old RENAME TO older")
    await protect(race.observer, "older")
    assert await race.direct(race.a, "UPDATE older SET own = 1", 15) == "FP409"
    assert await race.direct(race.a, "INSERT INTO older (id) VALUES (2)", 15) == "FP409"
    assert await race.direct(race.a, "UPDATE older SET own = 1", 21) == "ok"


async def test_a_table_that_left_its_marks_under_a_name_keeps_them_when_the_name_is_left_again(race: Race) -> None:
    """One is protected under the name and called otherwise; the other was called so, and unprotected."""
    await made(race, "c")
    await race.observer.execute("ALTER TABLE c RENAME TO d")
    await made(race, "x")
    await deleted_under(race, "x", 50)
    await race.observer.execute("ALTER TABLE x RENAME TO c")
    await unprotect(race.observer, "c")
    await race.observer.execute("ALTER TABLE c RENAME TO z")
    await protect(race.observer, "d")
    await protect(race.observer, "z")
    await refuses_up_to(race, "z", 50)


async def test_of_two_floors_the_higher_counts(race: Race) -> None:
    for table, floor in (("a", 50), ("b", 70)):
        await made(race, table)
        await race.observer.execute(f"SELECT fencepost.prune('{table}', {floor})")
        await unprotect(race.observer, table)
    await race.observer.execute("ALTER TABLE a RENAME TO x; ALTER TABLE b RENAME TO a; ALTER TABLE x RENAME TO b")
    for table in ("a", "b"):
        await protect(race.observer, table)
        assert await race.direct(race.a, f"INSERT INTO {table} (id) VALUES (1)", 70) == "FP409", table
        assert await race.direct(race.a, f"INSERT INTO {table} (id) VALUES (1)", 71) == "ok", table
