"""A request's query: as values, and as SQL, with identifiers quoted and from the catalog, and values bound as text."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, assert_never, get_args

from fencepost.server.postgres.connection import Bound
from fencepost.server.postgres.row_sql import of_types, operator, or_outdated
from fencepost.server.postgres.tables import MARK_COLUMN, Column, Table, quote

# What a request asks of a table, parsed but not yet SQL: PostgREST's filters, select and order as values.

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


# Which types `select=column::type` may name: those of a list, and the types of the table's own columns.
#
# The name of a type is SQL that a request spells itself, and a cast runs code of the type's. Some say what the gateway
# does not serve (`regclass` and its like: names of the catalog), some fail in ways of their own (`unknown`,
# pseudo-types), some pad a value to any length (`char(9999)`).

MOST_LENGTH: Final = 255
"""The largest number in brackets after a type: char(255), numeric(255,10)."""
_NAMES: Final = frozenset(
    {
        *("text", "varchar", "character varying", "char", "character", "bpchar", "bytea", "uuid", "json", "jsonb"),
        *("smallint", "integer", "int", "bigint", "int2", "int4", "int8", "numeric", "decimal"),
        *("real", "double precision", "float", "float4", "float8", "boolean", "bool"),
        *("date", "interval", "time", "timetz", "timestamp", "timestamptz"),
        *("time with time zone", "time without time zone", "timestamp with time zone", "timestamp without time zone"),
        *("inet", "cidr", "macaddr", "macaddr8", "bit", "bit varying", "varbit", "money"),
    }
)
_BOUNDED: Final = _NAMES - {"jsonb"}
"""Types of which a value is at most one number."""
_MODIFIER: Final = re.compile(r"\(([0-9, ]+)\)")


def cast_type(table: Table, given: str) -> str:
    """Give the SQL of a type that a value may be cast to. Raises QueryError."""
    if not CAST_TYPE.fullmatch(given):
        raise QueryError(f"select: {given!r} is no type's name")
    modifier, name = _MODIFIER.search(given), _name(given)
    if modifier and any(int(number) > MOST_LENGTH for number in modifier[1].split(",")):
        raise QueryError(f"select: ::{given}: the numbers in brackets are {MOST_LENGTH} at most")
    if name in _NAMES:
        return given
    for column in table.columns.values():
        for of_table in (column.type, column.base_type):
            own = of_table.removesuffix("[]")
            if not modifier and name in (own.lower(), own.lower().rpartition(".")[2]):
                return f"{own}[]" if given.endswith("[]") else own
    raise QueryError(
        f"select: nothing can be cast to {given} here: to text, numbers, times, json and their like, and to the types"
        f" of the columns of {table.name}"
    )


def may_expand(given: str) -> bool:
    """Whether a short text that is cast to this type may become a long one, because the type may have any number of
    numbers: `[1e131071,1e131071]` has 262,144 digits as a jsonb.
    """
    return given.endswith("[]") or _name(given) not in _BOUNDED


def _name(given: str) -> str:
    name = _MODIFIER.sub("", given).removesuffix("[]").strip().lower().removeprefix("pg_catalog.")
    return " ".join(name.split())


# A Query as SQL: identifiers quoted and from the catalog, values bound as text.
#
# Each value is cast to the type of the column, never the column to the value's: so an index on the column
# serves the filter, and a value that is none of that type is PostgreSQL's own refusal (22P02). What each
# operator renders to follows PostgREST (src/PostgREST/Query/SqlFragment.hs).

# PostgreSQL's own limits: of a target list (1664, less some room), and of a name (it would cut it silently).
_MAX_TARGETS = 1600
_MAX_NAME_BYTES = 63

_COMPARISONS = {"eq": "=", "neq": "<>", "gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_PATTERNS = {"like": "~~", "ilike": "~~*"}
"""What LIKE and ILIKE stand for."""
_IS = {"null": "NULL", "not_null": "NOT NULL", "true": "TRUE", "false": "FALSE", "unknown": "UNKNOWN"}


def render_filters(table: Table, filters: Sequence[Filter], bound: Bound, alias: str = "r") -> str:
    """Render the filters, joined by AND, to stand in a WHERE beside other terms of an AND; none are `true`. Where a
    column has another type than its values are cast to, the statement raises FP000.

    Raise UnknownColumnError for a column that the table does not have.
    """
    terms = [_filter(table, each, bound, alias) for each in filters]
    cast = dict.fromkeys(name for each in filters for name in _cast(each))
    # A foreign server is not asked to sort or to count where there is a term that it cannot read itself.
    if cast and table.kind != "foreign table":
        terms.append(or_outdated(table.name, of_types(table, cast)))
    return " AND ".join(terms) or "true"


def _cast(filter_: Filter) -> Iterator[str]:
    """List the columns with whose types values are compared."""
    if isinstance(filter_, Condition):
        if not filter_.field.path and filter_.operator in CAST:
            yield filter_.field.column
        return
    for member in filter_.members:
        yield from _cast(member)


def render_order(table: Table, order: Sequence[OrderTerm], bound: Bound, alias: str = "r") -> str:
    """Render what follows ORDER BY; empty for no order. Raise UnknownColumnError."""
    terms = []
    for term in order:
        sql, _ = _operand(table, term.field, bound, alias)
        direction = " DESC" if term.descending else ""
        nulls = f" NULLS {term.nulls.upper()}" if term.nulls else ""
        terms.append(sql + direction + nulls)
    return ", ".join(terms)


def render_select(
    table: Table,
    select: Sequence[Selected | Literal["*"]] | None,
    bound: Bound,
    alias: str = "r",
) -> str:
    """Render the target list; None is `*`: all columns but the mark. Raise UnknownColumnError, QueryError."""
    targets: list[str] = []
    for item in ("*",) if select is None else select:
        if isinstance(item, Selected):
            targets.append(_target(table, item, bound, alias))
        else:
            targets += [f"{alias}.{quote(name)}" for name in table.visible]
    if len(targets) > _MAX_TARGETS:
        raise QueryError(f"select: {len(targets)} columns, at most {_MAX_TARGETS}")
    return ", ".join(targets)


def _column(table: Table, name: str) -> Column:
    try:
        return table.columns[name]
    except KeyError:
        raise UnknownColumnError(name, table.name) from None


def _operand(table: Table, field: Field, bound: Bound, alias: str) -> tuple[str, str]:
    """Render a column or a place inside it. Return the SQL, and the type that a value compared is cast to."""
    column = _column(table, field.column)
    sql, type_ = f"{alias}.{quote(column.name)}", column.base_type
    if not field.path:
        return sql, type_
    if not column.takes_path:
        raise QueryError(f"{column.name}: it is {column.type}, into which no JSON path leads")
    if column.base_name not in {"json", "jsonb"}:
        # As in PostgREST: a path leads into arrays and composites too.
        sql, type_ = f"pg_catalog.to_jsonb({sql})", "jsonb"
    for step in field.path:
        key = bound.add(str(step.key))
        arrow = "->>" if step.as_text else "->"
        sql += f" OPERATOR(pg_catalog.{arrow}) " + (f"CAST({key} AS integer)" if isinstance(step.key, int) else key)
    return f"({sql})", "text" if field.path[-1].as_text else type_


def _is_enum_domain(column: Column) -> bool:
    return bool(column.enum_labels) and column.type != column.base_type


def _filter(table: Table, filter_: Filter, bound: Bound, alias: str) -> str:
    if isinstance(filter_, Condition):
        sql = _condition(table, filter_, bound, alias)
        return f"NOT ({sql})" if filter_.negated else sql
    members = [_filter(table, member, bound, alias) for member in filter_.members]
    return ("NOT (" if filter_.negated else "(") + f" {filter_.operator.upper()} ".join(members) + ")"


def _condition(table: Table, condition: Condition, bound: Bound, alias: str) -> str:
    operand, type_ = _operand(table, condition.field, bound, alias)
    if not condition.field.path and _is_enum_domain(table.columns[condition.field.column]):
        # `domain = enum` has no operator, unlike other domains; the cast costs nothing and keeps the index.
        operand = f"CAST({operand} AS {type_})"
    value = condition.value
    if isinstance(value, tuple):
        if condition.operator != "in":
            raise QueryError(f"{condition.field.column}: {condition.operator} takes one value")
        return _in(operand, _symbol(table, condition.field, "="), type_, value, bound)
    match condition.operator:
        case "eq" | "neq" | "gt" | "gte" | "lt" | "lte":
            compares = _symbol(table, condition.field, _COMPARISONS[condition.operator])
            return f"{operand} {compares} CAST({bound.add(value)} AS {type_})"
        case "isdistinct":
            # IS DISTINCT FROM would take whatever operator = the search_path has first.
            equals = _symbol(table, condition.field, "=")
            return f"({operand} {equals} CAST({bound.add(value)} AS {type_})) IS NOT TRUE"
        case "like" | "ilike":
            # No cast: PostgreSQL itself decides which types have patterns (42883 for the others).
            matches = _symbol(table, condition.field, _PATTERNS[condition.operator])
            return f"{operand} {matches} {bound.add(value.replace('*', '%'))}"
        case "is":
            if value not in _IS:
                raise QueryError(f"{condition.field.column}: is takes {', '.join(_IS)}")
            return f"{operand} IS {_IS[value]}"
        case "in":
            raise QueryError(f"{condition.field.column}: in takes a list")
    assert_never(condition.operator)


def _symbol(table: Table, field: Field, symbol: str) -> str:
    # What a path leads to is jsonb or text, whatever the column is.
    return f"OPERATOR(pg_catalog.{symbol})" if field.path else operator(_column(table, field.column), symbol)


def _in(operand: str, equals: str, type_: str, values: tuple[str, ...], bound: Bound) -> str:
    """One parameter however long the list: one statement text, and no limit of bound values."""
    placeholder = bound.add(list(values), "text[]")
    if type_.endswith("[]"):
        # There are no arrays of arrays to cast to.
        return f"{operand} {equals} ANY (SELECT CAST(v AS {type_}) FROM pg_catalog.unnest({placeholder}) AS v)"
    return f"{operand} {equals} ANY (CAST({placeholder} AS {type_}[]))"


def render_value(table: Table, field: Field, cast: str | None, bound: Bound, alias: str = "r") -> str:
    """Render what is selected: a column or a place inside it, maybe cast. Raise UnknownColumnError, QueryError."""
    sql, _ = _operand(table, field, bound, alias)
    if cast is not None:
        if field.column == MARK_COLUMN:
            raise QueryError(f"select: {MARK_COLUMN} is a string, as tokens are in all JSON: it takes no cast")
        return f"CAST({sql} AS {cast_type(table, cast)})"
    # Tokens are text in JSON: JavaScript loses integers past 2^53.
    return f"{sql}::text" if field == Field(MARK_COLUMN) else sql


def _target(table: Table, item: Selected, bound: Bound, alias: str) -> str:
    sql = render_value(table, item.field, item.cast, bound, alias)
    name = item.alias if item.alias is not None else _default_name(item.field)
    if not name or len(name.encode()) > _MAX_NAME_BYTES:
        raise QueryError(f"select: {name!r} cannot name a column; give an alias of 1 to {_MAX_NAME_BYTES} bytes")
    return f"{sql} AS {quote(name)}"


def _default_name(field: Field) -> str:
    """PostgREST names a JSON path after its last key that is no array index."""
    keys = [step.key for step in field.path if isinstance(step.key, str)]
    return keys[-1] if keys else field.column
