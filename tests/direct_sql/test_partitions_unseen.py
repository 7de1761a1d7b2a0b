"""Partitions that came or went unseen, marks that no token could be, and functions that make partitions for others."""

import pytest
from tests.direct_sql.test_partitions import ATTACH, COPY, TABLE, insert, unfollowed
from tests.support.interleave import Connect, Connection
from tests.support.racing import Race, open_race

from fencepost.storage.inspecting.partitions import examine_partitions
from fencepost.storage.protecting.partitions import watch_sql
from fencepost.storage.protecting.protect import protect
from fencepost.storage.schema import migrate

pytestmark = pytest.mark.versions

OFF = "ALTER EVENT TRIGGER fencepost_partitions DISABLE"
ON = "ALTER EVENT TRIGGER fencepost_partitions ENABLE"


async def with_a_deleted_key(race: Race, *, source: str = "external", max_jump: int | None = None) -> None:
    """Make `parts`, whose key (1, 15) was deleted under 50, and part_2, not attached, in which it has the mark 0."""
    db = race.observer
    await db.execute(TABLE)
    await protect(db, "parts", source=source, max_jump=max_jump)
    if source == "builtin":
        await db.execute("SELECT fencepost.issue_beyond(100)")
    await db.execute("CREATE TABLE part_0 PARTITION OF parts FOR VALUES FROM (10) TO (20)")
    assert await insert(race, 15, 40) == "ok"
    assert await race.direct(race.a, "DELETE FROM public.parts WHERE at = 15", 50) == "ok"
    await db.execute("ALTER TABLE parts DETACH PARTITION part_0; DROP TABLE part_0")
    await db.execute("UPDATE fencepost.floors SET floor = 30 WHERE name = 'parts'")
    await db.execute(COPY)
    await db.execute("INSERT INTO part_2 (id, at) VALUES (1, 15), (2, 15)")


async def marks(db: Connection) -> list[int]:
    return [row[0] for row in await db.fetch("SELECT last_fence_token FROM parts ORDER BY id")]


async def test_a_new_partition_does_not_hide_one_that_was_attached_unseen(connect: Connect, database: str) -> None:
    race = await open_race(connect, database, "strict")
    await with_a_deleted_key(race)
    db = race.observer
    await db.execute(f"{OFF}; {ATTACH}; {ON}")
    await db.execute("CREATE TABLE part_3 PARTITION OF parts FOR VALUES FROM (20) TO (30)")
    assert await marks(db) == [50, 30]
    assert await race.direct(race.a, "UPDATE public.parts SET v = 'stale' WHERE id = 1", 45) == "FP409"
    assert [each.text for each in await examine_partitions(db)] == []


async def test_a_new_partition_does_not_hide_one_that_was_detached_unseen(connect: Connect, database: str) -> None:
    race = await open_race(connect, database, "strict")
    await with_a_deleted_key(race)
    db = race.observer
    assert await insert(race, 5, 60) == "ok"
    await db.execute(f"{OFF}; ALTER TABLE parts DETACH PARTITION part_1; {ON}")
    await db.execute("CREATE TABLE part_3 PARTITION OF parts FOR VALUES FROM (20) TO (30)")
    assert await db.fetchval("SELECT last_fence_token FROM fencepost.marks WHERE resource = 'parts/1,5'") == 60


@pytest.mark.parametrize("followed", [True, False])
async def test_no_distance_is_too_far_for_a_mark_that_a_key_has_had(
    connect: Connect, database: str, *, followed: bool
) -> None:
    race = await open_race(connect, database, "strict")
    await with_a_deleted_key(race, max_jump=40)
    if not followed:
        await unfollowed(race)
    await race.observer.execute(ATTACH)
    await protect(race.observer, "parts")
    assert await marks(race.observer) == [50, 30]
    assert await race.direct(race.a, "UPDATE public.parts SET v = 'x' WHERE id = 1", 91) == "FP018"
    assert await race.direct(race.a, "UPDATE public.parts SET v = 'x' WHERE id = 1", 90) == "ok"


@pytest.mark.parametrize("followed", [True, False])
async def test_rows_are_attached_before_the_first_token_of_a_generation(
    connect: Connect, database: str, *, followed: bool
) -> None:
    race = await open_race(connect, database, "strict")
    await with_a_deleted_key(race, source="builtin")
    db = race.observer
    if not followed:
        await unfollowed(race)
    await db.execute("SELECT fencepost.raise_generation('a test')")
    await db.execute(ATTACH)
    await protect(db, "parts")
    assert min(await marks(db)) >= 30
    assert await race.direct(race.a, "UPDATE public.parts SET v = 'stale'", 49) == "FP409"
    token = await db.fetchval("SELECT nextval('fencepost.tokens')")
    assert await race.direct(race.a, "UPDATE public.parts SET v = 'new'", token) == "ok"


async def test_a_function_makes_partitions_in_the_name_of_its_owner(connect: Connect, database: str) -> None:
    race = await open_race(connect, database, "strict")
    db = race.observer
    await db.execute(TABLE)
    await protect(db, "parts")
    await db.execute(
        "CREATE ROLE maintainer; CREATE FUNCTION maintain(command text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER"
        " AS $$ BEGIN EXECUTE command; END $$"
    )
    try:
        await db.execute("SET ROLE maintainer")
        for command in (
            "CREATE TABLE public.part_2 PARTITION OF public.parts FOR VALUES FROM (10) TO (20)",
            "ALTER TABLE public.parts DETACH PARTITION public.part_2",
            "ALTER TABLE public.parts ATTACH PARTITION public.part_2 FOR VALUES FROM (10) TO (20)",
        ):
            await db.execute("SELECT public.maintain($1)", command)
        assert await insert(race, 15, 50) == "ok"
        await db.execute("SELECT public.maintain('ALTER TABLE public.parts DETACH PARTITION public.part_2')")
        assert await insert(race, 15, 40) != "ok"
        assert await db.fetchval("SELECT current_user") == "maintainer"
    finally:
        await db.execute("RESET ROLE; DROP ROLE maintainer")
    assert await db.fetchval("SELECT last_fence_token FROM fencepost.marks WHERE resource = 'parts/1,15'") == 50


async def test_ddl_of_others_where_functions_are_not_for_everybody(connect: Connect, database: str) -> None:
    db = await connect()
    await db.execute("ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC")
    await migrate.downgrade(database)
    await migrate.upgrade(database)
    await db.execute(watch_sql())
    await db.execute("CREATE ROLE someone; GRANT CREATE ON SCHEMA public TO someone; SET ROLE someone")
    try:
        await db.execute("CREATE TABLE public.plain (id int); ALTER TABLE public.plain ADD v text")
    finally:
        await db.execute("RESET ROLE; DROP OWNED BY someone CASCADE; DROP ROLE someone")
