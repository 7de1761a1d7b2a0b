"""One connection to the database, with the session settings that the rules stand on (R4, R6), and pools of such.

Every session is READ COMMITTED, waits for its commits to be durable, and spells values one way. They are startup
settings, so nothing short of the server overrides them. Connections must therefore be direct: a pooler in transaction
mode would hand one session's settings to another.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

import asyncpg
import asyncpg.pool

from fencepost.storage.errors import OutcomeUnknownError
from fencepost.storage.origin import ORIGIN, Origin

Connection = asyncpg.Connection | asyncpg.pool.PoolConnectionProxy
"""What statements run on: a connection of one's own, or one lent by the pool."""

Pool = asyncpg.Pool

TRANSACTION_TIMEOUT_SINCE: Final = 17


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

    def on_warning(self, _connection: Connection, message: asyncpg.PostgresLogMessage) -> None:
        """Hear a warning. A cancelled wait is told by nothing else: the statement succeeds, and its text is in any
        language.
        """
        if getattr(message, "server_source_function", None) == "SyncRepWaitForLSN":
            self._unreplicated = True

    def listen(self) -> None:
        """Hear warnings, until `stop_listening`."""
        self.add_log_listener(self.on_warning)

    def stop_listening(self) -> None:
        """Hear them no more. A closed connection takes no listener away, and complains of those that it has."""
        if self.is_closed():
            self._log_listeners.clear()
        else:
            self.remove_log_listener(self.on_warning)

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


async def open_pool(dsn: str, settings: dict[str, str], limits: Limits, size: int) -> Pool:
    """Open a pool of `size` connections."""
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
