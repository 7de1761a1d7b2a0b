"""The database of a run: an embedded PostgreSQL with its defaults, some tables, and what can be counted in it."""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from benchmarks.cells import GONE, NEW, NEW_PLAIN, PLAIN, ROLE, RULED, SCOPED, STAMPED, TRIGGERED, TableName
from benchmarks.walk import MARK_AT_FIRST, OVER_ROWS, Walk
from fencepost.cli.migrate import GRANTS
from fencepost.server.ops.migrate import upgrade
from fencepost.server.ops.protect import protect
from fencepost.server.ops.schema import act_sql

_CREATE: Final = "CREATE TABLE {table} (order_id text PRIMARY KEY, status text NOT NULL)"
_ADD_MARK: Final = "ALTER TABLE {table} ADD COLUMN last_fence_token bigint NOT NULL DEFAULT 0"
_ADD_TRIGGER: Final = """
ALTER TABLE {table} ADD COLUMN changed_at timestamptz;
CREATE FUNCTION {table}_changed() RETURNS trigger LANGUAGE plpgsql AS '{body}';
CREATE TRIGGER set_changed_at BEFORE UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION {table}_changed()"""
_BODIES: Final[dict[TableName, str]] = {
    STAMPED: "BEGIN NEW.changed_at := now(); RETURN NEW; END",
    TRIGGERED: "DECLARE moment timestamptz := now(); BEGIN NEW.changed_at := moment; RETURN NEW; END",
}
_RULE: Final = f"""
ALTER TABLE {RULED} ADD COLUMN tenant text NOT NULL DEFAULT 'shop', ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON {RULED} USING (tenant = current_setting('request.jwt.claims', true)::json ->> 'tenant');
CREATE ROLE {ROLE}; GRANT SELECT, UPDATE ON {RULED} TO {ROLE}"""
_FILL: Final = """
INSERT INTO {table} (order_id, status, last_fence_token)
SELECT 'order-' || n, 'new', {mark} FROM generate_series({first}, {last}) n"""

_FILL_SCOPED: Final = f"""
INSERT INTO {SCOPED} (order_id, status) SELECT 'order-' || n, 'new' FROM generate_series({{first}}, {{last}}) n"""
_RAISE_SCOPES: Final = f"""
INSERT INTO fencepost.marks (resource, last_fence_token, xid, row_absent)
SELECT 'by_order/' || order_id, {{mark}}, pg_current_xact_id(), true FROM {SCOPED}"""
_EMPTY: Final = """
SET session_replication_role = replica;
TRUNCATE {table};
DELETE FROM fencepost.marks WHERE starts_with(resource, '{table}/');
"""
_ABOVE: Final = "SELECT count(*) AS rows, coalesce(sum(last_fence_token - $1), 0)::int8 AS token_sum FROM {marks} > $1"

_GATEWAY: Final = "gateway"
_COUNTED_WITHIN: Final = 5.0  # seconds; a backend reports what it did when it ends
_POLL: Final = 0.05  # seconds
_SETTINGS: Final = (
    *("server_version", "fsync", "synchronous_commit", "wal_sync_method", "full_page_writes"),
    *("shared_buffers", "max_wal_size"),
)


@dataclass(frozen=True, slots=True)
class Marks:
    """Of the rows whose mark is above a token: how many, and the sum of what it is above."""

    rows: int
    token_sum: int


