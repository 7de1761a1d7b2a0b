"""SQL as the role that is asked for, in a transaction of its own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
from tests.support.interleave import Connection, connection_to

OWNER = "plain_owner"
CLERK = "plain_clerk"
"""A role with nothing but privileges on tables."""


class Session:
    """A connection; each call is a transaction, and gives "ok" or the SQLSTATE."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    async def run(self, *statements: str, token: object = None, isolation: str = "") -> str:
        try:
            async with self.connection.transaction():
                if isolation:
                    await self.connection.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
                if token is not None:
                    await self.connection.execute("SELECT set_config('fencepost.token', $1, true)", str(token))
                for statement in statements:
                    await self.connection.execute(statement)
        except asyncpg.PostgresError as error:
            return error.sqlstate or "?"
        return "ok"

    async def copy(self, table: str, columns: tuple[str, ...], *rows: tuple[object, ...], token: object = None) -> str:
        try:
            async with self.connection.transaction():
                if token is not None:
                    await self.connection.execute(f"SET LOCAL fencepost.token = '{token}'")
                await self.connection.copy_records_to_table(table, schema_name="public", columns=columns, records=rows)
        except asyncpg.PostgresError as error:
            return error.sqlstate or "?"
        return "ok"


@asynccontextmanager
async def session(dsn: str, login: str | None = None) -> AsyncIterator[Session]:
    """Connect, and be `login` from then on."""
    async with connection_to(dsn) as connection:
        await connection.execute(f"SET SESSION AUTHORIZATION {login}" if login else "SELECT")
        yield Session(connection)


@asynccontextmanager
async def people(observer: Connection, *tables: str) -> AsyncIterator[None]:
    """Make OWNER, who owns these tables, and CLERK, who may read and write them."""
    await observer.execute(f"CREATE ROLE {OWNER}; CREATE ROLE {CLERK}")
    for table in tables:
        await observer.execute(f"ALTER TABLE {table} OWNER TO {OWNER}")
        await observer.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {CLERK}")
    try:
        yield
    finally:
        for role in (OWNER, CLERK):
            await observer.execute(f"REASSIGN OWNED BY {role} TO CURRENT_USER; DROP OWNED BY {role}; DROP ROLE {role}")
