"""The way to the one database: two pools of connections, to none but the system and timeline that may be written to."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

import asyncpg
import asyncpg.pool

from fencepost.storage.connection import (
    Connection,
    Limits,
    Pool,
    gateway_connection,
    open_pool,
    session_settings,
)
from fencepost.storage.errors import (
    RETRIED,
    QuarantinedError,
    RefusedError,
    StandbyError,
    UnavailableError,
    translated,
)
from fencepost.storage.origin import Standing, Watch

T = TypeVar("T")

UNREADABLE_URL: Final = (
    "the database URL cannot be read: it is postgresql://user:password@host:port/database, "
    "with special characters in the password percent-encoded (a / is %2F)"
)

LOCK_WAIT_MS: Final = 10
"""How long a statement of a batch waits for anything that somebody else holds (group_commit.py)."""
RETRIES: Final = 10
"""How often a deadlock or serialization failure is tried again inside before the caller hears of it."""


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
            pool = await open_pool(dsn, settings, limits, limits.pool_size)
            try:
                hasty = settings | {"lock_timeout": str(LOCK_WAIT_MS)}
                lanes = await open_pool(dsn, hasty, limits, limits.lanes)
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
                behind.listen()
            yield connection
        except RefusedError as error:
            if error.of_an_old_plan:
                await self._expire()
            raise
        finally:
            if writing:
                behind.stop_listening()
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
