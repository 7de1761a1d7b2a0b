"""To be replaced: what the gateway still calls by these names."""

from typing import Final

from fencepost.fencing.token import Token
from fencepost.storage.connections.connection import Connection
from fencepost.storage.statements import keyed
from fencepost.storage.statements.keyed import Change, FencedRow
from fencepost.storage.statements.parameters import Key, RowWrite
from fencepost.storage.tables.catalog import ProtectedTable, Table

_REKEYS: Final = """
WITH RECURSIVE part(oid) AS (
  SELECT $1::text::regclass::oid UNION ALL SELECT i.inhrelid FROM part JOIN pg_inherits i ON i.inhparent = part.oid)
SELECT EXISTS (SELECT FROM part JOIN pg_class c ON c.oid = part.oid WHERE c.relhasrules)
    OR EXISTS (SELECT FROM part JOIN pg_trigger t ON t.tgrelid = part.oid
                WHERE NOT t.tgisinternal AND t.tgtype::int & 7 = 7 AND t.tgenabled <> 'D'
                  AND NOT pg_catalog.starts_with(t.tgname::text, 'zzz_fencepost_'))"""
"""The first three bits of tgtype are ROW, BEFORE and INSERT."""


async def keys_may_change(connection: Connection, table: Table) -> bool:
    """Whether a trigger or rule that is not ours may store a row under another key than was sent."""
    changes: bool = await connection.fetchval(_REKEYS, table.sql_name)
    return changes


async def insert_rows(
    connection: Connection, table: ProtectedTable, token: Token, columns: tuple[str, ...], body: str, target: str
) -> list[FencedRow]:
    """Insert the rows of a JSON array, all or none."""
    return await keyed.insert(table, columns, target, "block").rows(connection, RowWrite((), token, body))


async def insert_row(
    connection: Connection, table: ProtectedTable, key: Key, token: Token, change: Change
) -> FencedRow:
    """Create the row that a PUT names."""
    rows = await keyed.create(table, change, "block").rows(connection, RowWrite(key, token, change.body))
    return rows[0]
