"""The statement that finds the next rows of a table which no request has taken, and locks them; and who watches."""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final
from uuid import UUID

from fencepost.server.postgres.connection import Bound, Connection, Parameter, Statement, compiled
from fencepost.server.postgres.query import Filter, OrderTerm, render_filters, render_order
from fencepost.server.postgres.row_sql import MARK, key_order, or_outdated, row_resource, same_table
from fencepost.server.postgres.tables import ProtectedTable


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


async def watch(connection: Connection, table: int, line: UUID) -> None:
    """Note that a line of this gateway waits for rows of a table, for the next seconds."""
    await connection.execute("SELECT fencepost.watch($1, $2)", table, line)


async def unwatch(connection: Connection, line: UUID) -> None:
    """Note that it waits no more."""
    await connection.execute("SELECT fencepost.unwatch($1)", line)
