"""PostgreSQL sessions of the `postgres-advisory` source: one for each hold and waiter, and one that asks questions.

A hold is a session of its own, and lives as long as that. It has three names: the process's pid, a random id in its
application_name, by which other gateways find it, and a comment before each of its statements, for people.

The server ends a session that has been idle for `idle_session_timeout`, which is the TTL. Its gateway sends a statement
three times as often, so the lock outlives a gateway that is paused or cut off by the TTL at most. One that ends is
noticed at once, by its closed socket.
"""

import asyncio
import json
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import asyncpg

from fencepost.server.locks.advisory.url import AdvisoryUrl
from fencepost.server.locks.source import REQUEST_TIMEOUT, SourceConfigError, SourceError, SourceUnavailableError
from fencepost.server.postgres.errors import words_of

BEATS_PER_TTL: Final = 3
PREFIX: Final = "fencepost"
_NAME_BYTES: Final = 63
_MOST_LABEL: Final = 900
"""Bytes of a label: PostgreSQL shows the first 1024 of a statement (`track_activity_query_size`)."""
_MOST_OWNER: Final = 60

_LABEL: Final = re.compile(rf"/\* {PREFIX} (\{{[^*]*\}}) \*/")
_NAME: Final = re.compile(rf"{PREFIX} [0-9a-f]{{16}} ?(.*)")

# A waiter whose gateway has gone leaves the queue: the server looks at the socket while the statement waits, and the
# kernel gives a silent peer up.
_WATCHFUL: Final = {
    "client_connection_check_interval": "1000",
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "10000",
}

_INTRODUCE: Final = "SELECT pg_backend_pid() AS pid, pg_is_in_recovery() AS standby"


