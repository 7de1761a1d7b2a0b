"""Migrations: up, down, up; fresh and upgraded databases are the same; which versions a gateway takes."""

import asyncio
import itertools
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, AsyncExitStack
from pathlib import Path

import asyncpg
import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from click.testing import CliRunner, Result
from tests.support.gateways import CHANGE, FILES, in_process, next_version
from tests.support.gateways import next_version as becoming
from tests.support.interleave import Connect, Connection, connection_to
from tests.support.postgres import dump
from tests.support.postgres import empty_database as never_migrated

from fencepost.cli.main import main
from fencepost.server.ops import schema
from fencepost.server.ops.embedded import PostgresServer
from fencepost.server.ops.embedded_files import embedded_bin_dir
from fencepost.server.ops.migrate import NewerSchemaError, downgrade, upgrade, upgrade_sql
from fencepost.server.ops.protect import protect, unprotect
from fencepost.server.ops.schema import known_revisions, newest
from fencepost.server.startup import StartupError
from fencepost.testing.servers.postgres import run_on
from fencepost.testing.servers.processes import eventually

# The migrations: up, down, up; the same as SQL; and nothing outside of the schema fencepost.

# What may never change by a migration of ours: everything outside of the schema fencepost.
OTHERS = """
SELECT 'class ' || c.relkind::text || ' ' || c.oid::regclass::text
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname NOT IN ('pg_toast', 'fencepost')
UNION ALL
SELECT 'function ' || p.oid::regprocedure::text || ' ' || md5(pg_get_functiondef(p.oid)) || coalesce(p.proacl::text, '')
  FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
 WHERE n.nspname NOT IN ('pg_catalog', 'information_schema', 'fencepost') AND p.prokind = 'f'
UNION ALL
SELECT 'column ' || a.attrelid::regclass::text || '.' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
       || a.attnotnull || coalesce(pg_get_expr(d.adbin, d.adrelid), '') || a.attcollation
  FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
 WHERE n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast', 'fencepost') AND a.attnum > 0
UNION ALL
SELECT 'constraint ' || k.conname || ' ' || pg_get_constraintdef(k.oid) FROM pg_constraint k
  JOIN pg_namespace n ON n.oid = k.connamespace
 WHERE n.nspname NOT IN ('pg_catalog', 'information_schema', 'fencepost')
UNION ALL
SELECT 'schema ' || nspname || coalesce(nspacl::text, '') FROM pg_namespace
 WHERE nspname <> 'fencepost' AND nspname NOT LIKE 'pg\\_%'
 ORDER BY 1"""


async def others(connection: Connection) -> list[str]:
    return [row[0] for row in await connection.fetch(OTHERS)]


@pytest.fixture
async def empty(postgres: PostgresServer) -> AsyncIterator[str]:
    """Give the URL of a database that was never migrated, with a user's table in it."""
    async with never_migrated(postgres, "empty_one") as url:
        await run_on(url, "CREATE TABLE public.theirs (id int PRIMARY KEY, v text)")
        yield url


@pytest.mark.versions
async def test_up_down_up(empty: str) -> None:
    connection = await asyncpg.connect(empty)
    theirs = await others(connection)
    assert await schema.current(connection) is None
    await upgrade(empty)
    made = await dump(connection)
    assert await schema.current(connection) == schema.newest()
    await upgrade(empty)
    assert await dump(connection) == made, "a second time changes nothing"
    await downgrade(empty)
    left = [line for line in (await dump(connection)).splitlines() if "alembic_version" not in line]
    assert left == ["schema fencepost: acl OWNER CREATE, OWNER USAGE"]
    await upgrade(empty)
    assert await dump(connection) == made
    assert await others(connection) == theirs, "nothing outside of the schema fencepost"
    await connection.close()


@pytest.mark.versions
async def test_a_downgrade_is_refused_while_tables_are_protected(empty: str) -> None:
    await upgrade(empty)
    connection = await asyncpg.connect(empty)
    await protect(connection, "theirs")
    made = await dump(connection)
    with pytest.raises(Exception, match="unprotect the protected tables first: theirs"):
        await downgrade(empty)
    assert await dump(connection) == made
    await connection.execute("INSERT INTO public.theirs (id, last_fence_token) VALUES (1, 5)")
    await unprotect(connection, "theirs")
    await connection.execute("CREATE TABLE fencepost.notes (id int); INSERT INTO fencepost.notes VALUES (1)")
    await downgrade(empty)
    left = await dump(connection)
    assert ("function " in left, "rows notes: 1" in left) == (False, True), "what others made in the schema is left"
    await upgrade(f"{empty}?application_name=100%25%20mine")
    await connection.close()


