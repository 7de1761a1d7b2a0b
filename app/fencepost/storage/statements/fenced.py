"""To be replaced: what the gateway still calls by these names."""

from fencepost.fencing.token import Token
from fencepost.storage.connections.connection import Connection
from fencepost.storage.statements import asking, keyed
from fencepost.storage.statements.asking import Standing
from fencepost.storage.statements.checks import converts_key, converts_value, fits, same_key
from fencepost.storage.statements.keyed import Change, FencedRow
from fencepost.storage.statements.parameters import Key, RowWrite
from fencepost.storage.tables.catalog import ProtectedTable

__all__ = ["Change", "FencedRow", "Key", "Standing", "converts_key", "converts_value", "fits", "same_key"]


def update_sql(table: ProtectedTable, change: Change, *, careful: bool = False) -> str:
    """Give the text of the UPDATE."""
    return keyed.update(table, change, "block", careful=careful).sql


async def update_row(
    connection: Connection, table: ProtectedTable, key: Key, token: Token, change: Change, *, careful: bool = False
) -> FencedRow | None:
    """Write a row whose mark lets the token pass; None when no row came back, which is a question (R5)."""
    statement = keyed.update(table, change, "block", careful=careful)
    rows = await statement.rows(connection, RowWrite(key, token, change.body))
    return rows[0] if rows else None


async def delete_row(
    connection: Connection, table: ProtectedTable, key: Key, token: Token, target: str
) -> FencedRow | None:
    """Delete a row whose mark lets the token pass, and leave the token as the key's mark. None is a question (R5)."""
    rows = await keyed.delete(table, target, "block").rows(connection, RowWrite(key, token))
    return rows[0] if rows else None


async def ask(connection: Connection, table: ProtectedTable, key: Key) -> Standing:
    """Ask about a key."""
    return (await asking.ask(connection, table, [key]))[0]


async def ask_many(connection: Connection, table: ProtectedTable, body: str) -> list[Standing]:
    """Ask about the keys of an array, by the names of their resources."""
    found = [each.standing for each in await asking.ask_elements(connection, table, body)]
    return sorted(found, key=lambda standing: standing.resource)
