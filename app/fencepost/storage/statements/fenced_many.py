"""To be replaced: what the gateway still calls by these names."""

from fencepost.fencing.token import Token
from fencepost.storage.connections.connection import Connection
from fencepost.storage.statements.keyed import Change
from fencepost.storage.statements.many import (
    LISTED_REFUSALS,
    ManyOutcome,
    ManyRefused,
    ManyWritten,
    RefusedRow,
    TooManyRows,
    write_matching,
)
from fencepost.storage.statements.parameters import RowWrite
from fencepost.storage.statements.query import Filter
from fencepost.storage.tables.catalog import ProtectedTable

__all__ = ["LISTED_REFUSALS", "ManyOutcome", "ManyRefused", "ManyWritten", "RefusedRow", "TooManyRows"]


async def update_many(
    connection: Connection, table: ProtectedTable, filters: tuple[Filter, ...], token: Token, change: Change, limit: int
) -> ManyOutcome:
    """Write every row that matches, or none."""
    write = RowWrite((), token, change.body)
    return await write_matching(connection, table, filters, write, change, change.target, limit)


async def delete_many(
    connection: Connection, table: ProtectedTable, filters: tuple[Filter, ...], token: Token, target: str, limit: int
) -> ManyOutcome:
    """Delete every row that matches, or none."""
    return await write_matching(connection, table, filters, RowWrite((), token), None, target, limit)
