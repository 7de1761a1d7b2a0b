"""What marks say of a write without a key whose connection broke (R15): a mark never falls, and the write raises it."""

from collections.abc import Sequence

from fencepost.fencing.token import Token
from fencepost.gateway.writes.operation import Evidence
from fencepost.storage.connections.connection import Connection
from fencepost.storage.statements.asking import KeyState, read_resource
from fencepost.storage.statements.checks import keys_may_change
from fencepost.storage.statements.parameters import Key
from fencepost.storage.tables.catalog import ProtectedTable


async def row_evidence(
    connection: Connection, table: ProtectedTable, key: Key, token: Token, *, creates: bool = False
) -> Evidence:
    """Say by a key's mark whether a write with this token can have landed: it would have raised the mark (R15).

    `creates`: the write may have made a row, and then a trigger may have given it another key.
    """
    if table.row_security or (creates and await keys_may_change(connection, table)):
        return Evidence(None)  # a policy may hide the row, and the row's mark with it
    found = await read_resource(connection, table, key)
    return _evidence(found.resource, max(found.live or 0, found.recorded or 0), token)


def rows_evidence(standings: Sequence[KeyState], token: Token) -> Evidence:
    """Say the same of rows that were inserted together. `without_row` may be a floor: it shows no write."""
    found = [(max(s.live or 0, s.without_row or 0), s) for s in standings]
    if not found:
        return Evidence(None)
    mark, standing = min(found, key=lambda each: each[0])
    evidence = _evidence(standing.resource, mark, token)
    return Evidence(None) if evidence.landed and standing.live != token else evidence


def _evidence(resource: str, mark: int, token: Token) -> Evidence:
    return Evidence(landed=False if mark < token else (True if mark == token else None), resource=resource, mark=mark)
