"""Example values, rows and keys: what "Try it out" is filled with.

They are made from names and types alone, so that the document never shows stored data. For the demo table
`orders` they come out as `order-123`, its real row.
"""

from collections.abc import Mapping
from typing import Any, Final

from fencepost.server.http.openapi.types import is_required, writable
from fencepost.server.postgres.tables import MARK_COLUMN, Column, Table

_BY_TYPE: Final[dict[str, Any]] = {
    "int2": 1,
    "int4": 1,
    "int8": 1,
    "numeric": 19.5,
    "float4": 0.5,
    "float8": 0.5,
    "bool": True,
    "uuid": "0190a5c4-7d3e-7c1a-9b55-3f2f6a1c0d42",
    "date": "2026-07-01",
    "timestamptz": "2026-07-01T12:00:00+00:00",
    "timestamp": "2026-07-01T12:00:00",
    "time": "12:00:00",
    "timetz": "12:00:00+00",
    "interval": "1 day",
    "bytea": r"\x0aff",
    "json": {"a": 1},
    "jsonb": {"a": 1},
    "inet": "192.0.2.1",
    "cidr": "192.0.2.0/24",
    "money": "$1.00",
    "int4range": "[1,10)",
    "daterange": "[2026-07-01,2026-08-01)",
    "point": "(1,2)",
    "xml": "<a/>",
}

_BY_NAME: Final[Mapping[str, str]] = {
    "status": "shipped",
    "email": "ada@example.com",
    "name": "Ada",
    "currency": "EUR",
}


def example_value(table: Table, column: Column) -> Any:
    """Make a value that the column can take, as JSON."""
    if column.enum_labels:
        value: Any = column.enum_labels[-1]  # the first is often the default: no change to see
    elif column.base_name.removeprefix("_") in _BY_TYPE:
        value = _BY_TYPE[column.base_name.removeprefix("_")]
    elif column.name in table.key:
        value = f"{_singular(table.relation)}-123"
    else:
        value = _BY_NAME.get(column.name, "text")
    if isinstance(value, str) and column.max_length:
        value = value[: column.max_length]
    return [value] if column.is_array else value


def example_row(table: Table) -> dict[str, Any]:
    """Make a whole row, as an answer shows it."""
    return {name: example_value(table, table.columns[name]) for name in table.visible}


def example_insert(table: Table) -> dict[str, Any]:
    """Make the smallest body of an insert: the key and the columns without a default."""
    chosen = [name for name in table.visible if is_required(table.columns[name]) or _in_key(table, name)]
    if len(chosen) == len(table.key):
        chosen += example_changes(table).keys()
    return {name: example_value(table, table.columns[name]) for name in chosen}


def example_changes(table: Table) -> dict[str, Any]:
    """Make a change of one column, the one to think of first: `status`, else the first that can be set."""
    free = [
        name for name, column in table.columns.items()
        if name not in table.key and name != MARK_COLUMN and writable(column)
    ]  # fmt: skip
    name = "status" if "status" in free else next(iter(free), None)
    return {} if name is None else {name: example_value(table, table.columns[name])}


def example_named_changes(table: Table) -> dict[str, Any]:
    """Make a change that names its row: the key, and the column of `example_changes`."""
    return {name: example_value(table, table.columns[name]) for name in table.key} | example_changes(table)


def key_text(table: Table, name: str) -> str:
    """Write an example value as it stands in a path or a filter."""
    value = example_value(table, table.columns[name])
    return str(value).lower() if isinstance(value, bool) else str(value)


def _in_key(table: Table, name: str) -> bool:
    column = table.columns[name]
    return name in table.key and writable(column) and not column.identity and column.default is None


def _singular(name: str) -> str:
    """Make a singular: orders → order, OrderLines → orderline, categories → category: good enough for an example."""
    lower = name.lower()
    if lower.endswith("ies"):
        return lower[:-3] + "y"
    return lower.removesuffix("s") if not lower.endswith("ss") else lower
