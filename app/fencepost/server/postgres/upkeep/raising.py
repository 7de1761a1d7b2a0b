"""What `generation raise` and `source raise` have in common: one call of a function that raises a generation, in a
transaction of its own, while others write.

Such a function takes the locks of grants, sequences and floors, one after the other, and each waits for transactions
under way. One of these may want what the function has already. PostgreSQL ends one of the two with 40P01; ended here,
nothing has changed, the other one goes on, and the next try waits for it.
"""

from typing import Final

import asyncpg

from fencepost.server.postgres.connections.connection import Connection
from fencepost.server.postgres.upkeep import prepared

LOCK_TIMEOUT: Final = "30s"
"""How long each lock is waited for: until the grants and writes that are under way have ended."""
TRIES: Final = 5
"""How often a deadlock may end the call; PostgreSQL finds one after deadlock_timeout, a second by default."""

_DEADLOCK: Final = "40P01"
_LOCK_NOT_AVAILABLE: Final = "55P03"


async def call_with_retries(connection: Connection, call: str, *arguments: object) -> int:
    """Run `call`, SQL that returns the new generation, and commit. Tried again where a deadlock ends it.

    Raises asyncpg.PostgresError, nothing having changed: what the function raises, 55P03 when transactions under way do
    not end in time, 40P01 when the last try has met a deadlock.
    """
    tries = TRIES
    while True:
        tries -= 1
        try:
            async with connection.transaction(isolation="read_committed"):
                await connection.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
                await connection.execute("SET LOCAL synchronous_commit = 'on'")
                raised: int = await connection.fetchval(call, *arguments)
        except asyncpg.DeadlockDetectedError:
            if not tries:
                raise
        else:
            return raised


def describe_failure(error: asyncpg.PostgresError, who: str) -> str | None:
    """Return why call_with_retries gave up; None: not because of others. `who`: whose end it waits for."""
    if error.sqlstate == _LOCK_NOT_AVAILABLE:
        met = f"did not end within {LOCK_TIMEOUT}"
    elif error.sqlstate == _DEADLOCK:
        met = f"and this waited for locks of each other in each of {TRIES} tries (deadlock detected, 40P01)"
    else:
        return None
    return f"{who} {met} (see {prepared.WHERE_TO_LOOK}); nothing was changed: run it again"
