"""The way to the one database: pools of connections, to none but the system and timeline that may be written to."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext, suppress
from typing import TYPE_CHECKING

import asyncpg

from fencepost.server.fence.caller import EVERYBODY, Caller
from fencepost.server.postgres.connections import roles
from fencepost.server.postgres.connections.connection import (
    Connection,
    GatewayConnection,
    Limits,
    Shared,
    gateway_connection,
    open_connection,
    session_settings,
)
from fencepost.server.postgres.connections.grant_slots import GrantSlots
from fencepost.server.postgres.connections.origin import OriginStatus, Watch
from fencepost.server.postgres.connections.pool import ClosedError, Pool
from fencepost.server.postgres.connections.read_only import ReadOnly, look
from fencepost.server.postgres.connections.session import READ_ONLY, BackendRegistry
from fencepost.server.postgres.errors import (
    QuarantinedError,
    ReadOnlyError,
    RefusedError,
    SessionError,
    StandbyError,
    UnavailableError,
    map_errors,
    map_login_errors,
    may_be_running,
)
from fencepost.server.quota import ASKING, Shares, most_of, waiting_quota
from fencepost.server.times import TIMES, Times

if TYPE_CHECKING:
    from fencepost.server.clock import Timer


class Database:
    """Three pools: one for requests; one for batches (group_commit.py), whose statements hardly wait for locks; and one
    for leases, which are not to wait for the other two.

    Leaving `connection()` and its like gives the connection back, which changes no answer.
    """

    def __init__(
        self,
        opened: Callable[[], Awaitable[GatewayConnection]],
        pools: tuple[Pool, Pool, Pool],
        limits: Limits,
        watch: Watch,
        read_only: ReadOnly,
        report: Callable[[str], None],
        times: Times = TIMES,
    ) -> None:
        self._opened = opened
        self._pools = self._pool, self._batch_pool, self._lease_pool = pools
        self._limits = limits
        self._watch = watch
        self._read_only = read_only
        self._report = report
        self._times, self._clock = times.connections, times.clock
        self.grants = GrantSlots(self.for_leases, limits.lease_pool_size, times)
        self._waiting = {pool: waiting_quota(limits.most_waiting) for pool in self._pools}
        self._of_leases = Shares(max(most_of(limits.lease_pool_size), self.grants.most_of_caller + 1))
        self._ending: Timer | None = None
        self.moment_due = False
        """Whether something was written since the newest moment (R19), when it was last looked."""

    @classmethod
    async def open(
        cls,
        dsn: str,
        limits: Limits,
        changed: Callable[[OriginStatus], None] = lambda _standing: None,
        report: Callable[[str], None] = lambda _trouble: None,
        times: Times = TIMES,
    ) -> "Database":
        """Connect; raise UnavailableError with the reason when that fails. `changed` is called when writes begin or
        cease to be let through (R19), `report` of trouble with connections that no caller gets.
        """
        settings, shared = session_settings(limits), Shared(BackendRegistry(), Watch(changed))
        within = times.connections.open_within
        hasty = settings | {"lock_timeout": str(max(1, round(times.batches.lock_wait * 1000)))}

        def opened() -> Awaitable[GatewayConnection]:
            return open_connection(dsn, settings, limits, shared, within)

        pool = Pool(opened, limits.pool_size, report, times)
        batch_pool = Pool(
            lambda: open_connection(dsn, hasty, limits, shared, within), limits.batch_pool_size, report, times
        )
        lease_pool = Pool(opened, limits.lease_pool_size, report, times)
        read_only = ReadOnly(report, times)
        database = cls(opened, (pool, batch_pool, lease_pool), limits, shared.watch, read_only, report, times)
        try:
            with map_errors(writing=False):
                for each in (pool, batch_pool, lease_pool):
                    each.give_back(await each.lend())
        except BaseException:
            await database.close()
            raise
        return database

    async def close(self) -> None:
        """Wait for connections in use, then close all."""
        for pool in reversed(self._pools):
            await pool.close()
        if self._ending is not None:
            self._ending.cancel()

    def end_after(self, seconds: float) -> None:
        """Have statements under way break then, for PostgreSQL may not answer: neither `close` nor requests wait on."""
        self._ending = self._clock.call_later(seconds, self._end)

    def _end(self) -> None:
        for pool in self._pools:
            pool.end()

    def connection(
        self, *, caller: Caller = EVERYBODY, counted: bool = True, runs_code: bool = False
    ) -> AbstractAsyncContextManager[Connection]:
        """Lend a connection for reading. UnavailableError when none can be had in time. Errors inside are mapped
        (errors.py). One that shows that sessions have old query plans makes all of them new.
        `caller`: whose role the session has for as long as it is lent (roles.py); RoleError when it cannot.
        `counted`: whoever waits is one of `most_waiting`, and refused where these are there already.
        `runs_code`: what is asked runs code of users', which may change the session. It is restored afterwards.
        """
        return self._lend(self._pool, caller, writing=False, counted=counted, runs_code=runs_code)

    def for_writing(
        self, *, caller: Caller = EVERYBODY, counted: bool = True, runs_code: bool = False
    ) -> AbstractAsyncContextManager[Connection]:
        """Lend a connection to `run_write` (transactions.py), which maps errors: only to the database that writes were
        allowed on (StandbyError, QuarantinedError: R19), and only if PostgreSQL takes writes (ReadOnlyError).
        """
        return self._lend(self._pool, caller, writing=True, counted=counted, runs_code=runs_code)

    @asynccontextmanager
    async def for_leases(self) -> AsyncIterator[Connection]:
        """Lend `run_write` a connection for leases and their queues, for which no other request waits. One caller has
        three quarters of them, so that others' leases are renewed however much it asks for.
        """
        with self._of_leases.of(ASKING.get()) as own:
            async with AsyncExitStack() as stack:
                await self._in_turn(own, stack)
                yield await stack.enter_async_context(self._lend(self._lease_pool, EVERYBODY, writing=True))

    async def _in_turn(self, own: asyncio.Semaphore, stack: AsyncExitStack) -> None:
        """Take one of a caller's connections for leases. UnavailableError: none was free in time."""
        if own.locked():
            caller = ASKING.get()
            with self._waiting[self._lease_pool].place(caller) as full:
                if full is not None:
                    raise UnavailableError(f"requests about leases wait for a connection to PostgreSQL: {full}")
                try:
                    async with asyncio.timeout(self._limits.pool_timeout):
                        await own.acquire()
                except TimeoutError as error:
                    raise UnavailableError(
                        f"no connection for leases within {self._limits.pool_timeout:g} s: {caller} has as many as one"
                        " may have"
                    ) from error
        else:
            await own.acquire()
        stack.callback(own.release)

    def batch_connection(self, caller: Caller = EVERYBODY) -> AbstractAsyncContextManager[Connection]:
        """Lend a connection for batches of writes (group_commit.py), which are counted there."""
        return self._lend(self._batch_pool, caller, writing=True, counted=False)

    @asynccontextmanager
    async def spare(self) -> AsyncIterator[Connection]:
        """Lend a connection for a question about the database itself. It does not wait for requests: while they have
        all of the pool, it is a new one, closed afterwards. UnavailableError when it cannot be had.
        """
        if not self.all_lent:
            async with self.connection() as connection:
                yield connection
            return
        with map_login_errors():
            connection = await self._opened()
        try:
            with map_errors(writing=False):
                yield connection
        finally:
            with suppress(OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                await connection.close(timeout=self._times.close_within)

    @asynccontextmanager
    async def _lend(
        self, pool: Pool, caller: Caller, *, writing: bool, counted: bool = True, runs_code: bool = False
    ) -> AsyncIterator[Connection]:
        if writing:
            self._read_only.require_writable()
        with map_login_errors():
            connection = await self._acquire(pool, writing=writing, counted=counted)
        spoilt = False
        try:
            if writing:
                await self._require_origin(connection)
                self._read_only.require_writable_session(connection)
                connection.listen()
            await roles.take(connection, caller)
            connection.code_ran = runs_code
            with nullcontext() if writing else map_errors(writing=False):
                yield connection
        except RefusedError as error:
            if error.of_an_old_query_plan:
                self.expire()
            raise
        except ReadOnlyError as error:
            spoilt = True  # also when the question is interrupted
            if not connection.unwritable and await self._read_only.explains(connection):
                connection.unwritable = READ_ONLY
            if connection.unwritable:
                raise ReadOnlyError(connection.unwritable) from error
            spoilt = False
            raise
        except BaseException as error:
            # A session that has lost its prepared statements fails each time.
            spoilt = may_be_running(error) or isinstance(error, SessionError)
            raise
        finally:
            if writing:
                connection.stop_listening()
            await self._take_back(pool, connection, spoilt=spoilt)

    async def _take_back(self, pool: Pool, connection: GatewayConnection, *, spoilt: bool) -> None:
        """Take a connection back. One that acts as a caller, or in which users' code ran, has a session like a new one
        again, or is closed; that changes no answer.
        """
        changed = connection.acting or connection.code_ran
        if spoilt or not changed or connection.is_closed() or connection.is_in_transaction():
            pool.give_back(connection, spoilt=spoilt)
            return
        failed: str | None = "it was interrupted"
        try:
            failed = await roles.give_back(connection, self._times.give_back_within)
        finally:
            pool.give_back(connection, spoilt=failed is not None)
        if failed is not None:
            self._report(
                f"a connection did not give back a caller's role, or what users' code has set, and is closed: {failed}"
            )

    def expire(self) -> None:
        """Make all connections new, as they come back."""
        for pool in self._pools:
            pool.expire()

    def is_accepted(self, connection: Connection) -> bool:
        """Whether a connection that is held for long is still one to write on, after what was met since."""
        return self._watch.problem(gateway_connection(connection).origin) is None

    async def _require_origin(self, connection: Connection) -> None:
        """Refuse to write where the origin is not accepted (origin.py)."""
        watch, behind = self._watch, gateway_connection(connection)
        if watch.problem(behind.origin) is not None:  # since then it may have been promoted, or vouched for
            with map_errors(writing=False):
                await behind.introduce(watch)
        error, newer = watch.judge(behind.origin)
        if newer:
            self.expire()
        if error is not None:
            if watch.met is not None and (behind.origin.forgot or not behind.origin.follows(watch.met)):
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
                    generation, self.moment_due = behind.origin.generation, behind.origin.due
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
                self.expire()
            self._read_only.notice(here or new)
            return OriginStatus(False, generation, here or new)

    async def _acquire(self, pool: Pool, *, writing: bool, counted: bool) -> GatewayConnection:
        """Take a connection within `pool_timeout`, and none that has ended since it came back; for a write none whose
        session takes none, but one that has just been opened.
        """
        caller, waiting = ASKING.get(), self._waiting[pool]
        if counted and (full := waiting.take(caller)) is not None:
            raise UnavailableError(f"requests wait for a connection to PostgreSQL: there are {full}")
        try:
            async with asyncio.timeout(self._limits.pool_timeout):
                begun = asyncio.get_running_loop().time()
                while True:
                    connection = await pool.lend()
                    ended = connection.is_closed()  # while the caller was woken; nothing was sent on it
                    if not ended and not (writing and connection.unwritable and connection.opened < begun):
                        return connection
                    pool.give_back(connection, spoilt=True)
        except TimeoutError as error:
            late = f"no connection to PostgreSQL within {self._limits.pool_timeout:g} s"
            raise UnavailableError(f"{late}: all are in use, or it does not answer") from error
        except ClosedError as error:
            raise UnavailableError("the gateway is shutting down") from error
        finally:
            if counted:
                waiting.give_back(caller)

    @property
    def most_batches_of_caller(self) -> int:
        """How many of the connections for batches one caller may have."""
        return most_of(self._limits.batch_pool_size)

    @property
    def statement_timeout(self) -> float:
        """Seconds that a statement may run."""
        return self._limits.statement_timeout

    @property
    def all_lent(self) -> bool:
        """Whether requests have all connections that the pool may have."""
        return self._pool.size >= self._limits.pool_size and not self._pool.idle

    def sizes(self) -> tuple[int, int]:
        """Count (connections open, of them idle)."""
        return sum(pool.size for pool in self._pools), sum(pool.idle for pool in self._pools)
