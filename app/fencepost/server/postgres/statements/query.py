"""What a request asks of a table, parsed but not yet SQL: PostgREST's filters, select and order as values."""

import re
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

Operator = Literal["eq", "neq", "isdistinct", "gt", "gte", "lt", "lte", "like", "ilike", "in", "is"]
PATTERNS: Final[frozenset[Operator]] = frozenset({"like", "ilike"})
"""Operators that look for a pattern in the whole of a value; PostgreSQL decides which types have them."""
CAST: Final = frozenset(get_args(Operator)) - PATTERNS - {"is"}
"""Operators whose values are cast to the type of the column."""

_WORDS = "[A-Za-z_][A-Za-z0-9_]*(?: [A-Za-z_][A-Za-z0-9_]*)*"
CAST_TYPE = re.compile(
    rf"(?:[A-Za-z_][A-Za-z0-9_]*\.)?{_WORDS}"  # int, double precision, sales.mood
    rf"(?:\([0-9]{{1,4}}(?:, ?[0-9]{{1,4}})?\)(?: {_WORDS})?)?"  # numeric(10,2), timestamp(3) with time zone
    r"(?:\[\])?",
)
"""Type names that `select=column::type` may use: the one piece of SQL that a request spells itself."""


@dataclass(frozen=True, slots=True)
class JsonStep:
    """One `->key` or `->>key` of a JSON path; an int is an array index, from the end when negative."""

    key: str | int
    as_text: bool


@dataclass(frozen=True, slots=True)
class Field:
    """A column, or a place inside a JSON column."""

    column: str
    path: tuple[JsonStep, ...] = ()


@dataclass(frozen=True, slots=True)
class Condition:
    """`column=operator.value`, possibly `not.`.

    `value` is a tuple for `in` only; for `is` it is null, not_null, true, false or unknown; for `like` and
    `ilike` it is what the client wrote: `*` still stands for `%`.
    """

    field: Field
    operator: Operator
    value: str | tuple[str, ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """`and=(…)`, `or=(…)`, possibly `not.`."""

    operator: Literal["and", "or"]
    members: tuple["Filter", ...]
    negated: bool = False


Filter = Condition | Group


@dataclass(frozen=True, slots=True)
class Selected:
    """One item of `select`: `alias:column->path::type`."""

    field: Field
    alias: str | None = None
    cast: str | None = None


Select = tuple[Selected | Literal["*"], ...] | None
"""Items of `select`; None is all columns."""


@dataclass(frozen=True, slots=True)
class OrderTerm:
    """One item of `order`: `column.desc.nullslast`."""

    field: Field
    descending: bool = False
    nulls: Literal["first", "last"] | None = None


@dataclass(frozen=True, slots=True)
class Query:
    """All that a query string can ask for. `select` None means every column; filters are joined by AND."""

    select: Select = None
    filters: tuple[Filter, ...] = ()
    order: tuple[OrderTerm, ...] = ()
    limit: int | None = None
    offset: int = 0
    columns: tuple[str, ...] | None = field(default=None)
    """`?columns=a,b`: which keys of the body count (PostgREST)."""


NO_QUERY = Query()


class QueryError(ValueError):
    """The query cannot be understood. The message names the parameter and what is wrong with it."""


class OtherKeyError(QueryError):
    """A key is none of the table's, or the body contradicts it; or the table has another key by now."""


class UnknownColumnError(QueryError):
    """The table has no such column, or has not had it when the catalog was read: worth one reload."""

    def __init__(self, column: str, table: str) -> None:
        self.column = column
        self.table = table
        super().__init__(f"{column}: no such column in {table}")
