"""A connection to PostgreSQL as the gateway uses it: what is set and read back (R4, R6), which backend it has, and how
statements run on it.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from operator import attrgetter, itemgetter
from typing import Any, Final, Generic, Literal, TypeVar, cast
from weakref import WeakSet

import asyncpg

from fencepost.server.fence.token import Token
from fencepost.server.postgres.database_identity import ORIGIN_SINCE, Met, Origin, Watch
from fencepost.server.postgres.errors import FOREIGN, OutcomeUnknownError, SessionError, UnavailableError, ours
from fencepost.server.times import TIMES

# What every session of the gateway has in force (R4, R6), whatever stands between it and PostgreSQL.
#
# READ COMMITTED, commits that wait until they are durable, one spelling of each value, no statement that runs for
# ever. `connect` opens a connection of any kind, `settle` makes it such a session:
#
# 1. The settings are set by a statement. What a client asks for in its startup packet does not arrive through a
#    connection pooler: PgBouncer refuses it, or drops it in silence when `ignore_startup_parameters` names it.
# 2. The next statement reads what is in force there. A session that lost what was set is none of its own: SessionError,
#    and the connection is closed.
#
# Statements and settings that follow need the same session of PostgreSQL for as long as the connection lives.
# PgBouncer in session mode does that. In transaction or statement mode it lends a session to a client for one
# transaction, and a setting, a prepared statement or a LISTEN meets the next client. `require_own` finds that out
# before anything is done:
#
# - A pooler gives its clients a process id that it made up. A client whose pg_backend_pid() is the one that it was
#   given at connect is connected to PostgreSQL itself.
# - Otherwise a second connection begins a transaction, and keeps its session busy for as long. If that is the session
#   which the first one had, or the first one has another session afterwards, sessions are shared out. Up to HOLDERS
#   connections do so one after the other, since a pooler with several idle sessions may give them out in turn.
#
# What code of users' (a trigger, a policy, a function in a default) does to a session outlives its statement:
# settings, a role, locks, temporary tables. `restoring` has the statement after which the session is again what
# `settle` made it. The connection runs it before anybody else gets it (`give_back` of database.py).
#
# The pools go on comparing: no two open connections have one backend (`BackendRegistry`). A pooler that is reloaded
# with another mode under a running gateway shows by that, or by a prepared statement that it does not know
# (errors.py).

OPEN_WITHIN: Final = TIMES.connections.open_within
"""Seconds that opening a connection may take outside of the pools."""
HOLDERS: Final = 3
"""How many connections keep a session busy to find out whether a pooler shares sessions out."""
TRANSACTION_TIMEOUT_SINCE: Final = 17
"""The major version of PostgreSQL that brought `transaction_timeout`."""

DURABLE: Final[Mapping[str, str]] = {
    "default_transaction_isolation": "read committed",
    "synchronous_commit": "on",
    # Compiling a statement that runs for 30 µs is never worth it, nor one of the catalog that runs once.
    "jit": "off",
}
"""What the commands' own transactions need. A `remote_apply` that the database asks for is kept: it is more."""

PINNED: Final[Mapping[str, str]] = {
    **DURABLE,
    # A cancelled wait for a standby is a warning and nothing else (R15).
    "client_min_messages": "warning",
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    # A token or a reason that ALTER ROLE or ALTER DATABASE gives to all sessions is none of the gateway's (R14).
    "fencepost.token": "",
    "fencepost.break_glass": "",
    # It would end connections that wait for work, and one that a write is just sent on.
    "idle_session_timeout": "0",
}
"""What the gateway's sessions have beside their time limits."""

POOLED: Final = (
    "the database URL leads to a connection pooler in transaction or statement mode, which gives a session to another"
    " else after each transaction: settings, prepared statements and LISTEN do not hold there. Use session mode"
    " (pool_mode = session for this database in pgbouncer.ini), or the address of PostgreSQL itself"
)

