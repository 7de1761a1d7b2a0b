"""Which lines of a batch must wait for which, as far as the picture of the tables tells.

A line has a place: its row, or its scope, where that is known without a database; else it is one of all rows of its
table. The latter goes alone among the lines of the table. So it is with

- filters, arrays, a POST that does not name its key, and names that only PostgreSQL can tell (naming.py);
- tables with triggers or defaults of others' making, which may write to any row; and those of which a foreign key leads
  from rows to others of them.

Tables that foreign keys or a scope join, over others too, are one group: of a group, lines of one table wait for those
of another. The tables of a scope's template count as one table.
"""

from collections.abc import Hashable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from fencepost.server.fence.resource import Resource
from fencepost.server.gateway.writes.keys import needs_fitting
from fencepost.server.gateway.writes.naming import is_spelled_so
from fencepost.server.gateway.writes.write import OneRow, Write
from fencepost.server.postgres.row_sql import Key
from fencepost.server.postgres.tables import Catalog, ProtectedTable, Table, is_canonical


@dataclass(slots=True)
class Place:
    """Lines of one group wait for each other, unless they are of one unit and name two rows of it."""

    group: Hashable
    unit: Hashable
    """A table, or the tables that share a scope's template."""
    row: Hashable | None
    """A row of the table, or a scope of the template; None: any of them."""


_UNKNOWN: Final = Place(None, None, None)
"""Of all tables that the picture does not have. They are refused, or there since a moment, maybe by two names."""


def units_of(catalog: Catalog) -> AbstractSet[Hashable]:
    """List the units of a picture: in another one, rows of the same unit are named alike."""
    return {_unit_of(table) for table in catalog.tables.values() if table.fence}


def place_of(catalog: Catalog, write: Write) -> Place:
    """Find the place of a write."""
    table = catalog.find(write.table)
    if not isinstance(table, ProtectedTable):
        return _UNKNOWN
    row: Hashable | None = None
    if isinstance(write.target, OneRow):
        row = _row_of_key(table, write.target.key)
    elif write.single:
        given = {name: write.body.values.get(name) for name in write.body.columns}
        row = _row_of_values(table, given)
    return _place(catalog, table, row)


def place_of_claim(catalog: Catalog, resource: Resource) -> Place:
    """Find the place of a claim."""
    table = catalog.find_or_scope(resource.table)
    if not isinstance(table, ProtectedTable):
        return _UNKNOWN
    row = _named(table, resource.key) if resource.table == table.fence.prefix else _row_of_key(table, resource.key)
    return _place(catalog, table, row)


def _place(catalog: Catalog, table: ProtectedTable, row: Hashable | None) -> Place:
    unit = _unit_of(table)
    of_unit: tuple[Table, ...] = catalog.scopes[unit] if isinstance(unit, str) else (table,)
    if row is not None:
        oids = tuple(each.oid for each in of_unit)
        row = None if any(each.kept(_goes_alone, oids) for each in of_unit) else row
    return Place(catalog.related[table.oid], unit, row)


def _unit_of(table: Table) -> int | str:
    """Give the table's oid, or the prefix of its scope's template."""
    scope = table.fence.scope if table.fence is not None else None
    return table.oid if scope is None else scope.prefix


def _naming(table: ProtectedTable) -> tuple[str, ...]:
    """List the columns whose values name what the table's marks judge."""
    return table.key if table.fence.scope is None else table.fence.scope.columns


def _goes_alone(table: Table, of_unit: tuple[int, ...]) -> bool:
    """Whether a line to a table has its unit to itself, the tables of these oids."""
    within = not table.refers.isdisjoint(of_unit)
    return within or not table.shares_transactions or (table.fence is not None and table.fence.deletes_own_rows)


def _row_of_key(table: ProtectedTable, key: Key) -> Hashable | None:
    columns = _naming(table)
    if len(key) != len(table.key) or needs_fitting(table, key) or not set(columns) <= set(table.key):
        return None
    return _named(table, tuple(key[table.key.index(column)] for column in columns))


def _row_of_values(table: ProtectedTable, given: Mapping[str, object]) -> Hashable | None:
    """Find the row, or the scope, that a body names."""
    values = [given.get(column) for column in _naming(table)]
    if not values or not all(is_spelled_so(value) for value in values):
        return None
    return _named(table, tuple(str(value) for value in values))


def _named(table: ProtectedTable, values: Key) -> Hashable | None:
    """Find the row, or the scope, that these values name; none where they may be stored as others."""
    columns = _naming(table)
    if len(values) != len(columns) or not is_canonical(table, values, columns):
        return None
    too_long = (
        most is not None and len(value) > most
        for most, value in zip((table.columns[name].max_length for name in columns), values, strict=True)
    )
    return None if any(too_long) else values
