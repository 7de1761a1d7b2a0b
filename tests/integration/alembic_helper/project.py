"""A user's project with migrations, as `alembic init` makes it."""

import asyncio
import io
from dataclasses import dataclass
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config

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
