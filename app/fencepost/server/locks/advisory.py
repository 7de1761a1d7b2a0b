"""PostgreSQL's advisory locks as a source, for programs that lock with pg_advisory_lock already.

The protocol:

1. Each hold, and each waiter, is a session of its own (`AdvisorySession`): a session may take the same advisory lock
   again and again, so two holds must never share one. A waiter waits in PostgreSQL's own queue, together with the
   programs that lock there themselves: first come, first served.
2. The handle is the session's pid and its random name, so each process of the gateway can look whether that session
   still has the lock, and can end it. A pid that another session has by now has another name.
3. A session whose answer did not come, or whose caller has gone, is ended by pid and name on another connection, and
   waited for: it may hold the lock by now. Where that cannot be done its closed socket ends it within a second or two;
   one whose host is cut off is ended when it has been idle for the TTL.
4. There are no numbers in any of this: `locks/source_leases.py` draws the tokens, after the grant.

A failover or a restart of PostgreSQL forgets all advisory locks at once. Tokens are what protects the data then.
"""

import asyncio
import json
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlencode, urlunsplit

import asyncpg

from fencepost.server.locks.leases import ServiceReleases
from fencepost.server.locks.source import (
    REQUEST_TIMEOUT,
    Capabilities,
    Form,
    Grant,
    Holder,
    Option,
    SourceConfigError,
    SourceContext,
    SourceError,
    SourceNameError,
    SourceUnavailableError,
    one_of,
    read,
    text,
    whole,
)
from fencepost.server.postgres.errors import words_of

# The URL of a `postgres-advisory` source: which database, and which advisory lock a lock's name means there.
#
# postgres-advisory:?keys=hash&sessions=32                       the gateway's own database
# postgres-advisory://user:password@host:5432/database?…         another one

_KEYS: Final = Option("keys", one_of("hash", "number"), "hash")
_SESSIONS: Final = Option("sessions", whole(1, 10_000), 32)
_PASSED_ON: Final = (
    Option("sslmode", one_of("disable", "allow", "prefer", "require", "verify-ca", "verify-full"), "prefer"),
    *(Option(name, text(), "") for name in ("sslrootcert", "sslcert", "sslkey")),
)
_FORM: Final = Form(
    "postgres-advisory://[user:password@]host[:port]/database[?option=value&…], or postgres-advisory:[?option=value&…]"
    " for the gateway's own database",
    (_KEYS, _SESSIONS, *_PASSED_ON),
    re.compile("(/[^/]+)?"),
    port=5432,
    least=0,
)

_NUMBER: Final = re.compile(r"0|-?[1-9][0-9]{0,18}")
_PAIR: Final = re.compile(r"(0|-?[1-9][0-9]{0,9}),(0|-?[1-9][0-9]{0,9})")
_BIGINT: Final = range(-(2**63), 2**63)
_INT: Final = range(-(2**31), 2**31)


@dataclass(frozen=True, slots=True)
class AdvisoryKey:
    """An advisory lock, as SQL over the lock's name in $1. `arguments`: what pg_advisory_lock takes. `place`: a
    FROM item `k (classid, objid, objsubid)`, where pg_locks has it.
    """

    arguments: str
    place: str

    @classmethod
    def of_bigint(cls, value: str) -> "AdvisoryKey":
        """The one-argument form: pg_locks splits the bigint into two halves, and marks it with objsubid 1."""
        halves = "((h >> 32) & 4294967295)::oid AS classid, (h & 4294967295)::oid AS objid, 1 AS objsubid"
        return cls(value, f"(SELECT {halves} FROM (SELECT {value}) AS v (h)) AS k")

    @classmethod
    def of_ints(cls, one: str, two: str) -> "AdvisoryKey":
        """The two-argument form, objsubid 2."""
        pair = f"({one} & 4294967295)::oid AS classid, ({two} & 4294967295)::oid AS objid, 2 AS objsubid"
        return cls(f"({one})::int, ({two})::int", f"(SELECT {pair}) AS k")


