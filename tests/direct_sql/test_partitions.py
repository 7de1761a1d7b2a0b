"""Partitions that come and go: no mark is forgotten, and TRUNCATE is refused from the first moment."""

from collections.abc import AsyncIterator

import asyncpg
import pytest
from tests.support.interleave import Connect, Connection
from tests.support.postgres import Unmade
from tests.support.racing import Race, open_race, outcome

from fencepost.server.ops import migrate
from fencepost.server.ops.doctor import examine
from fencepost.server.ops.doctor_tables import PARTITIONS
from fencepost.server.ops.protect import protect, unprotect
from fencepost.server.ops.schema import EVENT_TRIGGERS, lacks_event_triggers, watch_sql

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


@pytest.mark.versions
async def test_a_new_partition_cannot_be_truncated(race: Race) -> None:
    db = race.observer
    await db.execute("CREATE TABLE part_2 PARTITION OF parts FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (id)")
    await db.execute("CREATE TABLE part_2a PARTITION OF part_2 DEFAULT")
    await db.execute("CREATE SCHEMA other CREATE TABLE part_3 PARTITION OF public.parts DEFAULT")
    await db.execute(COPY.replace("part_2", "part_4"))
    await db.execute("ALTER TABLE parts ATTACH PARTITION part_4 FOR VALUES FROM (40) TO (50)")
    for part in ("part_1", "part_2", "part_2a", "other.part_3", "part_4"):
        assert await outcome(db.execute(f"TRUNCATE {part}")) == "FP428", part


@pytest.mark.versions
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


@pytest.mark.versions
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


@pytest.mark.versions
async def test_of_a_dropped_key_a_stale_holder_makes_nothing(race: Race) -> None:
    db = race.observer
    assert await insert(race, 5, 50) == "ok"
    assert await outcome(db.execute("DROP TABLE part_1")) == "FP428"
    await db.execute("ALTER TABLE parts DETACH PARTITION part_1; DROP TABLE part_1")
    await db.execute("CREATE TABLE part_1 PARTITION OF parts FOR VALUES FROM (0) TO (10)")
    assert await insert(race, 5, 40) == "FP409"
    assert await insert(race, 5, 51) == "ok"


@pytest.mark.versions
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


@pytest.mark.versions
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


@pytest.mark.versions
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


@pytest.mark.versions
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


@pytest.mark.versions
async def test_a_partition_in_a_schema_that_is_dropped(race: Race) -> None:
    db = race.observer
    await db.execute("CREATE SCHEMA old CREATE TABLE part_2 PARTITION OF public.parts DEFAULT")
    assert await outcome(db.execute("DROP SCHEMA old CASCADE")) == "FP428"
    assert await insert(race, 15, 50) == "ok"


@pytest.mark.versions
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


@pytest.mark.versions
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
    assert "were attached and not looked at (part_" in str(await examine(PARTITIONS, db))
    await protect(db, "parts")
    rows = await db.fetch("SELECT id, last_fence_token FROM parts ORDER BY id")
    assert [tuple(row) for row in rows] == [(1, 50), (2, 30)]
    assert [each.check for each in await examine(PARTITIONS, db)] == ["partitions-not-followed"]


@pytest.mark.versions
async def test_without_event_triggers_doctor_names_which_partitions_went(race: Race) -> None:
    await unfollowed(race)
    await race.observer.execute("ALTER TABLE parts DETACH PARTITION part_1")
    assert "were detached or dropped and not looked at (part_1)" in str(await examine(PARTITIONS, race.observer))


@pytest.mark.versions
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


# Partitions that came or went unseen, functions that make partitions for others; and the event triggers that follow
# partitions: they leave all other DDL alone, whichever role's it is, and go with the schema.

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


async def all_marks(db: Connection) -> list[int]:
    return [row[0] for row in await db.fetch("SELECT last_fence_token FROM parts ORDER BY id")]


async def test_a_new_partition_does_not_hide_one_that_was_attached_unseen(connect: Connect, unmade: Unmade) -> None:
    race = await open_race(connect, unmade, "strict")
    await with_a_deleted_key(race)
    db = race.observer
    await db.execute(f"{OFF}; {ATTACH}; {ON}")
    await db.execute("CREATE TABLE part_3 PARTITION OF parts FOR VALUES FROM (20) TO (30)")
    assert await all_marks(db) == [50, 30]
    assert await race.direct(race.a, "UPDATE public.parts SET v = 'stale' WHERE id = 1", 45) == "FP409"
    assert [each.text for each in await examine(PARTITIONS, db)] == []


async def test_a_new_partition_does_not_hide_one_that_was_detached_unseen(connect: Connect, unmade: Unmade) -> None:
    race = await open_race(connect, unmade, "strict")
    await with_a_deleted_key(race)
    db = race.observer
    assert await insert(race, 5, 60) == "ok"
    await db.execute(f"{OFF}; ALTER TABLE parts DETACH PARTITION part_1; {ON}")
    await db.execute("CREATE TABLE part_3 PARTITION OF parts FOR VALUES FROM (20) TO (30)")
    assert await db.fetchval("SELECT last_fence_token FROM fencepost.marks WHERE resource = 'parts/1,5'") == 60


