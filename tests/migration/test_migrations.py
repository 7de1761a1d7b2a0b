"""The migrations: up, down, up; equal to the models; equal as SQL; and nothing outside of the schema fencepost."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection as SyncConnection
from sqlalchemy.dialects.postgresql.base import ischema_names
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool
from tests.support.interleave import Connection, eventually
from tests.support.postgres import in_database

from fencepost.embedded.server import PostgresServer, embedded_bin_dir
from fencepost.storage.protecting.protect import protect, unprotect
from fencepost.storage.schema.migrate import current, downgrade, newest, upgrade, upgrade_sql
from fencepost.storage.schema.models import SCHEMA, Xid8, metadata

pytestmark = pytest.mark.versions

OBJECTS = """
SELECT 'class ' || c.relkind::text || ' ' || c.oid::regclass::text
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname NOT IN ('pg_toast') AND (n.nspname = 'fencepost') = $1
UNION ALL
SELECT 'function ' || p.oid::regprocedure::text || ' ' || md5(pg_get_functiondef(p.oid)) || coalesce(p.proacl::text, '')
  FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE (n.nspname = 'fencepost') = $1 AND p.prokind = 'f'
   AND n.nspname NOT IN ('pg_catalog', 'information_schema')
UNION ALL
SELECT 'column ' || a.attrelid::regclass::text || '.' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
       || a.attnotnull || coalesce(pg_get_expr(d.adbin, d.adrelid), '') || a.attcollation
  FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
 WHERE (n.nspname = 'fencepost') = $1 AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')
   AND a.attnum > 0
UNION ALL
SELECT 'constraint ' || k.conname || ' ' || pg_get_constraintdef(k.oid) FROM pg_constraint k
  JOIN pg_namespace n ON n.oid = k.connamespace
 WHERE (n.nspname = 'fencepost') = $1 AND n.nspname NOT IN ('pg_catalog', 'information_schema')
UNION ALL
SELECT 'schema ' || nspname || coalesce(nspacl::text, '') FROM pg_namespace
 WHERE (nspname = 'fencepost') = $1 AND nspname NOT LIKE 'pg\\_%'
 ORDER BY 1"""


async def objects(connection: Connection, *, ours: bool) -> list[str]:
    return [row[0] for row in await connection.fetch(OBJECTS, ours)]


@pytest.fixture
async def empty(postgres: PostgresServer) -> AsyncIterator[str]:
    """Give the URL of a database that was never migrated, with a table of somebody's in it."""
    server = await asyncpg.connect(postgres.url)
    await server.execute("CREATE DATABASE empty_one")
    url = in_database(postgres.url, "empty_one")
    connection = await asyncpg.connect(url)
    await connection.execute("CREATE TABLE public.theirs (id int PRIMARY KEY, v text)")
    await connection.close()
    yield url
    await server.execute("DROP DATABASE empty_one WITH (FORCE)")
    await server.close()


async def test_up_down_up(empty: str) -> None:
    connection = await asyncpg.connect(empty)
    theirs = await objects(connection, ours=False)
    assert await current(connection) is None
    await upgrade(empty)
    made = await objects(connection, ours=True)
    assert await current(connection) == newest()
    await upgrade(empty)
    assert await objects(connection, ours=True) == made, "a second time changes nothing"
    await downgrade(empty)
    left = [each for each in await objects(connection, ours=True) if "alembic_version" not in each]
    assert [each for each in left if not each.startswith("schema ")] == []
    await upgrade(empty)
    assert await objects(connection, ours=True) == made
    assert await objects(connection, ours=False) == theirs, "nothing outside of the schema fencepost"
    await connection.close()


