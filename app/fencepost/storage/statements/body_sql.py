"""A body as SQL: how json_to_record reads its members, and the one place where these become a column's values.

JSON has one null. json_to_record reads it as SQL's, and so does a nullable column; a json or jsonb column that cannot
have that takes JSON's: else a row that has it could not be sent back as it came. A member that is not there stays SQL's
null, which such a column refuses.
"""

from collections.abc import Sequence
from typing import Final

from fencepost.storage.statements.row_sql import literal
from fencepost.storage.tables.catalog import Column, Table, quote

JSON_TYPES: Final = frozenset({"json", "jsonb"})


def body_json(table: Table, columns: Sequence[str], body: object) -> str:
    """Give a body, an object or an array of them, as json_to_record and json_to_recordset read it."""
    columns = [name for name in columns if table.columns[name].with_hstores]
    if not columns:
        return str(body)
    names = ", ".join(literal(name) for name in columns)
    types = ", ".join(literal(table.columns[name].base_type) for name in columns)
    return (
        f"fencepost.hstores_as_text({body}, CAST(ARRAY[{names}] AS pg_catalog.text[]),"
        f" CAST(ARRAY[{types}] AS pg_catalog.regtype[]))"
    )


def body_columns(table: Table, columns: Sequence[str]) -> str:
    """List columns with their types, as json_to_record wants them.

    Without length, scale or domain: those are applied when the value is assigned, and so as the column has them then.
    """
    return ", ".join(f"{quote(name)} {table.columns[name].base_type}" for name in columns)


def body_value(table: Table, name: str, read: str, element: object) -> str:
    """Give a column's value. `read`: what json_to_record gives for it; `element`: the JSON object that it read."""
    column = table.columns[name]
    if not takes_json_null(column):
        return read
    member = f"{element} OPERATOR(pg_catalog.->) {literal(name)}::text"
    return f"coalesce({read}, CAST({member} AS {column.base_type}))"


def takes_json_null(column: Column) -> bool:
    """Whether null in a body is JSON's for this column, and not SQL's."""
    return not column.nullable and column.base_name in JSON_TYPES
