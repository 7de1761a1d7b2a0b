"""`fencepost doctor`: it finds each thing that can be amiss, and shows how to mend it; and the gateway's own role."""

import asyncio

import asyncpg
import pytest
from click.testing import CliRunner, Result
from tests.support.in_process import in_process
from tests.support.interleave import Connect, Connection

from fencepost.cli.main import main

TABLES = """
CREATE TABLE t (id int PRIMARY KEY, v text);
CREATE TABLE parts (a int PRIMARY KEY) PARTITION BY RANGE (a);
CREATE TABLE part_1 PARTITION OF parts FOR VALUES FROM (1) TO (10);
"""


async def command(*arguments: str, database: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, main, [*arguments, "--database-url", database])


@pytest.fixture
async def owner(connect: Connect, database: str) -> Connection:
    connection = await connect()
    await connection.execute("SET search_path = public")
    await connection.execute(TABLES)
    for table in ("t", "parts"):
        assert (await command("protect", table, database=database)).exit_code == 0, table
    return connection


@pytest.mark.versions
@pytest.mark.usefixtures("owner")
async def test_a_sound_database_is_ok(database: str) -> None:
    found = await command("doctor", database=database)
    assert found.exit_code == 0
    assert all(line.startswith("ok ") for line in found.output.splitlines()), found.output
    assert "t: column, check, triggers and functions are in place" in found.output


AMISS = [
    ("ALTER TABLE t DISABLE TRIGGER zzz_fencepost_upd", "ERROR", "zzz_fencepost_upd", True),
    ("ALTER TABLE t DISABLE TRIGGER ALL", "ERROR", "zzz_fencepost_insmark", True),
    ("ALTER TABLE t ENABLE REPLICA TRIGGER zzz_fencepost_del", "ERROR", "zzz_fencepost_del", True),
    ("DROP TRIGGER zzz_fencepost_ins ON t", "ERROR", "zzz_fencepost_ins", True),
    ("DROP TRIGGER zzz_fencepost_trunc ON t", "ERROR", "zzz_fencepost_trunc", True),
    ("ALTER TABLE t DROP CONSTRAINT fencepost_mark", "ERROR", "the check fencepost_mark is gone", True),
    ("ALTER TABLE t DROP COLUMN last_fence_token CASCADE", "ERROR", "fencepost protect t --above N`", False),
    ("ALTER TABLE t ALTER COLUMN last_fence_token DROP NOT NULL", "ERROR", "last_fence_token is bigint", False),
    ("ALTER TABLE t RENAME COLUMN id TO key", "ERROR", "the primary key has changed", True),
    ("ALTER TABLE t DROP CONSTRAINT t_pkey", "ERROR", "the primary key has changed", False),
    (
        "ALTER TABLE t DROP CONSTRAINT fencepost_mark;"
        "ALTER TABLE t ADD CONSTRAINT fencepost_mark CHECK (last_fence_token >= 0) NOT VALID",
        "WARNING",
        "was not validated",
        True,
    ),
    (
        "ALTER EVENT TRIGGER fencepost_partitions DISABLE;"
        "CREATE TABLE part_2 PARTITION OF parts FOR VALUES FROM (10) TO (20);"
        "ALTER EVENT TRIGGER fencepost_partitions ENABLE",
        "WARNING",
        "part_2",
        True,
    ),
    ("DROP EVENT TRIGGER fencepost_partitions", "WARNING", "attached to protected tables are not followed", False),
    (
        "ALTER EVENT TRIGGER fencepost_dropped DISABLE",
        "WARNING",
        "attached to protected tables are not followed",
        False,
    ),
    ("ALTER TABLE t RENAME TO renamed", "ERROR", "the table is called renamed now", True),
    ("DROP TABLE t CASCADE", "WARNING", "the table was dropped", False),
    (
        "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';"
        "CREATE TRIGGER zzzz BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION f()",
        "WARNING",
        "BEFORE triggers run after the fence's and could change what it judged: zzzz",
        False,
    ),
    ("CREATE RULE r AS ON DELETE TO t DO INSTEAD NOTHING", "WARNING", "rewrite rules", False),
    ("ALTER TABLE t SET UNLOGGED", "WARNING", "the table is unlogged", False),
    (
        "ALTER TABLE t DROP COLUMN id CASCADE;"
        "ALTER TABLE t ADD COLUMN id int GENERATED ALWAYS AS (1) STORED PRIMARY KEY",
        "ERROR",
        "a column of the primary key is generated (id), so that rows can be inserted and deleted, and never changed",
        False,
    ),
    (
        "DO $$ BEGIN EXECUTE (SELECT format('DROP FUNCTION fencepost.%I', functions || '_name')"
        " FROM fencepost.protected WHERE name = 't'); END $$; ALTER TABLE t ALTER COLUMN id TYPE bigint",
        "ERROR",
        "a column of the primary key has another type now",
        True,
    ),
    (
        "ALTER TABLE t DROP COLUMN id CASCADE; ALTER TABLE t ADD id int PRIMARY KEY",
        "ERROR",
        "functions are missing",
        True,
    ),
]


