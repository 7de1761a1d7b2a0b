"""A database whose tables are protected, as an ORM's application meets it: its owner and a plain role, no superuser."""

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import psycopg

from fencepost.server.ops.embedded import PostgresServer
from fencepost.server.ops.protect import protect
from fencepost.testing.servers.postgres import clone, in_database

_numbers = itertools.count(1)

SQL = """
CREATE TABLE orders (order_id text PRIMARY KEY, status text NOT NULL DEFAULT 'new', amount int NOT NULL DEFAULT 0);
CREATE TABLE lines (
  line_id  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  order_id text NOT NULL REFERENCES orders ON DELETE CASCADE,
  what     text NOT NULL DEFAULT 'thing'
);
"""


@dataclass(frozen=True, repr=False)
class OrmShop:
    """The database's address for each of its users."""

    superuser: str
    owner: str
    plain: str

    def url(self, role: str, scheme: str = "postgresql") -> str:
        """Return the address for `owner` or `plain`, with SQLAlchemy's name of a driver in it."""
        return (self.owner if role == "owner" else self.plain).replace("postgresql", scheme, 1)

    def sql(self, statement: str, *arguments: object) -> list[tuple[Any, ...]]:
        """Run one statement as a superuser, beside the application."""
        return _fetch(self.superuser, statement, *arguments)

    def mark(self, key: str) -> int | None:
        """The mark of a live order; None: no row."""
        rows = self.sql("SELECT last_fence_token FROM orders WHERE order_id = $1", key)
        return rows[0][0] if rows else None


@contextmanager
def orm_shop(server: PostgresServer, template: str, *, sql: str = SQL) -> Iterator[OrmShop]:
    """Make the database, its two roles and its tables, which are protected; drop all of it at the end."""
    number = next(_numbers)
    name, owner, plain = f"orm_{number}", f"orm_owner_{number}", f"orm_plain_{number}"
    url = in_database(server.url, name)
    shop = OrmShop(url, _for(url, owner), _for(url, plain))
    asyncio.run(clone(server.url, name, template))
    try:
        asyncio.run(_make(shop, owner, plain, sql))
        yield shop
    finally:
        _fetch(server.url, f"DROP DATABASE {name} WITH (FORCE)")
        _fetch(server.url, f"DROP ROLE IF EXISTS {owner}, {plain}")


def _for(url: str, role: str) -> str:
    parts = urlsplit(url)
    return url.replace(f"{parts.username}:{parts.password}@", f"{role}:secret@")


async def _make(shop: OrmShop, owner: str, plain: str, sql: str) -> None:
    connection = await asyncpg.connect(shop.superuser)
    try:
        for role in (owner, plain):
            await connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'")
        await connection.execute(
            f"GRANT CREATE, USAGE ON SCHEMA public TO {owner}; GRANT USAGE ON SCHEMA public TO {plain}"
        )
        if not sql:
            return
        await connection.execute(f"SET ROLE {owner}")
        await connection.execute(sql)
        await connection.execute("RESET ROLE")
        for table in ("orders", "lines"):
            await protect(connection, table)
        await connection.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON orders, lines TO {plain}")
    finally:
        await connection.close()


def _fetch(url: str, statement: str, *arguments: object) -> list[tuple[Any, ...]]:
    # psycopg: a scenario under asyncpg runs in a loop of its own, and asks from inside of it.
    with psycopg.connect(url, autocommit=True) as connection, psycopg.RawCursor(connection) as cursor:
        cursor.execute(statement.encode(), arguments or None)
        return cursor.fetchall() if cursor.description else []