READ_ONLY: Final = (
    "PostgreSQL takes no writes: default_transaction_read_only is on (set by an operator, or by the provider when the"
    " disk is full). Nothing was written; reads go on"
)
NO_TRIGGERS: Final = (
    "PostgreSQL fires no triggers in this gateway's sessions, so that a fence would not hold: session_replication_role"
    " is replica (ALTER ROLE, ALTER DATABASE, or the server's configuration). Nothing was written; reads go on"
)

# Others may have put operators and functions on the role's search_path: all are named in full (row_sql.py).
_SET: Final = """
SELECT wanted.name, pg_catalog.set_config(wanted.name,
         CASE WHEN wanted.name OPERATOR(pg_catalog.=) 'synchronous_commit'
               AND pg_catalog.current_setting(wanted.name) OPERATOR(pg_catalog.=) 'remote_apply'
              THEN 'remote_apply' ELSE wanted.value END, false) AS value
  FROM ROWS FROM (pg_catalog.unnest($1::text[]), pg_catalog.unnest($2::text[])) AS wanted(name, value)"""
_READ: Final = """
SELECT wanted.name, pg_catalog.current_setting(wanted.name, true) AS value
  FROM pg_catalog.unnest($1::text[]) AS wanted(name)"""
_ALSO_READ: Final = ("transaction_isolation", "transaction_read_only", "session_replication_role")
_NO_TRANSACTIONS: Final = "statement pooling mode"
"""What PgBouncer says to BEGIN in this mode, before it hangs up; in any locale."""
_BACKEND: Final = "SELECT pg_backend_pid()"


async def connect(
    dsn: str, settings: Mapping[str, str], *, name: str = "fencepost"
) -> "asyncpg.Connection[asyncpg.Record]":
    """Open a connection outside of the pools whose session has these settings in force. `name`: what
    pg_stat_activity shows. asyncpg's errors and the socket's; SessionError.
    """
    connection = await asyncpg.connect(dsn, timeout=OPEN_WITHIN, server_settings={"application_name": name})
    try:
        await settle(connection, settings)
    except BaseException:
        connection.terminate()
        raise
    return connection


async def connect_first(dsn: str, settings: Mapping[str, str]) -> "asyncpg.Connection[asyncpg.Record]":
    """Do what `connect` does for a process that has not been there yet: SessionError also when a pooler shares sessions
    out.
    """
    await require_own(dsn)
    return await connect(dsn, settings)


async def bare(connection: "asyncpg.Connection[asyncpg.Record]", query: str, *args: object) -> list[asyncpg.Record]:
    """Run a statement with errors as asyncpg raises them, also on a connection that maps them."""
    return await asyncpg.Connection.fetch(connection, query, *args)


async def settle(connection: "asyncpg.Connection[asyncpg.Record]", settings: Mapping[str, str]) -> dict[str, str]:
    """Set these settings in the session of a new connection, and return what is in force there, by name.

    SessionError: something else is. asyncpg's errors and the socket's.
    """
    know_arrays(connection)
    wanted = _wanted(connection, settings)
    try:
        set_ = await bare(connection, _SET, list(wanted), [*wanted.values()])
        chosen = {row["name"]: row["value"] for row in set_}
        found = {row["name"]: row["value"] for row in await bare(connection, _READ, [*wanted, *_ALSO_READ])}
    except (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError) as error:
        raise SessionError(POOLED) from error
    chosen["transaction_isolation"] = "read committed"
    for name, value in chosen.items():
        if found.get(name) != value:
            raise SessionError(
                f"{name} was set to {value!r} in a new session of PostgreSQL, and the next statement found"
                f" {found.get(name)!r}: the session is not the connection's own. A pooler in between must be in session"
                " mode"
            )
    return found


def why_unwritable(found: Mapping[str, object]) -> str:
    """Say why nothing may be written in a session with these settings in force, as `settle` returns them; empty: it
    may.
    """
    if found["transaction_read_only"] == "on":
        return READ_ONLY
    return NO_TRIGGERS if found["session_replication_role"] == "replica" else ""


