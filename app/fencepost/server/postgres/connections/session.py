"""What every session of the gateway has in force (R4, R6), whatever stands between it and PostgreSQL.

READ COMMITTED, commits that wait until they are durable, one spelling of each value, no statement that runs for ever.
`connect` opens a connection of any kind, `settle` makes it such a session:

1. The settings are set by a statement. What a client asks for in its startup packet does not arrive through a
   connection pooler: PgBouncer refuses it, or drops it in silence when `ignore_startup_parameters` names it.
2. The next statement reads what is in force there. A session that lost what was set is none of its own: SessionError,
   and the connection is closed.

Statements and settings that follow need the same session of PostgreSQL for as long as the connection lives. PgBouncer
in session mode does that. In transaction or statement mode it lends a session to a client for one transaction, and a
setting, a prepared statement or a LISTEN meets the next client. `require_own` finds that out before anything is done:

- A pooler gives its clients a process id that it made up. A client whose pg_backend_pid() is the one that it was given
  at connect is connected to PostgreSQL itself.
- Otherwise a second connection begins a transaction, and keeps its session busy for as long. If that is the session
  which the first one had, or the first one has another session afterwards, sessions are shared out. Up to HOLDERS
  connections do so one after the other, since a pooler with several idle sessions may give them out in turn.

What code of users' (a trigger, a policy, a function in a default) does to a session outlives its statement: settings, a
role, locks, temporary tables. `restoring` has the statement after which the session is again what `settle` made it.
The connection runs it before anybody else gets it (connection.py, transactions.py).

The pools go on comparing: no two open connections have one backend (`BackendRegistry`). A pooler that is reloaded with
another mode under a running gateway shows by that, or by a prepared statement that it does not know (errors.py).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final
from weakref import WeakSet

import asyncpg

from fencepost.server.postgres.connections.array_types import know_arrays
from fencepost.server.postgres.errors import SessionError
from fencepost.server.times import TIMES

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


async def settle(connection: "asyncpg.Connection[asyncpg.Record]", settings: Mapping[str, str]) -> dict[str, str]:
    """Set these settings in the session of a new connection, and return what is in force there, by name.

    SessionError: something else is. asyncpg's errors and the socket's.
    """
    know_arrays(connection)
    wanted = _wanted(connection, settings)
    try:
        set_ = await connection.fetch(_SET, list(wanted), [*wanted.values()])
        chosen = {row["name"]: row["value"] for row in set_}
        found = {row["name"]: row["value"] for row in await connection.fetch(_READ, [*wanted, *_ALSO_READ])}
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