@contextmanager
def map_errors(server: str) -> Iterator[None]:
    """Turn asyncpg's and the socket's errors into a source's."""
    try:
        yield
    except asyncpg.PostgresError as error:
        # Class 08: the connection is gone; 53: too many of them; 57: shutting down, starting up, cancelled.
        if (error.sqlstate or "").startswith(("08", "53", "57")):
            raise SourceUnavailableError(f"PostgreSQL ({server}) cannot take this now: {error}") from error
        raise SourceError(f"PostgreSQL ({server}) refuses: {words_of(error)}") from error
    except asyncpg.exceptions.ClientConfigurationError as error:
        raise SourceConfigError(f"the URL of PostgreSQL ({server}) is wrong: {error}") from error
    except (OSError, TimeoutError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
        reason = str(error) or f"no answer within {REQUEST_TIMEOUT:g} s"
        raise SourceUnavailableError(f"PostgreSQL ({server}) cannot be asked: {reason}") from error


async def connect(settings: AdvisoryUrl, **session_settings: str) -> "asyncpg.Connection[asyncpg.Record]":
    """Connect to the primary itself, not to a pooler or a standby. Raises SourceError. Keep it in a time limit."""
    try:
        connection = await asyncpg.connect(
            settings.dsn, statement_cache_size=0, server_settings={**_WATCHFUL, **session_settings}
        )
    except asyncpg.ProtocolViolationError as error:
        raise SourceError(f"{settings.server} does not take session settings ({error}): {_POOLER}") from error
    except asyncpg.UndefinedObjectError as error:
        raise SourceError(f"{settings.server} is too old ({error}): PostgreSQL 14 or newer is needed") from error
    try:
        await _check(connection, settings.server)
    except BaseException:
        connection.terminate()
        raise
    return connection


_POOLER: Final = (
    "an advisory lock belongs to a session, which a connection pooler shares out; give the address of PostgreSQL itself"
)


async def _check(connection: "asyncpg.Connection[asyncpg.Record]", server: str) -> None:
    who = await connection.fetchrow(_INTRODUCE)
    # A pooler gives its clients a pid that it made up.
    if who is None or who["pid"] != connection.get_server_pid():
        raise SourceError(f"{server} is a connection pooler: {_POOLER}")
    if who["standby"]:
        raise SourceUnavailableError(f"{server} is a standby: its advisory locks are not the primary's")


class QueryConnection:
    """The connection for short questions, one at a time; made when needed, and anew after a failure."""

    def __init__(self, settings: AdvisoryUrl) -> None:
        self._settings = settings
        self._turn = asyncio.Lock()
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None

    async def row(self, statement: str, *arguments: Any) -> asyncpg.Record | None:
        """Ask; the answer is a row. Raises SourceError, within REQUEST_TIMEOUT."""
        with map_errors(self._settings.server):
            async with asyncio.timeout(REQUEST_TIMEOUT), self._turn:
                try:
                    connection = await self._connect()
                    return await connection.fetchrow(statement, *arguments)
                except asyncpg.PostgresError:
                    raise  # an answer: the connection is as good as before, or closed
                except BaseException:
                    self.hang_up()
                    raise

    def hang_up(self) -> None:
        """End the connection, without waiting for anything."""
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    async def _connect(self) -> "asyncpg.Connection[asyncpg.Record]":
        if self._connection is None or self._connection.is_closed():
            self._connection = await connect(
                self._settings, application_name=f"{PREFIX} locks", statement_timeout=str(round(REQUEST_TIMEOUT * 1000))
            )
        return self._connection


class AdvisorySession:
    """A session that waits for an advisory lock, or holds it."""

    def __init__(self, connection: "asyncpg.Connection[asyncpg.Record]", name: str, label: str, ttl_ms: int) -> None:
        self.connection, self.name, self.ttl_ms = connection, name, ttl_ms
        self.pid: int = connection.get_server_pid()
        self._label = label
        self._busy = asyncio.Lock()
        self._beating: asyncio.Task[None] | None = None
        self._lost: Callable[[], None] = lambda: None

    @classmethod
    async def begin(cls, settings: AdvisoryUrl, lock: str, owner: str, ttl_ms: int) -> "AdvisorySession":
        """Open one. Raises SourceError, within REQUEST_TIMEOUT."""
        name = f"{PREFIX} {secrets.token_hex(8)}"
        # For pg_stat_activity and the server's log; PostgreSQL itself would mangle or refuse other characters.
        shown = f"{name} {re.sub('[^ -~]', '?', owner)}"[:_NAME_BYTES]
        with map_errors(settings.server):
            async with asyncio.timeout(REQUEST_TIMEOUT):
                connection = await connect(
                    settings, application_name=shown, idle_session_timeout=str(ttl_ms), statement_timeout="0"
                )
        return cls(connection, name, _label_statement(lock, owner), ttl_ms)

    async def ask(self, statement: str, *arguments: Any) -> Any:
        """Run a statement under the session's label; returns its one value."""
        return await self.connection.fetchval(f"{self._label} {statement}", *arguments)

    def keep(self, lost: Callable[[], None]) -> None:
        """Keep the session alive from now on: it holds its lock. Calls `lost` when it has ended, however that came."""
        self._lost = lost
        self._beating = asyncio.create_task(self._beat(), name=f"{self.name} beats")
        self.connection.add_termination_listener(lambda _connection: self._ended())

    async def free(self) -> None:
        """Unlock, and end. asyncpg's and the socket's errors; then it is hung up, and the server frees the lock."""
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT), self._busy:
                self._stop()
                await self.ask("SELECT pg_advisory_unlock_all()::text")
                await self.connection.close()
        finally:
            self.hang_up()

    def hang_up(self) -> None:
        """End the connection, without waiting for anything."""
        self._stop()
        self.connection.terminate()

    def _ended(self) -> None:
        self._stop()
        self._lost()

    def _stop(self) -> None:
        if self._beating is not None:
            self._beating.cancel()

    async def _beat(self) -> None:
        """Send a statement now and then. No time limit: a server that stood still has not lost the lock."""
        while not self.connection.is_closed():
            await asyncio.sleep(self.ttl_ms / 1000 / BEATS_PER_TTL)
            async with self._busy:
                try:
                    await self.connection.execute(f"{self._label} SET idle_session_timeout = {self.ttl_ms:d}")
                except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                    # Cancelled by an administrator: the lock is still ours, go on. Or the session has ended, and the
                    # loop with it: the next renewal reports it.
                    continue


def _label_statement(lock: str, owner: str) -> str:
    """Return whose session it is and what for, as a comment in ASCII: pg_stat_activity shows the latest statement."""
    for shown in ({"owner": owner, "lock": lock}, {"owner": owner}, {"owner": owner[:_MOST_OWNER]}):
        # Without a * it can neither end the comment nor begin another one.
        text = json.dumps(shown).replace("*", r"\u002a")
        if len(text) <= _MOST_LABEL:
            break
    return f"/* {PREFIX} {text} */"


def owner_of(query: str | None, application_name: str | None, role: str | None, pid: int) -> str:
    """Return whose session this is: ours have it in their label, those of other programs go by their name."""
    if (label := _LABEL.match(query or "")) is not None:
        return str(json.loads(label[1])["owner"])
    if (ours := _NAME.fullmatch(application_name or "")) is not None and ours[1]:
        return ours[1]
    return f"{application_name or role or 'unknown'} (PostgreSQL process {pid})"
