"""Ending a lease in its holder's place (migrations/schema/force_release.sql)."""

from dataclasses import dataclass

from fencepost.server.postgres.connections.connection import Connection


@dataclass(frozen=True, slots=True)
class Forced:
    """The lease that was ended. `handle`: what a lock service calls the hold, which is still there; None: there is
    none.
    """

    lease_id: int
    owner: str
    names: tuple[str, ...]
    granted_at: str
    handle: str | None


async def force_release(connection: Connection, source: str, lock: str, reason: str) -> Forced | None:
    """End the lease that has a lock, and record why. None: no lease has it.

    Raises asyncpg.PostgresError: 42501 for a role that may not break the glass, FP400 for a reason that is none.
    """
    async with connection.transaction():
        await connection.execute("SELECT set_config('fencepost.break_glass', $1, true)", reason)
        row = await connection.fetchrow(
            "SELECT lease_id, owner, names, to_json(granted_at) #>> '{}' AS granted_at, handle"
            " FROM fencepost.force_release($1, $2)",
            source,
            lock,
        )
    return (
        None
        if row is None
        else Forced(row["lease_id"], row["owner"], tuple(row["names"]), row["granted_at"], row["handle"])
    )
