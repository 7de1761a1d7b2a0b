"""Whether a key can be taken as it was written: only PostgreSQL knows which texts are one value, and what is stored."""

from dataclasses import dataclass

from fencepost.storage.connections.connection import Connection
from fencepost.storage.errors import map_errors
from fencepost.storage.statements import checks
from fencepost.storage.statements.parameters import Key, RowWrite
from fencepost.storage.statements.query import QueryError
from fencepost.storage.tables.catalog import Table


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
        fits = await checks.fits(connection, table, key)
    if not fits:
        raise QueryError(f"{where}: the key {','.join(key)} would be changed when stored in {table.name}")


@dataclass(frozen=True, slots=True)
class KeyCheck:
    """What precedes a write that is decided alone. `doubtful`: the columns of the key that the body names, with other
    texts; `to_fit`: storing may change the key.
    """

    table: Table
    row: RowWrite
    doubtful: tuple[str, ...]
    to_fit: bool

    async def run(self, connection: Connection) -> None:
        """Refuse a key that the body contradicts, or that would be another one when stored (QueryError)."""
        if self.doubtful:
            with map_errors(writing=False):
                same = await checks.same_key(connection, self.table, self.row.key, self.doubtful, self.row.body)
            if not same:
                raise QueryError(
                    f"body: {', '.join(self.doubtful)} contradicts the path's key {','.join(self.row.key)}; a row's key"
                    " cannot change"
                )
        if self.to_fit:
            await require_fitting(connection, self.table, self.row.key, "path")
