"""SQL as the role that is asked for, in a transaction of its own."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import asyncpg
from tests.support.interleave import Connection
from tests.support.recipes import recipe

from fencepost.server.postgres.database_identity import ORIGIN, Origin
from fencepost.testing.servers.processes import eventually

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
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(f"SET SESSION AUTHORIZATION {login}" if login else "SELECT")
        yield Session(connection)
    finally:
        await connection.close()


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


# A publisher and a subscriber with the same protected tables, and what is done with them.


TABLES = """
CREATE TABLE orders (order_id text PRIMARY KEY, status text NOT NULL DEFAULT 'new');
CREATE TABLE items (id int PRIMARY KEY, account_id int NOT NULL, label text);
CREATE TABLE issued (id text PRIMARY KEY, n int NOT NULL DEFAULT 0);
"""
USERS = ("orders", "items", "issued")
MARKS = ("fencepost.marks", "fencepost.floors", "fencepost.generations")


@dataclass
class Sides:
    """A publisher and a subscriber, both migrated, with the same protected tables."""

    publisher: Connection
    subscriber: Connection
    conninfo: str
    name: str

    async def follow(self, *tables: str) -> None:
        """Publish these tables, subscribe to them, and wait until all are copied."""
        await self.subscribe(*tables)
        await self.copied()

    async def subscribe(self, *tables: str) -> None:
        await self.publisher.execute(f"CREATE PUBLICATION {self.name} FOR TABLE {', '.join(tables)}")
        await self.subscriber.execute(
            f"CREATE SUBSCRIPTION {self.name} CONNECTION '{self.conninfo}' PUBLICATION {self.name}"
        )

    async def copied(self) -> None:
        async def ready() -> bool:
            return bool(await self.subscriber.fetchval("SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel"))

        await eventually(ready, what="the initial copy")

    async def caught_up(self) -> None:
        """Return once the subscriber has applied everything that the publisher has committed."""
        position = await self.publisher.fetchval("SELECT pg_current_wal_lsn()::text")

        async def applied() -> bool:
            query = (
                "SELECT replay_lsn >= $1::text::pg_lsn FROM pg_stat_replication"
                " WHERE application_name = $2 AND state = 'streaming'"
            )
            return bool(await self.publisher.fetchval(query, position, self.name))

        await eventually(applied, what="the subscriber caught up")

    async def switch(self) -> None:
        """Make the subscriber the side that is written to: it has everything, and follows no longer."""
        await self.caught_up()
        await self.subscriber.execute(f"DROP SUBSCRIPTION {self.name}")

    async def follow_as_on_the_page(self, *tables: str) -> None:
        """Run the two recipes for these tables."""
        publish = recipe("publisher").replace("PUBLICATION shop", f"PUBLICATION {self.name}")
        await self.publisher.execute(publish.replace("TABLE orders", f"TABLE {', '.join(tables)}"))
        for statement in recipe("subscriber").replace(" shop", f" {self.name}").strip().split("\n"):
            await self.subscriber.execute(re.sub("host=publisher dbname=\\w+", self.conninfo, statement))
        await self.copied()


async def write(side: Connection, token: int | None, statement: str) -> str:
    """Run a statement under a token; returns "" or the SQLSTATE that refused it."""
    try:
        async with side.transaction():
            if token is not None:
                await side.execute(f"SET LOCAL fencepost.token = '{token}'")
            await side.execute(statement)
    except asyncpg.PostgresError as error:
        return str(error.sqlstate)
    return ""


async def origin(side: Connection) -> Origin:
    """What the gateway's connections would find there."""
    found = await side.fetchrow(ORIGIN)
    assert found is not None
    return Origin.of(found)
