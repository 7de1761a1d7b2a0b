"""Resources of which no more writes of a queue are applied, since one of them is a dead letter (--stop-resources)."""

from dataclasses import dataclass
from datetime import datetime

from fencepost.server.postgres.connections.connection import Connection


@dataclass(frozen=True, slots=True)
class Stopped:
    """A resource, and the write for which it was stopped."""

    resource: str
    write_id: str
    at: datetime


async def stop_resource(connection: Connection, name: str, resource: str, write_id: str) -> str:
    """Stop a resource of the queue; returns the write for which it is stopped: an earlier one, if it was already."""
    because_of: str = await connection.fetchval("SELECT fencepost.queue_stop($1, $2, $3)", name, resource, write_id)
    return because_of


async def clear_resource(connection: Connection, name: str, resource: str, write_id: str) -> bool:
    """Let its writes be applied again, if it is this write that stopped it; whether it was."""
    cleared: bool = await connection.fetchval("SELECT fencepost.queue_clear($1, $2, $3)", name, resource, write_id)
    return cleared


async def stopped(connection: Connection, name: str) -> list[Stopped]:
    """List the resources of the queue that are stopped."""
    rows = await connection.fetch("SELECT resource, write_id, at FROM fencepost.queue_stopped_by($1)", name)
    return [Stopped(row["resource"], row["write_id"], row["at"]) for row in rows]
