"""Columns that are called as the variables and aliases of the SQL that `protect` writes (R6)."""

import pytest
from tests.support.interleave import Connect
from tests.support.racing import Race, open_race

from fencepost.storage.inspecting.ceilings import examine_marks
from fencepost.storage.inspecting.tables import examine_tables
from fencepost.storage.protecting.protect import protect, unprotect

ALIASES = (*"rkmfpatsxo", "was", "there", "resource", "mark", "mend", "scope", "name")
VARIABLES = (
    "known", "came", "lowest", "highest", "missing", "guarded", "unguarded", "this_key", "of_floor", "high", "before",
    "given", "token", "shown", "round", "gone", "row_absent", "relation", "floor", "xid", "key", "row_security",
)  # fmt: skip
KINDS = ("text", "jsonb", "int")


@pytest.fixture(params=KINDS)
async def race(connect: Connect, database: str, request: pytest.FixtureRequest) -> Race:
    race = await open_race(connect, database, "strict")
    columns = ", ".join(f'"{name}" {request.param}' for name in (*ALIASES, *VARIABLES))
    await race.observer.execute("SET search_path = public")
    await race.observer.execute(
        f"CREATE TABLE t (id int, n int, {columns}, PRIMARY KEY (id, n)) PARTITION BY RANGE (id);"
        f"CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (1) TO (10); CREATE TABLE t_2 (LIKE t);"
        "ALTER TABLE t_2 ALTER id SET NOT NULL; INSERT INTO t_2 (id, n) VALUES (10, 1)"
    )
    await protect(race.observer, "t")
    return race


async def sound(race: Race) -> None:
    found = [*await examine_tables(race.observer), *await examine_marks(race.observer)]
    assert [each for each in found if each.level != "ok"] == []


async def insert(race: Race, key: str, token: int) -> str:
    return await race.direct(race.a, f"INSERT INTO t (id, n) VALUES ({key})", token)


async def test_they_change_nothing(race: Race) -> None:
    assert await insert(race, "1, 1", 50) == "ok"
    assert await insert(race, "2, 1", 60) == "ok"
    assert await race.direct(race.a, "DELETE FROM t WHERE id = 2", 61) == "ok"
    await sound(race)
    # Marks are written down by unprotect, and taken up again.
    await unprotect(race.observer, "t")
    await race.observer.execute("UPDATE t SET last_fence_token = 0")
    await protect(race.observer, "t")
    assert await race.direct(race.a, "UPDATE t SET n = n WHERE id = 1", 50) == "FP409"
    assert await insert(race, "2, 1", 61) == "FP409"
    # A key in another order: it is not known whose the marks are.
    await unprotect(race.observer, "t")
    await race.observer.execute("UPDATE t SET n = 2; ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (n, id)")
    await protect(race.observer, "t")
    assert await insert(race, "3, 3", 61) == "FP409"
    await sound(race)


async def test_they_change_nothing_in_a_scope(race: Race) -> None:
    assert await insert(race, "1, 1", 50) == "ok"
    await protect(race.observer, "t", scope="account/{n}")
    assert await insert(race, "2, 1", 50) == "FP409"
    await sound(race)
    await protect(race.observer, "t", scope="")
    assert await race.direct(race.a, "UPDATE t SET n = n WHERE id = 1", 50) == "FP409"
    await sound(race)


async def test_they_change_nothing_where_a_partition_came_unseen(race: Race) -> None:
    assert await insert(race, "1, 1", 50) == "ok"
    assert await race.direct(race.a, "DELETE FROM t", 51) == "ok"
    await race.observer.execute(
        "UPDATE fencepost.floors SET floor = 60 WHERE name = 't'; ALTER EVENT TRIGGER fencepost_partitions DISABLE;"
        "ALTER TABLE t_2 ADD last_fence_token bigint NOT NULL DEFAULT 0,"
        " ADD CONSTRAINT fencepost_mark CHECK (last_fence_token >= 0);"
        "ALTER TABLE t ATTACH PARTITION t_2 FOR VALUES FROM (10) TO (20)"
    )
    await protect(race.observer, "t")
    assert await race.direct(race.a, "UPDATE t SET n = n WHERE id = 10", 60) == "FP409"
    assert await race.direct(race.a, "UPDATE t SET n = n WHERE id = 10", 61) == "ok"
