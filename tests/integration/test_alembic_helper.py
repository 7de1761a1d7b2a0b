"""`from fencepost.alembic import protect`: in the migrations of a user's project, as `alembic init` makes it, with a
synchronous driver and with an asynchronous one.
"""

import asyncio
import io
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import pytest
from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from tests.support.interleave import Connect, Connection, eventually
from tests.support.next_version import next_version

from fencepost.storage.inspecting.tables import examine_tables
from fencepost.storage.protecting.protect import protect
from fencepost.storage.schema.migrate import downgrade
from fencepost.storage.schema.migrate import upgrade as migrate

pytestmark = pytest.mark.versions

REVISION = """
import sqlalchemy as sa
from alembic import op

from fencepost.alembic import protect, unprotect

revision = "{revision}"
down_revision = {down_revision}
branch_labels = None
depends_on = None


def upgrade() -> None:
{upgrade}


def downgrade() -> None:
{downgrade}
"""

MODELS = """
from sqlalchemy import Column, ForeignKey, Integer, MetaData, Table, Text

metadata = MetaData()
Table("orders", metadata, Column("order_id", Text, primary_key=True), Column("status", Text))
Table("items", metadata, Column("id", Integer, primary_key=True), Column("account_id", Integer, nullable=False))
"""

CREATE = """
    op.create_table("orders", sa.Column("order_id", sa.Text, primary_key=True), sa.Column("status", sa.Text))
    op.execute("INSERT INTO orders VALUES ('100%', 'new')")
    op.create_table(
        "items", sa.Column("id", sa.Integer, primary_key=True), sa.Column("account_id", sa.Integer, nullable=False)
    )
"""

PROTECT = """
    protect(op, "orders", rule="strict")
    protect(op, "public.items", rule="epoch", scope="account/{account_id}", requires_key=True)
"""


@dataclass
class Project:
    """A user's project. `upgrade` and `downgrade` run Alembic as its command would."""

    directory: Path

    @property
    def config(self) -> Config:
        return Config(self.directory / "alembic.ini", output_buffer=io.StringIO(), stdout=io.StringIO())

    def revise(self, number: int, upgrade: str, downgrade: str = "    pass") -> None:
        before = None if number == 1 else f"{number - 1:04}"
        text = REVISION.format(
            revision=f"{number:04}", down_revision=repr(before), upgrade=upgrade, downgrade=downgrade
        )
        (self.directory / "migrations" / "versions" / f"{number:04}.py").write_text(text)

    async def upgrade(self, revision: str = "head", *, sql: bool = False) -> None:
        await asyncio.to_thread(command.upgrade, self.config, revision, sql=sql)

    async def downgrade(self, revision: str) -> None:
        await asyncio.to_thread(command.downgrade, self.config, revision)

    async def check(self) -> None:
        """Raise CommandError when autogenerate would write anything."""
        await asyncio.to_thread(command.check, self.config)

    def edit(self, old: str, new: str) -> None:
        """Change env.py."""
        path = self.directory / "migrations" / "env.py"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))


BOTH = pytest.mark.parametrize("project", ["psycopg", "asyncpg async"], indirect=True)
"""For what drivers differ in: parameters, errors, transactions."""


@pytest.fixture(params=["psycopg"])
async def project(request: pytest.FixtureRequest, tmp_path: Path, database: str) -> Project:
    """Give a project on a migrated database: `alembic init`, its models, the hook, two revisions."""
    driver, _, template = request.param.partition(" ")
    url = database.replace("postgresql://", f"postgresql+{driver}://")
    config = Config(tmp_path / "alembic.ini", stdout=io.StringIO())
    command.init(config, str(tmp_path / "migrations"), template=template or "generic")
    ini = (tmp_path / "alembic.ini").read_text()
    (tmp_path / "alembic.ini").write_text(
        ini.replace("driver://user:pass@localhost/dbname", url.replace("%", "%%")).replace("[logger_", "[unused_")
    )
    project = Project(tmp_path)
    project.edit("fileConfig(config.config_file_name)", "pass")
    project.edit(
        "target_metadata = None",
        f"namespace = {{}}\nexec({MODELS!r}, namespace)\ntarget_metadata = namespace['metadata']\n"
        "from fencepost.alembic import include_name, include_object",
    )
    project.edit(
        "connection=connection, target_metadata=target_metadata",
        "connection=connection, target_metadata=target_metadata, include_object=include_object, include_schemas=True,"
        " include_name=include_name",
    )
    project.revise(1, CREATE, '    op.drop_table("items")\n    op.drop_table("orders")')
    project.revise(2, PROTECT, '    unprotect(op, "items")\n    unprotect(op, "orders")')
    return project


@pytest.fixture
async def db(connect: Connect) -> Connection:
    connection = await connect()
    await connection.execute("SET search_path = public")
    return connection


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


async def test_autogenerate_has_nothing_to_say(project: Project) -> None:
    await project.upgrade()
    await project.check()
    project.edit("include_object=include_object, ", "")
    with pytest.raises(CommandError, match="last_fence_token"):
        await project.check()


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
async def test_what_is_in_the_way_is_said_and_nothing_happens(project: Project, db: Connection) -> None:
    await project.upgrade()
    for statement, said in WRONG:
        project.revise(3, f"    {statement}")
        with pytest.raises(CommandError, match=said):
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
async def test_a_table_that_somebody_has_locked_is_waited_for(
    project: Project, db: Connection, connect: Connect
) -> None:
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
