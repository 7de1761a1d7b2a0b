"""The query and path parameters of a table: one typed entry per column."""

from typing import Any, Final, get_args

from fencepost.server.http.openapi.examples import example_changes, key_text
from fencepost.server.http.openapi.types import Schema, describe, element_schema
from fencepost.server.postgres.query import Operator
from fencepost.server.postgres.tables import Column, Table

Part = dict[str, Any]

# Parameters with a meaning of their own; a column of such a name cannot be filtered.
RESERVED: Final = frozenset({"select", "order", "limit", "offset", "and", "or", "not.and", "not.or", "columns"})

_OPERATORS: Final = "|".join(get_args(Operator))
_FILTER: Final = rf"^(not\.)?({_OPERATORS})\."


def select(table: Table, *, writing: bool = False) -> Part:
    """Describe `select`. The answer of a write takes no JSON paths."""
    names = [name for name in table.visible if name.isidentifier()]
    paths = "" if writing else ", `json_column->key`, `json_column->>key`"
    return _query(
        "select",
        f"Columns to return, joined by `,`: `alias:column`, `column::text`{paths}. Without it: all of them.",
        {"type": "string", "examples": [",".join(names[:2]) or "*"]},
    )


def columns() -> Part:
    """Describe `columns` of an insert, or of a PATCH of rows that are named."""
    return _query(
        "columns",
        "Which keys of the body count, joined by `,`; without it all rows must have the same keys.",
        {"type": "string"},
    )


def paging(table: Table) -> list[Part]:
    """Describe `order`, `limit` and `offset`."""
    first = next((name for name in (*table.key, *table.visible) if name.isidentifier()), None)
    order: Schema = {"type": "string"} | ({"examples": [f"{first}.desc"]} if first else {})
    return [
        _query("order", "Columns to sort by, joined by `,`: `column.desc.nullslast`.", order),
        _query("limit", "At most so many rows.", {"type": "integer", "minimum": 0, "examples": [20]}),
        _query("offset", "Leave out so many rows first.", {"type": "integer", "minimum": 0, "examples": [0]}),
    ]


def filters(table: Table, *, prefill: bool = False) -> list[Part]:
    """Describe a filter per column, and `and` and `or`. `prefill` fills in the example's key."""
    parameters = []
    for name in table.visible:
        if name in RESERVED:
            continue
        column = table.columns[name]
        value = key_text(table, name)
        examples = _examples(column, value)
        shown = ", ".join(f"`{example}`" for example in examples)
        parameter = _query(
            name,
            " · ".join(filter(None, (column.comment, f"`{column.type}`, such as {shown}"))),
            {"type": "string", "pattern": _FILTER, "examples": examples},
        )
        if prefill and name in table.key:
            parameter["example"] = f"eq.{value}"
        parameters.append(parameter)
    changed = next(iter(example_changes(table)), None) or next(iter(table.visible), "a")
    group = f"({changed}.is.null,{changed}.not.is.null)"
    return [
        *parameters,
        _query(
            "and",
            f"All of these: `{group}`.",
            {"type": "string", "pattern": r"^\(.+\)$", "examples": [group]},
        ),
        _query("or", f"Any of these: `{group}`.", {"type": "string", "pattern": r"^\(.+\)$", "examples": [group]}),
    ]


def key_parameters(table: Table) -> list[Part]:
    """Describe the primary key's values, in its column order, as they stand in the path."""
    used: set[str] = set()
    parameters = []
    for name in table.key:
        column = table.columns[name]
        description = describe(column)
        if len(table.key) > 1:
            description += " · Part of the key: its values are joined by `,`, each percent-encoded."
        parameters.append(
            {
                "name": _path_name(name, used),
                "in": "path",
                "required": True,
                "description": description,
                "schema": _path_schema(column),
                "example": _typed(column, key_text(table, name)),
            }
        )
    return parameters


def _query(name: str, description: str, schema: Schema) -> Part:
    return {"name": name, "in": "query", "description": description, "schema": schema}


_ORDERED: Final = frozenset({"int2", "int4", "int8", "numeric", "float4", "float8", "date", "timestamp", "timestamptz"})


def _examples(column: Column, value: str) -> list[str]:
    """Make filters that make sense for the type, the plainest first."""
    if column.is_array or column.base_name in ("json", "jsonb"):
        return ["is.null", "not.is.null"]
    if column.base_name in _ORDERED:
        return [f"eq.{value}", f"gte.{value}", *(["is.null"] if column.nullable else [])]
    listed = ",".join(_list_element(text) for text in (column.enum_labels[:3] or (value,)))
    return [f"eq.{value}", f"not.in.({listed})", *(["is.null"] if column.nullable else [])]


def _list_element(text: str) -> str:
    """Write a value of `in.(…)`: quoted when it holds what would end it."""
    if text and not set(text) & set(' ,()".:\\'):
        return text
    return '"' + text.replace("\\", r"\\").replace('"', r"\"") + '"'


def _path_schema(column: Column) -> Schema:
    """Describe a key value in a path. An empty one, `.` and `..` cannot stand there: filters take them."""
    schema = element_schema(column)
    if schema.get("type") == "string":
        return schema | ({} if "enum" in schema or "format" in schema else {"minLength": 1})
    if schema.get("type") in ("integer", "boolean"):
        return schema
    return {"type": "string", "minLength": 1}


def _typed(column: Column, text: str) -> int | bool | str:
    kind = element_schema(column).get("type")
    if kind == "integer":
        return int(text)
    return text == "true" if kind == "boolean" else text


def _path_name(name: str, used: set[str]) -> str:
    """Name a path parameter after its column; what would break the template is replaced."""
    plain = "".join(c if c.isalnum() or c in "_-" else "_" for c in name)
    while plain in used:
        plain += "_"
    used.add(plain)
    return plain
