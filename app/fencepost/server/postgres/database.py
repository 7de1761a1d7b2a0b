"""The way to the one database: pools of connections, to none but the system and timeline that may be written to."""

import asyncio
import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Hashable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final, TypeVar

import asyncpg

from fencepost.server.fence.caller import ASKING, EVERYBODY, Caller
from fencepost.server.fence.problems import Problem
from fencepost.server.postgres.connection import (
    NO_TRIGGERS,
    READ_ONLY,
    BackendRegistry,
    Connection,
    Limits,
    Session,
    Shared,
    ask_value,
    open_connection,
    session_settings,
    why_unwritable,
)
from fencepost.server.postgres.database_identity import Known, OriginStatus, Watch
from fencepost.server.postgres.errors import (
    FOREIGN,
    RETRIED,
    OutcomeUnknownError,
    QuarantinedError,
    ReadOnlyError,
    RefusedError,
    RoleError,
    SessionError,
    StandbyError,
    StorageError,
    UnavailableError,
    UncommittedError,
    at_login,
    map_errors,
    may_be_running,
    ours,
)
from fencepost.server.postgres.pool import AskedFor, ClosedError, Limiter, Pool, Quota, most_of, waiting_quota
from fencepost.server.times import TIMES, Times

if TYPE_CHECKING:
    from fencepost.server.times import Timer


# A caller's role on a connection: SET ROLE for as long as a block has the connection, and never longer.
#
# A connection takes role, `request.jwt.claims` and `fencepost.caller` in one statement, and gives them back in one
# statement, which also looks whether the login acts in its own name again. `Database` does that around each block that
# is lent a connection for a caller with a role. A connection that cannot give its role back is closed: its statement
# was interrupted, its transaction is open, it is broken. The pool takes none back that has one (pool.py).
#
# Code of users' that a statement runs (a trigger, a policy) may set what it likes for the whole session, a role too.
# Whoever lends a connection for a table with such code says so (`code_ran`): then giving back is to run what makes the
# session what it was.
#
# Inside of a transaction that has begun in the gateway's own name (a grant, which makes the lease's claims) the role
# is set with SET LOCAL: PostgreSQL takes it back when the transaction ends, however it ends. All the same the
# connection is looked at when the block ends: a trigger may have set a role for the session.

# The gateway's statements name functions in full, against the search_path of a role. `true`: SET LOCAL.
_SET: Final = (
    "SELECT pg_catalog.set_config('role', $1, $4), pg_catalog.set_config('request.jwt.claims', $2, $4),"
    " pg_catalog.set_config('fencepost.caller', $3, $4)"
)
_ACT_FOR: Final = (
    "SELECT pg_catalog.set_config('request.jwt.claims', $1, false),"
    " pg_catalog.set_config('fencepost.caller', $2, false)"
)
_GIVE_BACK: Final = (
    "SELECT pg_catalog.set_config('role', 'none', false), pg_catalog.set_config('request.jwt.claims', '', false),"
    " pg_catalog.set_config('fencepost.caller', '', false), CURRENT_USER OPERATOR(pg_catalog.=) SESSION_USER"
)
_GIVEN_BACK: Final = ("none", "", "", True)
NO_SUCH_ROLE: Final = frozenset({"42501", "22023", "42704"})
"""SQLSTATEs of SET ROLE: it may not be set, or there is none of the name."""


async def take(connection: Session, caller: Caller, *, local: bool = False) -> None:
    """Take a caller's role, if it has one. RoleError: PostgreSQL does not let the login take it; UnavailableError."""
    if caller.role is None:
        return
    connection.acting, connection.acts_for = True, None
    try:
        await connection.ask(_SET, caller.role, caller.claims, caller.name, local)
    except RefusedError as error:
        if error.sqlstate not in NO_SUCH_ROLE:
            raise
        raise RoleError(caller.role, str(error)) from error


async def act_for(connection: Session, caller: Caller) -> None:
    """Have a connection that has a role act for this caller of the role, from now on: batches are those of several. A
    transaction that is undone brings back what was set before it, so then nothing is known of that.
    """
    wanted = caller.claims, caller.name
    if connection.acts_for != wanted:
        connection.acts_for = None
        await connection.ask(_ACT_FOR, *wanted)
        connection.acts_for = None if connection.is_in_transaction() else wanted


