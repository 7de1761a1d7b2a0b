"""What versions N and N+1 of Fencepost promise each other: this version on a schema with a revision more, and on one
with a revision less, as during a rolling upgrade.
"""

import asyncio
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.support.gateways import in_process
from tests.support.gateways import next_version as becoming
from tests.support.interleave import Connect

from fencepost.cli.main import main
from fencepost.server.ops import schema
from fencepost.server.ops.migrate import NewerSchemaError, upgrade
from fencepost.server.ops.protect import protect
from fencepost.server.startup import StartupError
from fencepost.testing.servers.processes import eventually

Become = Callable[[str], AbstractContextManager[None]]


@pytest.fixture
def next_version(tmp_path: Path) -> Become:
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
    database: str, connect: Connect, next_version: Become
) -> None:
    await orders(connect)
    async with in_process(database) as http:
        with next_version(schema.newest()):
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
    database: str, connect: Connect, next_version: Become
) -> None:
    await orders(connect)
    async with in_process(database) as http:
        with next_version("9999"):
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
    database: str, connect: Connect, next_version: Become
) -> None:
    with next_version(schema.newest()):
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

    async def waits() -> bool:
        return bool(
            await observer.fetchval("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
        )

    await eventually(waits, what="a migration that waits for another one")
    await holder.execute("UPDATE fencepost.alembic_version SET version_num = '9999'")
    await holder.execute("SELECT pg_advisory_unlock($1)", 0x66656E6365)
    with pytest.raises(NewerSchemaError):
        await older


async def test_a_newer_version_on_an_older_schema_asks_for_the_migration(
    database: str, connect: Connect, next_version: Become
) -> None:
    await orders(connect)
    async with in_process(database) as http:
        with next_version("9999"):
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
