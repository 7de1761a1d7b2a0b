"""Whether a key can be taken as it was written: only PostgreSQL knows which texts are one value, and what is stored."""

from dataclasses import dataclass

from fencepost.server.gateway.writes.write import Body
from fencepost.server.postgres import marks
from fencepost.server.postgres.connection import Connection
from fencepost.server.postgres.errors import map_errors
from fencepost.server.postgres.query import OtherKeyError
from fencepost.server.postgres.row_sql import Key, RowWrite
from fencepost.server.postgres.tables import Table


def may_need_fitting(table: Table) -> bool:
    """Whether storing could change some key's values."""
    return table.lossy_key or any(table.columns[name].max_length is not None for name in table.key)


def needs_fitting(table: Table, key: Key) -> bool:
    """Whether storing could change the key's values: rounded numbers, texts cut to length (of spaces, silently)."""
    lengths = (table.columns[name].max_length for name in table.key)
    too_long = any(most is not None and len(value) > most for most, value in zip(lengths, key, strict=True))
    return table.lossy_key or too_long


async def require_fitting(connection: Connection, table: Table, key: Key, where: str) -> None:
    """Refuse a key that would be another one when stored: it would be created, or claimed, in vain."""
    with map_errors(writing=False):
        fits = await marks.fits(connection, table, key)
    if not fits:
        raise OtherKeyError(f"{where}: the key {','.join(key)} would be changed when stored in {table.name}")


def doubtful_columns(table: Table, key: Key, body: Body) -> tuple[str, ...]:
    """Name the key columns in the body whose text differs from the path's: for an integer, 7 and 07 are one key."""
    return tuple(
        name for name, value in zip(table.key, key, strict=True) if name in body.columns and not body.gives(name, value)
    )


async def require_same_key(
    connection: Connection, table: Table, key: Key, doubtful: tuple[str, ...], body: str
) -> None:
    """Refuse a body that contradicts the path's key in one of these columns (OtherKeyError)."""
    with map_errors(writing=False):
        same = await marks.same_key(connection, table, key, doubtful, body)
    if not same:
        raise OtherKeyError(
            f"body: {', '.join(doubtful)} contradicts the path's key {','.join(key)}; a row's key cannot change"
        )


@dataclass(frozen=True, slots=True)
class KeyCheck:
    """What precedes a write that is decided alone. `doubtful`: see doubtful_columns; `to_fit`: storing may change the
    key.
    """

    table: Table
    row: RowWrite
    doubtful: tuple[str, ...]
    to_fit: bool

    async def run(self, connection: Connection) -> None:
        """Refuse a key that the body contradicts, or that would be another one when stored (OtherKeyError)."""
        if self.doubtful:
            await require_same_key(connection, self.table, self.row.key, self.doubtful, self.row.body)
        if self.to_fit:
            await require_fitting(connection, self.table, self.row.key, "path")
