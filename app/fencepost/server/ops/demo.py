"""The demo's tables: small, protected, the same rows as in the README's story.

`orders` takes tokens of any lock service, as the story makes them up. `accounts` takes tokens of Fencepost's own leases
only, so that a refusal can say who holds the lock and who held it before.
"""

import asyncpg

from fencepost.server.ops.protect import protect
from fencepost.server.postgres import connection as session
from fencepost.server.postgres.connection import Connection
from fencepost.server.postgres.tables import Table

FIRST_TOKEN = 34
LEASES_BEGIN = 1000
"""Tokens of leases come after those that the README's story makes up by hand, so that both can be tried."""
DEMO_LOCK = 0x64656D6F
"""Several that start at once wait for each other."""

COMMENTS = {
    "orders": "The demo: orders that several workers change under locks that may expire.",
    "accounts": "The demo: accounts that take the tokens of Fencepost's own leases.",
}
"""By table. The comment tells the demo's table from one of the user's own."""

_ORDERS = f"""
CREATE TABLE public.orders (
  order_id   text PRIMARY KEY,
  status     text NOT NULL CONSTRAINT orders_status_check CHECK (status IN ('new', 'paid', 'shipped', 'cancelled')),
  customer   text NOT NULL DEFAULT 'Ada',
  amount     numeric(10, 2) NOT NULL DEFAULT 0,
  note       text,
  created_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE public.orders IS '{COMMENTS["orders"]}';
COMMENT ON COLUMN public.orders.order_id IS 'What the lock is named after.';
COMMENT ON COLUMN public.orders.status IS 'new, paid, shipped or cancelled.';
COMMENT ON COLUMN public.orders.amount IS 'In euros.'"""

_ACCOUNTS = f"""
CREATE TABLE public.accounts (
  account_id text PRIMARY KEY,
  checked    boolean NOT NULL DEFAULT false,
  balance    numeric(10, 2) NOT NULL DEFAULT 0
);
COMMENT ON TABLE public.accounts IS '{COMMENTS["accounts"].replace("'", "''")}';
COMMENT ON COLUMN public.accounts.account_id IS 'What the lock is named after: accounts/account-123.'"""

ROWS = {
    "orders": """
INSERT INTO public.orders (order_id, status, customer, amount, last_fence_token)
VALUES ('order-123', 'new', 'Ada', 42.50, 1),
       ('order-124', 'paid', 'Grace', 19.90, 1),
       ('order-125', 'new', 'Edsger', 7, 1)""",
    "accounts": """
INSERT INTO public.accounts (account_id, balance, last_fence_token)
VALUES ('account-123', 42.50, 1), ('account-124', 7, 1)""",
}
"""By table, what inserts the rows that it begins with."""


def is_demo(table: Table | None) -> bool:
    """Whether `load` made this table, and not the user."""
    return table is not None and COMMENTS.get(table.name, "") == table.comment


async def load(dsn: str) -> int | None:
    """Make and protect the demo's tables, with their rows. Tables that are there stay as they are.

    Returns a token that order-123 will take; None if one of the names is a table of the user's: then nothing is made.
    """
    connection = await session.connect(dsn, session.DURABLE)
    try:
        await connection.execute("SELECT pg_advisory_lock($1)", DEMO_LOCK)  # until we hang up
        there = {name: await _comment_of(connection, name) for name in COMMENTS}
        if any(comment not in {None, COMMENTS[name]} for name, comment in there.items()):
            return None
        await connection.execute("SELECT fencepost.issue_beyond($1)", LEASES_BEGIN)
        for name, source in (("orders", "external"), ("accounts", "builtin")):
            if there[name] is None:
                await connection.execute({"orders": _ORDERS, "accounts": _ACCOUNTS}[name])
                await protect(connection, name, source=source)
                await connection.execute(ROWS[name])
        return await _next_token(connection)
    finally:
        await connection.close()


async def _comment_of(connection: Connection, table: str) -> str | None:
    """None: there is no such table; "": the table has no comment."""
    found: str | None = await connection.fetchval(
        "SELECT coalesce(obj_description(oid, 'pg_class'), '') FROM pg_class WHERE oid = to_regclass('public.' || $1)",
        table,
    )
    return found


async def _next_token(connection: Connection) -> int:
    """As in the README's story, or one more than the mark when the story was played already."""
    try:
        mark = await connection.fetchval("SELECT last_fence_token FROM public.orders WHERE order_id = 'order-123'")
    except asyncpg.UndefinedColumnError:  # whoever made it ended before it was protected
        mark = None
    return max(FIRST_TOKEN, (mark or 0) + 1)
