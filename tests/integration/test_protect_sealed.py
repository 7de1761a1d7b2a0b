"""`protect --sealed`: with what it goes together, how it is shown, and what it does not concern."""

import asyncio

import pytest
from click.testing import CliRunner, Result
from tests.support.interleave import Connect, Connection
from tests.support.racing import owner

from fencepost.cli.main import main
from fencepost.storage.protecting.protect import ProtectError, protect


async def run(database: str, *arguments: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, main, [*arguments, "--database-url", database])


@pytest.fixture
async def db(connect: Connect) -> Connection:
    connection = await owner(connect)
    await connection.execute("CREATE TABLE t (id int PRIMARY KEY, a int NOT NULL DEFAULT 1)")
    await connection.execute("CREATE TABLE u (id int PRIMARY KEY, a int NOT NULL DEFAULT 1)")
    return connection


async def is_sealed(db: Connection) -> bool:
    sealed: bool = await db.fetchval("SELECT sealed FROM fencepost.protected WHERE name = 't'")
    return sealed


async def test_it_is_given_kept_and_taken_back_by_the_command(db: Connection, database: str) -> None:
    assert (await run(database, "protect", "t", "--sealed")).exit_code == 0
    assert (await run(database, "protect", "t", "--rule", "epoch")).exit_code == 0
    assert await is_sealed(db)
    assert "external (sealed)" in (await run(database, "status")).output
    assert (await run(database, "protect", "t", "--no-sealed")).exit_code == 0
    assert not await is_sealed(db)


async def test_a_queue_has_no_seals_and_says_so_either_way_round(db: Connection) -> None:
    with pytest.raises(ProtectError, match="--sealed and postgres:default exclude each other"):
        await protect(db, "t", queue="postgres:default", sealed=True)
    await protect(db, "t", sealed=True)
    with pytest.raises(ProtectError, match="--no-sealed takes a seal away"):
        await protect(db, "t", queue="postgres:default")
    await protect(db, "t", queue="postgres:default", sealed=False)
    with pytest.raises(ProtectError, match="exclude each other"):
        await protect(db, "t", sealed=True)


async def test_all_tables_of_a_scope_are_sealed_or_none_is(db: Connection) -> None:
    await protect(db, "t", scope="of/{a}", sealed=True)
    with pytest.raises(ProtectError, match="t has the same scope with --sealed"):
        await protect(db, "u", scope="of/{a}")
    await protect(db, "u", scope="of/{a}", sealed=True)
    with pytest.raises(ProtectError, match="u has the same scope with --sealed"):
        await protect(db, "t", sealed=False)


async def test_direct_sql_takes_the_bare_number(db: Connection) -> None:
    await protect(db, "t", sealed=True)
    async with db.transaction():
        await db.execute("SET LOCAL fencepost.token = '34'")
        await db.execute("INSERT INTO t (id) VALUES (1)")
    assert await db.fetchval("SELECT last_fence_token FROM t") == 34
