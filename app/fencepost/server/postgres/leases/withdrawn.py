"""Acquires that their clients have withdrawn: one statement a verb. The rules are in schema/withdrawn.sql."""

from dataclasses import dataclass

from fencepost.server.postgres.connections.connection import Connection
from fencepost.server.postgres.leases.builtin import LeaseId


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """What was there of a secret. `leases` are to be released; `under_way`: a request may be granted one still."""

    leases: tuple[LeaseId, ...]
    under_way: bool


async def withdraw(connection: Connection, secret_hash: bytes) -> Withdrawal:
    """Let no lease be granted under this secret any more, and take its place out of the queues."""
    row = await connection.fetchrow("SELECT sources, lease_ids, under_way FROM fencepost.withdraw($1)", secret_hash)
    if row is None:
        raise RuntimeError("fencepost.withdraw gave no row")
    leases = zip(row["sources"], row["lease_ids"], strict=True)
    return Withdrawal(tuple(LeaseId(source, int(number)) for source, number in leases), row["under_way"])


async def is_withdrawn(connection: Connection, secret_hash: bytes) -> bool:
    """Whether the client of this secret waits no more."""
    withdrawn: bool = await connection.fetchval("SELECT fencepost.is_withdrawn($1)", secret_hash)
    return withdrawn