def restoring(connection: "asyncpg.Connection[asyncpg.Record]", settings: Mapping[str, str]) -> str:
    """Write the statement that makes a session of `settle` what it was, whatever ran in it (sessions.sql). Its
    parameter says whether the transaction is over in which that ran.
    """
    wanted = _wanted(connection, settings)
    names, values = ("ARRAY['" + "', '".join(texts) + "']" for texts in (wanted, wanted.values()))
    return f"SELECT fencepost.restore_session({names}, {values}, $1)"


def _wanted(connection: "asyncpg.Connection[asyncpg.Record]", settings: Mapping[str, str]) -> dict[str, str]:
    """Add what depends on the server's version."""
    wanted = dict(settings)
    if connection.get_server_version().major >= TRANSACTION_TIMEOUT_SINCE and "statement_timeout" in wanted:
        # It would end the connection in the middle of a write, and the limits of statements do what it is for.
        wanted["transaction_timeout"] = "0"
    return wanted


async def require_own(dsn: str) -> None:
    """Raise SessionError if a pooler there gives a connection's session to others meanwhile. Sets nothing, and writes
    nothing. asyncpg's errors and the socket's when there is no connection to be had.
    """
    opened: list[asyncpg.Connection[asyncpg.Record]] = []

    async def another() -> "asyncpg.Connection[asyncpg.Record]":
        # Without names for its statements it serves in any mode.
        opened.append(
            await asyncpg.connect(dsn, timeout=OPEN_WITHIN, command_timeout=OPEN_WITHIN, statement_cache_size=0)
        )
        return opened[-1]

    try:
        with _map_pooler_errors(opened):
            first = await another()
            mine = await _backend(first)
            if mine == first.get_server_pid():
                return
            for _ in range(HOLDERS):
                if await _backend_of_open_transaction(await another()) == mine or await _backend(first) != mine:
                    raise SessionError(POOLED)
    finally:
        for connection in opened:
            connection.terminate()


@contextmanager
def _map_pooler_errors(opened: Sequence[object]) -> Iterator[None]:
    """Turn what a pooler answers to a client that it does not serve into SessionError. `opened`: the connections that
    it has taken.
    """
    try:
        yield
    except TimeoutError as error:
        if not opened:
            raise
        raise SessionError(
            f"the connection pooler in the database URL gave no session within {OPEN_WITHIN:g} s: its pool"
            " (default_pool_size) must have room for all connections of the gateway"
        ) from error
    except (asyncpg.ProtocolViolationError, asyncpg.InvalidSQLStatementNameError) as error:
        raise SessionError(POOLED if opened else f"the database URL asks for what a pooler refuses: {error}") from error
    except asyncpg.ConnectionDoesNotExistError as error:
        if _NO_TRANSACTIONS in str(error):
            raise SessionError(POOLED) from error
        raise


async def _backend(connection: "asyncpg.Connection[asyncpg.Record]") -> int:
    """Ask which backend serves a transaction of this connection."""
    async with connection.transaction():
        found: int = await connection.fetchval(_BACKEND)
        return found


async def _backend_of_open_transaction(connection: "asyncpg.Connection[asyncpg.Record]") -> int:
    """The same, of a transaction that stays open."""
    await connection.transaction().start()
    found: int = await connection.fetchval(_BACKEND)
    return found


class BackendRegistry:
    """The open connections of a process: no two may have the same backend."""

    def __init__(self) -> None:
        self._known: WeakSet[Any] = WeakSet()

    def add(self, connection: Any) -> None:
        """Take note of a connection that has a `backend`. SessionError: an open one has the same."""
        for other in self._known:
            if other is not connection and not other.is_closed() and other.backend == connection.backend:
                raise SessionError(POOLED)
        self._known.add(connection)


# One connection of the gateway's pools (pool.py), and how it is opened.

UNREADABLE_URL: Final = (
    "the database URL cannot be read: it is postgresql://user:password@host:port/database, "
    "with special characters in the password percent-encoded (a / is %2F)"
)

