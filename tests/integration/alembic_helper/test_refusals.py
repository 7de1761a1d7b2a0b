"""What a migration that calls `protect` needs, is refused, and waits for."""

import asyncio
from pathlib import Path

import asyncpg
import pytest
from alembic.util import CommandError
from tests.integration.alembic_helper.project import BOTH, Project
from tests.support.interleave import Connect, Connection
from tests.support.next_version import next_version

from fencepost.storage.inspecting.tables import examine_tables
from fencepost.storage.schema.migrate import downgrade
from fencepost.storage.schema.migrate import upgrade as migrate
from fencepost.testing.servers.waiting import eventually


@BOTH
async def test_what_rolls_the_migration_back_rolls_this_back(project: Project, db: Connection) -> None:
    project.revise(3, '    protect(op, "orders", rule="epoch")\n    raise RuntimeError("later in the same migration")')
    with pytest.raises(RuntimeError, match="later in the same migration"):
        await project.upgrade()
    assert await db.fetchval("SELECT to_regclass('orders') IS NULL"), "all revisions were one transaction"
    assert await db.fetchval("SELECT count(*) FROM fencepost.protected") == 0
    assert await db.fetchval("SELECT count(*) FROM fencepost.floors") == 0


@BOTH
async def test_the_rest_of_the_migration_finds_its_settings_as_they_were(project: Project, db: Connection) -> None:
    await db.execute("CREATE SCHEMA other")
    project.revise(
        3,
        """
    op.execute("SET LOCAL search_path = other, public")
    op.execute("SET LOCAL lock_timeout = '7s'")
    protect(op, "orders", rule="epoch")
    try:
        protect(op, "nowhere")
    except Exception:
        pass
    op.execute("CREATE TABLE found AS SELECT current_setting('search_path') AS path,"
               " current_setting('lock_timeout') AS timeout, current_setting('row_security') AS security")
""",
    )
    await project.upgrade()
    found = await db.fetchrow("SELECT * FROM other.found")
    assert found is not None
    assert tuple(found) == ("other, public", "7s", "on")
    assert await db.fetchval("SELECT rule FROM fencepost.protected WHERE name = 'orders'") == "epoch"


WRONG = [
    ('protect(op, "nowhere")', "nowhere: there is no such table"),
    ('protect(op, "orders", scope="account/{nothing}")', "column nothing is no column of orders"),
    ('protect(op, "orders", scope="not a template")', "orders: scope "),
    ('op.execute("CREATE TABLE keyless (a int)"); protect(op, "keyless")', "keyless: it has no primary key"),
    ('unprotect(op, "orders"); unprotect(op, "orders")', "orders: it is not protected"),
    (
        """protect(op, "orders", max_token=2**63 - 1)
    op.execute("UPDATE orders SET last_fence_token = 9223372036854775807")
    protect(op, "orders", source="builtin")""",
        "above 2\\^62",
    ),
]


@BOTH
async def test_what_is_in_the_way_is_reported_and_nothing_happens(project: Project, db: Connection) -> None:
    await project.upgrade()
    for statement, output in WRONG:
        project.revise(3, f"    {statement}")
        with pytest.raises(CommandError, match=output):
            await project.upgrade()
        assert await db.fetchval("SELECT count(*) FROM fencepost.protected") == 2, statement
        assert await db.fetchval("SELECT version_num FROM alembic_version") == "0002", statement


async def test_another_isolation_than_read_committed_is_refused(project: Project) -> None:
    await project.upgrade()
    # Before anything is asked, by Alembic itself too.
    isolated = 'context.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")'
    project.edit("context.run_migrations()", f"{isolated} or context.run_migrations()")
    project.revise(3, '    protect(op, "orders")')
    with pytest.raises(CommandError, match="the migration's transaction is serializable"):
        await project.upgrade()


@BOTH
async def test_it_needs_the_migrations_transaction(project: Project) -> None:
    project.revise(3, '    with op.get_context().autocommit_block():\n        protect(op, "orders")')
    with pytest.raises(CommandError, match="cannot be inside of autocommit_block"):
        await project.upgrade()


async def test_it_needs_the_schema_at_its_newest_revision(project: Project, database: str, tmp_path: Path) -> None:
    newer = next_version(tmp_path / "newer", "9999")
    with newer, pytest.raises(CommandError, match="revision 0001, where 9999 is needed: run `fencepost migrate`"):
        await project.upgrade()
    await downgrade(database)
    connection = await asyncpg.connect(database)
    await connection.execute("DROP SCHEMA fencepost CASCADE")
    await connection.close()
    with pytest.raises(CommandError, match="has no schema fencepost: run `fencepost migrate`"):
        await project.upgrade()


@BOTH
async def test_a_table_that_is_locked_is_waited_for(project: Project, db: Connection, connect: Connect) -> None:
    await project.upgrade("0001")
    holder = await connect()
    await holder.execute("BEGIN; LOCK TABLE public.orders IN ACCESS SHARE MODE")
    project.revise(3, '    protect(op, "items", wait=0.1)')
    upgrading = asyncio.create_task(project.upgrade("0002"))

    async def waits() -> bool:
        waiting: bool = await db.fetchval("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)")
        return waiting

    await eventually(waits)
    await holder.execute("ROLLBACK; BEGIN; LOCK TABLE public.items IN ACCESS SHARE MODE")
    # The reader of items is waited for as well; its end is the end of the wait.
    await holder.execute("ROLLBACK")
    await upgrading
    await holder.execute("BEGIN; LOCK TABLE public.items IN ACCESS SHARE MODE")
    with pytest.raises(CommandError, match="another transaction has held a lock on it"):
        await project.upgrade("0003")
    await holder.execute("ROLLBACK")


@BOTH
async def test_the_migrations_role_is_a_member_of_the_schemas_owner(
    project: Project, db: Connection, database: str
) -> None:
    await db.execute("CREATE ROLE migrator LOGIN PASSWORD 'secret'; GRANT CREATE ON SCHEMA public TO migrator")
    try:
        ini = project.directory / "alembic.ini"
        user = database.partition("://")[2].partition("@")[0]
        ini.write_text(ini.read_text().replace(user.replace("%", "%%"), "migrator:secret"))
        with pytest.raises(CommandError, match="run the migration as a member of the role that owns the schema"):
            await project.upgrade()
        await db.execute("CREATE ROLE keeper; GRANT keeper TO migrator")
        await migrate(database, owner="keeper")
        await project.upgrade()
        findings = await examine_tables(db)
        assert {(each.subject, each.level) for each in findings} == {("orders", "ok"), ("items", "ok")}, findings
        assert (
            await db.fetchval("SELECT pg_get_userbyid(relowner) FROM pg_class WHERE relname = 'orders'") == "migrator"
        )
        await project.downgrade("base")
    finally:
        await migrate(database, owner="postgres")
        await db.execute("DROP OWNED BY migrator, keeper; DROP ROLE migrator, keeper")