@pytest.mark.parametrize("followed", [True, False])
async def test_no_distance_is_too_far_for_a_mark_that_a_key_has_had(
    connect: Connect, unmade: Unmade, *, followed: bool
) -> None:
    race = await open_race(connect, unmade, "strict")
    await with_a_deleted_key(race, max_jump=40)
    if not followed:
        await unfollowed(race)
    await race.observer.execute(ATTACH)
    await protect(race.observer, "parts")
    assert await all_marks(race.observer) == [50, 30]
    assert await race.direct(race.a, "UPDATE public.parts SET v = 'x' WHERE id = 1", 91) == "FP018"
    assert await race.direct(race.a, "UPDATE public.parts SET v = 'x' WHERE id = 1", 90) == "ok"


@pytest.mark.parametrize("followed", [True, False])
async def test_rows_are_attached_before_the_first_token_of_a_generation(
    connect: Connect, unmade: Unmade, *, followed: bool
) -> None:
    race = await open_race(connect, unmade, "strict")
    await with_a_deleted_key(race, source="builtin")
    db = race.observer
    if not followed:
        await unfollowed(race)
    await db.execute("SELECT fencepost.raise_generation('a test')")
    await db.execute(ATTACH)
    await protect(db, "parts")
    assert min(await all_marks(db)) >= 30
    assert await race.direct(race.a, "UPDATE public.parts SET v = 'stale'", 49) == "FP409"
    token = await db.fetchval("SELECT nextval('fencepost.tokens')")
    assert await race.direct(race.a, "UPDATE public.parts SET v = 'new'", token) == "ok"


async def test_a_function_makes_partitions_in_the_name_of_its_owner(connect: Connect, unmade: Unmade) -> None:
    race = await open_race(connect, unmade, "strict")
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


DDL = [
    "CREATE TABLE plain (id int PRIMARY KEY)",
    "ALTER TABLE plain ADD COLUMN v text DEFAULT 'x'",
    "CREATE TEMPORARY TABLE fleeting (id int) ON COMMIT DROP",
    "CREATE TEMPORARY TABLE lasting (id int); ALTER TABLE lasting ADD COLUMN v text; DROP TABLE lasting",
    "CREATE TEMPORARY TABLE heap (id int) PARTITION BY LIST (id); CREATE TEMPORARY TABLE one PARTITION OF heap DEFAULT",
    "CREATE TABLE whole (id int PRIMARY KEY) PARTITION BY LIST (id); CREATE TABLE part PARTITION OF whole DEFAULT",
    "ALTER TABLE whole DETACH PARTITION part; ALTER TABLE whole ATTACH PARTITION part DEFAULT; DROP TABLE part",
    "CREATE TABLE copied AS SELECT 1 AS a; DROP TABLE copied",
    "CREATE TABLE heir (w int) INHERITS (plain); DROP TABLE heir",
    "CREATE SCHEMA its_own CREATE TABLE inside (id int); DROP SCHEMA its_own CASCADE",
    "BEGIN ISOLATION LEVEL SERIALIZABLE; CREATE TABLE late (id int); DROP TABLE late; COMMIT",
    "DROP TABLE whole; DROP TABLE plain CASCADE",
]


@pytest.fixture
async def owner(connect: Connect) -> AsyncIterator[Connection]:
    """A superuser with a protected partitioned table, and a role that owns nothing."""
    connection = await connect()
    await connection.execute(
        "CREATE ROLE someone; SET search_path = public; GRANT CREATE ON SCHEMA public TO someone;"
        "CREATE TABLE parts (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);"
        "CREATE TABLE part_1 PARTITION OF parts FOR VALUES FROM (0) TO (10)"
    )
    await connection.execute(
        f'GRANT CREATE ON DATABASE "{await connection.fetchval("SELECT current_database()")}" TO someone'
    )
    await protect(connection, "parts")
    yield connection
    await connection.execute("RESET ROLE; DROP OWNED BY someone CASCADE; DROP ROLE someone")


@pytest.mark.versions
@pytest.mark.parametrize("usage", [True, False])
async def test_other_ddl_of_every_role_is_as_ever(owner: Connection, *, usage: bool) -> None:
    if not usage:
        await owner.execute("REVOKE USAGE ON SCHEMA fencepost FROM PUBLIC")
    await owner.execute("SET ROLE someone; SET search_path = public")
    for statement in DDL:
        await owner.execute(statement)


@pytest.mark.parametrize("harm", ["DROP SCHEMA fencepost CASCADE", "DROP FUNCTION fencepost.follow_partitions"])
async def test_ddl_goes_on_where_the_schema_is_gone_or_is_not_whole(owner: Connection, harm: str) -> None:
    await owner.execute(harm)
    for statement in DDL:
        await owner.execute(statement)
    if "DROP SCHEMA" in harm:
        assert await owner.fetch("SELECT FROM pg_event_trigger") == []


