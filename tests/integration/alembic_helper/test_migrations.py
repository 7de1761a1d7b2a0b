"""What `protect` and `unprotect` of fencepost.alembic do in a migration: the same as the commands."""

import asyncio
import subprocess
import sys

import asyncpg
import pytest
from alembic.util import CommandError
from tests.integration.alembic_helper.project import BOTH, Project
from tests.support.interleave import Connection

from fencepost.storage.inspecting.tables import examine_tables
from fencepost.storage.protecting.protect import protect


@pytest.mark.versions
@pytest.mark.parametrize("project", ["psycopg", "psycopg async", "asyncpg async"], indirect=True)
async def test_up_and_down_and_up(project: Project, db: Connection) -> None:
    await project.upgrade()
    findings = await examine_tables(db)
    assert {(each.subject, each.level) for each in findings} == {("orders", "ok"), ("items", "ok")}, findings
    found = await db.fetch("SELECT name, rule, source, scope, requires_key FROM fencepost.protected ORDER BY name")
    assert [tuple(row) for row in found] == [
        ("items", "epoch", "external", "account/{account_id}", True),
        ("orders", "strict", "external", None, False),
    ]
    with pytest.raises(asyncpg.PostgresError, match="orders/100%25 is protected: a write needs a fence token"):
        await db.execute("UPDATE orders SET status = 'x'")
    await db.execute("UPDATE orders SET status = 'x', last_fence_token = 5")
    await project.downgrade("0001")
    assert await db.fetchval("SELECT count(*) FROM fencepost.protected") == 0
    await db.execute("UPDATE orders SET status = 'y'")
    await project.upgrade()
    with pytest.raises(asyncpg.PostgresError, match="spent token 5"):
        await db.execute("UPDATE orders SET status = 'x', last_fence_token = -5")
    await project.downgrade("base")
    assert await db.fetchval("SELECT to_regclass('orders') IS NULL AND to_regclass('items') IS NULL")


@pytest.mark.versions
async def test_autogenerate_finds_nothing(project: Project) -> None:
    await project.upgrade()
    await project.check()
    project.edit("include_object=include_object, ", "")
    with pytest.raises(CommandError, match="last_fence_token"):
        await project.check()


async def test_offline_there_is_a_clear_error(project: Project) -> None:
    with pytest.raises(CommandError, match="run `fencepost protect orders --sql` against the database"):
        await project.upgrade(sql=True)
    ran = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "alembic", "upgrade", "--sql", "head"],
        cwd=project.directory,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode != 0
    assert "fencepost protect orders --sql" in ran.stderr + ran.stdout
    assert "Traceback" not in ran.stderr


async def test_unvalidated_on_request(project: Project, db: Connection) -> None:
    project.revise(2, '    protect(op, "orders", validate=False)')
    await project.upgrade()
    (finding,) = await examine_tables(db)
    assert (finding.level, "was not validated on old rows" in finding.text) == ("warning", True)
    await protect(db, "orders")
    assert [each.level for each in await examine_tables(db)] == ["ok"]


async def test_the_same_as_the_command(project: Project, db: Connection) -> None:
    """Functions, triggers, registration: one code made both."""
    made = "SELECT pg_get_functiondef(f.oid) FROM pg_proc f WHERE f.pronamespace = 'fencepost'::regnamespace ORDER BY 1"
    triggers = "SELECT tgenabled::text || pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal ORDER BY 1"
    await project.upgrade()
    by_migration = [await db.fetch(made), await db.fetch(triggers)]
    await project.downgrade("0001")
    await protect(db, "orders")
    await protect(db, "items", rule="epoch", scope="account/{account_id}", requires_key=True)
    assert [await db.fetch(made), await db.fetch(triggers)] == by_migration


async def test_a_column_that_the_models_have_is_compared_like_any_other(project: Project) -> None:
    await project.upgrade()
    project.edit('Column("status", Text)', 'Column("status", Text), Column("last_fence_token", Integer)')
    project.edit("include_name=include_name", "include_name=include_name, compare_type=True")
    with pytest.raises(CommandError, match=r"modify_type.*last_fence_token.*BIGINT"):
        await project.check()


@BOTH
async def test_names_that_drivers_could_take_for_parameters(project: Project, db: Connection) -> None:
    odd = "odd %s %(x)s :y $1 {z} ?"
    await db.execute(f'CREATE TABLE "{odd}" (":id" int PRIMARY KEY, "a%" text NOT NULL)')
    project.revise(2, f"    protect(op, {odd!r})")
    project.revise(3, f"    protect(op, {odd!r}, scope='x/{{a%}}')", f"    protect(op, {odd!r}, scope='')")
    await project.upgrade()
    assert await db.fetchval("SELECT scope FROM fencepost.protected WHERE name = $1", odd) == "x/{a%}"
    await project.downgrade("0002")
    with pytest.raises(asyncpg.PostgresError, match="a write needs a fence token"):
        await db.execute(f"INSERT INTO \"{odd}\" VALUES (1, 'x')")
