"""Partitions that come and go: no mark is forgotten, and TRUNCATE is refused from the first moment."""

import pytest
from tests.support.interleave import Connect
from tests.support.postgres import Unmade
from tests.support.racing import Race, open_race, outcome

from fencepost.server.ops.doctor_tables import examine_partitions
from fencepost.server.ops.protect import protect

pytestmark = pytest.mark.versions

TABLE = """
SET search_path = public;
CREATE TABLE parts (id integer, v text, at integer, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);
CREATE TABLE part_1 PARTITION OF parts FOR VALUES FROM (0) TO (10);
"""
COPY = """
CREATE TABLE part_2 (at integer NOT NULL, gone int, v text, id integer NOT NULL, PRIMARY KEY (id, at),
  last_fence_token bigint NOT NULL DEFAULT 0, CONSTRAINT fencepost_mark CHECK (last_fence_token >= 0));
ALTER TABLE part_2 DROP COLUMN gone"""
ATTACH = "ALTER TABLE parts ATTACH PARTITION part_2 FOR VALUES FROM (10) TO (20)"


@pytest.fixture
async def race(connect: Connect, unmade: Unmade) -> Race:
    race = await open_race(connect, unmade, "strict")
    await race.observer.execute(TABLE)
    await protect(race.observer, "parts")
    return race


async def marks(race: Race) -> dict[str, tuple[int, bool]]:
    rows = await race.observer.fetch("SELECT resource, last_fence_token, row_absent FROM fencepost.marks")
    return {row[0]: (row[1], row[2]) for row in rows if row[0].startswith("parts/")}


async def insert(race: Race, at: int, token: int) -> str:
    return await race.direct(race.a, f"INSERT INTO public.parts VALUES (1, 'x', {at})", token)


async def test_a_new_partition_cannot_be_truncated(race: Race) -> None:
    db = race.observer
    await db.execute("CREATE TABLE part_2 PARTITION OF parts FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (id)")
    await db.execute("CREATE TABLE part_2a PARTITION OF part_2 DEFAULT")
    await db.execute("CREATE SCHEMA other CREATE TABLE part_3 PARTITION OF public.parts DEFAULT")
    await db.execute(COPY.replace("part_2", "part_4"))
    await db.execute("ALTER TABLE parts ATTACH PARTITION part_4 FOR VALUES FROM (40) TO (50)")
    for part in ("part_1", "part_2", "part_2a", "other.part_3", "part_4"):
        assert await outcome(db.execute(f"TRUNCATE {part}")) == "FP428", part


async def test_rows_that_are_attached_take_up_floor_and_marks(race: Race) -> None:
    db = race.observer
    assert await insert(race, 5, 10) == "ok"
    await db.execute("CREATE TABLE part_2 PARTITION OF parts FOR VALUES FROM (10) TO (20)")
    assert await insert(race, 15, 10) == "ok"
    assert await race.direct(race.a, "DELETE FROM public.parts WHERE at = 15", 50) == "ok"
    await db.execute("ALTER TABLE parts DETACH PARTITION part_2; DROP TABLE part_2")
    await db.execute("UPDATE fencepost.floors SET floor = 30 WHERE name = 'parts'")
    await db.execute(COPY)
    await db.execute("INSERT INTO part_2 (id, at, last_fence_token) VALUES (1, 15, 0), (2, 15, 7), (3, 15, 99)")
    await db.execute("SET fencepost.token = '3'; SET fencepost.break_glass = 'not about this'")
    await db.execute(ATTACH)
    rows = await db.fetch("SELECT id, last_fence_token FROM part_2 ORDER BY id")
    assert [tuple(row) for row in rows] == [(1, 50), (2, 30), (3, 99)]
    assert await db.fetchval("SHOW fencepost.token") == "3"
    assert await race.direct(race.a, "UPDATE public.parts SET v = 'stale' WHERE id = 1 AND at = 15", 40) == "FP409"
    assert await race.direct(race.a, "UPDATE public.parts SET v = 'new' WHERE id = 1 AND at = 15", 51) == "ok"


@pytest.mark.parametrize("how", ["DETACH PARTITION part_1", "DETACH PARTITION part_1 CONCURRENTLY"])
async def test_rows_that_are_detached_leave_their_marks(race: Race, how: str) -> None:
    db = race.observer
    assert await insert(race, 5, 50) == "ok"
    await db.execute(f"ALTER TABLE parts {how}")
    assert (await marks(race))["parts/1,5"] == (50, True)
    await db.execute("UPDATE part_1 SET v = 'edited', last_fence_token = 0; TRUNCATE part_1")
    await db.execute("INSERT INTO part_1 VALUES (1, 'back', 5)")
    await db.execute("ALTER TABLE parts ATTACH PARTITION part_1 FOR VALUES FROM (0) TO (10)")
    assert await race.direct(race.a, "UPDATE public.parts SET v = 'stale'", 40) == "FP409"
    assert await outcome(db.execute("TRUNCATE part_1")) == "FP428"