Connection = asyncpg.Connection
"""What statements run on: a connection of one's own, or one lent by the pool."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Pools and time limits; seconds. `pool_size` connections serve requests, `batch_pool_size` carry batches, and
    `lease_pool_size` are for leases. The defaults are those of tests; a gateway's are in settings.py.
    """

    pool_size: int = 10
    pool_timeout: float = 5.0
    statement_timeout: float = 30.0
    lock_timeout: float = 10.0
    batch_pool_size: int = 4
    lease_pool_size: int = 2
    most_waiting: int = 1000
    """How many requests may wait for a connection of the pool before others are refused at once."""


@dataclass(frozen=True, slots=True)
class Backend:
    """The server process behind a connection. A pid alone may be another's later."""

    pid: int
    started: datetime


_WHO = f"""
SELECT o.*, pg_backend_pid() AS pid, (SELECT a.backend_start FROM pg_stat_activity a WHERE a.pid = pg_backend_pid())
       AS started FROM ({ORIGIN_SINCE}) AS o"""


class Session(asyncpg.Connection):
    """A connection of the pools. It maps the errors of its statements (errors.py); it knows its backend, and the
    origin as it was when the connection was made or last asked (R15, R19); and as whom it acts.
    """

    backend: Backend
    origin: Origin
    accepted_under: Met | None = None
    """What was known of the database when the origin was last found to be one that may be written to."""
    opened: float
    """When it was opened (loop time)."""
    writing = False
    """Whether it was lent for a write: what is sent when the connection breaks may have landed."""
    unwritable = ""
    """Why nothing may be written in its session, as it was then, or since it refused a write for it (`ReadOnly`);
    empty: it may.
    """
    acting = False
    """Whether its session may have a caller's role, or settings (`take` of database.py)."""
    acts_for: tuple[str, str] | None = None
    """Whose claims and name its session has beside the role, where `act_for` of database.py has set them."""
    code_ran = False
    """Whether code of users' may have run in its session, and changed it, since it was settled."""
    restoring: str
    """What makes its session again what it was when it was opened (see the function `restoring`)."""
    _unreplicated = False

    async def execute(self, query: str, *args: object, **options: Any) -> str:
        """Run a statement. Raises StorageError, as all that follow: OutcomeUnknownError where the connection breaks
        that was lent for a write.
        """
        try:
            return await super().execute(query, *args, **options)
        except FOREIGN as error:
            raise ours(error, writing=self.writing) from error

    async def fetch(self, query: str, *args: object, **options: Any) -> Any:
        try:
            return await super().fetch(query, *args, **options)
        except FOREIGN as error:
            raise ours(error, writing=self.writing) from error

    async def fetchrow(self, query: str, *args: object, **options: Any) -> Any:
        try:
            return await super().fetchrow(query, *args, **options)
        except FOREIGN as error:
            raise ours(error, writing=self.writing) from error

    async def fetchval(self, query: str, *args: object, **options: Any) -> Any:
        try:
            return await super().fetchval(query, *args, **options)
        except FOREIGN as error:
            raise ours(error, writing=self.writing) from error

    async def fetchmany(self, query: str, args: Any, **options: Any) -> Any:
        try:
            return await super().fetchmany(query, args, **options)
        except FOREIGN as error:
            raise ours(error, writing=self.writing) from error

    async def ask(self, query: str, *args: object) -> list[asyncpg.Record]:
        """Run a question, which changes nothing: where the connection breaks, nothing was done (UnavailableError),
        unless it is part of a transaction.
        """
        may_have_written = self.writing and self.is_in_transaction()
        try:
            return await super().fetch(query, *args)
        except FOREIGN as error:
            raise ours(error, writing=may_have_written) from error

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

    def on_warning(self, _connection: object, message: asyncpg.PostgresLogMessage) -> None:
        """Keep a warning. Nothing else shows a cancelled wait: the statement succeeds, and its text is in any
        language.
        """
        if getattr(message, "server_source_function", None) == "SyncRepWaitForLSN":
            self._unreplicated = True

    async def introduce(self, watch: Watch) -> None:
        """Ask both, in one query: what a pool does with each new connection. `watch` compares the answer."""
        before = watch.met
        met = (None, None) if before is None else (before.moment, before.nonce)
        (row,) = await self.ask(_WHO, *met)
        self.backend, self.origin = Backend(row["pid"], row["started"]), Origin.of(row)
        self.accepted_under = None
        watch.compare(self.origin, before)


