"""Connections to the one database, with the session settings that the rules stand on (R4, R6).

Every session is READ COMMITTED, waits for its commits to be durable, and spells values one way. They are startup
settings, so nothing short of the server overrides them. Connections must therefore be direct: a pooler in transaction
mode would hand one session's settings to another.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

import asyncpg
import asyncpg.pool

from fencepost.storage.errors import RETRIED, RefusedError, UnavailableError, translated

T = TypeVar("T")

Connection = asyncpg.Connection | asyncpg.pool.PoolConnectionProxy
"""What statements run on: a connection of one's own, or one lent by the pool."""

UNREADABLE_URL: Final = (
    "the database URL cannot be read: it is postgresql://user:password@host:port/database, "
    "with special characters in the password percent-encoded (a / is %2F)"
)

RETRIES: Final = 10
"""How often a deadlock or serialization failure is tried again inside before the caller hears of it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Pool and time limits; seconds."""

    pool_size: int = 10
    pool_timeout: float = 5.0
    statement_timeout: float = 30.0
    lock_timeout: float = 10.0


class GatewayConnection(asyncpg.Connection):
    """A pooled connection without asyncpg's reset round trip: the gateway leaves nothing behind that needs one."""

    async def reset(self, *, timeout: float | None = None) -> None:  # noqa: ASYNC109 - asyncpg's signature
        """Clean up only after a transaction that was left open by a failure."""
        if self.is_in_transaction():
            await super().reset(timeout=timeout)


def session_settings(synchronous_commit: str, limits: Limits) -> dict[str, str]:
    """What every connection of the gateway starts with."""
    return {
        "application_name": "fencepost",
        "default_transaction_isolation": "read committed",
        # "at least on": a database that waits for its standbys to apply keeps doing so.
        "synchronous_commit": "remote_apply" if synchronous_commit == "remote_apply" else "on",
        "statement_timeout": str(round(limits.statement_timeout * 1000)),
        "lock_timeout": str(round(limits.lock_timeout * 1000)),
        "idle_in_transaction_session_timeout": str(round(limits.statement_timeout * 1000)),
        "DateStyle": "ISO, MDY",
        "IntervalStyle": "postgres",
        "TimeZone": "UTC",
        "bytea_output": "hex",
        "extra_float_digits": "1",
        # Compiling a statement that runs for 30 µs is never worth it.
        "jit": "off",
    }


class Database:
    """The pool. Leaving `connection()` gives the connection back; `retrying` repeats what lost a race."""

    def __init__(self, pool: "asyncpg.Pool[asyncpg.Record]", limits: Limits) -> None:
        self._pool = pool
        self._limits = limits

    @classmethod
    async def open(cls, dsn: str, limits: Limits) -> "Database":
        """Connect; raise UnavailableError with the reason when that fails."""
        with translated(writing=False):
            probe = await asyncpg.connect(dsn, timeout=limits.pool_timeout)
            try:
                commit = await probe.fetchval("SHOW synchronous_commit")
            finally:
                await probe.close()
            pool = await asyncpg.create_pool(
                dsn,
                min_size=1,
                max_size=limits.pool_size,
                connection_class=GatewayConnection,
                server_settings=session_settings(commit, limits),
                # Later than the server's own limit, which undoes the statement and says so.
                command_timeout=limits.statement_timeout + 5,
                # Statements depend on table, columns and select; each costs the server some 20 kB per connection.
                statement_cache_size=256,
                max_inactive_connection_lifetime=300,
            )
        return cls(pool, limits)

    async def close(self) -> None:
        """Wait for connections in use, then close all."""
        await self._pool.close()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """Lend a connection. UnavailableError when none can be had in time; errors inside are the caller's to map."""
        try:
            with translated(writing=False):
                connection = await self._acquire()
        except RefusedError as error:  # no such role, wrong password, no such database
            raise UnavailableError(f"PostgreSQL does not let the gateway in: {error}") from error
        try:
            yield connection
        finally:
            await self._pool.release(connection)

    async def _acquire(self) -> "asyncpg.pool.PoolConnectionProxy[asyncpg.Record]":
        limit = self._limits.pool_timeout
        try:
            # Not acquire(timeout=…), which makes a task of each request.
            async with asyncio.timeout(limit):
                return await self._pool.acquire()
        except TimeoutError as error:
            raise UnavailableError(
                f"no connection to PostgreSQL within {limit:g} s: all are in use, or it does not answer"
            ) from error

    def sizes(self) -> tuple[int, int]:
        """Tell (connections open, of them idle)."""
        return self._pool.get_size(), self._pool.get_idle_size()


@asynccontextmanager
async def undoing(connection: Connection) -> AsyncIterator[None]:
    """Undo a statement that fails, and only that, when it is part of a transaction: the transaction goes on."""
    if not connection.is_in_transaction():
        yield
        return
    async with connection.transaction():
        yield


async def retrying(attempt: Callable[[], Awaitable[T]]) -> T:
    """Run `attempt` again after a deadlock or serialization failure, verdict and all; neither is told as stale (R4)."""
    for number in range(RETRIES):
        try:
            return await attempt()
        except RefusedError as error:
            if error.sqlstate not in RETRIED:
                raise
            await asyncio.sleep(random.uniform(0, 0.002 * 2**number))  # noqa: S311 - jitter, so that the two part ways
    return await attempt()
