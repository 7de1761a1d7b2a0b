"""The one name that a resource has, `table/key`: all writes of a resource are in order only if they agree on it.

7 and 07 are one row. Which text of a value is the canonical one is known here for texts, and for integers and UUIDs
that are spelled so; for all others PostgreSQL is asked. So most names need no database.
"""

from fencepost.server.fence.resource import parse_resource
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.writes.culprit import with_column
from fencepost.server.gateway.writes.keys import needs_fitting, require_fitting
from fencepost.server.gateway.writes.write import Body
from fencepost.server.postgres import marks
from fencepost.server.postgres.database import savepoint
from fencepost.server.postgres.errors import map_errors
from fencepost.server.postgres.row_sql import Key, encode_name
from fencepost.server.postgres.tables import ProtectedTable, is_canonical


def known_name(table: ProtectedTable, key: Key) -> str | None:
    """Render the name of a key, if that needs no database; None: PostgreSQL has to be asked. `key` has as many values
    as the table's.
    """
    if not is_canonical(table, key):
        return None
    return f"{encode_name(table.fence.name)}/{','.join([encode_name(value) for value in key])}"


def is_spelled_so(value: object) -> bool:
    """Whether PostgreSQL has the same text of a value in a body as Python. It keeps the sign of -0, which is 0 here."""
    return isinstance(value, str | int) and not isinstance(value, bool) and value != 0


async def name_of_key(gateway: Gateway, table: ProtectedTable, key: Key) -> str:
    """Give the name of a key. Raises StorageError, RefusedError where a value is none of its column's type."""
    known = known_name(table, key)
    if known is not None:
        return known
    async with gateway.connection(table) as connection, with_column(connection, table, key=key), savepoint(connection):
        with map_errors(writing=False):
            ((_, name),) = await marks.in_key_order(connection, table, [key])
    return name


async def name_of_body(gateway: Gateway, table: ProtectedTable, body: Body) -> str:
    """Give the name of the row that a POST would make; empty: the body does not name its key. `body.text` is an array
    of one object. Raises StorageError, RefusedError where a value is none of its column's type, QueryError where the
    key would be another one when stored: PostgreSQL rounds numbers, and cuts blanks at the end of texts, in silence.
    """
    name = await _name_in_body(gateway, table, body)
    if name and needs_fitting(table, key := parse_resource(name).key):
        async with gateway.connection(table) as connection:
            await require_fitting(connection, table, key, "body")
    return name


async def _name_in_body(gateway: Gateway, table: ProtectedTable, body: Body) -> str:
    values = [body.values.get(column) if column in body.columns else None for column in table.key]
    if not values or None in values:
        return ""
    if all(is_spelled_so(value) for value in values):
        return await name_of_key(gateway, table, tuple(str(value) for value in values))
    # A number with a fraction, for example: Python would spell it otherwise.
    async with gateway.connection(table) as connection, with_column(connection, table, body), savepoint(connection):
        with map_errors(writing=False):
            found = await marks.ask_elements(connection, table, body.text)
    return found[0].standing.resource if found else ""
