"""The database of a run: an embedded PostgreSQL with its defaults, two tables, and what can be counted in it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import asyncpg

from benchmarks.cells import PLAIN, PROTECTED, SCOPED, TableName
from benchmarks.walk import FIRST_KEY, MARK_AT_FIRST, ROWS
from fencepost.storage.migrate import upgrade
from fencepost.storage.protect import protect

_COLUMNS = "order_id text PRIMARY KEY, status text NOT NULL"
_FILL = """
INSERT INTO {table} (order_id, status, last_fence_token)
SELECT 'order-' || n, 'new', {mark} FROM generate_series({first}, {last}) n"""

_FILL_SCOPED = f"""
INSERT INTO {SCOPED} (order_id, status) SELECT 'order-' || n, 'new' FROM generate_series({{first}}, {{last}}) n"""
_RAISE_SCOPES = f"""
INSERT INTO fencepost.marks (resource, last_fence_token, xid, row_absent)
SELECT 'by_order/' || order_id, {{mark}}, pg_current_xact_id(), true FROM {SCOPED}"""
_ABOVE = "SELECT count(*) AS rows, coalesce(sum(last_fence_token - $1), 0)::int8 AS token_sum FROM {marks} > $1"

_COUNTED_WITHIN = 5.0  # seconds; a backend reports what it did when it ends
_POLL = 0.05  # seconds
_SETTINGS = ("server_version", "fsync", "synchronous_commit", "shared_buffers", "max_wal_size", "full_page_writes")


@dataclass(frozen=True, slots=True)
class Marks:
    """Of the rows whose mark is above a token: how many, and the sum of what it is above."""

    rows: int
    token_sum: int


class BenchmarkDatabase:
    """`orders`, protected; `orders_scoped`, by scopes; `orders_plain`, not at all; on the server at `url`."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def make(self) -> None:
        """Make the tables with their rows. They differ in nothing but the protection."""
        await upgrade(self.url)
        async with self._connection() as connection:
            await connection.execute(f"CREATE TABLE {PROTECTED} ({_COLUMNS})")
            await protect(connection, PROTECTED)
            await connection.execute(f"CREATE TABLE {PLAIN} ({_COLUMNS}, last_fence_token bigint NOT NULL)")
            for table in (PROTECTED, PLAIN):
                await connection.execute(
                    _FILL.format(table=table, mark=MARK_AT_FIRST, first=FIRST_KEY, last=FIRST_KEY + ROWS - 1)
                )
                await connection.execute(f"ANALYZE {table}")
            await connection.execute(f"CREATE TABLE {SCOPED} ({_COLUMNS})")
            await connection.execute(_FILL_SCOPED.format(first=FIRST_KEY, last=FIRST_KEY + ROWS - 1))
            await protect(connection, SCOPED, scope="by_order/{order_id}")
            await connection.execute(_RAISE_SCOPES.format(mark=MARK_AT_FIRST))
            await connection.execute(f"ANALYZE {SCOPED}")

    async def settings(self) -> dict[str, str]:
        """Return the settings that the figures depend on."""
        async with self._connection() as connection:
            return {name: await connection.fetchval(f"SHOW {name}") for name in _SETTINGS}

    async def settle(self, table: TableName) -> int:
        """Bring the table and the log to where every cell begins; return the count of updated rows so far."""
        async with self._connection() as connection:
            await connection.execute("TRUNCATE fencepost.idempotency")
            await connection.execute(f"VACUUM {table}, fencepost.marks")
            await connection.execute("CHECKPOINT")
            return await _updated(connection, table)

    async def updated_since(self, table: TableName, before: int, expected: int) -> int:
        """Count the rows updated since `before`, by anybody; wait a little for backends that still report."""
        deadline = asyncio.get_running_loop().time() + _COUNTED_WITHIN
        async with self._connection() as connection:
            while (count := await _updated(connection, table) - before) != expected:
                if asyncio.get_running_loop().time() > deadline:
                    break
                await asyncio.sleep(_POLL)
        return count

    async def marks_above(self, table: TableName, token: int) -> Marks:
        """Look at the rows that a cell has written."""
        async with self._connection() as connection:
            scopes = "fencepost.marks WHERE starts_with(resource, 'by_order/') AND last_fence_token"
            marks = scopes if table == SCOPED else f"{table} WHERE last_fence_token"
            row = await connection.fetchrow(_ABOVE.format(marks=marks), token)
        if row is None:
            raise AssertionError("an aggregate returns a row")
        return Marks(row["rows"], row["token_sum"])

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
        connection = await asyncpg.connect(self.url)
        try:
            yield connection
        finally:
            await connection.close()


async def _updated(connection: "asyncpg.Connection[asyncpg.Record]", table: TableName) -> int:
    count = await connection.fetchval(
        "SELECT n_tup_upd FROM pg_stat_user_tables WHERE relid = $1::text::regclass", f"public.{table}"
    )
    return int(count)