async def give_back(session: Session, within: float = TIMES.connections.give_back_within) -> str | None:
    """Give the role back in so many seconds, and undo what users' code has done to the session; else say why that
    failed. The connection is useless then.
    """
    try:
        async with asyncio.timeout(within):
            if session.code_ran:
                await session.ask(session.restoring, True)
                session.acting = session.code_ran = False
                return None
            (row,) = await session.ask(_GIVE_BACK)
    except TimeoutError:
        return f"no answer within {within:g} s"
    except StorageError as error:
        return str(error)
    if tuple(row) != _GIVEN_BACK:
        return "its session has another role, or keeps what was set"
    session.acting = False
    return None


@asynccontextmanager
async def users_code(connection: Session, caller: Caller, *, runs: bool, local: bool) -> AsyncIterator[None]:
    """Undo what users' code does to the session in this block, in the middle of a transaction that goes on as a caller:
    what comes next in it is not to be judged by a setting of another table's trigger. `runs`: whether any runs.
    `local`: see `take`.
    """
    connection.code_ran |= runs  # also where the block fails, and after a rollback: locks of a session outlive both
    yield
    if runs:
        await connection.fetchval(connection.restoring, False)
        await take(connection, caller, local=local)


@asynccontextmanager
async def as_caller(connection: Session, caller: Caller) -> AsyncIterator[None]:
    """Act as a caller in the middle of a transaction that is the gateway's own. A block that fails has the transaction
    undone, and the role with it.
    """
    if caller.role is None:
        yield
        return
    if not connection.is_in_transaction():
        raise RuntimeError("a role can be set for a part of a transaction only inside of one")
    await take(connection, caller, local=True)
    yield
    # What a deferred constraint trigger does, it does as the caller too, and not at COMMIT as the gateway.
    await connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
    if connection.code_ran:
        await connection.fetchval(connection.restoring, False)
    else:
        await connection.fetchrow(_SET, "none", "", "", True)


@asynccontextmanager
async def as_gateway(connection: Session, caller: Caller) -> AsyncIterator[None]:
    """Act as the gateway itself on a connection that was lent for a caller, between two of its statements. A block that
    fails leaves the connection in the gateway's name.
    """
    if caller.role is None:
        yield
        return
    if connection.is_in_transaction():
        raise RuntimeError("a transaction that is undone would bring the role back")
    if (failed := await give_back(connection)) is not None:
        raise UnavailableError(f"the connection does not give its role back: {failed}")
    yield
    await take(connection, caller)


# PostgreSQL that takes no writes: `default_transaction_read_only` is on. Or no fenced ones: `session_replication_role`
# is replica, and no trigger fires.
#
# Managed databases set the first when the disk is full, and operators for a switch-over. The second is left over from
# a load of data. The gateway keeps to both, and sets nothing of its own against them:
#
# - A write that PostgreSQL refuses for that (25006) has written nothing: 503 with Retry-After, in one sentence.
# - For a second after that was seen, writes are refused without asking PostgreSQL. The next one tries again, so
#   writes go on within a second of its end, and meanwhile no connection is opened for each of them.
# - In a session that fires no triggers nothing is written from the start: PostgreSQL would not refuse it.
# - `ALTER SYSTEM` reaches open sessions, but what ALTER DATABASE and ALTER ROLE set counts for sessions that begin
#   later, and stays there when it is lifted. So a session that was opened so, or refused a write as such, is replaced
#   before the next write. All are replaced once `origin_status` finds that new sessions would be so and open ones are
#   not.

