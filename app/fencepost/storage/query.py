"""What a request asks of a table, parsed but not yet SQL: PostgREST's filters, select and order as values."""

from dataclasses import dataclass, field
from typing import Literal

Operator = Literal["eq", "neq", "gt", "gte", "lt", "lte", "like", "ilike", "in", "is"]


@dataclass(frozen=True, slots=True)
class JsonStep:
    """One `->key` or `->>key` of a JSON path; a key of digits addresses an array's element."""

    key: str
    as_text: bool


@dataclass(frozen=True, slots=True)
class Field:
    """A column, or a place inside a JSON column."""

    column: str
    path: tuple[JsonStep, ...] = ()


@dataclass(frozen=True, slots=True)
class Condition:
    """`column=operator.value`. `value` is a tuple for `in` only; for `is` it is null, not_null, true, false, unknown."""

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


@dataclass(frozen=True, slots=True)
class OrderTerm:
    """One item of `order`: `column.desc.nullslast`."""

    field: Field
    descending: bool = False
    nulls: Literal["first", "last"] | None = None


@dataclass(frozen=True, slots=True)
class Query:
    """All that a query string can say. `select` None means every column; filters are joined by AND."""

    select: tuple[Selected | Literal["*"], ...] | None = None
    filters: tuple[Filter, ...] = ()
    order: tuple[OrderTerm, ...] = ()
    limit: int | None = None
    offset: int = 0
    columns: tuple[str, ...] | None = field(default=None)
    """`?columns=a,b`: which keys of the body count (PostgREST)."""


class QueryError(ValueError):
    """The query cannot be understood. The message names the parameter and what is wrong with it."""
