"""The statement that finds the next rows of a table which no request has taken, and locks them; and who watches."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final
from uuid import UUID

from fencepost.server.postgres.connection import Bound, Connection, Parameter, Statement, compiled
from fencepost.server.postgres.query import Condition, Filter, OrderTerm, render_filters, render_order
from fencepost.server.postgres.row_sql import MARK, key_order, or_outdated, row_resource, same_table
from fencepost.server.postgres.tables import ProtectedTable, quote


@dataclass(frozen=True, slots=True)
class Look:
    """One look for `most` rows at most, other than those of these names."""

    most: int
    passed_by: Sequence[str]


@dataclass(frozen=True, slots=True)
class NextRow:
    """A row that the look has locked: the name of its resource, which is that of its lock, and its mark."""

    name: str
    mark: int


_MOST: Final[Parameter[Look]] = Parameter("most", "bigint", attrgetter("most"))
_PLAIN: Final = re.compile("[a-z_][a-z0-9_]*")
INDEX_OPTIONS: Final = ("", " DESC NULLS LAST", " NULLS FIRST", " DESC")
"""What stands behind a column in CREATE INDEX, by pg_index.indoption: 1 is descending, 2 nulls first."""
_PASSED_BY: Final[Parameter[Look]] = Parameter("passed by", "text[]", attrgetter("passed_by"))


def next_rows(
    table: ProtectedTable,
    where: tuple[Filter, ...],
    order: tuple[OrderTerm, ...],
    likes: list[str] | None,
    *,
    as_role: bool,
) -> Statement[Look]:
    """Compose it: the first rows that match, in this order, or else in that of the key. `likes`: the patterns, as LIKE
    has them, of the locks that the caller may take; None: of all. `as_role`: a caller's role is on when it runs.

    A row that another transaction has locked is passed by. So is one whose lock is held: that is asked again where the
    row was changed since the statement began, and by `acquire_each` under the row of the lock. Raises QueryError.
    """
    bound = Bound()
    name = row_resource(table, table.fence.prefix)
    terms = [render_filters(table, where, bound), or_outdated(table.name, same_table(table))]
    if likes is not None:
        terms.append(f"({name}) OPERATOR(pg_catalog.~~) ANY ({bound.add(likes, 'text[]')})")
    terms.append(f"({name}) OPERATOR(pg_catalog.<>) ALL ({_PASSED_BY})")
    terms.append(f"NOT fencepost.{'gateway_is_taken' if as_role else 'is_taken'}({name})")
    by = render_order(table, order, bound) or key_order(table, "r")
    return compiled(
        f"SELECT {name} AS name, r.{MARK} AS mark FROM {table.sql_name} AS r WHERE {' AND '.join(terms)}"
        f" ORDER BY {by} LIMIT {_MOST} FOR NO KEY UPDATE OF r SKIP LOCKED",
        (_MOST, _PASSED_BY, *bound.parameters),
    )


async def find(connection: Connection, statement: Statement[Look], look: Look) -> list[NextRow]:
    """Find and lock the next rows, in their order."""
    return [NextRow(row["name"], row["mark"]) for row in await statement.fetch(connection, look)]


@dataclass(frozen=True, slots=True)
class Shape:
    """A question without its values, as an index can answer it: the columns that are compared for equality, and the
    terms of the order as CREATE INDEX has them.
    """

    matched: tuple[str, ...]
    ordered: tuple[str, ...]


def shape(table: ProtectedTable, where: tuple[Filter, ...], order: tuple[OrderTerm, ...]) -> Shape | None:
    """Give the shape of a question; None where it compares otherwise, or asks for a place inside a JSON column: which
    index fits it then is not known.
    """
    if any(term.field.path for term in order) or not all(_names_one_value(each) for each in where):
        return None
    columns = {each.field.column for each in where if isinstance(each, Condition)}
    by_key = ((column, False, None) for column in table.key)
    terms = [(each.field.column, each.descending, each.nulls) for each in order] or by_key
    return Shape(tuple(sorted(named(each) for each in columns)), tuple(_index_term(*each) for each in terms))


def _index_term(column: str, descending: bool, nulls: str | None) -> str:
    first = descending if nulls is None else nulls == "first"
    return named(column) + INDEX_OPTIONS[descending + 2 * first]


def named(column: str) -> str:
    """Write a column's name for people: quoted where it must be."""
    return column if _PLAIN.fullmatch(column) else quote(column)


def _names_one_value(each: Filter) -> bool:
    if not isinstance(each, Condition) or each.negated or each.field.path:
        return False
    return each.operator == "eq" or (each.operator == "is" and each.value != "not_null")


async def note_question(connection: Connection, table: int, asked: Shape) -> None:
    """Note how rows of a table are asked for."""
    await connection.execute(
        "SELECT fencepost.note_question($1, $2, $3)", table, list(asked.matched), list(asked.ordered)
    )


async def watch(connection: Connection, table: int, line: UUID) -> None:
    """Note that a line of this gateway waits for rows of a table, for the next seconds."""
    await connection.execute("SELECT fencepost.watch($1, $2)", table, line)


async def unwatch(connection: Connection, line: UUID) -> None:
    """Note that it waits no more."""
    await connection.execute("SELECT fencepost.unwatch($1)", line)