HASHED: Final = AdvisoryKey.of_bigint("hashtextextended($1::text, 0)")
NUMBERED: Final = AdvisoryKey.of_bigint("$1::text::bigint")
PAIRED: Final = AdvisoryKey.of_ints("split_part($1::text, ',', 1)::bigint", "split_part($1::text, ',', 2)::bigint")


@dataclass(frozen=True, slots=True)
class AdvisoryUrl:
    """The parts of the URL. `server` names the database for messages, without a password."""

    dsn: str
    server: str
    numbers: bool
    sessions: int

    def key(self, lock: str) -> AdvisoryKey:
        """Which advisory lock a name means. SourceNameError where it must be a number, and is none."""
        if not self.numbers:
            return HASHED
        if _NUMBER.fullmatch(lock) and int(lock) in _BIGINT:
            return NUMBERED
        if (pair := _PAIR.fullmatch(lock)) and all(int(part) in _INT for part in pair.groups()):
            return PAIRED
        raise SourceNameError(
            f"the lock {lock} is no number: with keys=number a lock's name is an advisory key, such as 12345 or 7,42"
        )


def parse(url: str, context: SourceContext) -> AdvisoryUrl:
    """Read the URL. Raises SourceConfigError."""
    found = read(url, context.name, _FORM)
    passed_on = {option.name: found[option] for option in _PASSED_ON if option in found}
    numbers, sessions = found[_KEYS] == "number", found[_SESSIONS]
    if not found.hosts and not found.path:
        if passed_on:
            raise found.wrong(
                f"names no host, so it means the gateway's own database: {', '.join(passed_on)} belongs into that one's"
                " URL"
            )
        if not context.dsn:
            raise found.wrong("names no host, and there is no database of the gateway's own")
        return AdvisoryUrl(context.dsn, "the gateway's own database", numbers, sessions)
    if not (found.hosts and found.path):
        raise found.wrong("has to name one host and one database")
    (host,) = found.hosts
    user = quote(found.user or "", safe="") + (f":{quote(found.password, safe='')}" if found.password else "")
    dsn = urlunsplit(
        ("postgresql", f"{user}@{host}" if user else f"{host}", quote(found.path), urlencode(passed_on), "")
    )
    return AdvisoryUrl(dsn, f"{host}{found.path}", numbers, sessions)


# PostgreSQL sessions of the `postgres-advisory` source: one for each hold and waiter, and one that asks questions.
#
# A hold is a session of its own, and lives as long as that. It has three names: the process's pid, a random id in its
# application_name, by which other gateways find it, and a comment before each of its statements, for people.
#
# The server ends a session that has been idle for `idle_session_timeout`, which is the TTL. Its gateway sends a
# statement three times as often, so the lock outlives a gateway that is paused or cut off by the TTL at most. One that
# ends is noticed at once, by its closed socket.

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


LEAST_TTL_MS: Final = 2000
"""A gateway that is busy for a moment must not lose its locks."""
_MOST_MS: Final = 2**31 - 1
_END_WITHIN_MS: Final = 2000

_HANDLE: Final = re.compile(r"([0-9]{1,10}):(fencepost [0-9a-f]{16})")

_OF_LOCK: Final = """
l.locktype = 'advisory' AND l.granted AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
AND (l.classid, l.objid, l.objsubid) = (k.classid, k.objid, k.objsubid)"""

# A lock whose transaction was prepared is held by no process.
_HELD: Final = """
SELECT l.pid, a.application_name, a.usename, a.query
FROM {place} CROSS JOIN pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
WHERE {of_lock} ORDER BY l.pid IS NULL DESC LIMIT 1"""

_HOLDS: Final = """
SELECT FROM {place} CROSS JOIN pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE {of_lock} AND l.pid = $2 AND starts_with(a.application_name, $3)"""

_END: Final = """
SELECT pg_terminate_backend(a.pid, $3) AS ended FROM pg_stat_activity a
WHERE a.pid = $1 AND starts_with(a.application_name, $2)"""

