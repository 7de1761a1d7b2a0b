"""Acquires that their clients have withdrawn: one statement a verb. The rules are in schema/withdrawn.sql."""

from dataclasses import dataclass

from fencepost.storage.connections.connection import Connection
from fencepost.storage.leases.builtin import LeaseId


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """What was there of a secret. `lease` is to be released; `under_way`: another request may be granted it still."""

    lease: LeaseId | None
    under_way: bool


async def withdraw(connection: Connection, secret_hash: bytes) -> Withdrawal:
    """Let no lease be granted under this secret any more, and take its place out of the queues."""
    row = await connection.fetchrow("SELECT source, lease_id, under_way FROM fencepost.withdraw($1)", secret_hash)
    if row is None:
        raise RuntimeError("fencepost.withdraw gave no row")
    lease = None if row["lease_id"] is None else LeaseId(row["source"], row["lease_id"])
    return Withdrawal(lease, row["under_way"])


async def is_withdrawn(connection: Connection, secret_hash: bytes) -> bool:
    """Whether the client of this secret waits no more."""
    withdrawn: bool = await connection.fetchval("SELECT fencepost.is_withdrawn($1)", secret_hash)
    return withdrawn
