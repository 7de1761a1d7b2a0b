"""What a write that is decided alone does on a connection, and which marks judge it.

A row has a mark of its own, which the statement that writes it compares with the token (R1). Or it shares that of its
scope, of which there is one for many rows (R8). Then an attempt is one transaction, in this order:

1. the scopes: read from the rows, without a lock (their columns never change), or rendered from key and body;
2. enter them, in a statement of its own: their marks are judged and raised, sorted; who holds them is waited for;
3. the write, in a later statement: it sees all that older holders have committed, and is bound to the scopes entered.

No row at 3 that was there at 1: it was deleted, or made anew in another scope. Everything is rolled back, the marks
too, and starts over as after a serialization failure. A refusal rolls back as well (perform.py).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from fencepost.fencing.problems import Problem
from fencepost.fencing.scope import Scope
from fencepost.fencing.seal import Binding
from fencepost.fencing.token import Token
from fencepost.gateway.outcomes import Done, Outcome
from fencepost.gateway.writes.idempotency import IdempotentRequest
from fencepost.gateway.writes.scoped import enter, refused_scope
from fencepost.gateway.writes.write import NO_BODY, Body
from fencepost.storage.connections.connection import Connection
from fencepost.storage.errors import RefusedError, map_errors
from fencepost.storage.statements import scope_marks
from fencepost.storage.statements.asking import KeyState, read_resource
from fencepost.storage.statements.checks import keys_may_change
from fencepost.storage.statements.parameters import Key, RowWrite
from fencepost.storage.statements.query import NO_QUERY, Query
from fencepost.storage.statements.scope_marks import Entered
from fencepost.storage.tables.catalog import ProtectedTable

HOW_TO_ASK: Final = "Ask GET /v1/fences?resource=…, or read the row."


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the marks show of a write without a key whose outcome is unknown. `landed` None: they do not show it."""

    landed: bool | None
    resource: str | None = None
    mark: int | None = None


@dataclass(slots=True, kw_only=True)
class Operation(ABC):
    """What a request does to a table: a verb, with the request's own values. Its `marks` use what it says of itself."""

    table: ProtectedTable
    row: RowWrite
    """Its values. The key is empty where it is none of a row of the table."""
    body: Body = NO_BODY
    once: IdempotentRequest | None = None
    """The request's Idempotency-Key."""
    binding: Binding | None = None
    """What the token's seal is bound to; None: it has none."""
    query: Query = NO_QUERY
    """What it selects, and by which filters."""
    marks: "Marks" = field(init=False)

    def __post_init__(self) -> None:
        """Find whose marks judge it. A batch may have entered a scope before."""
        scope = self.table.fence.scope
        self.marks = OWN_MARKS if scope is None else ScopeMarks(scope, [self.row.scope] if self.row.scope else [])

    @abstractmethod
    async def write(self, connection: Connection) -> Outcome:
        """Write, to rows that have marks of their own, or whose scopes (`row.scopes`) were entered."""

    async def scopes(self, connection: Connection) -> list[str] | Outcome:
        """Find the scopes to enter, without locks; or what makes it needless."""
        raise NotImplementedError(f"{self.table.name}: it was not expected to have a scope")

    def refused(self, by: Sequence[Entered]) -> Problem:
        """Give the answer when scopes were not entered."""
        return refused_scope(self.table, by[0], self.row.token)

    async def explain(self, _connection: Connection, _error: RefusedError) -> Problem | None:
        """Explain a refusal of PostgreSQL's, after everything was undone; None: it is answered as it is."""
        return None

    async def evidence(self, _connection: Connection) -> Evidence:
        """Ask rows' own marks whether an attempt can have landed, when its backend is gone."""
        return Evidence(None)

    @property
    def how_to_ask(self) -> str:
        """Say how a client finds out whether it landed, when the connection has broken and there was no key."""
        return HOW_TO_ASK

    def written(self, done: Done) -> Sequence[str]:
        """Name the resources that have marks of their own and were written, or claimed, by what an attempt came to."""
        return (done.resource,)


