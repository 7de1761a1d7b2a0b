"""The same SQL through psycopg 3 and asyncpg, as the role that is asked for, in a transaction of its own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal, Protocol

import asyncpg
import psycopg
from tests.support.interleave import Connection

Driver = Literal["asyncpg", "psycopg"]
OWNER = "plain_owner"
CLERK = "plain_clerk"
"""A role with nothing but privileges on tables."""


class Session(Protocol):
    """A connection of a driver."""

    async def run(self, *statements: str, token: object = None, isolation: str = "") -> str:
        """Run the statements in one transaction; "ok" or the SQLSTATE."""

    async def copy(self, table: str, columns: tuple[str, ...], *rows: tuple[object, ...], token: object = None) -> str:
        """COPY rows into a table, in one transaction; "ok" or the SQLSTATE."""


class Asyncpg:
    """asyncpg, whose transactions are begun by statements of its own."""

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


class Psycopg:
    """psycopg 3, which prepares by itself what it has run a few times."""

    def __init__(self, connection: "psycopg.AsyncConnection[tuple[object, ...]]") -> None:
        self.connection = connection

    async def run(self, *statements: str, token: object = None, isolation: str = "") -> str:
        try:
            async with self.connection.transaction():
                if isolation:
                    await self.connection.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}".encode())
                if token is not None:
                    await self.connection.execute("SELECT set_config('fencepost.token', %s, true)", (str(token),))
                for statement in statements:
                    await self.connection.execute(statement.encode())
        except psycopg.Error as error:
            return error.sqlstate or "?"
        return "ok"

    async def copy(self, table: str, columns: tuple[str, ...], *rows: tuple[object, ...], token: object = None) -> str:
        try:
            async with self.connection.transaction():
                if token is not None:
                    await self.connection.execute(f"SET LOCAL fencepost.token = '{token}'".encode())
                copying = f"COPY public.{table} ({', '.join(columns)}) FROM STDIN".encode()
                async with self.connection.cursor() as cursor, cursor.copy(copying) as copy:
                    for row in rows:
                        await copy.write_row(row)
        except psycopg.Error as error:
            return error.sqlstate or "?"
        return "ok"


@asynccontextmanager
async def session(driver: Driver, dsn: str, login: str | None = None) -> AsyncIterator[Session]:
    """Connect, and be `login` from then on."""
    become = f"SET SESSION AUTHORIZATION {login}" if login else "SELECT"
    if driver == "asyncpg":
        connection = await asyncpg.connect(dsn)
        try:
            await connection.execute(become)
            yield Asyncpg(connection)
        finally:
            await connection.close()
    else:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as other:
            await other.execute(become.encode())
            yield Psycopg(other)


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
