"""Writes to tables with a scope (R8): one mark for many rows.

Each is one transaction, in this order:

1. the scopes: read from the rows, without a lock (their columns never change), or rendered from key and body;
2. enter them, in a statement of its own: their marks are judged and raised, sorted; who holds them is waited for;
3. the write, in a later statement: it sees all that older holders have committed, and is bound to the scopes entered.

No row at 3 that was there at 1: it was deleted, or made anew in another scope. Everything is rolled back, the marks
too, and starts over as after a serialization failure. A refusal rolls back as well (operation.py).
"""

from abc import abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from fencepost.fencing.problems import Problem, problem_of
from fencepost.fencing.scope import Scope
from fencepost.fencing.token import Token
from fencepost.fencing.verdict import refusal
from fencepost.gateway.outcomes import Done, Outcome
from fencepost.gateway.writes.operation import Evidence, Operation
from fencepost.storage.connections.connection import Connection
from fencepost.storage.errors import map_errors
from fencepost.storage.statements import scope_marks
from fencepost.storage.statements.query import QueryError
from fencepost.storage.statements.scope_marks import Entered
from fencepost.storage.tables.catalog import ProtectedTable, Table


@dataclass(slots=True, kw_only=True)
class InScopes(Operation):
    """A request that writes to rows of scopes. `entered`: the scopes whose marks the last attempt raised; a batch may
    have entered one before.
    """

    entered: list[str] = field(init=False)

    def __post_init__(self) -> None:
        """Begin with the scope that a batch entered, if one did."""
        self.entered = [self.row.scope] if self.row.scope else []

    @property
    def scope(self) -> Scope:
        """The scope of the table."""
        if self.table.fence.scope is None:
            raise RuntimeError(f"{self.table.name} has no scope")
        return self.table.fence.scope

    @property
    def in_transaction(self) -> bool:
        """It is several statements that must be one."""
        return True

    async def attempt(self, connection: Connection) -> Outcome:
        """Find the scopes, enter them, write."""
        self.entered = []
        with map_errors(writing=False):
            scopes = await self.find(connection)
        if not isinstance(scopes, list):
            return scopes
        if scopes:
            self.entered = sorted(scopes)
            if refused_by := await enter(connection, self.table, self.scope, scopes, self.row.token):
                return self.refused(refused_by)
        return await self.write(connection, scopes)

    def written(self, _done: Done) -> Sequence[str]:
        """Name the scopes: the write is bound to those that were entered."""
        return self.entered

    @abstractmethod
    async def find(self, connection: Connection) -> list[str] | Outcome:
        """Find the scopes, without locks; or what makes it needless."""

    @abstractmethod
    async def write(self, connection: Connection, scopes: list[str]) -> Outcome:
        """Write to rows of the scopes that were entered."""

    def refused(self, by: Sequence[Entered]) -> Problem:
        """Give the answer when scopes were not entered."""
        return refused_scope(self.table, by[0], self.row.token)

    async def evidence(self, connection: Connection) -> Evidence:
        """Find out by the scopes' marks whether the write can have landed: it would have raised all of them (R15).

        A floor that equals the token is no operation's mark: it may have been pruned, or was another scope's.
        """
        if not self.entered:  # it broke before the marks were asked for: nothing was written yet
            return Evidence(landed=False)
        found = await scope_marks.marks(connection, self.scope, self.entered)
        lowest = min(found, key=lambda each: each.mark)
        if lowest.mark < self.row.token:
            return Evidence(landed=False, resource=lowest.scope, mark=lowest.mark)
        own = next((each for each in found if each.mark == each.recorded == self.row.token), None)
        shown = own or lowest
        return Evidence(landed=True if own else None, resource=shown.scope, mark=shown.mark)


async def enter(
    connection: Connection, table: ProtectedTable, scope: Scope, scopes: Sequence[str], token: Token
) -> list[Entered]:
    """Enter scopes; those that refused, or nothing."""
    with map_errors(writing=True):
        outcome = await scope_marks.enter(connection, table, scope, scopes, token)
    return [each for each in outcome if each.refused_by is not None]


def refused_scope(table: ProtectedTable, by: Entered, token: Token) -> Problem:
    """Give the answer when a scope was not entered."""
    rule = table.fence.rule
    # Or the rule has changed since the catalog was read.
    verdict = refusal(rule, by.scope, by.refused_by or 0, token) or refusal(
        "strict", by.scope, by.refused_by or 0, token
    )
    if verdict is None:
        raise RuntimeError(f"{by} refused the token {token}")
    return problem_of(verdict, rule)


def require_columns_of(scope: Scope, table: Table, given: Collection[str]) -> None:
    """Refuse rows whose scope cannot be known (QueryError): the request does not name all of its columns."""
    if missing := [column for column in scope.columns if column not in given]:
        raise QueryError(_without(table, scope, missing))


def no_scope(scope: Scope, table: Table) -> NoReturn:
    """Refuse rows that have no value for a column of their scope (QueryError)."""
    raise QueryError(_without(table, scope, scope.columns))


def _without(table: Table, scope: Scope, columns: Sequence[str]) -> str:
    return (
        f"body: a row of {table.name} belongs to a scope, {scope.template}:"
        f" every object gives {', '.join(columns)} a value"
    )
