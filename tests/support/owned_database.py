"""A database that was never migrated, and the roles that migrate it, own its tables, and use them."""

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import asyncpg
from click.testing import Result
from tests.support.commands import command
from tests.support.interleave import Connection

from fencepost.server.ops.embedded import PostgresServer
from fencepost.testing.servers.postgres import clone, in_database

_numbers = itertools.count(1)


FOREIGN = """
SELECT c.relname || ' of ' || pg_get_userbyid(c.relowner) FROM pg_class c
 WHERE c.relnamespace = 'fencepost'::regnamespace AND c.relkind <> 'i' AND c.relowner <> $1::regrole
UNION ALL SELECT p.proname || ' of ' || pg_get_userbyid(p.proowner) FROM pg_proc p
 WHERE p.pronamespace = 'fencepost'::regnamespace AND p.proowner <> $1::regrole
UNION ALL SELECT t.typname || ' of ' || pg_get_userbyid(t.typowner) FROM pg_type t
 WHERE t.typnamespace = 'fencepost'::regnamespace AND t.typowner <> $1::regrole
UNION ALL SELECT 'schema of ' || pg_get_userbyid(n.nspowner) FROM pg_namespace n
 WHERE n.nspname = 'fencepost' AND n.nspowner <> $1::regrole"""


ORDERS = "CREATE TABLE public.orders (id int PRIMARY KEY, v text)"


@dataclass
class OwnedDatabase:
    """A database, and roles made for it: `app` owns tables, `admin` may make roles."""

    url: str
    root: Connection
    number: int
    opened: list[Connection] = field(default_factory=list)

    @property
    def owner(self) -> str:
        return f"fence owner {self.number}"

    @property
    def app(self) -> str:
        return f"app_{self.number}"

    @property
    def admin(self) -> str:
        return f"admin_{self.number}"

    def url_of(self, role: str) -> str:
        return self.url.replace(self.url.partition("://")[2].partition("@")[0], f"{role}:secret")

    async def login(self, role: str) -> Connection:
        connection = await asyncpg.connect(self.url_of(role))
        self.opened.append(connection)
        return connection

    async def command(self, *arguments: str, role: str | None = None) -> Result:
        url = self.url if role is None else self.url_of(role)
        return await command(*arguments, database=url)

    async def foreign(self) -> list[str]:
        """List what in the schema fencepost does not belong to the owner."""
        return [row[0] for row in await self.root.fetch(FOREIGN, f'"{self.owner}"')]


@asynccontextmanager
async def building(postgres: PostgresServer, template: str | None = None) -> AsyncIterator[OwnedDatabase]:
    """Make the database, as a copy of a migrated one or as one that never was, and its roles. Drops them afterwards."""
    number = next(_numbers)
    server = await asyncpg.connect(postgres.url)
    name = f"owned_{number}"
    if template is None:
        await server.execute(f"CREATE DATABASE {name}")
    else:
        await clone(postgres.url, name, template)
    root = await asyncpg.connect(in_database(postgres.url, name))
    owned = OwnedDatabase(in_database(postgres.url, name), root, number)
    await root.execute(
        f"CREATE ROLE {owned.app} LOGIN PASSWORD 'secret';"
        f"CREATE ROLE {owned.admin} LOGIN CREATEROLE PASSWORD 'secret';"
        f"GRANT CREATE ON DATABASE {name} TO {owned.admin}; GRANT CREATE ON SCHEMA public TO {owned.app}"
    )
    try:
        yield owned
    finally:
        for connection in [*owned.opened, root]:
            await connection.close()
        await server.execute(f"DROP DATABASE {name} WITH (FORCE)")
        for role in (owned.app, owned.admin, owned.owner):
            await server.execute(f'DROP ROLE IF EXISTS "{role}"')
        await server.close()
