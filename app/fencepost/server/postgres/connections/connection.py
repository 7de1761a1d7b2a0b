"""One connection of the gateway's pools (pool.py). What its session has in force: session.py."""

import asyncio
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import asyncpg

from fencepost.server.postgres.connections.origin import ORIGIN_SINCE, Origin, Watch
from fencepost.server.postgres.connections.session import PINNED, BackendRegistry, restoring, settle, why_unwritable
from fencepost.server.postgres.errors import OutcomeUnknownError

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


class GatewayConnection(asyncpg.Connection):
    """A connection of the pools. It knows its backend, and the origin as it was when the connection was made or last
    asked (R15, R19).
    """

    backend: Backend
    origin: Origin
    opened: float
    """When it was opened (loop time)."""
    unwritable = ""
    """Why nothing may be written in its session, as it was then, or since it refused a write for it (read_only.py);
    empty: it may.
    """
    acting = False
    """Whether its session may have a caller's role, or settings (roles.py)."""
    code_ran = False
    """Whether code of users' may have run in its session, and changed it, since it was settled."""
    restoring: str
    """What makes its session again what it was when it was opened (session.py)."""
    _log_listeners: set[object]
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

    def on_warning(self, _connection: object, message: asyncpg.PostgresLogMessage) -> None:
        """Keep a warning. Nothing else shows a cancelled wait: the statement succeeds, and its text is in any
        language.
        """
        if getattr(message, "server_source_function", None) == "SyncRepWaitForLSN":
            self._unreplicated = True

    def listen(self) -> None:
        """Collect warnings, until `stop_listening`."""
        self.add_log_listener(self.on_warning)

    def stop_listening(self) -> None:
        """Collect them no more. A closed connection takes no listener away, and complains of those that it has."""
        if self.is_closed():
            self._log_listeners.clear()
        else:
            self.remove_log_listener(self.on_warning)

    async def introduce(self, watch: Watch) -> None:
        """Ask both, in one query: what a pool does with each new connection. `watch` compares the answer."""
        before = watch.met
        met = (None, None) if before is None else (before.moment, before.nonce)
        row = await self.fetchrow(_WHO, *met)
        if row is None:
            raise RuntimeError("fencepost.origin() gave no row")
        self.backend, self.origin = Backend(row["pid"], row["started"]), Origin.of(row)
        watch.compare(self.origin, before)


def gateway_connection(connection: Connection) -> GatewayConnection:
    """Return a connection that the pool has lent as what it is."""
    if not isinstance(connection, GatewayConnection):
        raise TypeError(f"{connection!r} is not of the gateway's pool")
    return connection


def session_settings(limits: Limits) -> dict[str, str]:
    """What the session of every connection of the pools has in force (session.py)."""
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


async def open_connection(
    dsn: str, settings: dict[str, str], limits: Limits, shared: Shared, within: float
) -> GatewayConnection:
    """Open a connection in so many seconds whose session has these settings, and which knows its backend and origin.
    asyncpg's errors and the socket's; SessionError.
    """
    connection = await asyncpg.connect(
        dsn,
        connection_class=GatewayConnection,
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
