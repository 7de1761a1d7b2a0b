"""PostgreSQL that takes no writes: `default_transaction_read_only` is on. Or no fenced ones: `session_replication_role`
is replica, and no trigger fires.

Managed databases set the first when the disk is full, and operators for a switch-over. The second is left over from a
load of data. The gateway keeps to both, and sets nothing of its own against them:

- A write that PostgreSQL refuses for that (25006) has written nothing: 503 with Retry-After, in one sentence.
- For a second after that was seen, writes are refused without asking PostgreSQL. The next one tries again, so
  writes go on within a second of its end, and meanwhile no connection is opened for each of them.
- In a session that fires no triggers nothing is written from the start: PostgreSQL would not refuse it.
- `ALTER SYSTEM` reaches open sessions, but what ALTER DATABASE and ALTER ROLE set counts for sessions that begin later,
  and stays there when it is lifted. So a session that was opened so, or refused a write as such, is replaced before
  the next write. All are replaced once `origin_status` finds that new sessions would be so and open ones are not.
"""

import math
from collections.abc import Callable
from typing import Final

from fencepost.server.postgres.connections.connection import Connection, GatewayConnection
from fencepost.server.postgres.connections.session import NO_TRIGGERS, READ_ONLY, why_unwritable
from fencepost.server.postgres.errors import ReadOnlyError, map_errors
from fencepost.server.times import TIMES, Times

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

    def require_writable_session(self, connection: GatewayConnection) -> None:
        """Raise ReadOnlyError if this session refused a write before, or was opened so."""
        if connection.unwritable:
            self.notice(connection.unwritable)
            raise ReadOnlyError(connection.unwritable)

    async def explains(self, connection: Connection) -> bool:
        """Whether all writes are refused in this session, and not only the statement that was. Raises StorageError."""
        with map_errors(writing=False):
            found: bool = await connection.fetchval(_HERE)
        if found:
            self.notice()
        return found


async def look(connection: Connection) -> tuple[str, str]:
    """Ask why nothing may be written in this session, and in a new one by a role's or database's setting; empty: it
    may, and none of their settings says that it may not.
    """
    row = await connection.fetchrow(_LOOK)
    if row is None:
        raise RuntimeError("a SELECT without FROM gave no row")
    new = READ_ONLY if row["new_read_only"] else NO_TRIGGERS if row["new_role"] == "replica" else ""
    return why_unwritable(dict(row)), new
