"""A gateway on a database with a bit of everything, for the tests of the routes: one for all tests of a file."""

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import asyncpg
from tests.support.gateways import serving
from tests.support.postgres import ReadyMade

from fencepost.server.ops.protect import protect

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
        connection = await asyncpg.connect(self.dsn)
        try:
            rows: list[asyncpg.Record] = await connection.fetch(statement, *arguments)
        finally:
            await connection.close()
        return rows

    async def mark(self, key: str) -> int | None:
        """The live row's mark; None: no row."""
        rows = await self.sql("SELECT last_fence_token FROM public.orders WHERE order_id = $1", key)
        return rows[0][0] if rows else None


@contextmanager
def running_shop(databases: ReadyMade, builtin: tuple[str, ...] = (), /, **settings: object) -> Iterator[Shop]:
    """Make the database, protect its tables, serve it. `builtin`: tables that take the tokens of leases only."""
    dsn, _ = asyncio.run(databases.make_with(("shop", builtin), partial(_prepare, builtin)))
    chosen = {"max_body_bytes": 10_000, "max_rows": 50, "serve_unprotected": True, **settings}
    with serving(dsn, **chosen) as url:
        yield Shop(url, dsn)
    databases.drop(dsn)


async def _prepare(builtin: tuple[str, ...], dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(SQL)
        for table in PROTECTED:
            await protect(connection, table)
        await protect(connection, "leased", rule="epoch")
        for table in builtin:
            await protect(connection, table, source="builtin")
    finally:
        await connection.close()
