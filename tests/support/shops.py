"""Databases of a shop: one with a gateway, for the tests of the routes, and one as an ORM's application meets it."""

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import psycopg
from tests.support.gateways import serving
from tests.support.interleave import connection_to
from tests.support.postgres import ReadyMade

from fencepost.server.ops.embedded import PostgresServer
from fencepost.server.ops.protect import protect
from fencepost.testing.servers.postgres import clone, in_database

_numbers = itertools.count(1)

SQL = """
SET search_path = public;
CREATE DOMAIN percent AS int CONSTRAINT percent_range CHECK (VALUE BETWEEN 0 AND 100);
CREATE TABLE customers (customer_id int PRIMARY KEY, name text NOT NULL);
INSERT INTO customers VALUES (1, 'Ada'), (2, 'Grace');
CREATE TABLE orders (
  order_id    text PRIMARY KEY,
  status      text NOT NULL DEFAULT 'new' CONSTRAINT orders_status_known CHECK (status <> 'bad'),
  amount      numeric(10, 2) NOT NULL DEFAULT 0,
  quantity    smallint NOT NULL DEFAULT 1,
  code        varchar(3),
  note        text,
  sku         text CONSTRAINT orders_sku_once UNIQUE,
  customer_id int CONSTRAINT orders_customer REFERENCES customers,
  paid_at     timestamptz,
  twice       int GENERATED ALWAYS AS (quantity * 2) STORED,
  number      bigint GENERATED ALWAYS AS IDENTITY,
  discount    percent DEFAULT 0
);
CREATE TABLE items (order_id text, line int, what text NOT NULL DEFAULT 'thing', PRIMARY KEY (order_id, line));
CREATE TABLE numbered (id int PRIMARY KEY, label text DEFAULT 'none');
CREATE TABLE tickets (id uuid PRIMARY KEY, label text);
CREATE TABLE leased (id text PRIMARY KEY, n int NOT NULL DEFAULT 0);
CREATE TABLE made (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, label text);
CREATE TABLE diary (id int PRIMARY KEY, entry text);
INSERT INTO diary VALUES (1, 'dear diary');
CREATE TABLE keyless (entry text);
INSERT INTO keyless VALUES ('a'), ('b');
CREATE VIEW paid_orders AS SELECT order_id, amount FROM orders WHERE status = 'paid';
CREATE TABLE regions (region text, id int, label text, PRIMARY KEY (region, id)) PARTITION BY LIST (region);
CREATE TABLE regions_eu PARTITION OF regions FOR VALUES IN ('eu');
CREATE SCHEMA sales;
CREATE TABLE sales.orders (id int PRIMARY KEY, label text);
CREATE TABLE sales.leads (id int PRIMARY KEY, label text);
INSERT INTO sales.leads VALUES (1, 'lead');
CREATE TABLE "with/slash, and space" (id int PRIMARY KEY, label text);
"""

PROTECTED = ("orders", "items", "numbered", "tickets", "made", "regions", "sales.orders", "with/slash, and space")


@dataclass
class Shop:
    """A running gateway and its database. Each test takes keys of its own."""

    url: str
    dsn: str
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1000))

    def key(self) -> str:
        return f"order-{next(self.numbers)}"

    async def order(self, mark: int = 10, **columns: object) -> str:
        """Insert an order with this mark; returns its key."""
        key = self.key()
        names = "".join(f", {name}" for name in columns)
        values = "".join(f", ${number}" for number in range(3, 3 + len(columns)))
        await self.sql(
            f"INSERT INTO public.orders (order_id, last_fence_token{names}) VALUES ($1, $2{values})",
            key,
            mark,
            *columns.values(),
        )
        return key

    async def sql(self, statement: str, *arguments: object) -> list[asyncpg.Record]:
        async with connection_to(self.dsn) as connection:
            rows: list[asyncpg.Record] = await connection.fetch(statement, *arguments)
        return rows

    async def mark(self, key: str) -> int | None:
        """The live row's mark; None: no row."""
        rows = await self.sql("SELECT last_fence_token FROM public.orders WHERE order_id = $1", key)
        return rows[0][0] if rows else None


@contextmanager
def running_shop(databases: ReadyMade, builtin: tuple[str, ...] = (), /, **settings: object) -> Iterator[Shop]:
    """Make the database, protect its tables, serve it. `builtin`: tables that take the tokens of leases only."""
    dsn, _ = asyncio.run(databases.make_with(("shop", builtin), partial(_make, builtin)))
    chosen = {"max_body_bytes": 10_000, "max_rows": 50, "serve_unprotected": True, **settings}
    with serving(dsn, **chosen) as url:
        yield Shop(url, dsn)
    databases.drop(dsn)


async def _make(builtin: tuple[str, ...], dsn: str) -> None:
    async with connection_to(dsn) as connection:
        await connection.execute(SQL)
        for table in PROTECTED:
            await protect(connection, table)
        await protect(connection, "leased", rule="epoch")
        for table in builtin:
            await protect(connection, table, source="builtin")


# As an ORM's application meets it: its owner and a plain role, no superuser.

OF_AN_ORM = """
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
def orm_shop(server: PostgresServer, template: str, *, sql: str = OF_AN_ORM) -> Iterator[OrmShop]:
    """Make the database, its two roles and its tables, which are protected; drop all of it at the end."""
    number = next(_numbers)
    name, owner, plain = f"orm_{number}", f"orm_owner_{number}", f"orm_plain_{number}"
    url = in_database(server.url, name)
    shop = OrmShop(url, _for(url, owner), _for(url, plain))
    asyncio.run(clone(server.url, name, template))
    try:
        asyncio.run(_make_for_an_orm(shop, owner, plain, sql))
        yield shop
    finally:
        _fetch(server.url, f"DROP DATABASE {name} WITH (FORCE)")
        _fetch(server.url, f"DROP ROLE IF EXISTS {owner}, {plain}")


def _for(url: str, role: str) -> str:
    parts = urlsplit(url)
    return url.replace(f"{parts.username}:{parts.password}@", f"{role}:secret@")


async def _make_for_an_orm(shop: OrmShop, owner: str, plain: str, sql: str) -> None:
    async with connection_to(shop.superuser) as connection:
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


def _fetch(url: str, statement: str, *arguments: object) -> list[tuple[Any, ...]]:
    # psycopg: a scenario under asyncpg runs in a loop of its own, and asks from inside of it.
    with psycopg.connect(url, autocommit=True) as connection, psycopg.RawCursor(connection) as cursor:
        cursor.execute(statement.encode(), arguments or None)
        return cursor.fetchall() if cursor.description else []