async def test_a_downgrade_is_refused_while_tables_are_protected(empty: str) -> None:
    await upgrade(empty)
    connection = await asyncpg.connect(empty)
    await protect(connection, "theirs")
    made = await objects(connection, ours=True)
    with pytest.raises(Exception, match="unprotect the protected tables first: theirs"):
        await downgrade(empty)
    assert await objects(connection, ours=True) == made
    await connection.execute("INSERT INTO public.theirs (id, last_fence_token) VALUES (1, 5)")
    await unprotect(connection, "theirs")
    await downgrade(empty)
    assert [each for each in await objects(connection, ours=True) if each.startswith("function ")] == []
    await connection.close()


def differences(connection: SyncConnection) -> list[Any]:
    context = MigrationContext.configure(
        connection,
        opts={
            "version_table_schema": SCHEMA,
            "include_schemas": True,
            "compare_type": True,
            "compare_server_default": True,
            "include_name": lambda name, kind, _parents: name == SCHEMA if kind == "schema" else True,
        },
    )
    return list(compare_metadata(context, metadata))


async def compared(url: str) -> list[Any]:
    engine = create_async_engine(
        "postgresql+asyncpg://", async_creator=lambda: asyncpg.connect(url), poolclass=NullPool
    )
    async with engine.connect() as connection:
        found = await connection.run_sync(differences)
    await engine.dispose()
    return found


@pytest.fixture(autouse=True)
def known_types(monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLAlchemy's reflection warns of types that it does not know."""
    monkeypatch.setitem(ischema_names, "xid8", Xid8)


async def test_the_migrations_add_up_to_the_models(database: str) -> None:
    assert await compared(database) == []


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE fencepost.marks ADD COLUMN by_hand int",
        "ALTER TABLE fencepost.marks DROP COLUMN changed_at",
        "ALTER TABLE fencepost.floors ALTER COLUMN floor DROP NOT NULL",
        "ALTER TABLE fencepost.protected DROP CONSTRAINT protected_name_key",
        "ALTER TABLE fencepost.protected ALTER COLUMN rule TYPE varchar(10)",
        "ALTER TABLE fencepost.floors ALTER COLUMN floor SET DEFAULT 1",
        "CREATE TABLE fencepost.by_hand (id int)",
    ],
)
async def test_a_change_by_hand_is_noticed(database: str, change: str) -> None:
    connection = await asyncpg.connect(database)
    await connection.execute(change)
    await connection.close()
    assert await compared(database) != []


async def test_the_printed_sql_does_what_upgrade_does(empty: str, database: str) -> None:
    psql = [str(embedded_bin_dir() / "psql"), "--no-psqlrc", "--set=ON_ERROR_STOP=1", "--quiet", empty]
    run = await asyncio.to_thread(
        subprocess.run, psql, input=upgrade_sql(), text=True, check=False, capture_output=True
    )
    assert (run.returncode, run.stderr) == (0, "")
    by_psql, by_upgrade = await asyncpg.connect(empty), await asyncpg.connect(database)
    assert await objects(by_psql, ours=True) == await objects(by_upgrade, ours=True)
    assert await current(by_psql) == newest()
    assert await compared(empty) == []
    await by_psql.close()
    await by_upgrade.close()
    await upgrade(empty)


async def test_two_migrations_at_once_wait_for_each_other(empty: str) -> None:
    command = [sys.executable, "-m", "fencepost", "migrate", "--database-url", empty]
    runs = [await asyncio.create_subprocess_exec(*command, stdout=subprocess.DEVNULL) for _ in range(4)]
    assert [await run.wait() for run in runs] == [0, 0, 0, 0]
    connection = await asyncpg.connect(empty)
    versions = await connection.fetch("SELECT version_num FROM fencepost.alembic_version")
    assert [row[0] for row in versions] == [newest()]

    async def alone() -> bool:
        return not await connection.fetchval(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database ="
            " (SELECT oid FROM pg_database WHERE datname = current_database())"
        )

    await eventually(alone, what="the advisory lock given back")
    await connection.close()


async def test_a_url_with_options_and_odd_characters_migrates(empty: str) -> None:
    await upgrade(f"{empty}?application_name=100%25%20mine")
    connection = await asyncpg.connect(empty)
    assert await current(connection) == newest()
    await connection.close()
