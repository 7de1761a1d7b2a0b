"""Ends the server process of a connection that broke, so that what it did is certain (R15).

"No record" does not mean "did not land" while the old backend lives: it may be waiting for a row, or have the statement
still unread in its socket, and commit later. A backend is known by pid and start: a pid alone may be another's by now.
"""

from typing import Final

from fencepost.server.postgres.connections.connection import Backend, Connection
from fencepost.server.postgres.errors import UnavailableError, map_errors
from fencepost.server.times import TIMES

_END: Final = """
SELECT pg_terminate_backend(a.pid, $3) FROM pg_stat_activity a WHERE a.pid = $1 AND a.backend_start = $2"""
_ALIVE: Final = "SELECT EXISTS (SELECT FROM pg_stat_activity a WHERE a.pid = $1 AND a.backend_start = $2)"


async def end(connection: Connection, backend: Backend, within: float = TIMES.connections.end_backend_within) -> None:
    """Make sure that a backend is gone, on another connection to the same server.

    UnavailableError when it cannot be ended within so many seconds: what it was doing may still land.
    """
    with map_errors(writing=False):
        await connection.execute(_END, backend.pid, backend.started, round(within * 1000))
        # Its entry goes after its transaction has ended.
        if await connection.fetchval(_ALIVE, backend.pid, backend.started):
            raise UnavailableError(f"PostgreSQL's process {backend.pid} does not end")