class BenchmarkDatabase:
    """The tables that cells write to, on the server at `url`. They differ in the protection, and two have a trigger."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def make(self, tables: Collection[TableName]) -> None:
        """Make those tables with their rows."""
        await upgrade(self.url)
        async with self._connection() as connection:
            for table in tables:
                await connection.execute(_CREATE.format(table=table))
                if table in _BODIES:
                    await connection.execute(_ADD_TRIGGER.format(table=table, body=_BODIES[table]))
                if table == RULED:
                    await connection.execute(_RULE)
                if table == SCOPED:
                    await _fill(connection, table, OVER_ROWS)
                    await protect(connection, table, scope="by_order/{order_id}")
                    await connection.execute(_RAISE_SCOPES.format(mark=MARK_AT_FIRST))
                elif table in (PLAIN, NEW_PLAIN):
                    await connection.execute(_ADD_MARK.format(table=table))
                else:
                    await protect(connection, table)
                if table not in (SCOPED, NEW, NEW_PLAIN, GONE):
                    await _fill(connection, table, OVER_ROWS)
                await connection.execute(f"ANALYZE {table}")

    async def make_gateway_role(self, *, ruled: bool) -> str:
        """Make a login as a gateway should have, and return its URL. `ruled`: it may be the role of callers."""
        url = urlsplit(self.url)
        async with self._connection() as connection:
            await connection.execute(f"CREATE ROLE {_GATEWAY} LOGIN NOINHERIT PASSWORD '{url.password}'")
            for grant in (act_sql(), *GRANTS, *([f"GRANT {ROLE} TO {{role}}"] if ruled else ())):
                await connection.execute(grant.format(role=_GATEWAY))
        return urlunsplit(url._replace(netloc=f"{_GATEWAY}:{url.password}@{url.hostname}:{url.port}"))

    async def settings(self) -> dict[str, str]:
        """Return the settings that the figures depend on."""
        async with self._connection() as connection:
            return {name: await connection.fetchval(f"SHOW {name}") for name in _SETTINGS}

    async def settle(self, table: TableName, walk: Walk) -> int:
        """Bring the table and the log to where every cell begins; return the count of changed rows so far."""
        async with self._connection() as connection:
            await connection.execute("TRUNCATE fencepost.idempotency")
            if table in (NEW, NEW_PLAIN, GONE):
                await connection.execute(_EMPTY.format(table=table))
            if table == GONE:
                await _fill(connection, table, walk)
            await connection.execute(f"VACUUM ANALYZE {table}, fencepost.marks")
            await connection.execute("CHECKPOINT")
            await connection.execute("SELECT pg_stat_force_next_flush()")  # what this connection did is counted now
            return await _changed(connection, table)

    async def changed_since(self, table: TableName, before: int, expected: int) -> int:
        """Count the rows changed since `before`, by all sessions; wait a little for backends that still report."""
        deadline = asyncio.get_running_loop().time() + _COUNTED_WITHIN
        async with self._connection() as connection:
            while (count := await _changed(connection, table) - before) != expected:
                if asyncio.get_running_loop().time() > deadline:
                    break
                await asyncio.sleep(_POLL)
        return count

    async def marks_above(self, table: TableName, token: int) -> Marks:
        """Look at the rows that a cell has written."""
        marks = f"{table} WHERE last_fence_token"
        if table in (SCOPED, GONE):
            prefix = "by_order/" if table == SCOPED else f"{table}/"
            marks = f"fencepost.marks WHERE starts_with(resource, '{prefix}') AND last_fence_token"
        async with self._connection() as connection:
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


async def _fill(connection: "asyncpg.Connection[asyncpg.Record]", table: TableName, walk: Walk) -> None:
    statement = _FILL_SCOPED if table == SCOPED else _FILL
    last = walk.first_key + walk.rows - 1
    await connection.execute("SET session_replication_role = replica")
    await connection.execute(statement.format(table=table, mark=MARK_AT_FIRST, first=walk.first_key, last=last))
    await connection.execute("RESET session_replication_role")


async def _changed(connection: "asyncpg.Connection[asyncpg.Record]", table: TableName) -> int:
    """Count inserted, updated and deleted rows together: a cell does one of the three."""
    count = await connection.fetchval(
        "SELECT n_tup_ins + n_tup_upd + n_tup_del FROM pg_stat_user_tables WHERE relid = $1::text::regclass",
        f"public.{table}",
    )
    return int(count)