def test_each_file_of_the_schema_is_run() -> None:
    script = (schema.scripts_dir() / "versions" / "0001_schema.py").read_text("utf-8")
    listed = re.findall(r'^    "(\w+)",', script, re.MULTILINE)
    assert sorted(listed) == sorted(path.stem for path in (schema.scripts_dir() / "schema").glob("*.sql"))


def test_the_revisions_are_those_that_alembic_runs(tmp_path: Path) -> None:
    config = Config()
    with next_version(tmp_path, schema.newest()):
        config.set_main_option("script_location", str(schema.scripts_dir()))
        walked = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()]
        assert schema.known_revisions() == tuple(reversed(walked))
        assert len(walked) > 1, "an order is of two at least"


def test_a_gateway_imports_no_alembic() -> None:
    """It takes longer to import than all the rest, in each worker process."""
    loaded = "import sys, fencepost.server.serve; print(sorted({'alembic', 'sqlalchemy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


async def test_the_printed_sql_does_what_upgrade_does(empty: str, database: str) -> None:
    psql = [str(embedded_bin_dir() / "psql"), "--no-psqlrc", "--set=ON_ERROR_STOP=1", "--quiet", empty]
    run = await asyncio.to_thread(
        subprocess.run, psql, input=upgrade_sql(), text=True, check=False, capture_output=True
    )
    assert (run.returncode, run.stderr) == (0, "")
    by_psql, by_upgrade = await asyncpg.connect(empty), await asyncpg.connect(database)
    assert await dump(by_psql) == await dump(by_upgrade)
    assert await schema.current(by_psql) == schema.newest()
    await by_psql.close()
    await by_upgrade.close()
    await upgrade(empty)