async def test_a_downgrade_takes_them_along_and_migrate_brings_them_back(owner: Connection, database: str) -> None:
    await unprotect(owner, "parts")
    await migrate.downgrade(database)
    assert await owner.fetch("SELECT FROM pg_event_trigger") == []
    await migrate.upgrade(database)
    names = await owner.fetch("SELECT evtname FROM pg_event_trigger ORDER BY 1")
    assert sorted(EVENT_TRIGGERS) == [row[0] for row in names]
    await owner.execute("DROP EVENT TRIGGER fencepost_dropped")
    assert await lacks_event_triggers(owner)
    await migrate.upgrade(database)  # nothing else to do
    assert not await lacks_event_triggers(owner)


@pytest.mark.versions
@pytest.mark.parametrize("member", [True, False])
async def test_the_owner_of_tables_has_partitions_followed(owner: Connection, database: str, *, member: bool) -> None:
    await owner.execute("ALTER TABLE parts OWNER TO someone; ALTER TABLE part_1 OWNER TO someone")
    # PostgreSQL copies the row triggers to a partition for roles only that may execute their functions.
    if member:
        await owner.execute("CREATE ROLE keeper; GRANT keeper TO someone")
        await migrate.upgrade(database, owner="keeper")
    await owner.execute("SET ROLE someone; SET search_path = public")
    await owner.execute("SET fencepost.token = '50'; INSERT INTO parts VALUES (1, 'x'); RESET fencepost.token")
    assert await outcome(owner.execute("DROP TABLE part_1")) == "FP428"
    await owner.execute("ALTER TABLE parts DETACH PARTITION part_1; UPDATE part_1 SET last_fence_token = 0")
    attached = await outcome(owner.execute("ALTER TABLE parts ATTACH PARTITION part_1 FOR VALUES FROM (0) TO (10)"))
    if not member:
        assert attached == "42501"
        return
    assert await owner.fetchval("SELECT last_fence_token FROM parts") == 50
    assert await outcome(owner.execute("TRUNCATE part_1")) == "FP428"
    assert await outcome(owner.execute("DROP TABLE part_1")) == "FP428"
    await owner.execute("RESET ROLE; DROP SCHEMA fencepost CASCADE; DROP ROLE keeper")


async def test_a_superuser_runs_nothing_of_the_tables_owner(owner: Connection) -> None:
    await owner.execute("ALTER TABLE parts OWNER TO someone; ALTER TABLE part_1 OWNER TO someone")
    await owner.execute("SET fencepost.token = '50'; INSERT INTO parts VALUES (1, 'x'); RESET fencepost.token")
    await owner.execute("ALTER TABLE parts DETACH PARTITION part_1; UPDATE part_1 SET last_fence_token = 0")
    await owner.execute(
        "CREATE TABLE who (name text); GRANT ALL ON who TO PUBLIC;"
        "SET ROLE someone; CREATE FUNCTION spy() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN INSERT INTO who VALUES (current_user); RETURN NEW; END $$;"
        "CREATE TRIGGER spy BEFORE UPDATE ON part_1 FOR EACH ROW EXECUTE FUNCTION spy(); RESET ROLE"
    )
    await owner.execute("ALTER TABLE parts ATTACH PARTITION part_1 FOR VALUES FROM (0) TO (10)")
    assert [row[0] for row in await owner.fetch("SELECT * FROM who")] == ["someone"]
    assert await owner.fetchval("SELECT current_user = session_user")
    assert await owner.fetchval("SELECT last_fence_token FROM parts") == 50


async def test_no_role_can_call_what_they_call(owner: Connection) -> None:
    for call in (
        "SELECT * FROM fencepost.altered()",
        "SELECT * FROM fencepost.altered_marks('parts')",
        "SELECT fencepost.leave_marks('parts', ARRAY['parts/1'], ARRAY[99])",
    ):
        await owner.execute("SET ROLE someone; SET search_path = public")
        with pytest.raises(asyncpg.PostgresError, match="can only be called in an event trigger function"):
            await owner.execute(call)
        # In the middle of a command of one's own it can be called, and does nothing to the tables of others.
        await owner.execute(
            f"CREATE FUNCTION evil() RETURNS int LANGUAGE plpgsql AS $$ BEGIN {call.replace('SELECT', 'PERFORM', 1)};"
            " RETURN 1; END $$; CREATE TABLE mine (id int); INSERT INTO mine VALUES (1);"
            "ALTER TABLE mine ALTER id TYPE bigint USING evil()"
        )
        await owner.execute("RESET ROLE; DROP TABLE mine; DROP FUNCTION evil()")
        assert await owner.fetch("SELECT * FROM fencepost.marks") == [], call
