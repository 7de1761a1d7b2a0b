"""A Query as SQL: identifiers quoted and from the catalog, values bound as text.

Each value is cast to the type of the column, never the column to the value's: so an index on the column
serves the filter, and a value that is none of that type is PostgreSQL's own refusal (22P02). What each
operator renders to follows PostgREST (src/PostgREST/Query/SqlFragment.hs).
"""

from collections.abc import Iterator, Sequence
from typing import Literal, assert_never

from fencepost.server.postgres.statements.casts import cast_type
from fencepost.server.postgres.statements.parameters import Bound
from fencepost.server.postgres.statements.query import (
    CAST,
    Condition,
    Field,
    Filter,
    OrderTerm,
    QueryError,
    Selected,
    UnknownColumnError,
)
from fencepost.server.postgres.statements.row_sql import of_types, operator, or_outdated
from fencepost.server.postgres.tables.catalog import MARK_COLUMN, Column, Table, quote

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