async def test_two_migrations_at_once_wait_for_each_other(empty: str) -> None:
    command = [sys.executable, "-m", "fencepost", "migrate", "--database-url", empty]
    runs = [await asyncio.create_subprocess_exec(*command, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [await run.wait() for run in runs] == [0, 0]
    connection = await asyncpg.connect(empty)
    versions = await connection.fetch("SELECT version_num FROM fencepost.alembic_version")
    assert [row[0] for row in versions] == [schema.newest()]

    async def alone() -> bool:
        return not await connection.fetchval(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database ="
            " (SELECT oid FROM pg_database WHERE datname = current_database())"
        )

    await eventually(alone, what="the advisory lock given back")
    await connection.close()


# A schema that was upgraded is the same as a new one: migrations/schema and the revisions make the same.
# A new database is made from migrations/schema, with each table and function as it is now. One that an earlier version
# of Fencepost made gets the changes of the later revisions. What an earlier version made is kept in
# tests/migration/released, one file a revision: the output of its `fencepost migrate --sql`.

Empty = Callable[[], Awaitable[str]]
_numbers = itertools.count(1)


@pytest.fixture
def empty_database(postgres: PostgresServer, stack: AsyncExitStack) -> Empty:
    async def make() -> str:
        return await stack.enter_async_context(never_migrated(postgres, f"compared_{next(_numbers)}"))

    return make


async def dumped(url: str) -> str:
    async with connection_to(url) as connection:
        return await dump(connection)


async def as_released(url: str, sql: str) -> None:
    """Make a database what the SQL of a released version made it."""
    psql = [str(embedded_bin_dir() / "psql"), "--no-psqlrc", "--set=ON_ERROR_STOP=1", "--quiet", url]
    await asyncio.to_thread(subprocess.run, psql, input=sql, text=True, check=True, capture_output=True)


async def upgraded(url: str, sql: str) -> str:
    await as_released(url, sql)
    await upgrade(url)
    return await dumped(url)


async def new(url: str) -> str:
    await upgrade(url)
    return await dumped(url)


@pytest.mark.versions
async def test_each_released_schema_is_upgraded_to_a_new_one(empty_database: Empty) -> None:
    released = Path(__file__).parent / "released"
    for revision in known_revisions()[:-1]:
        sql = (released / f"{revision}.sql").read_text("utf-8")
        assert await upgraded(await empty_database(), sql) == await new(await empty_database()), revision


@pytest.mark.versions
async def test_the_next_versions_schema_is_the_same_upgraded_and_new(empty_database: Empty, tmp_path: Path) -> None:
    ours = upgrade_sql()
    with next_version(tmp_path, newest()):
        after = await upgraded(await empty_database(), ours)
        assert after == await new(await empty_database())
    assert "future integer" in after


@pytest.mark.versions
async def test_a_revision_and_the_files_that_differ_are_seen(empty_database: Empty, tmp_path: Path) -> None:
    ours = upgrade_sql()
    note = "COMMENT ON COLUMN fencepost.marks.future IS 'To come'"
    different: list[tuple[str, tuple[str, ...], Mapping[str, tuple[str, str]]]] = [
        ("the files lack the change", CHANGE, {}),
        ("only one has a comment", (*CHANGE, note), FILES),
    ]
    for number, (name, change, files) in enumerate(different):
        where = tmp_path / str(number)
        where.mkdir()
        with next_version(where, newest(), change, files):
            assert await upgraded(await empty_database(), ours) != await new(await empty_database()), name


@pytest.mark.versions
async def test_any_change_by_hand_is_seen(connect: Connect) -> None:
    connection: Connection = await connect()
    made = await dump(connection)
    changes = [
        "ALTER TABLE fencepost.marks ADD COLUMN by_hand int",
        "ALTER TABLE fencepost.floors ALTER COLUMN floor DROP NOT NULL",
        "ALTER TABLE fencepost.protected DROP CONSTRAINT protected_name_key",
        "ALTER TABLE fencepost.marks RESET (fillfactor)",
        "ALTER TABLE fencepost.marks ENABLE ROW LEVEL SECURITY",
        "ALTER TABLE fencepost.marks DISABLE TRIGGER never_lower",
        "ALTER SEQUENCE fencepost.tokens CACHE 2",
        "ALTER TYPE fencepost.acquired ADD ATTRIBUTE by_hand int",
        "DROP INDEX fencepost.waiters_visit_idx",
        "CREATE OR REPLACE FUNCTION fencepost.may_break_glass() RETURNS boolean LANGUAGE sql IMMUTABLE RETURN false",
        "ALTER FUNCTION fencepost.wake VOLATILE SECURITY DEFINER",
        "ALTER FUNCTION fencepost.sweep OWNER TO pg_monitor",
        "GRANT EXECUTE ON FUNCTION fencepost.sweep TO PUBLIC",
        "GRANT SELECT ON fencepost.marks TO PUBLIC",
        "COMMENT ON TABLE fencepost.marks IS NULL",
        "CREATE OR REPLACE VIEW fencepost.live_waiters AS SELECT * FROM fencepost.waiters",
        "ALTER EVENT TRIGGER fencepost_dropped DISABLE",
    ]
    for change in changes:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(change)
        assert await dump(connection) != made, change
        await transaction.rollback()
    assert await dump(connection) == made


# What versions N and N+1 of Fencepost promise each other: this version on a schema with a revision more, and on one
# with a revision less, as during a rolling upgrade.

Become = Callable[[str], AbstractContextManager[None]]


@pytest.fixture
def newer_version(tmp_path: Path) -> Become:
    """Give a context manager in which this is the next version, whose schema works for gateways from a revision on."""
    return lambda works_from: becoming(tmp_path, works_from)


async def command(*arguments: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, main, [*arguments])


async def orders(connect: Connect) -> None:
    connection = await connect()
    await connection.execute(
        "CREATE TABLE public.orders (id text PRIMARY KEY); CREATE TABLE public.later (id text PRIMARY KEY)"
    )
    await protect(connection, "orders")


async def revision(connect: Connect) -> str | None:
    return await schema.current(await connect())


async def test_a_gateway_serves_on_while_and_after_the_next_version_migrates(
    database: str, connect: Connect, newer_version: Become
) -> None:
    await orders(connect)
    async with in_process(database) as http:
        with newer_version(schema.newest()):
            await upgrade(database)
        assert await revision(connect) == "9999"
        ready = await http.get("/readyz")
        assert ready.status_code == 200, ready.text
        assert "revision 9999, newer than" in ready.json()["schema"]
        wrote = await http.put("/v1/data/orders/k", json={}, headers={"X-Fence-Token": "36"})
        assert wrote.status_code == 201, wrote.text
    async with in_process(database) as http:
        assert (await http.get("/readyz")).status_code == 200, "one that is started meanwhile, too"
    doctor = await command("doctor", "--database-url", database)
    assert (doctor.exit_code, "WARNING  schema: revision 9999, newer than" in doctor.output) == (0, True), doctor.output
    assert "orders: column, check, triggers" in doctor.output, "and looks at all the rest"
    assert (await command("protect", "later", "--database-url", database)).exit_code == 0


async def test_a_gateway_that_cannot_work_on_the_newer_schema_reports_that_it_is_to_be_upgraded(
    database: str, connect: Connect, newer_version: Become
) -> None:
    await orders(connect)
    async with in_process(database) as http:
        with newer_version("9999"):
            await upgrade(database)
        ready = await http.get("/readyz")
        assert ready.status_code == 503
        message = [ready.json()["schema"]]
    doctor = await command("doctor", "--database-url", database)
    assert doctor.exit_code == 1
    with pytest.raises(StartupError) as refused:
        async with in_process(database):
            pass
    protected = await command("protect", "later", "--database-url", database)
    assert protected.exit_code == 1
    for text in (*message, doctor.output, str(refused.value), protected.output):
        assert "revision 9999, on which this version of Fencepost" in text
        assert "cannot work: upgrade it" in text
        assert "fencepost migrate" not in text


async def test_a_schema_that_has_no_answer_is_not_worked_on(connect: Connect) -> None:
    connection = await connect()
    await connection.execute("UPDATE fencepost.alembic_version SET version_num = '9999'")
    await connection.execute("DROP FUNCTION fencepost.compatible_from()")
    assert (await schema.fit(connection)).verdict == "too new"


async def test_an_older_version_does_not_migrate_a_newer_schema(
    database: str, connect: Connect, newer_version: Become
) -> None:
    with newer_version(schema.newest()):
        await upgrade(database)
    more = ("--owner", "somebody_else", "--gateway-role", "nobody_yet")
    done = await command("migrate", *more, "--database-url", database)
    assert done.exit_code == 1
    assert done.output == (
        f"Error: the schema fencepost is at revision 9999, and this version of Fencepost only knows those up to"
        f" {schema.newest()}: it was migrated by a newer version. Nothing was changed; run `migrate` of that one\n"
    )
    assert await revision(connect) == "9999"
    connection = await connect()
    assert await connection.fetchval("SELECT count(*) FROM pg_roles WHERE rolname = 'somebody_else'") == 0


async def test_an_older_version_that_waited_for_the_newer_ones_migration_is_refused(
    database: str, connect: Connect
) -> None:
    holder = await connect()
    await holder.execute("SELECT pg_advisory_lock($1)", 0x66656E6365)
    older = asyncio.create_task(upgrade(database))
    observer = await connect()
    await eventually(
        lambda: observer.fetchval("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"),
        what="a migration that waits for another one",
    )
    await holder.execute("UPDATE fencepost.alembic_version SET version_num = '9999'")
    await holder.execute("SELECT pg_advisory_unlock($1)", 0x66656E6365)
    with pytest.raises(NewerSchemaError):
        await older


async def test_a_newer_version_on_an_older_schema_asks_for_the_migration(
    database: str, connect: Connect, newer_version: Become
) -> None:
    await orders(connect)
    async with in_process(database) as http:
        with newer_version("9999"):
            ready = await http.get("/readyz")
            assert (ready.status_code, "run `fencepost migrate`" in ready.json()["schema"]) == (503, True)
            with pytest.raises(StartupError, match="run `fencepost migrate`"):
                async with in_process(database):
                    pass
            doctor = await command("doctor", "--database-url", database)
            assert (doctor.exit_code, "where 9999 is needed: run `fencepost migrate`" in doctor.output) == (1, True)
            refused = await command("protect", "later", "--database-url", database)
            assert (refused.exit_code, "run `fencepost migrate`" in refused.output) == (1, True)


async def test_each_later_revision_decides_from_which_one_on_the_schema_can_be_worked_on(connect: Connect) -> None:
    connection = await connect()
    assert await connection.fetchval("SELECT fencepost.compatible_from()") in schema.known_revisions()
    for each in schema.known_revisions()[1:]:
        (script,) = (schema.scripts_dir() / "versions").glob(f"{each}_*.py")
        assert re.search(r"\bcompatible_from\b", script.read_text("utf-8")), f"{each} has not decided"