async def ask(connection: Connection, query: str, *args: object) -> list[asyncpg.Record]:
    """Run a question, which changes nothing, on a session or on a connection of one's own."""
    if not issubclass(type(connection), Session):  # asyncpg has any of its connections count as an instance
        return await connection.fetch(query, *args)
    return await cast("Session", connection).ask(query, *args)


async def ask_value(connection: Connection, query: str, *args: object) -> Any:
    """Run a question, and give the first column of its first row; None without a row."""
    rows = await ask(connection, query, *args)
    return rows[0][0] if rows else None


def session_settings(limits: Limits) -> dict[str, str]:
    """What the session of every connection of the pools has in force."""
    return {
        **PINNED,
        "statement_timeout": str(round(limits.statement_timeout * 1000)),
        "lock_timeout": str(round(limits.lock_timeout * 1000)),
        "idle_in_transaction_session_timeout": str(round(limits.statement_timeout * 1000)),
    }


@dataclass(frozen=True, slots=True)
class Shared:
    """What all connections of a process have in common, whichever pool they are of."""

    distinct: BackendRegistry
    watch: Watch
    """Compares which database each of them leads to."""


async def open_connection(dsn: str, settings: dict[str, str], limits: Limits, shared: Shared, within: float) -> Session:
    """Open a connection in so many seconds whose session has these settings, and which knows its backend and origin.
    asyncpg's errors and the socket's; SessionError.
    """
    connection = await asyncpg.connect(
        dsn,
        connection_class=Session,
        server_settings={"application_name": "fencepost"},
        # Later than the server's own limit, which undoes the statement and says so.
        command_timeout=limits.statement_timeout + 5,
        # Statements depend on table, columns and select; each costs the server some 20 kB per connection.
        statement_cache_size=256,
        timeout=within,
    )
    try:
        found = await settle(connection, settings)
        connection.restoring = restoring(connection, settings)
        connection.opened = asyncio.get_running_loop().time()
        connection.unwritable = why_unwritable(found)
        await connection.introduce(shared.watch)
        shared.distinct.add(connection)
    except BaseException:
        connection.terminate()
        raise
    return connection


# Statements and their parameters. A parameter is an object with a name and a type: the text that is composed contains
# it as `{TOKEN}`, and `compiled` numbers what the text contains, as `$2::bigint`. No placeholder is counted by hand.
#
# Statements are text, for people to read and to run, and not SQLAlchemy Core: docs/decisions/0029 has why.

Key = tuple[str, ...]
"""A row's key as texts, in the order of the primary key's columns."""
S = TypeVar("S")
"""What the values of a statement are read from."""

_PARAMETER: Final = re.compile("\0([^\0]*)\0")
"""A parameter in a text. Nothing else in SQL has the character NUL: no identifier, literal or value."""


@dataclass(frozen=True, slots=True)
class Parameter(Generic[S]):
    """A value of a statement: `read` takes it from what the statement is run for."""

    name: str
    type: str
    read: Callable[[S], object]

    def __str__(self) -> str:
        return f"\0{self.name}\0"


@dataclass(frozen=True, slots=True)
class Statement(Generic[S]):
    """A statement's text, and how its values are read, in the order of the placeholders."""

    sql: str
    reads: tuple[Callable[[S], object], ...]

    def arguments(self, source: S) -> list[object]:
        """Read the values of one run."""
        return [read(source) for read in self.reads]

    async def fetch(self, connection: Connection, source: S) -> list[asyncpg.Record]:
        rows: list[asyncpg.Record] = await connection.fetch(self.sql, *self.arguments(source))
        return rows

    async def ask(self, connection: Connection, source: S) -> list[asyncpg.Record]:
        """Run it as a question, which changes nothing."""
        return await ask(connection, self.sql, *self.arguments(source))

    async def value(self, connection: Connection, source: S) -> Any:
        """Run it once, and return the first column of its first row; None without a row."""
        return await connection.fetchval(self.sql, *self.arguments(source))


