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
from datetime import datetime
from typing import Final, TypeVar

import asyncpg
import asyncpg.pool

from fencepost.storage.errors import (
    RETRIED,
    OutcomeUnknownError,
    QuarantinedError,
    RefusedError,
    StandbyError,
    UnavailableError,
    translated,
)
from fencepost.storage.origin import ORIGIN, Origin, Standing, Watch

T = TypeVar("T")

Connection = asyncpg.Connection | asyncpg.pool.PoolConnectionProxy
"""What statements run on: a connection of one's own, or one lent by the pool."""

UNREADABLE_URL: Final = (
    "the database URL cannot be read: it is postgresql://user:password@host:port/database, "
    "with special characters in the password percent-encoded (a / is %2F)"
)

TRANSACTION_TIMEOUT_SINCE: Final = 17
LOCK_WAIT_MS: Final = 10
"""How long a statement of a batch waits for anything that somebody else holds (group_commit.py)."""
RETRIES: Final = 10
"""How often a deadlock or serialization failure is tried again inside before the caller hears of it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Pools and time limits; seconds. `lanes` connections carry batches, beside the pool's `pool_size`."""

    pool_size: int = 10
    pool_timeout: float = 5.0
    statement_timeout: float = 30.0
    lock_timeout: float = 10.0
    lanes: int = 4
    most_waiting: int = 1000
    """How many requests may wait for a connection of the pool before others are refused at once."""


@dataclass(frozen=True, slots=True)
class Backend:
    """The server process behind a connection. A pid alone may be another's later."""

    pid: int
    started: datetime


_WHO = f"""
SELECT o.*, pg_backend_pid() AS pid, (SELECT a.backend_start FROM pg_stat_activity a WHERE a.pid = pg_backend_pid())
       AS started FROM ({ORIGIN}) AS o"""


class GatewayConnection(asyncpg.Connection):
    """A pooled connection without asyncpg's reset round trip: the gateway leaves nothing behind that needs one.

    It knows its backend, and the origin as it was when the connection was made or last asked (R15, R19).
    """

    backend: Backend
    origin: Origin
    _unreplicated = False

    def require_replicated(self) -> None:
        """Raise OutcomeUnknownError when a commit on this connection has not waited for the synchronous standby (R19):
        what it did is here, and perhaps nowhere else.
        """
        if self._unreplicated:
            self.terminate()
            raise OutcomeUnknownError(
                "its wait for the synchronous standby was cancelled: it is committed, and may be lost when a standby is"
                " promoted"
            )

    def on_warning(self, _connection: Connection, message: asyncpg.PostgresLogMessage) -> None:
        """Hear a warning. A cancelled wait is told by nothing else: the statement succeeds, and its text is in any
        language.
        """
        if getattr(message, "server_source_function", None) == "SyncRepWaitForLSN":
            self._unreplicated = True

    async def introduce(self) -> None:
        """Ask both, in one query: what a pool does with each new connection."""
        row = await self.fetchrow(_WHO)
        if row is None:
            raise RuntimeError("fencepost.origin() gave no row")
        self.backend, self.origin = Backend(row["pid"], row["started"]), Origin.of(row)

    async def reset(self, *, timeout: float | None = None) -> None:  # noqa: ASYNC109 - asyncpg's signature
        """Clean up only after a transaction that was left open by a failure."""
        if self.is_in_transaction():
            await super().reset(timeout=timeout)


async def _introduce(connection: asyncpg.Connection) -> None:
    await gateway_connection(connection).introduce()


def gateway_connection(connection: Connection) -> GatewayConnection:
    """Return what is behind a connection that the pool has lent, which is a proxy."""
    behind = getattr(connection, "_con", connection)
    if not isinstance(behind, GatewayConnection):
        raise TypeError(f"{connection!r} is not of the gateway's pool")
    return behind


def session_settings(synchronous_commit: str, limits: Limits, *, server: int = 0) -> dict[str, str]:
    """What every connection of the gateway starts with. `server`: PostgreSQL's major version."""
    # It would end the connection in the middle of a write, and the limits of statements do what it is for.
    newer = {"transaction_timeout": "0"} if server >= TRANSACTION_TIMEOUT_SINCE else {}
    return newer | {
        "application_name": "fencepost",
        "default_transaction_isolation": "read committed",
        # "at least on": a database that waits for its standbys to apply keeps doing so.
        "synchronous_commit": "remote_apply" if synchronous_commit == "remote_apply" else "on",
        "statement_timeout": str(round(limits.statement_timeout * 1000)),
        "lock_timeout": str(round(limits.lock_timeout * 1000)),
        "idle_in_transaction_session_timeout": str(round(limits.statement_timeout * 1000)),
        # A cancelled wait for a standby is a warning and nothing else (R15).
        "client_min_messages": "warning",
        "DateStyle": "ISO, MDY",
        "IntervalStyle": "postgres",
        "TimeZone": "UTC",
        "bytea_output": "hex",
        "extra_float_digits": "1",
        # A token or a reason that ALTER ROLE or ALTER DATABASE gives to everybody is none of the gateway's (R14).
        "fencepost.token": "",
        "fencepost.break_glass": "",
        # Compiling a statement that runs for 30 µs is never worth it.
        "jit": "off",
    }


Pool = asyncpg.Pool