@pytest.mark.parametrize(("harm", "level", "said", "mends"), AMISS, ids=[each[0][:50] for each in AMISS])
async def test_doctor_finds_what_is_amiss(
    owner: Connection, database: str, harm: str, level: str, said: str, mends: bool
) -> None:
    await owner.execute(harm)
    found = await command("doctor", database=database)
    assert any(line.startswith(level) and said in line for line in found.output.splitlines()), found.output
    assert found.exit_code == (1 if level == "ERROR" else 0)
    if not mends:
        return
    for name in await owner.fetch("SELECT c.relname FROM fencepost.protected p JOIN pg_class c ON c.oid = p.relation"):
        mended = await command("protect", name[0], database=database)
        assert mended.exit_code == 0, mended.output
    healed = await command("doctor", database=database)
    assert all(line.startswith("ok ") for line in healed.output.splitlines()), healed.output


async def test_doctor_finds_functions_that_are_gone(owner: Connection, database: str) -> None:
    name = await owner.fetchval("SELECT functions || '_delete' FROM fencepost.protected WHERE name = 't'")
    await owner.execute(f'DROP FUNCTION fencepost."{name}"')
    assert "functions are missing" in (await command("doctor", database=database)).output
    await command("protect", "t", database=database)
    assert (await command("doctor", database=database)).exit_code == 0


async def test_a_role_of_the_gateways_own(owner: Connection, database: str) -> None:
    login = database.replace(database.partition("://")[2].partition("@")[0], "gate:secret")
    await owner.execute("CREATE ROLE gate LOGIN PASSWORD 'secret'")
    try:
        await owner.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON t TO gate")
        await owner.execute("GRANT SELECT ON fencepost.protected, fencepost.alembic_version TO gate")
        lacking = await command("doctor", database=login)
        assert lacking.exit_code == 1, lacking.output
        assert "fencepost migrate --gateway-role" in lacking.output
        made = await command("migrate", "--gateway-role", "gate", database=database)
        assert made.exit_code == 0, made.output
        found = await command("doctor", database=login)
        assert found.exit_code == 0, found.output
        assert "WARNING  parts: the role gate lacks SELECT, INSERT, UPDATE, DELETE on the table" in found.output
        await everything_works_as(login)
        refused = await command("protect", "t", database=login)
        assert (refused.exit_code, "only an owner may" in refused.output) == (1, True)
        gate = await asyncpg.connect(login)
        for statement in (
            "DELETE FROM fencepost.marks",
            "UPDATE fencepost.marks SET last_fence_token = 1",
            "SELECT fencepost.prune('t', 5)",
            "DELETE FROM fencepost.protected",
            "ALTER TABLE t DISABLE TRIGGER ALL",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await gate.execute(statement)
        await gate.close()
    finally:
        await owner.execute("DROP OWNED BY gate; DROP ROLE gate")


async def everything_works_as(login: str) -> None:
    async with in_process(login) as http:
        for number, (method, path, body, status) in enumerate(
            (
                ("PUT", "/v1/data/t/1", {"v": "a"}, 201),
                ("PATCH", "/v1/data/t/1", {"v": "b"}, 200),
                ("POST", "/v1/data/t", [{"id": 2}, {"id": 3}], 201),
                ("PATCH", "/v1/data/t?id=gt.1", {"v": "c"}, 204),
                ("POST", "/v1/claims", {"resource": "t/1"}, 200),
                ("POST", "/v1/claims", {"resource": "t/99"}, 200),
                ("DELETE", "/v1/data/t/1", None, 204),
                ("DELETE", "/v1/data/t?id=gt.1", None, 204),
                ("PUT", "/v1/data/t/1", {}, 201),
            ),
            10,
        ):
            answer = await http.request(method, path, json=body, headers={"X-Fence-Token": str(number)})
            assert answer.status_code == status, (method, path, answer.text)
        assert (await http.patch("/v1/data/t/1", json={}, headers={"X-Fence-Token": "5"})).status_code == 409
        assert (await http.get("/v1/fences?resource=t/2")).json()["mark"] == "17"
        assert (await http.get("/readyz")).status_code == 200
        unseen = await http.patch("/v1/data/parts/1", json={}, headers={"X-Fence-Token": "5"})
        assert unseen.status_code in (403, 404), unseen.text
