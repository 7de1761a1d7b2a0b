"""What a request gives, as a source that statements join with: rows by their keys, a JSON object, or the elements of a
JSON array. Here alone a body becomes the values of columns.

JSON has one null. json_to_record reads it as SQL's, and so does a nullable column; a json or jsonb column that cannot
have that takes JSON's: else a row that has it could not be sent back as it came. A member that is not there stays SQL's
null, which such a column refuses.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from fencepost.server.postgres.statements.parameters import BODY, Key, Parameter
from fencepost.server.postgres.statements.row_sql import ELEMENT, ORDINAL, literal, operator, resource_sql
from fencepost.server.postgres.tables.catalog import Column, Table, quote

JSON_TYPES: Final = frozenset({"json", "jsonb"})


@dataclass(frozen=True, slots=True)
class Given:
    """`source` stands in a FROM; `values` are the SQL of the columns that it gives, typed as in the table."""

    source: str
    values: Mapping[str, str]
    place: str
    """The SQL of its number, from 1."""

    def match(self, table: Table) -> str:
        """Match the table's row `r` that has the key."""
        return " AND ".join(f"r.{quote(c)} {operator(table.columns[c], '=')} {self.values[c]}" for c in table.key)

    def resource(self, table: Table, prefix: str) -> str:
        """Name the resource with the key; null where a part of the key has no value."""
        return resource_sql(prefix, [(table.columns[c].base_name, self.values[c]) for c in table.key])

    def key_order(self, table: Table) -> str:
        """Order by the key as the table's own columns would: values from elsewhere have the database's collation."""
        ordered = []
        for column in table.key:
            collation = table.columns[column].collation
            ordered.append(self.values[column] + ("" if collation is None else f" COLLATE {collation}"))
        return ", ".join([*ordered, self.place])


@cache
def key_texts(position: int) -> Parameter[Sequence[Key]]:
    """Give the parameter for a column of several keys, counted from 0: an array of texts."""
    return Parameter(f"keys {position}", "text[]", lambda keys: [key[position] for key in keys])


@dataclass(frozen=True, slots=True)
class Unnested:
    """Arrays of texts side by side, as rows of `x`."""

    source: str
    texts: tuple[str, ...]
    """The SQL of each array's element."""
    place: str = "x.o"
    """The SQL of the row's number, from 1."""


def unnested(arrays: Sequence[Parameter[Any]]) -> Unnested:
    """Give the rows of arrays of equal lengths."""
    names = [f"k{n}" for n, _ in enumerate(arrays)]
    called = ", ".join(f"pg_catalog.unnest({array})" for array in arrays)
    source = f"ROWS FROM ({called}) WITH ORDINALITY AS x({', '.join([*names, 'o'])})"
    return Unnested(source, tuple(f"x.{name}" for name in names))


def keys(table: Table) -> Given:
    """Give rows by their keys; run for a sequence of keys."""
    rows = unnested([key_texts(n) for n, _ in enumerate(table.key)])
    return Given(rows.source, typed(table, rows.texts), rows.place)


def typed(table: Table, texts: Sequence[str]) -> dict[str, str]:
    """Cast the texts of a key to its columns' types."""
    return {c: f"CAST({text} AS {table.columns[c].base_type})" for c, text in zip(table.key, texts, strict=True)}


def record(table: Table, columns: Sequence[str], body: object = BODY) -> Given:
    """Give a body, a JSON object, as the row `b`; nothing to join with where no column is given."""
    source = (
        f"json_to_record({body_json(table, columns, body)}) AS b({body_columns(table, columns)})" if columns else ""
    )
    return Given(source, {c: body_value(table, c, f"b.{quote(c)}", body) for c in columns}, "1")


def elements(table: Table, columns: Sequence[str]) -> Given:
    """Give the elements of the body, a JSON array, as rows of `b`."""
    names = [quote(c) for c in columns] or ["ignored"]
    function = f"json_to_recordset({body_json(table, columns, BODY)}) AS ({body_columns(table, columns)})"
    if any(takes_json_null(table.columns[c]) for c in columns):
        names.append(ELEMENT)
        function += f", json_array_elements({BODY})"
    function = f"ROWS FROM ({function})" if columns else f"json_array_elements({BODY})"
    source = f"{function} WITH ORDINALITY AS b({', '.join(names)}, {ORDINAL})"
    values = {c: body_value(table, c, f"b.{quote(c)}", f"b.{ELEMENT}") for c in columns}
    return Given(source, values, f"b.{ORDINAL}")


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
