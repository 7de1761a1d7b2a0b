"""Rows' keys in paths and in resource names: values joined by `,`, each percent-encoded."""

from typing import TypeAlias
from urllib.parse import quote, unquote
from uuid import UUID

Scalar: TypeAlias = str | int | UUID
Key: TypeAlias = Scalar | tuple[Scalar, ...]
"""A row's primary key; a composite one is a tuple, in the key's column order."""

_NOT_IN_PATHS = ("", ".", "..")


def resource_of(table: str, key: Key) -> str:
    """Return the name of a row, `orders/order-1`: what its lock is called, and what is claimed."""
    values = key if isinstance(key, tuple) else (key,)
    return f"{quote(table, safe='')}/{','.join(_encode(value) for value in values)}"


def collection_path(table: str) -> str:
    """Return a table's path. ValueError for names that a URL cannot carry."""
    if table in _NOT_IN_PATHS:
        raise ValueError(f"table {table!r}: cannot stand in a path")
    return f"/v1/data/{quote(table, safe='')}"


def row_path(table: str, key: Key) -> str:
    """Return a row's path. ValueError for a key that a URL cannot carry: such a row is named by a filter."""
    encoded = resource_of(table, key).partition("/")[2]
    if encoded in _NOT_IN_PATHS:
        raise ValueError(
            f"key {key!r}: cannot stand in a path; name the row by a filter: select(), patch_where(), delete_where()"
        )
    return f"{collection_path(table)}/{encoded}"


def canonical(resource: str) -> str:
    """Spell a resource name as `resource_of` does, so that one row has one name within this client."""
    table, slash, key = resource.partition("/")
    if not slash:
        return resource
    return resource_of(unquote(table), tuple(unquote(value) for value in key.split(",")))


def _encode(value: Scalar) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | UUID):
        raise TypeError(f"key value {value!r}: a key is made of str, int or UUID")
    return quote(str(value), safe="")
