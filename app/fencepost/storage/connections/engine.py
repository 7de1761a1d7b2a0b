"""The way to the one database: two pools of connections, to none but the system and timeline that may be written to."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Final, TypeVar

import asyncpg

from fencepost.storage.connections.connection import (
    Connection,
    GatewayConnection,
    Limits,
    Shared,
    gateway_connection,
    open_connection,
    session_settings,
)
from fencepost.storage.connections.origin import OriginStatus, Watch
from fencepost.storage.connections.pool import CLOSED_WITHIN, ClosedError, Pool
from fencepost.storage.connections.read_only import REASON, ReadOnly, is_read_only, look
from fencepost.storage.connections.session import BackendRegistry
from fencepost.storage.errors import (
    RETRIED,
    QuarantinedError,
    ReadOnlyError,
    RefusedError,
    StandbyError,
    UnavailableError,
    map_errors,
    may_be_running,
)

T = TypeVar("T")

UNREADABLE_URL: Final = (
    "the database URL cannot be read: it is postgresql://user:password@host:port/database, "
    "with special characters in the password percent-encoded (a / is %2F)"
)

LOCK_WAIT_MS: Final = 10
"""How long a statement of a batch waits for anything that another transaction has locked (group_commit.py)."""
RETRIES: Final = 10
"""How often a deadlock or serialization failure is tried again inside before the caller gets the error."""


class Database:
    """Two pools: one for requests, and one for batches (group_commit.py), whose statements hardly wait for locks.

    Leaving `connection()` or `batch_connection()` gives the connection back, which changes no answer. `retry_conflicts`
    repeats what lost a race.
    """

    def __init__(
        self,
        opened: Callable[[], Awaitable[GatewayConnection]],
        pool: Pool,
        batch_pool: Pool,
        limits: Limits,
        watch: Watch,
        read_only: ReadOnly,
    ) -> None:
        self._opened = opened
        self._pool = pool
        self._batch_pool = batch_pool
        self._limits = limits
        self._watch = watch
        self._read_only = read_only
        self._waiting = 0
        self._ending: asyncio.TimerHandle | None = None

    @classmethod
    async def open(
        cls,
        dsn: str,
        limits: Limits,
        changed: Callable[[OriginStatus], None] = lambda _standing: None,
        report: Callable[[str], None] = lambda _trouble: None,
    ) -> "Database":
        """Connect; raise UnavailableError with the reason when that fails. `changed` is called when writes begin or
        cease to be let through (R19), `report` of trouble with connections that no caller gets.
        """
        settings, shared = session_settings(limits), Shared(BackendRegistry(), Watch(changed))
        hasty = settings | {"lock_timeout": str(LOCK_WAIT_MS)}

        def opened() -> Awaitable[GatewayConnection]:
            return open_connection(dsn, settings, limits, shared)

        pool = Pool(opened, limits.pool_size, report)
        batch_pool = Pool(lambda: open_connection(dsn, hasty, limits, shared), limits.batch_pool_size, report)
        database = cls(opened, pool, batch_pool, limits, shared.watch, ReadOnly(report))
        try:
            with map_errors(writing=False):
                for each in (pool, batch_pool):
                    each.give_back(await each.lend())
        except BaseException:
            await database.close()
            raise
        return database

    async def close(self) -> None:
        """Wait for connections in use, then close all."""
        await self._batch_pool.close()
        await self._pool.close()
        if self._ending is not None:
            self._ending.cancel()

    def end_after(self, seconds: float) -> None:
        """Have statements under way break then, for PostgreSQL may not answer: `close`, and requests that still ask
        something before it, wait no longer.
        """
        self._ending = asyncio.get_running_loop().call_later(seconds, self._end)

    def _end(self) -> None:
        self._batch_pool.end()
        self._pool.end()

    @asynccontextmanager
    async def connection(self, *, writing: bool = False) -> AsyncIterator[Connection]:
        """Lend a connection. UnavailableError when none can be had in time; errors inside are the caller's to map. One
        that shows that the sessions have old plans (RefusedError.of_an_old_plan) makes all of them new.

        `writing`: only to the database that writes were allowed on; else its subclasses StandbyError and
        QuarantinedError (R19); and only if PostgreSQL takes writes, else ReadOnlyError.
        """
        async with self._lend(self._pool, writing=writing) as connection:
            yield connection

    @asynccontextmanager
    async def spare(self) -> AsyncIterator[Connection]:
        """Lend a connection for a question about the database itself. It does not wait for requests: while they have
        all of the pool, it is a new one, closed afterwards. UnavailableError when it cannot be had.
        """
        if not self.all_lent:
            async with self.connection() as connection:
                yield connection
            return
        with _map_login_errors(), map_errors(writing=False):
            connection = await self._opened()
        try:
            yield connection
        finally:
            with suppress(OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                await connection.close(timeout=CLOSED_WITHIN)

    @asynccontextmanager
    async def batch_connection(self) -> AsyncIterator[Connection]:
        """Lend a connection for batches of writes, as `connection(writing=True)` does."""
        async with self._lend(self._batch_pool, writing=True) as connection:
            yield connection

    @asynccontextmanager
    async def _lend(self, pool: Pool, *, writing: bool) -> AsyncIterator[GatewayConnection]:
        if writing:
            self._read_only.require_writable()
        with _map_login_errors(), map_errors(writing=False):
            connection = await self._acquire(pool, writing=writing)
        spoilt = False
        try:
            if writing:
                await self._require_origin(connection)
                self._require_writable(connection)
                connection.listen()
            yield connection
        except RefusedError as error:
            if error.of_an_old_plan:
                self._expire()
            raise
        except ReadOnlyError as error:
            spoilt = True  # also when the question is interrupted
            if connection.read_only or await self._note_if_read_only(connection):
                connection.read_only = True
                raise ReadOnlyError(REASON) from error
            spoilt = False
            raise
        except BaseException as error:
            spoilt = may_be_running(error)
            raise
        finally:
            if writing:
                connection.stop_listening()
            pool.give_back(connection, spoilt=spoilt)

    def _require_writable(self, connection: GatewayConnection) -> None:
        if connection.read_only:
            self._read_only.notice()
            raise ReadOnlyError(REASON)

    async def _note_if_read_only(self, connection: Connection) -> bool:
        """Whether a write was refused because all of them are."""
        with map_errors(writing=False):
            if not await is_read_only(connection):
                return False
        self._read_only.notice()
        return True

    def _expire(self) -> None:
        """Make all connections new, as they come back."""
        self._pool.expire()
        self._batch_pool.expire()

    def is_accepted(self, connection: Connection) -> bool:
        """Whether a connection that is held for long is still one to write on, after what was met since."""
        return self._watch.problem(gateway_connection(connection).origin) is None

    async def _require_origin(self, connection: Connection) -> None:
        """Refuse to write where the origin is not accepted (origin.py)."""
        watch, behind = self._watch, gateway_connection(connection)
        if watch.problem(behind.origin) is not None:  # since then it may have been promoted, or vouched for
            with map_errors(writing=False):
                await behind.introduce(watch)
        if watch.accepts(behind.origin):
            self._expire()
        if (error := watch.judge(behind.origin)) is None:
            return
        if watch.met is not None and not behind.origin.follows(watch.met):
            behind.terminate()  # it leads elsewhere: the next one may not
        raise error

    async def origin_status(self) -> OriginStatus:
        """Ask whether writes are let through now. UnavailableError when the database cannot be asked."""
        begun = asyncio.get_running_loop().time()
        while True:
            try:
                async with self.spare() as connection:
                    behind = gateway_connection(connection)
                    with map_errors(writing=False):
                        await behind.introduce(self._watch)  # the generation may have been raised since
                    await self._require_origin(behind)
                    generation = behind.origin.generation
                    with map_errors(writing=False):
                        here, new = await look(connection)
                    if here and behind.opened < begun:  # it may be a leftover: a new one shows
                        behind.terminate()
                        continue
            except (StandbyError, QuarantinedError) as error:
                return OriginStatus(False, None, str(error))
            if not here and not new:
                self._read_only.clear()
                return OriginStatus(True, generation, None)
            if not here:
                self._expire()
            self._read_only.notice()
            return OriginStatus(False, generation, REASON)

    async def _acquire(self, pool: Pool, *, writing: bool) -> GatewayConnection:
        """Take a connection within `pool_timeout`; for a write none whose session is read-only, but one that has just
        been opened.
        """
        if self._waiting >= self._limits.most_waiting:
            raise UnavailableError(
                f"{self._waiting} requests wait for a connection to PostgreSQL already (FENCEPOST_MAX_WAITING)"
            )
        self._waiting += 1
        try:
            async with asyncio.timeout(self._limits.pool_timeout):
                begun = asyncio.get_running_loop().time()
                while True:
                    connection = await pool.lend()
                    if not (writing and connection.read_only and connection.opened < begun):
                        return connection
                    pool.give_back(connection, spoilt=True)
        except TimeoutError as error:
            raise UnavailableError(
                f"no connection to PostgreSQL within {self._limits.pool_timeout:g} s: all are in use, or it does not"
                " answer"
            ) from error
        except ClosedError as error:
            raise UnavailableError("the gateway is shutting down") from error
        finally:
            self._waiting -= 1

    @property
    def all_lent(self) -> bool:
        """Whether requests have all connections that the pool may have."""
        return self._pool.size >= self._limits.pool_size and not self._pool.idle

    def sizes(self) -> tuple[int, int]:
        """Count (connections open, of them idle)."""
        pools = (self._pool, self._batch_pool)
        return sum(pool.size for pool in pools), sum(pool.idle for pool in pools)


@contextmanager
def _map_login_errors() -> Iterator[None]:
    """Make a refusal while connecting (no such role, wrong password, no such database) an UnavailableError."""
    try:
        yield
    except RefusedError as error:
        raise UnavailableError(f"PostgreSQL does not let the gateway in: {error}") from error


@asynccontextmanager
async def savepoint(connection: Connection) -> AsyncIterator[None]:
    """Undo a statement that fails, and only that, when it is part of a transaction: the transaction goes on."""
    if not connection.is_in_transaction():
        yield
        return
    async with connection.transaction():
        yield


async def retry_conflicts(attempt: Callable[[], Awaitable[T]]) -> T:
    """Run `attempt` again after a deadlock or serialization failure, verdict and all; neither is answered as stale
    (R4).
    """
    for number in range(RETRIES):
        try:
            return await attempt()
        except RefusedError as error:
            if error.sqlstate not in RETRIED:
                raise
            await asyncio.sleep(random.uniform(0, 0.002 * 2**number))  # noqa: S311 - jitter, so that the two part ways
    return await attempt()