# What ALTER ROLE and ALTER DATABASE give to a session that begins now; the most specific one counts. Null: neither
# does, and the server's own configuration counts, which open sessions follow.
# Operators and functions are named in full, against those that others may have put on the role's search_path.
_NEW: Final = """
       (SELECT pg_catalog.split_part(setting, '=', 2)
          FROM pg_catalog.pg_db_role_setting s CROSS JOIN pg_catalog.unnest(s.setconfig) AS setting,
               pg_catalog.pg_database d, pg_catalog.pg_roles r
         WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()
           AND r.rolname OPERATOR(pg_catalog.=) SESSION_USER
           AND s.setdatabase OPERATOR(pg_catalog.=) ANY (ARRAY[CAST(0 AS oid), d.oid])
           AND s.setrole OPERATOR(pg_catalog.=) ANY (ARRAY[CAST(0 AS oid), r.oid])
           AND pg_catalog.split_part(setting, '=', 1) OPERATOR(pg_catalog.=) '{}'
         ORDER BY s.setrole OPERATOR(pg_catalog.=) CAST(0 AS oid), s.setdatabase OPERATOR(pg_catalog.=) CAST(0 AS oid)
         LIMIT 1)"""
_LOOK: Final = f"""
SELECT pg_catalog.current_setting('transaction_read_only') AS transaction_read_only,
       pg_catalog.current_setting('session_replication_role') AS session_replication_role,
       CAST({_NEW.format("default_transaction_read_only")} AS bool) AS new_read_only,
       {_NEW.format("session_replication_role")} AS new_role"""
_HERE: Final = "SELECT CAST(pg_catalog.current_setting('transaction_read_only') AS bool)"


class ReadOnly:
    """What a process knows of it, over all its connections. `report` gets its beginning, in a sentence."""

    def __init__(
        self,
        report: Callable[[str], None],
        times: Times = TIMES,
    ) -> None:
        self._until = -math.inf
        self._reason = READ_ONLY
        self._report = report
        self._times, self._clock = times.connections, times.clock

    def notice(self, reason: str = READ_ONLY) -> None:
        """Take note that nothing may be written in a session of now."""
        now = self._clock.monotonic()
        if now > self._until + self._times.read_only_reported_after:
            self._report(reason)
        self._reason = reason
        self._until = now + self._times.read_only_for

    def clear(self) -> None:
        """Take note that a session of now takes writes."""
        self._until = min(self._until, self._clock.monotonic())

    def require_writable(self) -> None:
        """Raise ReadOnlyError if that was just seen."""
        if self._clock.monotonic() < self._until:
            raise ReadOnlyError(self._reason)

    def require_writable_session(self, connection: Session) -> None:
        """Raise ReadOnlyError if this session refused a write before, or was opened so."""
        if connection.unwritable:
            self.notice(connection.unwritable)
            raise ReadOnlyError(connection.unwritable)

    async def explains(self, connection: Session) -> bool:
        """Whether all writes are refused in this session, and not only the statement that was. Raises StorageError."""
        found = bool(await ask_value(connection, _HERE))
        if found:
            self.notice()
        return found


async def look(connection: Session) -> tuple[str, str]:
    """Ask why nothing may be written in this session, and in a new one by a role's or database's setting; empty: it
    may, and none of their settings says that it may not.
    """
    row = await connection.fetchrow(_LOOK)
    if row is None:
        raise RuntimeError("a SELECT without FROM gave no row")
    new = READ_ONLY if row["new_read_only"] else NO_TRIGGERS if row["new_role"] == "replica" else ""
    return why_unwritable(dict(row)), new


# The pools, and who is lent a connection of which.


_FOR_RENEWALS: Final = 2
"""How many of the connections for leases no grant has."""


def _limiter(size: int, per_caller: int, limits: Limits, waiting: Quota) -> Limiter:
    return Limiter(size, per_caller, limits.pool_timeout, "connection to PostgreSQL", waiting)


def _of(whose: str | None) -> Hashable:
    return AskedFor(ASKING.get()) if whose is None else whose