async def test_of_a_dropped_key_a_stale_holder_makes_nothing(race: Race) -> None:
    db = race.observer
    assert await insert(race, 5, 50) == "ok"
    assert await outcome(db.execute("DROP TABLE part_1")) == "FP428"
    await db.execute("ALTER TABLE parts DETACH PARTITION part_1; DROP TABLE part_1")
    await db.execute("CREATE TABLE part_1 PARTITION OF parts FOR VALUES FROM (0) TO (10)")
    assert await insert(race, 5, 40) == "FP409"
    assert await insert(race, 5, 51) == "ok"


async def test_a_partition_of_partitions(race: Race) -> None:
    db = race.observer
    await db.execute("CREATE TABLE part_2 PARTITION OF parts FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (id)")
    await db.execute("CREATE TABLE part_2a PARTITION OF part_2 DEFAULT")
    assert await insert(race, 15, 50) == "ok"
    assert await outcome(db.execute("DROP TABLE part_2a")) == "FP428"
    assert await outcome(db.execute("DROP TABLE part_2")) == "FP428"
    await db.execute("ALTER TABLE parts DETACH PARTITION part_2")
    assert (await marks(race))["parts/1,15"] == (50, True)
    await db.execute("TRUNCATE part_2; INSERT INTO part_2 VALUES (1, 'x', 15)")
    await db.execute("ALTER TABLE parts ATTACH PARTITION part_2 FOR VALUES FROM (10) TO (20)")
    assert await db.fetchval("SELECT last_fence_token FROM part_2a") == 50
    assert await outcome(db.execute("TRUNCATE part_2a")) == "FP428"
    await db.execute("ALTER TABLE part_2 DETACH PARTITION part_2a; DROP TABLE part_2a")


async def test_an_old_snapshot_attaches_and_detaches_nothing(race: Race) -> None:
    db = race.observer
    assert await insert(race, 5, 10) == "ok"
    await db.execute(COPY)
    for command in ("DETACH PARTITION part_1", "ATTACH PARTITION part_2 FOR VALUES FROM (10) TO (20)"):
        await db.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM parts")
        assert await outcome(db.execute(f"ALTER TABLE parts {command}")) == "FP428", command
        await db.execute("ROLLBACK")
    await db.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    await db.execute("CREATE TABLE part_3 PARTITION OF parts DEFAULT; ALTER TABLE parts ADD COLUMN w int; COMMIT")


async def test_a_claim_that_has_looked_already_is_waited_for(race: Race) -> None:
    db = race.observer
    await db.execute(COPY)
    await db.execute("INSERT INTO part_2 (id, at) VALUES (1, 15)")
    await race.a.execute("BEGIN; SELECT fencepost.raise_mark('parts/1,15', 50, 'strict', true)")
    assert not await race.a.fetchval("SELECT EXISTS (SELECT FROM public.parts WHERE id = 1 AND at = 15)")
    attach = await race.waits(
        race.b, race.b.execute(ATTACH.replace("TABLE parts", "TABLE public.parts").replace("part_2", "public.part_2"))
    )
    await race.a.execute("COMMIT")
    await attach
    assert await db.fetchval("SELECT last_fence_token FROM part_2") == 50


@pytest.mark.parametrize(
    "drop", ["DROP TABLE parts CASCADE", "DROP SCHEMA shop CASCADE", "DROP OWNED BY part_owner CASCADE"]
)
async def test_with_the_whole_table_its_partitions_go(connect: Connect, drop: str) -> None:
    db = await connect()
    await db.execute("CREATE ROLE part_owner; CREATE SCHEMA shop")
    try:
        await db.execute(TABLE.replace("search_path = public", "search_path = shop"))
        await protect(db, "shop.parts")
        await db.execute("ALTER SCHEMA shop OWNER TO part_owner; ALTER TABLE shop.parts OWNER TO part_owner")
        await db.execute("ALTER TABLE shop.part_1 OWNER TO part_owner")
        await db.execute(drop.replace("TABLE parts", "TABLE shop.parts"))
        assert await db.fetchval("SELECT to_regclass('shop.part_1')") is None
    finally:
        await db.execute("DROP OWNED BY part_owner CASCADE; DROP ROLE part_owner")


