"""What `fencepost doctor` reports of the gateway's sessions: what is in force in one, and whether all of them fit."""

from collections.abc import Sequence
from typing import Final

import asyncpg

from fencepost.server.ops.inspecting.overview import Finding
from fencepost.server.postgres.connection import NO_TRIGGERS, OPEN_WITHIN, Connection, Limits, session_settings, settle
from fencepost.server.postgres.errors import SessionError

_SHOWN: Final = ("synchronous_commit", "DateStyle", "TimeZone")


async def examine_session(dsn: str) -> Finding:
    """Open a session as the gateway's pools do, and read what is in force there."""
    connection = await asyncpg.connect(dsn, timeout=OPEN_WITHIN)
    try:
        found = await settle(connection, session_settings(Limits()))
        # A pooler gives its clients a process id that it made up.
        direct = connection.get_server_pid() == await connection.fetchval("SELECT pg_backend_pid()")
    except SessionError as error:
        return Finding("error", "session", str(error))
    finally:
        connection.terminate()
    if found["session_replication_role"] == "replica":
        return Finding("error", "session", NO_TRIGGERS)
    shown = ", ".join(f"{name} = {found[name]}" for name in _SHOWN)
    way = "" if direct else ", through a connection pooler in session mode"
    return Finding("ok", "session", f"a session of the gateway has {found['transaction_isolation']}, {shown}{way}")


# A superuser may take what is reserved, and has no limits.
_ROOM: Final = """
SELECT least(current_setting('max_connections')::int
               - CASE WHEN r.rolsuper THEN 0 ELSE current_setting('superuser_reserved_connections')::int
                      + coalesce(current_setting('reserved_connections', true)::int, 0) END,
             CASE WHEN r.rolconnlimit >= 0 AND NOT r.rolsuper THEN r.rolconnlimit END,
             CASE WHEN d.datconnlimit >= 0 AND NOT r.rolsuper THEN d.datconnlimit END) AS room
  FROM pg_roles r, pg_database d WHERE r.rolname = session_user AND d.datname = current_database()"""


async def examine_room(connection: Connection, workers: int, pool_sizes: Sequence[int]) -> Finding:
    """Compare what one gateway may open with what PostgreSQL lets this role have, `max_connections` first."""
    wanted = workers * (sum(pool_sizes) + 1)
    room: int = await connection.fetchval(_ROOM)
    text = f"a gateway of {workers} workers may open {wanted} connections (the three pool sizes + 1 each)"
    if wanted > room:
        return Finding(
            "warning",
            "connections",
            f"{text}, and PostgreSQL has {room} for this role (max_connections, CONNECTION LIMIT): requests wait for"
            " those that can be had",
        )
    return Finding("ok", "connections", f"{text}, of {room}")
