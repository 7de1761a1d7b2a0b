"""The event triggers that follow partitions leave all other DDL alone, whichever role's it is, and go with the
schema.
"""

from collections.abc import AsyncIterator

import asyncpg
import pytest
from tests.support.interleave import Connect, Connection
from tests.support.racing import outcome

from fencepost.storage.protecting.partitions import EVENT_TRIGGERS, lacks_event_triggers
from fencepost.storage.protecting.protect import protect, unprotect
from fencepost.storage.schema import migrate

pytestmark = pytest.mark.versions

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


@pytest.mark.parametrize("usage", [True, False])
async def test_other_ddl_of_every_role_is_as_ever(owner: Connection, *, usage: bool) -> None:
    if not usage:
        await owner.execute("REVOKE USAGE ON SCHEMA fencepost FROM PUBLIC")
    await owner.execute("SET ROLE someone; SET search_path = public")
    for statement in DDL:
        await owner.execute(statement)


@pytest.mark.parametrize(
    "harm",
    [
        "DROP SCHEMA fencepost CASCADE",
        "ALTER SCHEMA fencepost RENAME TO elsewhere",
        "DROP FUNCTION fencepost.follow_partitions",
    ],
)
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


@pytest.mark.parametrize("member", [True, False])
async def test_the_owner_of_tables_has_their_partitions_followed(
    owner: Connection, database: str, *, member: bool
) -> None:
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
