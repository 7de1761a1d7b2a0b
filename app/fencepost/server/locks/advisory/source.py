"""PostgreSQL's advisory locks as a source, for programs that lock with pg_advisory_lock already.

The protocol:

1. Each hold, and each waiter, is a session of its own (advisory/session.py): a session may take the same advisory lock
   again and again, so two holds must never share one. A waiter waits in PostgreSQL's own queue, together with the
   programs that lock there themselves: first come, first served.
2. The handle is the session's pid and its random name, so each process of the gateway can look whether that session
   still has the lock, and can end it. A pid that another session has by now has another name.
3. A session whose answer did not come, or whose caller has gone, is ended by pid and name on another connection, and
   waited for: it may hold the lock by now. Where that cannot be done its closed socket ends it within a second or two;
   one whose host is cut off is ended when it has been idle for the TTL.
4. There are no numbers in any of this: `locks/source_leases/leases.py` draws the tokens, after the grant.

A failover or a restart of PostgreSQL forgets all advisory locks at once. Tokens are what protects the data then.
"""

import asyncio
import re
from typing import Final

import asyncpg

from fencepost.server.locks.advisory.session import AdvisorySession, QueryConnection, map_errors, owner_of
from fencepost.server.locks.advisory.url import AdvisoryKey, AdvisoryUrl, parse
from fencepost.server.locks.pending_releases import PendingReleases
from fencepost.server.locks.registry import SourceContext
from fencepost.server.locks.source import (
    REQUEST_TIMEOUT,
    Capabilities,
    Grant,
    Holder,
    SourceError,
    SourceUnavailableError,
)

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
        self._pending = PendingReleases()

    async def open(self) -> None:
        """Nothing: connections are made when they are needed."""

    async def close(self) -> None:
        """End all sessions of this process, and with them its holds."""
        await self._pending.drain()
        for session in list(self._holds.values()):
            session.hang_up()
        self._asking.hang_up()

    async def acquire(self, lock: str, *, owner: str, ttl_ms: int, tokens: int, wait_s: float) -> Grant | Holder:  # noqa: ARG002 - drawn elsewhere
        """Take a lock. The Grant has no tokens: `locks/source_leases/leases.py` draws them."""
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
        """Return () if the lock is held. It has no numbers: `locks/source_leases/leases.py` draws the tokens."""
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
                f" {self._settings.server}, one for each hold and waiter: try later, or raise ?sessions="
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
