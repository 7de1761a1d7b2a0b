"""PostgreSQL that takes no writes: `default_transaction_read_only` is on.

Managed databases set it when the disk is full, and operators for a switch-over. The gateway keeps to it, and sets
nothing of its own against it:

- A write that PostgreSQL refuses for that (25006) has written nothing: 503 with Retry-After, in one sentence.
- For a second after that was seen, writes are refused without asking PostgreSQL. The next one tries again, so
  writes go on within a second of its end, and meanwhile no connection is opened for each of them.
- `ALTER SYSTEM` reaches open sessions, but what ALTER DATABASE and ALTER ROLE set counts for sessions that begin later,
  and stays there when it is lifted. So a session that was opened read-only, or refused a write as such, is replaced
  before the next write. All are replaced once `origin_status` finds that new sessions would be read-only and open ones
  are not.
"""

import math
from collections.abc import Callable
from typing import Final

from fencepost.storage.connections.connection import Connection, GatewayConnection
from fencepost.storage.errors import ReadOnlyError, map_errors
from fencepost.times import TIMES, Times

REASON: Final = (
    "PostgreSQL takes no writes: default_transaction_read_only is on (set by an operator, or by the provider when the"
    " disk is full). Nothing was written; reads go on"
)

# What ALTER ROLE and ALTER DATABASE give to a session that begins now; the most specific one counts. Null: neither
# does, and the server's own configuration counts, which open sessions follow.
# Operators and functions are named in full, against those that others may have put on the role's search_path.
_LOOK: Final = """
SELECT CAST(pg_catalog.current_setting('transaction_read_only') AS bool) AS here,
       (SELECT CAST(pg_catalog.split_part(setting, '=', 2) AS bool)
          FROM pg_catalog.pg_db_role_setting s CROSS JOIN pg_catalog.unnest(s.setconfig) AS setting,
               pg_catalog.pg_database d, pg_catalog.pg_roles r
         WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()
           AND r.rolname OPERATOR(pg_catalog.=) SESSION_USER
           AND s.setdatabase OPERATOR(pg_catalog.=) ANY (ARRAY[CAST(0 AS oid), d.oid])
           AND s.setrole OPERATOR(pg_catalog.=) ANY (ARRAY[CAST(0 AS oid), r.oid])
           AND setting OPERATOR(pg_catalog.~~) 'default_transaction_read_only=%'
         ORDER BY s.setrole OPERATOR(pg_catalog.=) CAST(0 AS oid), s.setdatabase OPERATOR(pg_catalog.=) CAST(0 AS oid)
         LIMIT 1) AS new"""
_HERE: Final = "SELECT CAST(pg_catalog.current_setting('transaction_read_only') AS bool)"


class ReadOnly:
    """What a process knows of it, over all its connections. `report` gets its beginning, in a sentence."""

    def __init__(
        self,
        report: Callable[[str], None],
        times: Times = TIMES,
    ) -> None:
        self._until = -math.inf
        self._report = report
        self._times, self._clock = times.connections, times.clock

    def notice(self) -> None:
        """Take note that a session of now refuses writes."""
        now = self._clock.monotonic()
        if now > self._until + self._times.read_only_reported_after:
            self._report(REASON)
        self._until = now + self._times.read_only_for

    def clear(self) -> None:
        """Take note that a session of now takes writes."""
        self._until = min(self._until, self._clock.monotonic())

    def require_writable(self) -> None:
        """Raise ReadOnlyError if that was just seen."""
        if self._clock.monotonic() < self._until:
            raise ReadOnlyError(REASON)

    def require_writable_session(self, connection: GatewayConnection) -> None:
        """Raise ReadOnlyError if this session refused a write before, or was opened so."""
        if connection.read_only:
            self.notice()
            raise ReadOnlyError(REASON)

    async def explains(self, connection: Connection) -> bool:
        """Whether all writes are refused in this session, and not only the statement that was. Raises StorageError."""
        with map_errors(writing=False):
            found: bool = await connection.fetchval(_HERE)
        if found:
            self.notice()
        return found


async def look(connection: Connection) -> tuple[bool, bool | None]:
    """Ask whether this session is read-only, and whether a role's or database's setting makes a new one so; None: none
    of theirs does either.
    """
    row = await connection.fetchrow(_LOOK)
    if row is None:
        raise RuntimeError("a SELECT without FROM gave no row")
    return row["here"], row["new"]