class Database:
    """Two pools: one for requests, and one for batches (group_commit.py), whose statements hardly wait for locks.

    Leaving `connection()` or `lane()` gives the connection back; `retrying` repeats what lost a race.
    """

    def __init__(self, pool: Pool, lanes: Pool, limits: Limits, watch: Watch) -> None:
        self._pool = pool
        self._lanes = lanes
        self._limits = limits
        self._watch = watch
        self._waiting = 0

    @classmethod
    async def open(
        cls, dsn: str, limits: Limits, changed: Callable[[Standing], None] = lambda _standing: None
    ) -> "Database":
        """Connect; raise UnavailableError with the reason when that fails. `changed` hears when writes begin or cease
        to be let through (R19).
        """
        with translated(writing=False):
            probe = await asyncpg.connect(dsn, timeout=limits.pool_timeout)
            try:
                commit = await probe.fetchval("SHOW synchronous_commit")
                settings = session_settings(commit, limits, server=probe.get_server_version().major)
            finally:
                await probe.close()
            pool = await _open_pool(dsn, settings, limits, limits.pool_size)
            try:
                hasty = settings | {"lock_timeout": str(LOCK_WAIT_MS)}
                lanes = await _open_pool(dsn, hasty, limits, limits.lanes)
            except BaseException:
                await pool.close()
                raise
        return cls(pool, lanes, limits, Watch(changed))

    async def close(self) -> None:
        """Wait for connections in use, then close all."""
        await self._lanes.close()
        await self._pool.close()

    @asynccontextmanager
    async def connection(self, *, writing: bool = False) -> AsyncIterator[Connection]:
        """Lend a connection. UnavailableError when none can be had in time; errors inside are the caller's to map. One
        that shows that the sessions have old plans (RefusedError.of_an_old_plan) makes all of them new.

        `writing`: only to the database that writes were allowed on; else its subclasses StandbyError and
        QuarantinedError (R19).
        """
        async with self._lent(self._pool, writing=writing) as connection:
            yield connection

    @asynccontextmanager
    async def lane(self) -> AsyncIterator[Connection]:
        """Lend a connection for batches of writes, as `connection(writing=True)` does."""
        async with self._lent(self._lanes, writing=True) as connection:
            yield connection

    @asynccontextmanager
    async def _lent(self, pool: Pool, *, writing: bool) -> AsyncIterator[Connection]:
        try:
            with translated(writing=False):
                connection = await self._acquire(pool)
        except RefusedError as error:  # no such role, wrong password, no such database
            raise UnavailableError(f"PostgreSQL does not let the gateway in: {error}") from error
        behind = gateway_connection(connection)
        try:
            if writing:
                await self._require_origin(connection)
                behind.add_log_listener(behind.on_warning)
            yield connection
        except RefusedError as error:
            if error.of_an_old_plan:
                await self._expire()
            raise
        finally:
            if writing and not behind.is_closed():
                behind.remove_log_listener(behind.on_warning)
            await pool.release(connection)

    async def _expire(self) -> None:
        """Make all connections new, as they come back."""
        await self._pool.expire_connections()
        await self._lanes.expire_connections()

    def is_accepted(self, connection: Connection) -> bool:
        """Whether a connection that is held for long is still one to write on: nobody has met a higher generation."""
        return gateway_connection(connection).origin.problem(self._watch.highest) is None

    async def _require_origin(self, connection: Connection) -> None:
        """Refuse to write where the origin is not accepted (origin.py)."""
        watch, behind = self._watch, gateway_connection(connection)
        if behind.origin.problem(watch.highest) is not None:  # since then it may have been promoted, or vouched for
            with translated(writing=False):
                await behind.introduce()
        if watch.met(behind.origin):
            await self._expire()
        if (error := watch.judge(behind.origin)) is None:
            return
        if (behind.origin.generation or 0) < watch.highest:
            behind.terminate()
        raise error

    async def standing(self) -> Standing:
        """Ask whether writes are let through now. UnavailableError when the database cannot be asked."""
        try:
            async with self.connection() as connection:
                with translated(writing=False):
                    await gateway_connection(connection).introduce()  # somebody may have raised the generation since
                await self._require_origin(connection)
                return Standing(True, gateway_connection(connection).origin.generation, None)
        except (StandbyError, QuarantinedError) as error:
            return Standing(False, None, str(error))

    async def _acquire(self, pool: Pool) -> "asyncpg.pool.PoolConnectionProxy[asyncpg.Record]":
        limit = self._limits.pool_timeout
        if self._waiting >= self._limits.most_waiting:
            raise UnavailableError(
                f"{self._waiting} requests wait for a connection to PostgreSQL already (FENCEPOST_MAX_WAITING)"
            )
        self._waiting += 1
        try:
            # Not acquire(timeout=…), which makes a task of each request.
            async with asyncio.timeout(limit):
                return await pool.acquire()
        except TimeoutError as error:
            raise UnavailableError(
                f"no connection to PostgreSQL within {limit:g} s: all are in use, or it does not answer"
            ) from error
        finally:
            self._waiting -= 1

    def sizes(self) -> tuple[int, int]:
        """Tell (connections open, of them idle)."""
        pools = (self._pool, self._lanes)
        return sum(pool.get_size() for pool in pools), sum(pool.get_idle_size() for pool in pools)


async def _open_pool(dsn: str, settings: dict[str, str], limits: Limits, size: int) -> Pool:
    pool: Pool = await asyncpg.create_pool(
        dsn,
        min_size=1,
        max_size=size,
        connection_class=GatewayConnection,
        server_settings=settings,
        # Later than the server's own limit, which undoes the statement and says so.
        command_timeout=limits.statement_timeout + 5,
        # Statements depend on table, columns and select; each costs the server some 20 kB per connection.
        statement_cache_size=256,
        max_inactive_connection_lifetime=300,
        init=_introduce,
    )
    return pool


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
