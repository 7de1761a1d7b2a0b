"""The migrations: up, down, up; the same as SQL; and nothing outside of the schema fencepost."""

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from tests.support.gateways import next_version
from tests.support.interleave import Connection
from tests.support.postgres import dump

from fencepost.server.ops import schema
from fencepost.server.ops.embedded import PostgresServer
from fencepost.server.ops.embedded_files import embedded_bin_dir
from fencepost.server.ops.migrate import downgrade, upgrade, upgrade_sql
from fencepost.server.ops.protect import protect, unprotect
from fencepost.testing.servers.postgres import in_database
from fencepost.testing.servers.processes import eventually

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
    server = await asyncpg.connect(postgres.url)
    await server.execute("CREATE DATABASE empty_one")
    url = in_database(postgres.url, "empty_one")
    connection = await asyncpg.connect(url)
    await connection.execute("CREATE TABLE public.theirs (id int PRIMARY KEY, v text)")
    await connection.close()
    yield url
    await server.execute("DROP DATABASE empty_one WITH (FORCE)")
    await server.close()


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
    loaded = "import sys, fencepost.server.wiring; print(sorted({'alembic', 'sqlalchemy'} & set(sys.modules)))"
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
