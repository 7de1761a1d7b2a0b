"""PostgreSQL's types as JSON Schema: what a column's value looks like in a body and in an answer.

Answers are what PostgreSQL's `row_to_json` writes, and that decides the cases which surprise: a `numeric` or
`float8` is a number, but NaN and the infinities are strings, since JSON has no such numbers; `oid`, `money`
and `interval` are strings; a type of the user's own may have a cast to JSON, so little is promised of it.
"""

import json
import re
from collections.abc import Callable
from typing import Any, Final

from fencepost.server.postgres.tables import Column

Schema = dict[str, Any]

_NUMBER: Final[Schema] = {"type": ["number", "string"], "pattern": "^(NaN|-?Infinity)$"}


def _integer(bits: int) -> Schema:
    limit = 2 ** (bits - 1)
    return {"type": "integer", "format": f"int{bits}", "minimum": -limit, "maximum": limit - 1}


_SCALARS: Final[dict[str, Schema]] = {
    "int2": _integer(16),
    "int4": _integer(32),
    "int8": _integer(64),
    "numeric": _NUMBER,
    "float4": _NUMBER,
    "float8": _NUMBER,
    "bool": {"type": "boolean"},
    "uuid": {"type": "string", "format": "uuid"},
    "date": {"type": "string", "format": "date"},
    "timestamptz": {"type": "string", "format": "date-time"},
    "bytea": {"type": "string", "pattern": r"^\\x([0-9A-Fa-f]{2})*$"},
    "json": {},
    "jsonb": {},
}

_NOTES: Final[dict[str, str]] = {
    "int8": "past 2^53 JavaScript rounds it",
    "date": "PostgreSQL also knows `infinity` and `-infinity`",
    "timestamptz": "answered in UTC; PostgreSQL also knows `infinity` and `-infinity`",
    "bytea": r"hexadecimal, as `\x0aff`",
}

# Types of PostgreSQL's own that `row_to_json` writes as strings.
_STRINGS: Final = frozenset(
    {"text", "varchar", "bpchar", "char", "name", "citext", "xml", "jsonpath", "ltree", "lquery", "vector"}
    | {
        "time",
        "timetz",
        "timestamp",
        "interval",
        "money",
        "bit",
        "varbit",
        "inet",
        "cidr",
        "macaddr",
        "macaddr8",
    }
    | {"point", "line", "lseg", "box", "path", "polygon", "circle", "tsvector", "tsquery"}
    | {
        "oid",
        "xid",
        "xid8",
        "cid",
        "tid",
        "pg_lsn",
        "regclass",
        "regtype",
        "regproc",
        "regprocedure",
        "regoper",
    }
    | {"regoperator", "regrole", "regnamespace", "regconfig", "regdictionary", "regcollation"}
    | {"int4range", "int8range", "numrange", "tsrange", "tstzrange", "daterange", "int4multirange"}
    | {"int8multirange", "nummultirange", "tsmultirange", "tstzmultirange", "datemultirange"}
)


def value_schema(column: Column) -> Schema:
    """Describe a column's values, null included where the column takes it."""
    schema = element_schema(column)
    if column.is_array:
        # PostgreSQL's array types do not declare how many dimensions their values have.
        schema = {"type": "array", "items": {"anyOf": [_with_null(schema), {"type": "array"}]}}
    return _with_null(schema) if column.nullable else schema


def element_schema(column: Column) -> Schema:
    """Describe one value, or one element of an array, without null."""
    if column.enum_labels:
        return {"type": "string", "enum": list(column.enum_labels)}
    name = column.base_name.removeprefix("_")
    known = _SCALARS.get(name)
    if known is not None:
        return dict(known)
    if name not in _STRINGS:
        # A composite is an object; an extension's type is a string, or what its cast to JSON gives.
        return {"type": ["string", "object"]}
    return {"type": "string"} | ({"maxLength": column.max_length} if column.max_length else {})


def column_schema(column: Column) -> Schema:
    """Describe a column as a property: its values, its comment, type and default."""
    schema = value_schema(column) | {"description": describe(column)} | _default(column)
    if not writable(column):
        schema["readOnly"] = True
    return schema


def describe(column: Column) -> str:
    """Describe a column: its comment, then its type and default as SQL writes them."""
    facts = [f"`{column.type}`"]
    if note := _NOTES.get(column.base_name):
        facts.append(note)
    if column.generated:
        facts.append("generated" + (f" as `{column.default}`" if column.default else ""))
    elif column.identity:
        facts.append(f"identity, generated {column.identity}")
    elif column.default is not None:
        facts.append(f"default `{column.default}`")
    return " · ".join(filter(None, (column.comment, ", ".join(facts))))


def writable(column: Column) -> bool:
    """Return whether a request may set the column at all."""
    return not column.generated and column.identity != "always"


def is_required(column: Column) -> bool:
    """Return whether an insert must name the column: NOT NULL, and nothing else gives it a value."""
    return writable(column) and not column.nullable and column.default is None and not column.identity


def _with_null(schema: Schema) -> Schema:
    """Allow null, in the way of OpenAPI 3.1; an empty schema allows it already."""
    if "type" not in schema:
        return schema
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    enum = {"enum": [*schema["enum"], None]} if "enum" in schema else {}
    return schema | {"type": [*kinds, "null"]} | enum


# A default that is one literal, perhaps with one cast: 'new'::text, 0, '-1'::integer, true. Anything that
# computes has an operator, a call or a second cast in it, and is shown in the description only.
_LITERAL: Final = re.compile(
    r"""\(?(?: '(?P<quoted>(?:[^']|'')*)' | (?P<bare>-?\d+(?:\.\d+)?|true|false) )\)?(?:::[\w\s."(),]+)?""",
    re.VERBOSE,
)


def _number(text: str) -> Any:
    """Read a number; NaN and the infinities stay text, as `row_to_json` writes them."""
    return json.loads(text, parse_constant=str)


_DEFAULT_READERS: Final[dict[str, Callable[[str], Any]]] = {
    "int2": int,
    "int4": int,
    "int8": int,
    "numeric": _number,
    "float4": _number,
    "float8": _number,
    "bool": lambda text: {"true": True, "false": False, "t": True, "f": False}[text],
    "json": json.loads,
    "jsonb": json.loads,
    "uuid": str,
    "date": str,
    "text": str,
    "varchar": str,
    "bpchar": str,
    "citext": str,
}


def _default(column: Column) -> Schema:
    """Give `default` when the column's default is a literal that JSON can write, else nothing."""
    match = _LITERAL.fullmatch(column.default) if column.default and not column.generated else None
    reader = str if column.enum_labels and not column.is_array else _DEFAULT_READERS.get(column.base_name)
    if match is None or reader is None:
        return {}
    quoted = match["quoted"]
    try:
        return {"default": reader(match["bare"] if quoted is None else quoted.replace("''", "'"))}
    except (ValueError, KeyError):
        return {}