class Marks(Protocol):
    """Whose marks judge an operation, and so how it is attempted."""

    in_transaction: bool
    """Whether an attempt is several statements that must be one."""

    async def attempt(self, connection: Connection, operation: Operation) -> Outcome:
        """Do it, from the start."""

    async def evidence(self, connection: Connection, operation: Operation) -> Evidence:
        """Ask the marks whether an attempt can have landed, when its backend is gone."""

    def written(self, operation: Operation, done: Done) -> Sequence[str]:
        """Name the resources whose marks let it pass, by what an attempt came to."""


class OwnMarks:
    """Each row has one."""

    in_transaction = False

    async def attempt(self, connection: Connection, operation: Operation) -> Outcome:
        """Write."""
        return await operation.write(connection)

    async def evidence(self, connection: Connection, operation: Operation) -> Evidence:
        """Ask the rows'."""
        return await operation.evidence(connection)

    def written(self, operation: Operation, done: Done) -> Sequence[str]:
        """Name the rows."""
        return operation.written(done)


OWN_MARKS: Final = OwnMarks()


@dataclass(slots=True)
class ScopeMarks:
    """Each scope has one, for all of its rows. `entered`: the scopes whose marks the last attempt raised."""

    scope: Scope
    entered: list[str]
    in_transaction: bool = field(init=False, default=True)

    async def attempt(self, connection: Connection, operation: Operation) -> Outcome:
        """Find the scopes, enter them, write."""
        self.entered, row = [], operation.row
        with map_errors(writing=False):
            scopes = await operation.scopes(connection)
        if not isinstance(scopes, list):
            return scopes
        if scopes:
            self.entered = sorted(scopes)
            if refused_by := await enter(connection, operation.table, self.scope, scopes, row.token):
                return operation.refused(refused_by)
        row.scopes, row.scope = scopes, scopes[0] if scopes else ""
        return await operation.write(connection)

    async def evidence(self, connection: Connection, operation: Operation) -> Evidence:
        """Find out by the scopes' marks whether the write can have landed: it would have raised all of them (R15).

        A floor that equals the token is no operation's mark: it may have been pruned, or was another scope's.
        """
        if not self.entered:  # it broke before the marks were asked for: nothing was written yet
            return Evidence(landed=False)
        token = operation.row.token
        found = await scope_marks.marks(connection, self.scope, self.entered)
        lowest = min(found, key=lambda each: each.mark)
        if lowest.mark < token:
            return Evidence(landed=False, resource=lowest.scope, mark=lowest.mark)
        own = next((each for each in found if each.mark == each.recorded == token), None)
        shown = own or lowest
        return Evidence(landed=True if own else None, resource=shown.scope, mark=shown.mark)

    def written(self, _operation: Operation, _done: Done) -> Sequence[str]:
        """Name the scopes: the write is bound to those that were entered."""
        return self.entered


async def row_evidence(
    connection: Connection, table: ProtectedTable, key: Key, token: Token, *, creates: bool = False
) -> Evidence:
    """Decide by a key's mark whether a write with this token can have landed: it would have raised the mark (R15).

    `creates`: the write may have made a row, and then a trigger may have given it another key.
    """
    if table.row_security or (creates and await keys_may_change(connection, table)):
        return Evidence(None)  # a policy may hide the row, and the row's mark with it
    found = await read_resource(connection, table, key)
    return _evidence(found.resource, max(found.live or 0, found.recorded or 0), token)


def rows_evidence(standings: Sequence[KeyState], token: Token) -> Evidence:
    """Decide the same for rows that were inserted together. `without_row` may be a floor: it shows no write."""
    found = [(max(s.live or 0, s.without_row or 0), s) for s in standings]
    if not found:
        return Evidence(None)
    mark, standing = min(found, key=lambda each: each[0])
    evidence = _evidence(standing.resource, mark, token)
    return Evidence(None) if evidence.landed and standing.live != token else evidence


def _evidence(resource: str, mark: int, token: Token) -> Evidence:
    return Evidence(landed=False if mark < token else (True if mark == token else None), resource=resource, mark=mark)