async def test_a_partition_in_a_schema_that_is_dropped(race: Race) -> None:
    db = race.observer
    await db.execute("CREATE SCHEMA old CREATE TABLE part_2 PARTITION OF public.parts DEFAULT")
    assert await outcome(db.execute("DROP SCHEMA old CASCADE")) == "FP428"
    assert await insert(race, 15, 50) == "ok"


async def test_of_a_scope_partitions_only_get_the_trigger(connect: Connect, unmade: Unmade) -> None:
    race = await open_race(connect, unmade, "strict")
    db = race.observer
    await db.execute(TABLE)
    await protect(db, "parts", scope="at/{at}")
    await db.execute("CREATE TABLE part_2 PARTITION OF parts DEFAULT")
    assert await outcome(db.execute("TRUNCATE part_2")) == "FP428"
    assert await insert(race, 5, 50) == "ok"
    await db.execute("DROP TABLE part_2; ALTER TABLE parts DETACH PARTITION part_1; TRUNCATE part_1")
    await db.execute("ALTER TABLE parts ATTACH PARTITION part_1 FOR VALUES FROM (0) TO (10)")
    assert await insert(race, 5, 40) == "FP409"


async def unfollowed(race: Race) -> None:
    """What a database is like in which no role is superuser."""
    await race.observer.execute("DROP EVENT TRIGGER fencepost_partitions; DROP EVENT TRIGGER fencepost_dropped")


@pytest.mark.parametrize("again", [False, True])
async def test_without_event_triggers_protect_mends_what_was_attached(race: Race, *, again: bool) -> None:
    db = race.observer
    await unfollowed(race)
    await db.execute("CREATE TABLE part_2 PARTITION OF parts FOR VALUES FROM (10) TO (20)")
    await protect(db, "parts")
    assert await outcome(db.execute("TRUNCATE part_2")) == "FP428"
    assert await race.direct(race.a, "INSERT INTO public.parts VALUES (1, 'x', 15), (2, 'x', 15)", 10) == "ok"
    assert await race.direct(race.a, "DELETE FROM public.parts WHERE id = 1", 50) == "ok"
    await db.execute("UPDATE fencepost.floors SET floor = 30 WHERE name = 'parts'")
    await db.execute("ALTER TABLE parts DETACH PARTITION part_2")
    if again:
        await db.execute("UPDATE part_2 SET last_fence_token = 0; INSERT INTO part_2 VALUES (1, 'back', 15)")
        await db.execute("ALTER TABLE parts ATTACH PARTITION part_2 FOR VALUES FROM (10) TO (20)")
    else:
        await db.execute(COPY.replace("part_2", "part_3"))
        await db.execute("INSERT INTO part_3 (id, at) VALUES (1, 15), (2, 15)")
        await db.execute("ALTER TABLE parts ATTACH PARTITION part_3 FOR VALUES FROM (10) TO (20)")
    output = [each.text for each in await examine_partitions(db)]
    assert any("were attached and not looked at (part_" in each for each in output), output
    await protect(db, "parts")
    rows = await db.fetch("SELECT id, last_fence_token FROM parts ORDER BY id")
    assert [tuple(row) for row in rows] == [(1, 50), (2, 30)]
    assert [each.text.partition(" are ")[0] for each in await examine_partitions(db)] == [
        "partitions that are attached to protected tables are not followed".partition(" are ")[0]
    ]


async def test_without_event_triggers_doctor_names_which_partitions_went(race: Race) -> None:
    await unfollowed(race)
    await race.observer.execute("ALTER TABLE parts DETACH PARTITION part_1")
    output = [each.text for each in await examine_partitions(race.observer)]
    assert any("were detached or dropped and not looked at (part_1)" in each for each in output), output


async def test_two_partitions_that_come_at_once_are_both_known(race: Race) -> None:
    db = race.observer
    for n in (2, 3):
        await db.execute(
            f"CREATE TABLE part_{n} PARTITION OF parts FOR VALUES FROM ({n}0) TO ({n}9) PARTITION BY RANGE (id)"
        )
    await race.a.execute("BEGIN; CREATE TABLE public.part_2a PARTITION OF public.part_2 DEFAULT")
    create = "CREATE TABLE public.part_3a PARTITION OF public.part_3 DEFAULT"
    second = await race.waits(race.b, race.b.execute(create))
    await race.a.execute("COMMIT")
    await second
    for part in ("part_2a", "part_3a"):
        assert await outcome(db.execute(f"DROP TABLE {part}")) == "FP428", part
