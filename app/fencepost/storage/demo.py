"""The demo table: small, protected, the same rows as in the README's story."""

import asyncpg

from fencepost.storage.connections import session
from fencepost.storage.connections.connection import Connection
from fencepost.storage.protecting.protect import protect
from fencepost.storage.tables.catalog import Table

FIRST_TOKEN = 34
LEASES_BEGIN = 1000
"""Tokens of leases come after those that the README's story makes up by hand, so that both can be tried."""
DEMO_LOCK = 0x64656D6F
"""Several that start at once wait for each other."""

_TABLE = """
CREATE TABLE IF NOT EXISTS public.orders (
  order_id   text PRIMARY KEY,
  status     text NOT NULL CONSTRAINT orders_status_check CHECK (status IN ('new', 'paid', 'shipped', 'cancelled')),
  customer   text NOT NULL DEFAULT 'Ada',
  amount     numeric(10, 2) NOT NULL DEFAULT 0,
  note       text,
  created_at timestamptz NOT NULL DEFAULT now()
)"""

_COMMENT = "The demo: orders that several workers change under locks that may expire."
_COMMENTS = (
    f"COMMENT ON TABLE public.orders IS '{_COMMENT}'",
    "COMMENT ON COLUMN public.orders.order_id IS 'What the lock is named after.'",
    "COMMENT ON COLUMN public.orders.status IS 'new, paid, shipped or cancelled.'",
    "COMMENT ON COLUMN public.orders.amount IS 'In euros.'",
)

_ROWS = """
INSERT INTO public.orders (order_id, status, customer, amount, last_fence_token)
VALUES ('order-123', 'new', 'Ada', 42.50, 1),
       ('order-124', 'paid', 'Grace', 19.90, 1),
       ('order-125', 'new', 'Edsger', 7, 1)"""


def is_demo(table: Table | None) -> bool:
    """Whether it is the table that `load` made, and not an `orders` of the user's own."""
    return table is not None and table.name == "orders" and table.comment == _COMMENT


async def load(dsn: str) -> int | None:
    """Make and protect `orders`, with its rows if it is new. An `orders` that is already there is left as it is.

    Returns a token that order-123 will take; None if that `orders` is not the demo's.
    """
    connection = await session.connect(dsn, session.DURABLE)
    try:
        await connection.execute("SELECT pg_advisory_lock($1)", DEMO_LOCK)  # until we hang up
        if await connection.fetchval("SELECT to_regclass('public.orders') IS NOT NULL"):
            comment = await connection.fetchval("SELECT obj_description('public.orders'::regclass, 'pg_class')")
            return await _next_token(connection) if comment == _COMMENT else None
        async with connection.transaction():
            await connection.execute(_TABLE)
            for comment in _COMMENTS:
                await connection.execute(comment)
        await protect(connection, "orders")
        await connection.execute("SELECT fencepost.issue_beyond($1)", LEASES_BEGIN)
        await connection.execute(_ROWS)
        return await _next_token(connection)
    finally:
        await connection.close()


async def _next_token(connection: Connection) -> int:
    """As in the README's story, or one more than the mark when the story was played already."""
    try:
        mark = await connection.fetchval("SELECT last_fence_token FROM public.orders WHERE order_id = 'order-123'")
    except asyncpg.UndefinedColumnError:  # whoever made it ended before it was protected
        mark = None
    return max(FIRST_TOKEN, (mark or 0) + 1)