_LOOK: Final = """
SELECT current_setting('track_activities')::bool AS tracks, current_setting('max_connections')::int AS most,
       (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS used"""


def from_url(url: str, context: SourceContext) -> "AdvisorySource":
    """Make the source that a `postgres-advisory:` URL names. Raises SourceConfigError."""
    return AdvisorySource(parse(url, context))


class AdvisorySource:
    """Takes PostgreSQL's advisory locks, each in a session of its own."""

    capabilities = Capabilities(
        order="database", fair=True, verifies=False, least_ttl_ms=LEAST_TTL_MS, ttl_from_server=False
    )

    def __init__(self, settings: AdvisoryUrl) -> None:
        self._settings = settings
        self._asking = QueryConnection(settings)
        self._holds: dict[str, AdvisorySession] = {}
        self._beginning = 0
        self._pending = ServiceReleases()

    async def open(self) -> None:
        """Nothing: connections are made when they are needed."""

    async def close(self) -> None:
        """End all sessions of this process, and with them its holds."""
        await self._pending.drain()
        for session in list(self._holds.values()):
            session.hang_up()
        self._asking.hang_up()

    async def acquire(self, lock: str, *, owner: str, ttl_ms: int, tokens: int, wait_s: float) -> Grant | Holder:  # noqa: ARG002 - drawn elsewhere
        """Take a lock. The Grant has no tokens: `locks/source_leases.py` draws them."""
        deadline = asyncio.get_running_loop().time() + wait_s
        key = self._settings.key(lock)
        # Spares a connection where it is held and the caller does not wait; and finds what waiting would not help
        # against.
        if (holder := await self.inspect(lock)) is not None and wait_s <= 0:
            return holder
        session = await self._begin(lock, owner, _within_limits(ttl_ms))
        try:
            with map_errors(self._settings.server):
                if await self._take(session, key, lock, deadline):
                    self._keep(session)
                    return Grant(f"{session.pid}:{session.name}", ())
                await session.free()
        except BaseException:
            # Whatever it was, the session may hold the lock by now, or wait for it.
            await self._pending.give_back(self._surely_end(session))
            raise
        finally:
            self._beginning -= 1
        return await self.inspect(lock) or Holder()

    async def renew(self, lock: str, handle: str, ttl_ms: int) -> bool:
        """Whether its session still has the lock. A new TTL counts only in the process that acquired."""
        if not await self._has(lock, handle):
            return False
        if (mine := self._holds.get(_read(handle)[1])) is not None:
            mine.ttl_ms = _within_limits(ttl_ms)
        return True

    async def mint(self, lock: str, handle: str, count: int) -> tuple[int, ...] | None:  # noqa: ARG002 - see below
        """Return () if the lock is held. It has no numbers: `locks/source_leases.py` draws the tokens."""
        return () if await self._has(lock, handle) else None

    async def release(self, lock: str, handle: str) -> None:  # noqa: ARG002 - the session has no other lock
        """End the hold's session: by itself in its own process, else by its pid and name."""
        pid, name = _read(handle)
        if (mine := self._holds.pop(name, None)) is not None and not mine.connection.is_closed():
            with map_errors(self._settings.server):
                await mine.free()
        else:
            await self._end(pid, name)

    async def inspect(self, lock: str) -> Holder | None:
        """Return who has the lock, programs that lock there themselves included."""
        statement = _HELD.format(place=self._settings.key(lock).place, of_lock=_OF_LOCK)
        if (held := await self._asking.row(statement, lock)) is None:
            return None
        if held["pid"] is None:
            raise SourceError(
                f"a prepared transaction of another program has the advisory lock of {lock}: COMMIT PREPARED or"
                " ROLLBACK PREPARED it (pg_prepared_xacts lists them)"
            )
        return Holder(owner_of(held["query"], held["application_name"], held["usename"], held["pid"]))

    async def issued(self, number: int) -> bool:  # noqa: ARG002 - the same
        """Unknown: the source has no numbers."""
        raise SourceError("advisory locks have no numbers: ask the database that the tokens are drawn in")

    async def advice(self) -> list[str]:
        """What keeps its locks from working. A pooler or a standby raises, as it does for all calls."""
        row = await self._asking.row(_LOOK)
        if row is None:
            raise SourceUnavailableError(f"PostgreSQL ({self._settings.server}) gave no answer about its settings")
        found = []
        if not row["tracks"]:
            found.append("track_activities is off: it cannot be seen who has an advisory lock, and what for")
        if row["used"] + self._settings.sessions > row["most"]:
            found.append(
                f"max_connections is {row['most']} and {row['used']} are in use: the {self._settings.sessions} sessions"
                " that each worker may open for holds and waiters do not fit (?sessions= allows fewer)"
            )
        return found

    async def _begin(self, lock: str, owner: str, ttl_ms: int) -> AdvisorySession:
        """Open a session, if this process may have one more. The caller counts it down from `_beginning`."""
        if len(self._holds) + self._beginning >= self._settings.sessions:
            raise SourceUnavailableError(
                f"this process has all of its {self._settings.sessions} sessions in use at"
                f" {self._settings.server}, one for each hold and each lock that is waited for: try later, or raise"
                " ?sessions="
            )
        self._beginning += 1
        try:
            return await AdvisorySession.begin(self._settings, lock, owner, ttl_ms)
        except BaseException:
            self._beginning -= 1
            raise

    async def _has(self, lock: str, handle: str) -> bool:
        """Whether the hold's session still has the lock; if not, what is left of it here goes."""
        pid, name = _read(handle)
        statement = _HOLDS.format(place=self._settings.key(lock).place, of_lock=_OF_LOCK)
        if await self._asking.row(statement, lock, pid, name) is not None:
            return True
        if (lost := self._holds.pop(name, None)) is not None:
            lost.hang_up()
        return False

    async def _take(self, session: AdvisorySession, key: AdvisoryKey, lock: str, deadline: float) -> bool:
        """Take the lock in a session, or wait for it until the deadline."""
        left = deadline - asyncio.get_running_loop().time()
        async with asyncio.timeout(max(left, 0) + REQUEST_TIMEOUT):
            if left <= 0:
                return bool(await session.ask(f"SELECT pg_try_advisory_lock({key.arguments})", lock))
            milliseconds = min(max(1, int(left * 1000)), _MOST_MS)  # 0 would be for ever
            await session.ask("SELECT set_config('lock_timeout', $1, false)", str(milliseconds))
            try:
                await session.ask(f"SELECT pg_advisory_lock({key.arguments})::text", lock)
            except asyncpg.LockNotAvailableError:
                return False
        return True

    def _keep(self, session: AdvisorySession) -> None:
        if session.connection.is_closed():
            raise ConnectionResetError("the connection broke as the lock was granted")
        self._holds[session.name] = session
        session.keep(lambda: self._forget(session.name))

    def _forget(self, name: str) -> None:
        self._holds.pop(name, None)

    async def _surely_end(self, session: AdvisorySession) -> None:
        """End a session in doubt. Where the server cannot be asked, the closed socket or the TTL ends it."""
        try:
            await self._end(session.pid, session.name)
        finally:
            session.hang_up()

    async def _end(self, pid: int, name: str) -> None:
        row = await self._asking.row(_END, pid, name, _END_WITHIN_MS)
        if row is not None and not row["ended"]:
            raise SourceUnavailableError(
                f"PostgreSQL's process {pid} ({self._settings.server}), which has the lock, does not end: try again"
            )


def _within_limits(ttl_ms: int) -> int:
    return min(max(ttl_ms, LEAST_TTL_MS), _MOST_MS)


def _read(handle: str) -> tuple[int, str]:
    if (found := _HANDLE.fullmatch(handle)) is None:
        raise SourceError("the stored handle is not one of postgres-advisory: was the source's URL changed?")
    return int(found[1]), found[2]
