"""A prepared transaction that was forgotten holds its locks, and no session shows it: errors and doctor name it."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from click.testing import CliRunner
from tests.support.in_process import in_process
from tests.support.interleave import Connect, Connection

from fencepost.cli.main import main
from fencepost.storage.inspecting import prepared as inspect_prepared
from fencepost.storage.protecting.protect import ProtectError, protect
from fencepost.storage.statements.row_sql import literal
from fencepost.storage.upkeep.prepared import all_prepared, lock_holders

pytestmark = pytest.mark.versions

TABLES = """
CREATE TABLE t (id int PRIMARY KEY, v text);
CREATE TABLE parts (a int PRIMARY KEY, v text) PARTITION BY RANGE (a);
CREATE TABLE part_1 PARTITION OF parts FOR VALUES FROM (1) TO (10) PARTITION BY HASH (a);
CREATE TABLE part_1a PARTITION OF part_1 FOR VALUES WITH (MODULUS 1, REMAINDER 0);
CREATE TABLE plain (id int PRIMARY KEY);
"""


@pytest.fixture
async def owner(connect: Connect) -> AsyncIterator[Connection]:
    connection = await connect()
    await connection.execute("SET search_path = public")
    await connection.execute(TABLES)
    for table in ("t", "parts"):
        await protect(connection, table)
        key = "id" if table == "t" else "a"
        await connection.execute(f"INSERT INTO {table} ({key}, last_fence_token) VALUES (1, 1)")
    yield connection
    for each in await all_prepared(connection):
        await connection.execute(f"ROLLBACK PREPARED {literal(each.gid)}")


async def prepare(connect: Connect, gid: str, *statements: str) -> None:
    """Prepare a transaction, and leave."""
    connection = await connect()
    await connection.execute("SET search_path = public; BEGIN; SET LOCAL fencepost.token = '5'")
    for statement in statements:
        await connection.execute(statement)
    await connection.execute(f"PREPARE TRANSACTION {literal(gid)}")
    await connection.close()


async def doctor(database: str) -> list[str]:
    found = await asyncio.to_thread(CliRunner().invoke, main, ["doctor", "--database-url", database])
    return [line for line in found.output.splitlines() if "prepared" in line]


@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": "k"}], ids=["plain", "once"])
async def test_a_write_that_waited_in_vain_names_it(
    owner: Connection, connect: Connect, database: str, headers: dict[str, str]
) -> None:
    await prepare(connect, "Shop-1", "UPDATE t SET v = 'x' WHERE id = 1")
    await prepare(connect, "other", "INSERT INTO plain VALUES (1)")
    async with in_process(database, lock_timeout=0.2) as gateway:
        answer = await gateway.patch("/v1/data/t/1", json={"v": "y"}, headers={"X-Fence-Token": "6"} | headers)
        assert (answer.status_code, answer.json()["code"]) == (503, "55P03"), answer.text
        assert "The prepared transaction 'Shop-1' of " in answer.json()["hint"]
        assert " seconds ago, holds locks on t: COMMIT PREPARED 'Shop-1' or ROLLBACK" in answer.json()["hint"]
        assert answer.json()["prepared_transactions"] == ["Shop-1"]
        await owner.execute("COMMIT PREPARED 'Shop-1'")
        again = await gateway.patch("/v1/data/t/1", json={"v": "y"}, headers={"X-Fence-Token": "6"} | headers)
        assert (again.status_code, again.json()["v"]) == (200, "y")


async def test_a_grant_whose_claim_waited_in_vain_names_it(
    owner: Connection,  # noqa: ARG001 - makes the tables
    connect: Connect,
    database: str,
) -> None:
    await prepare(connect, "p", "UPDATE t SET v = 'x' WHERE id = 1")
    async with in_process(database, lock_timeout=0.2) as gateway:
        wanted = {"lock": "l", "owner": "me", "ttl_ms": 9000, "claim": ["t/1"]}
        answer = await gateway.post("/v1/leases", json=wanted)
    assert (answer.status_code, answer.json()["code"]) == (503, "55P03"), answer.text
    assert answer.json()["prepared_transactions"] == ["p"]


async def test_where_a_session_is_in_the_way_the_message_names_where_to_look(
    owner: Connection, connect: Connect, database: str
) -> None:
    await prepare(connect, "elsewhere", "UPDATE parts SET v = 'x' WHERE a = 1")
    await owner.execute("BEGIN; SELECT FROM t WHERE id = 1 FOR UPDATE")
    async with in_process(database, lock_timeout=0.2) as gateway:
        answer = await gateway.patch("/v1/data/t/1", json={"v": "y"}, headers={"X-Fence-Token": "6"})
    await owner.execute("ROLLBACK")
    assert answer.json()["code"] == "55P03"
    assert "see pg_stat_activity, and pg_prepared_xacts" in answer.json()["hint"]
    assert "prepared_transactions" not in answer.json()


@pytest.mark.parametrize("table", ["plain", "parts"])
async def test_protect_that_cannot_have_the_lock_names_it(owner: Connection, connect: Connect, table: str) -> None:
    write = {"plain": "INSERT INTO plain VALUES (1)", "parts": "UPDATE parts SET v = 'x' WHERE a = 1"}[table]
    await prepare(connect, "it's mine", write)
    with pytest.raises(ProtectError) as caught:
        await protect(owner, table, wait=0)
    said = " ".join(caught.value.reasons)
    assert "pg_prepared_xacts" in said
    assert f"holds locks on {table}: COMMIT PREPARED 'it''s mine'" in said


@pytest.mark.parametrize("write", ["UPDATE parts SET v = 'x' WHERE a = 1", "UPDATE part_1a SET v = 'x' WHERE a = 1"])
async def test_doctor_names_those_that_hold_a_protected_table(
    owner: Connection, connect: Connect, database: str, write: str
) -> None:
    await prepare(connect, "p", write)
    (line,) = await doctor(database)
    assert line.startswith("WARNING  prepared: the prepared transaction 'p' of ")
    assert "seconds ago, holds locks on parts: writes" in line
    assert "COMMIT PREPARED 'p' or ROLLBACK PREPARED 'p', in the database test_" in line
    assert await lock_holders(owner, "t") == []


async def test_doctor_names_old_ones_of_every_database(
    owner: Connection, connect: Connect, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await prepare(connect, "p", "INSERT INTO plain VALUES (1)")
    assert await doctor(database) == []
    monkeypatch.setattr(inspect_prepared, "OLD", 0.0)
    (line,) = await doctor(database)
    assert "'p'" in line
    assert "holds locks on plain, and keeps VACUUM, and the pruning of marks" in line
    await owner.execute("ROLLBACK PREPARED 'p'")
    assert await doctor(database) == []


async def test_doctor_reports_it_where_a_lock_keeps_it_from_looking(
    owner: Connection, connect: Connect, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fencepost.cli.status._LOCK_TIMEOUT", "50ms")
    await prepare(connect, "ddl", "ALTER TABLE part_1a ADD CHECK (a > 0)")
    found = await asyncio.to_thread(CliRunner().invoke, main, ["doctor", "--database-url", database])
    assert found.exit_code == 1, found.output
    assert "WARNING  prepared: the prepared transaction 'ddl'" in found.output
    assert "ERROR    locks: a protected table has been locked" in found.output
    assert await lock_holders(owner, "parts") != []