def compiled(text: str, parameters: Iterable[Parameter[S]]) -> Statement[S]:
    """Number the parameters that the text contains, in the order in which they are given here."""
    used = set(_PARAMETER.findall(text))
    numbered = [each for each in parameters if each.name in used]
    if unknown := used - {each.name for each in numbered}:
        raise ValueError(f"the statement has no parameter {', '.join(sorted(unknown))}: {text}")
    placeholders = {each.name: f"${n}::{each.type}" for n, each in enumerate(numbered, 1)}
    sql = _PARAMETER.sub(lambda found: placeholders[found[1]], text)
    return Statement(sql, tuple(each.read for each in numbered))


@dataclass(slots=True)
class RowWrite:
    """A write of one request: of the row `key`, or, where that is empty, of the rows in the body, a JSON array."""

    key: Key
    token: Token
    raw: bytes = b"{}"
    """The body's JSON. It becomes a text, which may take four times as much, when it is sent."""
    idempotency_key: str = ""
    """Its Idempotency-Key, and the hash of what that stands for (`Prelude`)."""
    payload_hash: bytes = b""
    keys_of: str = ""
    """Whose Idempotency-Keys it has; in a batch all have those of one."""
    scope: str = ""
    """The scope that was entered for it, or is known to be needed."""
    scopes: Sequence[str] = ()
    """The scopes that were entered for it, where it may write to rows of several."""
    number: int = 0
    """Its place in the batch that carries it."""
    marks: tuple[int, ...] = ()
    """If-Match: the marks of which the row must have one; none of them: it may have any (`Change.conditional`)."""

    @property
    def body(self) -> str:
        """The body's JSON."""
        return self.raw.decode()


MOST_KEY_COLUMNS: Final = 32
"""PostgreSQL's own limit."""


@cache
def key_part(position: int) -> Parameter[RowWrite]:
    """Give the parameter for a column of the key, counted from 0: its text."""
    return Parameter(f"key {position}", "text", lambda write: write.key[position])


TOKEN: Final[Parameter[RowWrite]] = Parameter("token", "bigint", attrgetter("token"))
SCOPE: Final[Parameter[RowWrite]] = Parameter("scope", "text", attrgetter("scope"))
SCOPES: Final[Parameter[RowWrite]] = Parameter("scopes", "text[]", attrgetter("scopes"))
BODY: Final[Parameter[RowWrite]] = Parameter("body", "json", attrgetter("body"))
OF_KEY: Final[tuple[Parameter[Key], ...]] = tuple(
    Parameter(f"key {n}", "text", itemgetter(n)) for n in range(MOST_KEY_COLUMNS)
)
"""The same parameters for a statement that is run for a key only."""
NUMBER: Final[Parameter[RowWrite]] = Parameter("number", "int", attrgetter("number"))

MARKS: Final[Parameter[RowWrite]] = Parameter("marks", "bigint[]", attrgetter("marks"))

OF_WRITES: Final = (*(key_part(n) for n in range(MOST_KEY_COLUMNS)), TOKEN, SCOPE, SCOPES, BODY, NUMBER, MARKS)
"""All that a write's statement may contain, beside the values of its filters."""


@dataclass(slots=True)
class Bound:
    """Values that belong to a statement itself, those of a query string: each becomes a parameter where it stands."""

    values: list[object] = field(default_factory=list)
    parameters: list[Parameter[Any]] = field(default_factory=list)

    def add(self, value: object, type_: str = "text") -> str:
        """Take a value, and return what stands for it in the text."""
        parameter: Parameter[Any] = Parameter(f"value {len(self.values)}", type_, lambda _: value)
        self.values.append(value)
        self.parameters.append(parameter)
        return str(parameter)