class Database:
    """Three pools: one for requests; one for batches (group_commit.py), whose statements hardly wait for locks; and one
    for leases, which are not to wait for the other two.

    Leaving `connection()` and its like gives the connection back, which changes no answer.
    """

    def __init__(
        self,
        opened: Callable[[], Awaitable[Session]],
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
        self.waiting = waiting_quota(limits.most_waiting)
        """Who waits for a connection, or for a statement that reads of several share."""
        self.requests = _limiter(limits.pool_size, most_of(limits.pool_size), limits, self.waiting)
        reads = most_of(limits.pool_size)
        self.reads = Limiter(reads, most_of(reads), limits.pool_timeout, "connection for a read", self.waiting)
        """A read may hold a connection for as long as PostgreSQL takes to look through a large value."""
        grants = max(limits.lease_pool_size - _FOR_RENEWALS, 1)
        self._grants = Limiter(grants, most_of(grants), times.queue.slot_within, "connection for a grant")
        most_of_leases = max(most_of(limits.lease_pool_size), most_of(grants) + 1)
        self._leases = _limiter(limits.lease_pool_size, most_of_leases, limits, waiting_quota(limits.most_waiting))
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

        def opened() -> Awaitable[Session]:
            return open_connection(dsn, settings, limits, shared, within)

        pool = Pool(opened, limits.pool_size, report, times)
        batch_pool = Pool(
            lambda: open_connection(dsn, hasty, limits, shared, within), limits.batch_pool_size, report, times
        )
        lease_pool = Pool(opened, limits.lease_pool_size, report, times)
        read_only = ReadOnly(report, times)
        database = cls(opened, (pool, batch_pool, lease_pool), limits, shared.watch, read_only, report, times)
        try:
            with map_errors():
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
        """Have statements under way break then, for PostgreSQL may not answer: neither `close` nor requests wait on. Of
        several calls the last counts.
        """
        if self._ending is not None:
            self._ending.cancel()
        self._ending = self._clock.call_later(seconds, self._end)

    def _end(self) -> None:
        for pool in self._pools:
            pool.end()

    @asynccontextmanager
    async def connection(
        self,
        *,
        caller: Caller = EVERYBODY,
        whose: str | None = None,
        patient: bool = False,
        counted: bool = True,
        runs_code: bool = False,
    ) -> AsyncIterator[Session]:
        """Lend a session for reading. UnavailableError when none can be had in time. An error that shows that sessions
        have old query plans makes all of them new.
        `caller`: whose role the session has for as long as it is lent; RoleError when it cannot.
        `whose`: of whose share it is (`Limiter`); None: it is AskedFor.
        `patient`: it waits as long as it takes. Not `counted`: those who wait are bounded elsewhere.
        `runs_code`: what is asked runs code of users', which may change the session. It is restored afterwards.
        """
        async with (
            self.requests.place(_of(whose), patient=patient, counted=counted),
            self._lend(self._pool, caller, writing=False, runs_code=runs_code) as session,
        ):
            yield session

    @asynccontextmanager
    async def for_reads(
        self, *, caller: Caller = EVERYBODY, whose: str, counted: bool = True, runs_code: bool = False
    ) -> AsyncIterator[Session]:
        """The same for a read of rows. Reads never have all connections, so that writes and grants find one."""
        async with (
            self.reads.place(whose, counted=counted),
            self.requests.place(whose, counted=counted),
            self._lend(self._pool, caller, writing=False, runs_code=runs_code) as session,
        ):
            yield session

    def has_room_for_reads(self, whose: str) -> bool:
        """Whether a read of this caller would have a connection at once."""
        return self.reads.has_room(whose) and self.requests.has_room(whose)

    @asynccontextmanager
    async def for_writing(
        self, *, caller: Caller = EVERYBODY, whose: str | None = None, patient: bool = False, runs_code: bool = False
    ) -> AsyncIterator[Session]:
        """Lend a session to `run_write`: only of the database that writes were allowed on (StandbyError,
        QuarantinedError: R19), and only if PostgreSQL takes writes (ReadOnlyError).
        """
        self._read_only.require_writable()  # before it waits for anything
        async with (
            self.requests.place(_of(whose), patient=patient),
            self._lend(self._pool, caller, writing=True, runs_code=runs_code) as session,
        ):
            yield session

    @asynccontextmanager
    async def for_leases(self) -> AsyncIterator[Session]:
        """Lend `run_write` a session for leases and their queues, for which no other request waits. One caller has
        three quarters of them, so that others' leases are renewed however much it asks for.
        """
        self._read_only.require_writable()
        async with self._leases.place(ASKING.get()), self._lend(self._lease_pool, EVERYBODY, writing=True) as session:
            yield session

    @asynccontextmanager
    async def for_grants(self) -> AsyncIterator[Session]:
        """The same for grants of locks, which may wait for rows: for all of those for leases but two, which renewals
        need. One caller's grants have three quarters of these: what they claim may be locked for long.
        """
        self._read_only.require_writable()
        async with self._grants.place(ASKING.get()), self.for_leases() as session:
            yield session

    def batch_connection(self, caller: Caller = EVERYBODY) -> AbstractAsyncContextManager[Session]:
        """Lend a connection for batches of writes (group_commit.py), which are counted there."""
        return self._lend(self._batch_pool, caller, writing=True)

    def lease_connection(self) -> AbstractAsyncContextManager[Session]:
        """Lend one of those for leases, for batches of grants or of releases."""
        return self._lend(self._lease_pool, EVERYBODY, writing=True)

    @asynccontextmanager
    async def spare(self) -> AsyncIterator[Session]:
        """Lend a connection for a question about the database itself. It does not wait for requests: while they have
        all of the pool, it is a new one, closed afterwards. UnavailableError when it cannot be had.
        """
        if not self.all_lent:
            async with self.connection() as connection:
                yield connection
            return
        try:
            connection = await self._opened()
        except (RefusedError, *FOREIGN) as error:
            raise at_login(error) from error
        try:
            yield connection
        finally:
            with suppress(OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                await connection.close(timeout=self._times.close_within)

    @asynccontextmanager
    async def _lend(
        self, pool: Pool, caller: Caller, *, writing: bool, runs_code: bool = False
    ) -> AsyncIterator[Session]:
        if writing:
            self._read_only.require_writable()
        connection = await self._acquire(pool, writing=writing)
        spoilt = False
        try:
            if writing:
                await self._require_origin(connection)
                self._read_only.require_writable_session(connection)
                connection.add_log_listener(connection.on_warning)
            await take(connection, caller)
            connection.code_ran, connection.writing = runs_code, writing
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
        except FOREIGN as error:  # a limit of time, of the block's own
            spoilt = True
            raise ours(error, writing=connection.writing) from error
        except BaseException as error:
            # A session that has lost its prepared statements fails each time.
            spoilt = may_be_running(error) or isinstance(error, SessionError)
            raise
        finally:
            if writing:
                connection.writing = False
                connection.remove_log_listener(connection.on_warning)
            await self._take_back(pool, connection, spoilt=spoilt)

    async def _take_back(self, pool: Pool, connection: Session, *, spoilt: bool) -> None:
        """Take a connection back. One that acts as a caller, or in which users' code ran, has a session like a new one
        again, or is closed; that changes no answer.
        """
        changed = connection.acting or connection.code_ran
        if spoilt or not changed or connection.is_closed() or connection.is_in_transaction():
            pool.give_back(connection, spoilt=spoilt)
            return
        failed: str | None = "it was interrupted"
        try:
            failed = await give_back(connection, self._times.give_back_within)
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

    def is_accepted(self, session: Session) -> bool:
        """Whether a connection that is held for long is still one to write on, after what was met since."""
        met = self._watch.met
        if met is None or session.accepted_under is not met:
            if self._watch.problem(session.origin) is not None:
                return False
            session.accepted_under = met
        return True

    async def _require_origin(self, session: Session) -> None:
        """Refuse to write where the origin is not accepted (database_identity.py)."""
        watch = self._watch
        if watch.accepting and session.accepted_under is watch.met:
            return  # nothing has been met since
        if watch.problem(session.origin) is not None:  # since then it may have been promoted, or vouched for
            await session.introduce(watch)
        error, newer = watch.judge(session.origin)
        if newer:
            self.expire()
        if error is not None:
            if watch.met is not None and (session.origin.forgot or not session.origin.follows(watch.met)):
                session.terminate()  # it leads elsewhere: the next one may not
            raise error
        session.accepted_under = watch.met

    async def origin_status(self) -> OriginStatus:
        """Ask whether writes are let through now. UnavailableError when the database cannot be asked."""
        begun = asyncio.get_running_loop().time()
        while True:
            try:
                async with self.spare() as session:
                    await session.introduce(self._watch)  # the generation may have been raised since
                    await self._require_origin(session)
                    generation, self.moment_due = session.origin.generation, session.origin.due
                    here, new = await look(session)
                    if here and session.opened < begun:  # it may be a leftover: a new one shows
                        session.terminate()
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

    async def _acquire(self, pool: Pool, *, writing: bool) -> Session:
        """Take a connection within `pool_timeout`, and none that has ended since it came back; for a write none whose
        session takes none, but one that has just been opened.
        """
        try:
            if (idle := pool.lend_idle()) is not None:
                if not (writing and idle.unwritable):
                    return idle
                pool.give_back(idle, spoilt=True)
            async with asyncio.timeout(self._limits.pool_timeout):
                begun = asyncio.get_running_loop().time()
                while True:
                    session = await pool.lend()
                    ended = session.is_closed()  # while the caller was woken; nothing was sent on it
                    if not ended and not (writing and session.unwritable and session.opened < begun):
                        return session
                    pool.give_back(session, spoilt=True)
        except TimeoutError as error:
            late = f"no connection to PostgreSQL within {self._limits.pool_timeout:g} s"
            raise UnavailableError(f"{late}: all are in use, or it does not answer") from error
        except ClosedError as error:
            raise UnavailableError("the gateway is shutting down") from error
        except (RefusedError, *FOREIGN) as error:
            raise at_login(error) from error

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


# As which roles the gateway acts for callers: those of a list, or, without one, those that its login may take.
#
# Never one that would be more than a caller: a superuser, a role that row level security does not rule, PostgreSQL's
# own (`pg_…`), the gateway's login, the owner of the schema fencepost, and any member of these two. What a token says
# is only a name, so this is asked before anything is sent as a role.
#
# PostgreSQL is asked once per role and ten seconds, or until the catalog is read again. SET ROLE asks it anew.

_WHY_NOT: Final = """
SELECT CASE
  WHEN r.oid IS NULL THEN 'there is no such role'
  WHEN r.rolsuper THEN 'it is a superuser'
  WHEN r.rolbypassrls THEN 'row level security does not rule it (BYPASSRLS)'
  WHEN pg_catalog.starts_with(r.rolname, 'pg_') THEN 'it is one of PostgreSQL''s own'
  WHEN pg_catalog.pg_has_role(r.oid, l.oid, 'MEMBER') THEN 'it may act as the login of the gateway'
  WHEN pg_catalog.pg_has_role(r.oid, n.nspowner, 'MEMBER') THEN 'it may act as the owner of the schema fencepost'
  WHEN NOT pg_catalog.pg_has_role(l.oid, r.oid, CASE WHEN pg_catalog.current_setting('server_version_num')::int4
            OPERATOR(pg_catalog.>=) 160000 THEN 'SET' ELSE 'MEMBER' END)
    THEN pg_catalog.format('the gateway''s login may not act as it (GRANT %I TO %I)', r.rolname, l.rolname)
  WHEN l.rolsuper AND NOT $2 THEN
    'the gateway logs in as a superuser, which may act as any role, and the operator lists none (FENCEPOST_ROLES)' END
  FROM pg_catalog.pg_namespace n
  JOIN pg_catalog.pg_roles l ON l.rolname OPERATOR(pg_catalog.=) SESSION_USER
  LEFT JOIN pg_catalog.pg_roles r ON r.rolname OPERATOR(pg_catalog.=) $1
 WHERE n.nspname OPERATOR(pg_catalog.=) 'fencepost'"""

_LOGIN_IS_SUPERUSER: Final = """
SELECT r.rolsuper FROM pg_catalog.pg_roles r WHERE r.rolname OPERATOR(pg_catalog.=) SESSION_USER"""

NO_LIST: Final = (
    "the gateway logs in as a superuser, which may act as any role: FENCEPOST_ROLES lists the roles of callers. Better,"
    " it logs in as a role of its own (docs/roles.md)"
)


class AllowedRoles:
    """What is known of roles at this gateway. `listed` empty: there is no list."""

    def __init__(
        self,
        listed: Collection[str] = (),
        times: Times = TIMES,
    ) -> None:
        self._listed = frozenset(listed)
        self._known = Known[str, str | None](times.connections.roles_known_for, times.clock)

    async def why_not(self, database: Database, role: str) -> str | None:
        """Say why the gateway does not act as this role; None: it does. Raises UnavailableError."""
        if self._listed and role not in self._listed:
            return "it is none of those that the operator lists (FENCEPOST_ROLES)"

        async def ask() -> str | None:
            async with database.connection() as connection:
                reason: str | None = await connection.fetchval(_WHY_NOT, role, bool(self._listed))
            return reason

        return await self._known.get(role, ask)

    def forget(self) -> None:
        self._known.forget()

    async def why_not_start(self, database: Database) -> str | None:
        """Say why callers with roles cannot be served at all: for the start. Raises UnavailableError."""
        if self._listed:
            return None
        async with database.connection() as connection:
            return NO_LIST if await connection.fetchval(_LOGIN_IS_SUPERUSER) else None


# How writes are run: whole ones, again after conflicts; all or nothing; parts of a transaction that are undone.

T = TypeVar("T")

RETRIES: Final = 10
"""How often a deadlock or serialization failure is tried again inside before the caller gets the error."""


async def run_write(
    lend: Callable[[], AbstractAsyncContextManager[Session]],
    work: Callable[[Session], Awaitable[T]],
    *,
    repeatable: bool = False,
) -> T:
    """Do a write as a whole, on a connection that is lent for writing: again from the start after a conflict with
    others (R4), and with an answer only when it is as safe as PostgreSQL makes commits (R19). Raises StorageError.

    All that the gateway writes, for others and of its own, goes through here or, in batches, through group_commit.py.
    `repeatable`: it is done again when it is not known to have landed. So what else is an OutcomeUnknownError is an
    UnavailableError.
    """

    async def attempt() -> T:
        async with lend() as session:
            session.writing = not repeatable
            answer = await work(session)
            try:
                session.require_replicated()
            except OutcomeUnknownError as error:
                if repeatable:
                    raise UnavailableError(str(error)) from error
                raise
            return answer

    return await _retry_conflicts(attempt)


async def in_transaction(connection: Session, work: Callable[[], Awaitable[T]]) -> T:
    """Do all of it or nothing: an answer that is a Problem, or an error, undoes it. UncommittedError: the connection
    broke before COMMIT was sent. OutcomeUnknownError: it broke after that.
    """
    committing = False
    try:
        async with connection.transaction():
            answer = await work()
            if isinstance(answer, Problem):
                raise _Refused  # noqa: TRY301 - leaving the block is what undoes it
            committing = True
    except _Refused:
        return answer
    except (OutcomeUnknownError, *FOREIGN) as error:  # also of the block's end, where the connection is closed
        unknown = error if isinstance(error, OutcomeUnknownError) else ours(error, writing=True)
        if committing and unknown is error:
            raise
        if committing or not isinstance(unknown, OutcomeUnknownError):
            raise unknown from error
        raise UncommittedError(str(unknown)) from error
    return answer


class _Refused(Exception):  # noqa: N818 - it is not an error; it rolls a transaction back
    pass


@asynccontextmanager
async def savepoint(connection: Connection) -> AsyncIterator[None]:
    """Undo a statement that fails, and only that, when it is part of a transaction: the transaction goes on."""
    if not connection.is_in_transaction():
        yield
        return
    async with connection.transaction():
        yield


async def _retry_conflicts(attempt: Callable[[], Awaitable[T]]) -> T:
    """Run it again after a deadlock or serialization failure, verdict and all; neither is answered as stale (R4)."""
    for number in range(RETRIES):
        try:
            return await attempt()
        except RefusedError as error:
            if error.sqlstate not in RETRIED:
                raise
            await asyncio.sleep(random.uniform(0, 0.002 * 2**number))  # noqa: S311 - jitter, so that the two part ways
    return await attempt()
