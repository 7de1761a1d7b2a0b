"""Parts of the OpenAPI document that are made from the catalog: types, examples, parameters."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, get_args

from fencepost.server.fence.seal import LONGEST_SEALED
from fencepost.server.http.headers import PREFERENCES, Route, spellings
from fencepost.server.postgres.query import Operator
from fencepost.server.postgres.tables import MARK_COLUMN, Column, Table

# PostgreSQL's types as JSON Schema: what a column's value looks like in a body and in an answer.
#
# Answers are what PostgreSQL's `row_to_json` writes, and that decides the cases which surprise: a `numeric` or
# `float8` is a number, but NaN and the infinities are strings, since JSON has no such numbers; `oid`, `money`
# and `interval` are strings; a type of the user's own may have a cast to JSON, so little is promised of it.

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


# Example values, rows and keys: what "Try it out" is filled with.
#
# They are made from names and types alone, so that the document never shows stored data. For the demo table
# `orders` they come out as `order-123`, its real row.

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


# The parameters that every table's routes share.

Part = dict[str, Any]

TOKEN_PATTERN: Final = (
    r"^[1-9][0-9]{0,18}"  # noqa: S105 - what one looks like
    r"(\.[A-Za-z0-9_-]{1,32}\.[A-Za-z0-9_-]{2,}\.[A-Za-z0-9_-]{43})?$"
)
"""A number, and the seal that it may have."""
IDEMPOTENCY_KEY: Final = (
    "A name of your own for this write, new for each: for example a UUID, quoted or bare. Repeat the request with "
    "it when its answer was lost: it is done once, and answered as it was then."
)
IDEMPOTENCY_KEY_PATTERN: Final = r'^([!#-~]{1,255}|"([ !#-\[\]-~]|\\["\\]){1,255}")$'
IF_MATCH_PATTERN: Final = r'^(\*|"(0|[1-9][0-9]{0,18})"( *, *"(0|[1-9][0-9]{0,18})")*)$'

PARAMETERS: Final[dict[str, Part]] = {
    "FenceToken": {
        "name": "X-Fence-Token",
        "in": "header",
        "required": True,
        "description": "The fencing token that your lock service gave with the grant: a positive integer "
        "of at most 9223372036854775807. Newer grants have larger ones. Where it is sealed: with its seal, whole, as "
        "`sealed_token` of the lease has it.",
        "schema": {"type": "string", "pattern": TOKEN_PATTERN, "maxLength": LONGEST_SEALED},
        "example": "34",
    },
    "IdempotencyKey": {
        "name": "Idempotency-Key",
        "in": "header",
        "description": IDEMPOTENCY_KEY,
        # No example: "Try it out" would send it with every write, and be answered from the first.
        "schema": {"type": "string", "pattern": IDEMPOTENCY_KEY_PATTERN},
    },
    "IfMatch": {
        "name": "If-Match",
        "in": "header",
        "description": "The row's `ETag`, as a GET gave it, or several: the write is done only if the row has the mark "
        "that one of them names. `*`: only if the row is there. Else the answer is 412.",
        "schema": {"type": "string", "pattern": IF_MATCH_PATTERN},
    },
    "IfNoneMatch": {
        "name": "If-None-Match",
        "in": "header",
        "description": "The `ETag` of the row that the client has: 304 without a body, if it is that still.",
        "schema": {"type": "string", "pattern": "^[ -~]*$"},
    },
    "RequestId": {
        "name": "X-Request-Id",
        "in": "header",
        "description": "A name for this request in the gateway's log; made up when absent.",
        "schema": {"type": "string", "pattern": "^[!-~]{1,128}$"},
    },
}


def parameter(name: str) -> Part:
    """Refer to a shared parameter."""
    return {"$ref": f"#/components/parameters/{name}"}


# The header `Prefer` in the document: for each kind of route, all that http/headers.py honours there.


def _prefer_parameter(route: Route) -> Part:
    """Describe the header on one kind of route."""
    effects = [each.effect for each in PREFERENCES if route in each.routes]
    return {
        "name": "Prefer",
        "in": "header",
        "description": " ".join([*effects, "Several are joined by commas. Any other preference is refused."]),
        "schema": {"type": "string", "enum": list(spellings(route))},
    }


PREFER: Final[dict[str, Part]] = {f"Prefer.{route}": _prefer_parameter(route) for route in get_args(Route)}
"""Parameters by the names of their components."""


def prefer(route: Route) -> Part:
    """Refer to the parameter of one kind of route."""
    return {"$ref": f"#/components/parameters/Prefer.{route}"}


# The query and path parameters of a table: one typed entry per column.

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
