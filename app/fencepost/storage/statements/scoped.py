"""To be replaced: what the gateway still calls by these names."""

from collections.abc import Sequence

from fencepost.fencing.scope import Scope
from fencepost.fencing.token import Token
from fencepost.storage.connections.connection import Connection
from fencepost.storage.statements import keyed
from fencepost.storage.statements.keyed import Change, FencedRow
from fencepost.storage.statements.many import ManyOutcome, write_matching
from fencepost.storage.statements.parameters import Key, RowWrite
from fencepost.storage.statements.query import Filter
from fencepost.storage.tables.catalog import ProtectedTable


async def write_row(
    connection: Connection, table: ProtectedTable, _scope: Scope, entered: str, key: Key, change: Change
) -> str | None:
    """Change a row of the scope that was entered; None: it is not there (any more)."""
    write = RowWrite(key, Token(0), change.body, scope=entered)
    rows = await keyed.update(table, change, "block").rows(connection, write)
    return rows[0].json if rows else None


async def delete_row(
    connection: Connection, table: ProtectedTable, _scope: Scope, entered: str, key: Key, target: str
) -> str | None:
    """Delete a row of the scope that was entered; None: it is not there (any more)."""
    rows = await keyed.delete(table, target, "block").rows(connection, RowWrite(key, Token(0), scope=entered))
    return rows[0].json if rows else None


async def write_many(
    connection: Connection, table: ProtectedTable, _scope: Scope, entered: Sequence[str],
    filters: tuple[Filter, ...], change: Change | None, target: str, limit: int,
) -> ManyOutcome:  # fmt: skip
    """Change (or delete) rows."""
    write = RowWrite((), Token(0), change.body if change is not None else "{}", scopes=list(entered))
    return await write_matching(connection, table, filters, write, change, target, limit)


async def insert_rows(
    connection: Connection, table: ProtectedTable, columns: tuple[str, ...], body: str, target: str
) -> list[FencedRow]:
    """Insert the rows of a JSON array."""
    return await keyed.insert(table, columns, target, "block").rows(connection, RowWrite((), Token(0), body))


async def insert_row(connection: Connection, table: ProtectedTable, key: Key, change: Change) -> str:
    """Create the row that a PUT names."""
    write = RowWrite(key, Token(0), change.body)
    return (await keyed.create(table, change, "block").rows(connection, write))[0].json
