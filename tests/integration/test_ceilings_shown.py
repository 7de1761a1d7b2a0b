"""Ceilings as they are given, kept and shown, and marks that are far above all others (R12)."""

import asyncio
import json

import pytest
from click.testing import CliRunner, Result
from tests.support.interleave import Connect, Connection
from tests.support.racing import owner

from fencepost.cli.main import main
from fencepost.storage.inspecting.ceilings import FAR
from fencepost.storage.protecting.protect import ProtectError, protect


async def run(database: str, *arguments: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, main, [*arguments, "--database-url", database])


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
    assert (await run(database, "protect", "t", "--max-token", "5000", "--max-jump", "100")).exit_code == 0
    await protect(db, "t", rule="epoch")
    assert await ceiling(db) == (5000, 100)
    await protect(db, "t", max_jump=0)
    assert await ceiling(db) == (5000, None)
    await protect(db, "t", source="builtin")
    assert await ceiling(db) == (None, None)
    await protect(db, "t", source="external")
    assert await ceiling(db) == (2**62 - 1, None)


@pytest.mark.parametrize(("max_token", "max_jump"), [(5, None), (None, 5)])
async def test_a_source_that_knows_its_tokens_has_no_ceiling(
    db: Connection, max_token: int | None, max_jump: int | None
) -> None:
    with pytest.raises(ProtectError, match="are for the source external: builtin knows"):
        await protect(db, "t", source="builtin", max_token=max_token, max_jump=max_jump)


@pytest.mark.parametrize(("max_token", "max_jump"), [(0, None), (2**63, None), (None, -1)])
async def test_a_bound_that_is_none_is_refused(db: Connection, max_token: int | None, max_jump: int | None) -> None:
    with pytest.raises(ProtectError, match="--max-token is a token, 1 to 9223372036854775807"):
        await protect(db, "t", max_token=max_token, max_jump=max_jump)


async def test_tables_of_a_scope_share_them(db: Connection) -> None:
    await protect(db, "t", scope="acc/{a}", max_token=5000)
    with pytest.raises(ProtectError, match="t has the same scope with --max-token 5000 and no --max-jump"):
        await protect(db, "u", scope="acc/{a}")
    await protect(db, "u", scope="acc/{a}", max_token=5000)


async def test_a_scope_is_not_entered_above_the_ceiling(db: Connection) -> None:
    await protect(db, "t", scope="acc/{a}", max_jump=100)

    async def each(token: int) -> str:
        verdict: str = await db.fetchval(
            "SELECT e.verdict FROM fencepost.enter_each('acc', ARRAY['acc/1'], ARRAY[$1::bigint],"
            " 't'::regclass::oid, 'acc/{a}') AS e", token
        )  # fmt: skip
        return verdict

    async def one(token: int) -> str:
        try:
            await db.execute("SELECT * FROM fencepost.enter('acc', ARRAY['acc/1'], $1)", token)
        except Exception as error:  # noqa: BLE001 - its SQLSTATE is what is asked
            return str(getattr(error, "sqlstate", error))
        return "entered"

    assert (await each(101), await one(101)) == ("unclear", "FP018")
    assert await one(100) == "entered"
    assert (await each(201), await one(201)) == ("unclear", "FP018")
    assert await each(200) == "entered"
    await protect(db, "t", max_jump=0)
    assert (await each(2**62), await one(2**62)) == ("unclear", "FP018")
    assert await db.fetchval("SELECT last_fence_token FROM fencepost.marks") == 200
    async with db.transaction():
        await db.execute(f"SET LOCAL fencepost.token = '{2**62 - 1}'")
        await db.execute("INSERT INTO t VALUES (1, 1)")
    assert await one(2**63 - 1) == "FP018"


async def test_status_shows_them(db: Connection, database: str) -> None:
    assert "strict  external  id" in " ".join((await run(database, "status")).output.split(" "))
    await protect(db, "t", max_token=5000, max_jump=100)
    assert "external (to 5000, jumps to 100)" in (await run(database, "status")).output
    (shown,) = json.loads((await run(database, "status", "--json")).output)["protected"]
    assert (shown["max_token"], shown["max_jump"]) == ("5000", "100")


@pytest.mark.parametrize("source", ["external", "builtin"])
async def test_doctor_survives_a_column_of_marks_of_another_type(db: Connection, database: str, source: str) -> None:
    await protect(db, "t", source=source)
    await db.execute(
        "ALTER TABLE t DROP COLUMN last_fence_token CASCADE; ALTER TABLE t ADD COLUMN last_fence_token text"
    )
    found = await run(database, "doctor")
    assert found.exit_code == 1
    assert "t: the column last_fence_token is text" in found.output


async def test_doctor_finds_a_mark_far_above_all_others(db: Connection, database: str) -> None:
    await db.execute("INSERT INTO t (id, last_fence_token) VALUES (1, 900), (2, 1000)")
    assert "far above" not in (await run(database, "doctor")).output
    await db.execute(f"UPDATE t SET last_fence_token = {900 + FAR} WHERE id = 1")
    assert "far above" not in (await run(database, "doctor")).output
    await db.execute(f"UPDATE t SET last_fence_token = {2**61} WHERE id = 1")
    found = await run(database, "doctor")
    assert f"WARNING  t: t/1 has the mark {2**61}, far above all others (1000)" in found.output
    assert "`fencepost fence reset t/1 --to N --reason" in found.output
    assert found.exit_code == 0
    async with db.transaction():
        await db.execute(f"SET LOCAL fencepost.token = '{2**61}'")
        await db.execute("DELETE FROM t WHERE id = 2")
    assert "far above all others (0)" not in (await run(database, "doctor")).output
    await db.execute("INSERT INTO t (id, last_fence_token) VALUES (3, 1000)")
    assert "far above all others (1000)" in (await run(database, "doctor")).output
