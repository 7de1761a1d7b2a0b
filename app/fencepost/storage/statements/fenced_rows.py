"""To be replaced: what the gateway still calls by these names."""

from collections.abc import Sequence

from fencepost.fencing.token import Token
from fencepost.storage.connections.connection import Connection
from fencepost.storage.statements.asking import Asked, Placed
from fencepost.storage.statements.asking import ask_elements as ask_rows
from fencepost.storage.statements.asking import place_elements as place_rows
from fencepost.storage.statements.keyed import Change
from fencepost.storage.statements.many import Unwritten, by_array, write_elements
from fencepost.storage.statements.parameters import RowWrite
from fencepost.storage.tables.catalog import ProtectedTable

__all__ = ["Asked", "Placed", "Unwritten", "ask_rows", "place_rows"]


def update_rows_sql(table: ProtectedTable, change: Change) -> str:
    """Give the text of the UPDATE."""
    return by_array(table, change).sql


async def update_rows(
    connection: Connection, table: ProtectedTable, passing: Token | Sequence[str], change: Change
) -> list[str] | Unwritten:
    """Write every element's row, or none."""
    write = RowWrite((), Token(0), change.body)
    if isinstance(passing, int):
        write.token = passing
    else:
        write.scopes = passing
    return await write_elements(connection, table, write, change)