Wait = Literal["block", "skip"]
Batch = Sequence[RowWrite]


# Made for each write, and so not frozen: that would cost more than the rest of its making.
@dataclass(slots=True)
class FencedRow:
    """A row as an accepted operation left it: its JSON text, its mark, and its name where it was asked for."""

    json: str
    mark: int
    resource: str = ""


@dataclass(frozen=True, slots=True)
class WriteStatement:
    """A statement that writes."""

    statement: Statement[RowWrite]
    wait: Wait

    @property
    def sql(self) -> str:
        return self.statement.sql

    async def rows(self, connection: Connection, write: RowWrite) -> list[FencedRow]:
        """Run it for one write, of one row or several."""
        return [FencedRow(row[1], row[2], row[3]) for row in await self.statement.fetch(connection, write)]

    async def run(self, connection: Connection, batch: Batch) -> list[FencedRow | None]:
        """Run it for each write, in a batch with one Sync for all; None where nothing came back."""
        if self.wait == "block":
            return [next(iter(await self.rows(connection, write)), None) for write in batch]
        arguments = []
        for number, write in enumerate(batch):
            write.number = number
            arguments.append(self.statement.arguments(write))
        found: list[FencedRow | None] = [None] * len(batch)
        # Columns by position: a name's look-up costs more.
        for row in await connection.fetchmany(self.statement.sql, arguments):
            found[row[0]] = FencedRow(row[1], row[2], row[3])
        return found


# Ends the server process of a connection that broke, so that what it did is certain (R15).
#
# "No record" does not mean "did not land" while the old backend lives: it may be waiting for a row, or have the
# statement still unread in its socket, and commit later. A backend is known by pid and start: a pid alone may be
# another's by now.

_END: Final = """
SELECT pg_terminate_backend(a.pid, $3) FROM pg_stat_activity a WHERE a.pid = $1 AND a.backend_start = $2"""
_ALIVE: Final = "SELECT EXISTS (SELECT FROM pg_stat_activity a WHERE a.pid = $1 AND a.backend_start = $2)"


async def end(session: Session, backend: Backend, within: float = TIMES.connections.end_backend_within) -> None:
    """Make sure that a backend is gone, on another connection to the same server.

    UnavailableError when it cannot be ended within so many seconds: what it was doing may still land.
    """
    await session.ask(_END, backend.pid, backend.started, round(within * 1000))
    # Its entry goes after its transaction has ended.
    if await ask_value(session, _ALIVE, backend.pid, backend.started):
        raise UnavailableError(f"PostgreSQL's process {backend.pid} does not end")


# Arrays of PostgreSQL's own types, which asyncpg does not know by itself.
#
# It would ask the catalog for each of them once a connection: three round trips, and a statement of its own, whose
# operators others may have put on the search_path of the session's role. Their numbers are the same in every
# PostgreSQL (src/include/catalog/pg_type.dat), so nothing has to be asked.

_NUMBERS: Final = {
    "bool": (1000, 16),
    "bytea": (1001, 17),
    "int4": (1007, 23),
    "int8": (1016, 20),
    "float8": (1022, 701),
    "uuid": (2951, 2950),
}
"""A type's name → the array's number, and its own."""
_UNUSED: Final = dict.fromkeys(("basetype", "range_subtype", "attrtypoids", "attrnames"))
_ARRAYS: Final = [
    {"oid": array, "ns": "pg_catalog", "name": f"_{name}", "kind": b"b", "elemtype": element, "elemdelim": ","}
    | _UNUSED
    for name, (array, element) in _NUMBERS.items()
]


def know_arrays(connection: "asyncpg.Connection[asyncpg.Record]") -> None:
    """Let a new connection know them: as asyncpg does with what the catalog answers."""
    protocol = connection._protocol  # type: ignore[attr-defined] # noqa: SLF001 - there is no public way
    protocol.get_settings().register_data_types(_ARRAYS)
