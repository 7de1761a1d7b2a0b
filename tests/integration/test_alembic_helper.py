"""What `protect` and `unprotect` of fencepost.alembic do in a migration: the same as the commands."""

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
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from alembic.util import CommandError
from sqlalchemy import create_engine
from tests.support.interleave import Connect, Connection

from fencepost.alembic import protect
from fencepost.server.ops.doctor import examine
from fencepost.server.ops.doctor_tables import TABLES
from fencepost.server.ops.migrate import upgrade as migrate

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


@BOTH
async def test_up_and_down_and_up(project: Project, db: Connection) -> None:
    await project.upgrade()
    findings = await examine(TABLES, db)
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


@BOTH
async def test_what_rolls_the_migration_back_rolls_this_back(project: Project, db: Connection) -> None:
    project.revise(3, '    protect(op, "orders", rule="epoch")\n    raise RuntimeError("later in the same migration")')
    with pytest.raises(RuntimeError, match="later in the same migration"):
        await project.upgrade()
    assert await db.fetchval("SELECT to_regclass('orders') IS NULL"), "all revisions were one transaction"
    assert await db.fetchval("SELECT count(*) FROM fencepost.protected") == 0
    assert await db.fetchval("SELECT count(*) FROM fencepost.floors") == 0


WRONG = [
    ('protect(op, "nowhere")', "nowhere: there is no such table"),
    ('protect(op, "orders", scope="account/{nothing}")', "column nothing is no column of orders"),
    ('protect(op, "orders", scope="not a template")', "orders: scope "),
    ('op.execute("CREATE TABLE keyless (a int)"); protect(op, "keyless")', "keyless: it has no primary key"),
    ('unprotect(op, "orders"); unprotect(op, "orders")', "orders: it is not protected"),
    ('op.execute("DROP SCHEMA fencepost CASCADE"); protect(op, "orders")', "the database has no schema fencepost: run"),
    ("""protect(op, "orders", max_token=2**63 - 1)
    op.execute("UPDATE orders SET last_fence_token = 9223372036854775807")
    protect(op, "orders", source="builtin")""", "above 2\\^62"),
]  # fmt: skip


@BOTH
async def test_what_is_in_the_way_is_reported_and_nothing_happens(project: Project, db: Connection) -> None:
    await project.upgrade()
    for statement, output in WRONG:
        project.revise(3, f"    {statement}")
        with pytest.raises(CommandError, match=output):
            await project.upgrade()
        assert await db.fetchval("SELECT count(*) FROM fencepost.protected") == 2, statement
        assert await db.fetchval("SELECT version_num FROM alembic_version") == "0002", statement


def test_another_database_than_postgresql_is_refused() -> None:
    with create_engine("sqlite://").connect() as connection:
        op = Operations(MigrationContext.configure(connection))
        with pytest.raises(CommandError, match="orders: Fencepost protects tables of PostgreSQL, and this is sqlite"):
            protect(op, "orders")


async def test_another_isolation_than_read_committed_is_refused(project: Project) -> None:
    await project.upgrade()
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


@BOTH
async def test_the_migrations_role_is_a_member_of_the_owner(project: Project, db: Connection, database: str) -> None:
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
        findings = await examine(TABLES, db)
        assert {(each.subject, each.level) for each in findings} == {("orders", "ok"), ("items", "ok")}, findings
        assert (
            await db.fetchval("SELECT pg_get_userbyid(relowner) FROM pg_class WHERE relname = 'orders'") == "migrator"
        )
        await project.downgrade("base")
    finally:
        await migrate(database, owner="postgres")
        await db.execute("DROP OWNED BY migrator, keeper; DROP ROLE migrator, keeper")
