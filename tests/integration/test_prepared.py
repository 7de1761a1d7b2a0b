"""A prepared transaction that was forgotten holds its locks, and no session shows it: errors and doctor name it."""

from collections.abc import AsyncIterator

import pytest
from tests.support.gateways import in_process
from tests.support.interleave import Connect, Connection
from tests.support.servers import command

from fencepost.server.ops.doctor import examine_prepared
from fencepost.server.ops.protect import protect
from fencepost.server.postgres.row_sql import literal
from fencepost.server.postgres.upkeep import all_prepared


@pytest.fixture
async def owner(connect: Connect) -> AsyncIterator[Connection]:
    connection = await connect()
    await connection.execute("SET search_path = public")
    await connection.execute("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE plain (id int PRIMARY KEY)")
    await protect(connection, "t")
    await connection.execute("INSERT INTO t (id, last_fence_token) VALUES (1, 1)")
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


@pytest.mark.usefixtures("owner")
async def test_doctor_names_those_that_hold_a_protected_table(connect: Connect, database: str) -> None:
    await prepare(connect, "new", "INSERT INTO plain VALUES (1)")
    await prepare(connect, "p", "UPDATE t SET v = 'x' WHERE id = 1")
    lines = [line for line in (await command("doctor", database=database)).output.splitlines() if "prepared" in line]
    assert len(lines) == 1
    assert lines[0].startswith("WARNING  prepared: the prepared transaction 'p' of ")
    assert "seconds ago, holds locks on t: writes to its rows" in lines[0]


async def test_doctor_names_old_ones_whatever_they_hold(owner: Connection, connect: Connect) -> None:
    await prepare(connect, "p", "INSERT INTO plain VALUES (1)")
    (found,) = await examine_prepared(owner, old=0)
    assert "holds locks on plain, and keeps VACUUM, and the pruning of marks" in found.text


@pytest.mark.long("time limits")
@pytest.mark.usefixtures("owner")
async def test_doctor_reports_one_whose_lock_keeps_it_from_looking(connect: Connect, database: str) -> None:
    await prepare(connect, "ddl", "ALTER TABLE t ADD CHECK (id > 0)")
    found = await command("doctor", database=database)
    assert found.exit_code == 1
    assert "WARNING  prepared: the prepared transaction 'ddl'" in found.output
    assert "ERROR    locks: a protected table has been locked for 5s" in found.output
