"""Ceilings and seals as they are given, kept and shown, and marks that are far above all others (R12)."""

import json

import pytest
from tests.support.interleave import Connect, Connection
from tests.support.racing import owner
from tests.support.servers import command

from fencepost.server.ops.checks import ProtectError
from fencepost.server.ops.doctor_tables import FAR
from fencepost.server.ops.protect import protect


@pytest.fixture
async def db(connect: Connect) -> Connection:
    connection = await owner(connect)
    await connection.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a int NOT NULL DEFAULT 1); CREATE TABLE u (a int PRIMARY KEY)"
    )
    await protect(connection, "t")
    return connection


async def ceiling(db: Connection, name: str = "t") -> tuple[int | None, int | None]:
    row = await db.fetchrow("SELECT max_token, max_jump FROM fencepost.protected WHERE name = $1", name)
    assert row is not None
    return (row[0], row[1])


async def test_a_ceiling_is_kept_until_another_is_given(db: Connection, database: str) -> None:
    assert await ceiling(db) == (2**62 - 1, None)
    assert (await command("protect", "t", "--max-token", "5000", "--max-jump", "100", database=database)).exit_code == 0
    await protect(db, "t", rule="epoch")
    assert await ceiling(db) == (5000, 100)
    await protect(db, "t", max_jump=0)
    assert await ceiling(db) == (5000, None)
    await protect(db, "t", source="builtin")
    assert await ceiling(db) == (None, None)
    await protect(db, "t", source="external")
    assert await ceiling(db) == (2**62 - 1, None)


async def test_a_source_that_knows_its_tokens_has_no_ceiling(db: Connection) -> None:
    for max_token, max_jump in ((5, None), (None, 5)):
        with pytest.raises(ProtectError, match="are for the source external: builtin knows"):
            await protect(db, "t", source="builtin", max_token=max_token, max_jump=max_jump)


async def test_a_bound_that_is_none_is_refused(db: Connection) -> None:
    for max_token, max_jump in ((0, None), (2**63, None), (None, -1)):
        with pytest.raises(ProtectError, match="--max-token is a token, 1 to 9223372036854775807"):
            await protect(db, "t", max_token=max_token, max_jump=max_jump)


async def test_tables_of_a_scope_share_them(db: Connection) -> None:
    await protect(db, "t", scope="acc/{a}", max_token=5000)
    with pytest.raises(ProtectError, match="t has the same scope with --max-token 5000 and no --max-jump"):
        await protect(db, "u", scope="acc/{a}")
    await protect(db, "u", scope="acc/{a}", max_token=5000)


async def test_status_shows_them(db: Connection, database: str) -> None:
    assert "strict  external  id" in " ".join((await command("status", database=database)).output.split(" "))
    await protect(db, "t", max_token=5000, max_jump=100)
    assert "external (to 5000, jumps to 100)" in (await command("status", database=database)).output
    (shown,) = json.loads((await command("status", "--json", database=database)).output)["protected"]
    assert (shown["max_token"], shown["max_jump"]) == ("5000", "100")


async def test_doctor_finds_a_mark_that_would_refuse_everybody(db: Connection, database: str) -> None:
    async def found(change: str) -> str:
        await db.execute(change)
        return str((await command("doctor", database=database)).output)

    await db.execute("INSERT INTO t (id, last_fence_token) VALUES (1, 900), (2, 1000)")
    assert "far above" not in await found(f"UPDATE t SET last_fence_token = {1000 + FAR} WHERE id = 1")
    warned = await found(f"UPDATE t SET last_fence_token = {2**61} WHERE id = 1")
    assert f"WARNING  t: t/1 has the mark {2**61}, far above all others (1000)" in warned
    assert "`fencepost fence reset t/1 --to N --reason" in warned
    restored = f"SET session_replication_role = replica; UPDATE t SET last_fence_token = {2**62} WHERE id = 1"
    assert f"t/1 has the mark {2**62}, above {2**62 - 1}, the highest token that is taken" in await found(restored)


@pytest.fixture
async def sealed_db(connect: Connect) -> Connection:
    connection = await owner(connect)
    await connection.execute("CREATE TABLE t (id int PRIMARY KEY, a int NOT NULL DEFAULT 1)")
    await connection.execute("CREATE TABLE u (id int PRIMARY KEY, a int NOT NULL DEFAULT 1)")
    return connection


async def is_sealed(sealed_db: Connection) -> bool:
    sealed: bool = await sealed_db.fetchval("SELECT sealed FROM fencepost.protected WHERE name = 't'")
    return sealed


async def test_it_is_given_kept_and_taken_back_by_the_command(sealed_db: Connection, database: str) -> None:
    assert (await command("protect", "t", "--sealed", database=database)).exit_code == 0
    assert (await command("protect", "t", "--rule", "epoch", database=database)).exit_code == 0
    assert await is_sealed(sealed_db)
    assert "external (sealed)" in (await command("status", database=database)).output
    assert (await command("protect", "t", "--no-sealed", database=database)).exit_code == 0
    assert not await is_sealed(sealed_db)


async def test_a_queue_has_no_seals_and_says_so_either_way_round(sealed_db: Connection) -> None:
    with pytest.raises(ProtectError, match="--sealed and postgres:default exclude each other"):
        await protect(sealed_db, "t", queue="postgres:default", sealed=True)
    await protect(sealed_db, "t", sealed=True)
    with pytest.raises(ProtectError, match="--no-sealed takes a seal away"):
        await protect(sealed_db, "t", queue="postgres:default")
    await protect(sealed_db, "t", queue="postgres:default", sealed=False)
    with pytest.raises(ProtectError, match="exclude each other"):
        await protect(sealed_db, "t", sealed=True)


async def test_all_tables_of_a_scope_are_sealed_or_none_is(sealed_db: Connection) -> None:
    await protect(sealed_db, "t", scope="of/{a}", sealed=True)
    with pytest.raises(ProtectError, match="t has the same scope with --sealed"):
        await protect(sealed_db, "u", scope="of/{a}")
    await protect(sealed_db, "u", scope="of/{a}", sealed=True)
    with pytest.raises(ProtectError, match="u has the same scope with --sealed"):
        await protect(sealed_db, "t", sealed=False)
