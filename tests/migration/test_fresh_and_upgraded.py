"""A schema that was upgraded is the same as a new one: migrations/schema and the revisions make the same.

A new database is made from migrations/schema, with each table and function as it is now. One that an earlier version of
Fencepost made gets the changes of the later revisions. What an earlier version made is kept in
tests/migration/released, one file a revision: the output of its `fencepost migrate --sql`.
"""

import asyncio
import itertools
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import asyncpg
import pytest
from tests.support.gateways import CHANGE, FILES, next_version
from tests.support.interleave import Connect, Connection
from tests.support.postgres import dump

from fencepost.server.ops.embedded import PostgresServer
from fencepost.server.ops.embedded_files import embedded_bin_dir
from fencepost.server.ops.migrate import upgrade, upgrade_sql
from fencepost.server.ops.schema import known_revisions, newest
from fencepost.testing.servers.postgres import in_database

pytestmark = pytest.mark.versions

RELEASED = Path(__file__).parent / "released"
Empty = Callable[[], Awaitable[str]]
_numbers = itertools.count(1)


@pytest.fixture
async def empty(postgres: PostgresServer) -> AsyncIterator[Empty]:
    """Give a function that makes an empty database, and returns its URL."""
    async with AsyncExitStack() as databases:

        async def make() -> str:
            return await databases.enter_async_context(_empty(postgres))

        yield make


@asynccontextmanager
async def _empty(postgres: PostgresServer) -> AsyncIterator[str]:
    name = f"compared_{next(_numbers)}"
    server = await asyncpg.connect(postgres.url)
    await server.execute(f"CREATE DATABASE {name}")
    yield in_database(postgres.url, name)
    await server.execute(f"DROP DATABASE {name} WITH (FORCE)")
    await server.close()


async def dumped(url: str) -> str:
    connection = await asyncpg.connect(url)
    try:
        return await dump(connection)
    finally:
        await connection.close()


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


async def test_each_released_schema_is_upgraded_to_a_new_one(empty: Empty) -> None:
    for revision in known_revisions()[:-1]:
        sql = (RELEASED / f"{revision}.sql").read_text("utf-8")
        assert await upgraded(await empty(), sql) == await new(await empty()), revision


async def test_the_next_versions_schema_is_the_same_upgraded_and_new(empty: Empty, tmp_path: Path) -> None:
    ours = upgrade_sql()
    with next_version(tmp_path, newest()):
        after = await upgraded(await empty(), ours)
        assert after == await new(await empty())
    assert "future integer" in after


NOTE = "COMMENT ON COLUMN fencepost.marks.future IS 'To come'"
DIFFERENT: list[tuple[str, tuple[str, ...], Mapping[str, tuple[str, str]]]] = [
    ("the files lack the change", CHANGE, {}),
    ("only one has a comment", (*CHANGE, NOTE), FILES),
]


async def test_a_revision_and_the_files_that_differ_are_seen(empty: Empty, tmp_path: Path) -> None:
    ours = upgrade_sql()
    for number, (name, change, files) in enumerate(DIFFERENT):
        where = tmp_path / str(number)
        where.mkdir()
        with next_version(where, newest(), change, files):
            assert await upgraded(await empty(), ours) != await new(await empty()), name


CHANGES = [
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


async def test_any_change_by_hand_is_seen(connect: Connect) -> None:
    connection: Connection = await connect()
    made = await dump(connection)
    for change in CHANGES:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(change)
        assert await dump(connection) != made, change
        await transaction.rollback()
    assert await dump(connection) == made
