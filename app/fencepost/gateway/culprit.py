"""Names the column whose value PostgreSQL could not take: it says the value and the type, and not where.

Asked only after a refusal: each value is converted alone, and the one that fails is it.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from fencepost.storage.catalog import Table
from fencepost.storage.engine import Connection
from fencepost.storage.errors import RefusedError, translated
from fencepost.storage.fenced import Key, converts_key, converts_value


class HasColumns(Protocol):
    """A body, as far as this module needs it."""

    @property
    def text(self) -> str:
        """The JSON."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The keys that it sets."""


@asynccontextmanager
async def naming_the_column(
    connection: Connection, table: Table, body: HasColumns | None, key: Key = ()
) -> AsyncIterator[None]:
    """Add the column's name to a data exception (SQLSTATE class 22, 23514 of a domain) that lacks it."""
    try:
        yield
    except RefusedError as error:
        if error.column is None and error.sqlstate.startswith("22") and not connection.is_in_transaction():
            with translated(writing=False):
                error.column = await _culprit(connection, table, body, key)
        raise


async def _culprit(connection: Connection, table: Table, body: HasColumns | None, key: Key) -> str | None:
    for position, name in enumerate(table.key if key else ()):
        if not await converts_key(connection, table, position, key[position]):
            return name
    for name in body.columns if body else ():
        if name in table.columns and not await converts_value(connection, table, name, body.text if body else ""):
            return name
    return None
