"""What a write that is decided alone is: a verb, with a request's own values. Whose marks judge it, and so how it is
attempted, is another matter (marks.py).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from fencepost.server.fence.problems import Problem
from fencepost.server.fence.resource import Scope
from fencepost.server.fence.seal import Binding
from fencepost.server.fence.token import MissingRow, Token
from fencepost.server.gateway.outcomes import Done, Outcome
from fencepost.server.gateway.writes.idempotency import IdempotentRequest
from fencepost.server.gateway.writes.keys import KeyCheck
from fencepost.server.gateway.writes.rounds import Answer, RowSteps, Verdict
from fencepost.server.gateway.writes.scoped import refused_scope
from fencepost.server.gateway.writes.write import NO_BODY, Body, Verb
from fencepost.server.postgres.connection import Connection
from fencepost.server.postgres.errors import RefusedError
from fencepost.server.postgres.keyed import Change, FencedRow
from fencepost.server.postgres.marks import KeyState, keys_may_change, read_resource
from fencepost.server.postgres.query import NO_QUERY, Query
from fencepost.server.postgres.row_sql import Key, RowWrite
from fencepost.server.postgres.scopes import Entered
from fencepost.server.postgres.tables import ProtectedTable, Table

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
    marks: "Marks"
    """Whose marks judge it."""
    row: RowWrite
    """Its values. The key is empty where it is none of a row of the table."""
    body: Body = NO_BODY
    once: IdempotentRequest | None = None
    """The request's Idempotency-Key."""
    binding: Binding | None = None
    """What the token's seal is bound to; None: it has none."""
    query: Query = NO_QUERY
    """What it selects, and by which filters."""
    key_check: KeyCheck | None = None
    """What is to be checked of its key; None: nothing."""
    entered: list[str] = field(init=False)
    """The scopes whose marks the last attempt raised, sorted."""

    def __post_init__(self) -> None:
        """A batch may have entered a scope before."""
        self.entered = [self.row.scope] if self.row.scope else []

    @property
    def runs_code(self) -> bool:
        """Whether it may run code of users', which may change the session."""
        return self.table.runs_code

    async def check(self, connection: Connection) -> None:
        """Refuse a key that only PostgreSQL can tell to be unfit (QueryError), before any statement writes or locks."""
        if self.key_check is not None:
            await self.key_check.run(connection)

    @abstractmethod
    async def write(self, connection: Connection) -> Outcome:
        """Write, to rows that have marks of their own, or whose scopes (`row.scopes`) were entered."""

    async def scopes(self, connection: Connection, scope: Scope) -> list[str] | Outcome:
        """Find the scopes to enter, of the table's `scope`, without locks; or what makes it needless."""
        raise NotImplementedError(f"{self.table.name}: it was not expected to have a scope")

    def refused(self, by: Sequence[Entered]) -> Problem:
        """Give the answer when scopes were not entered."""
        return refused_scope(self.table, by[0], self.row.token)

    async def explain(self, _connection: Connection, _error: RefusedError) -> Problem | None:
        """Explain a refusal of PostgreSQL's by rows' own marks, after everything was undone; None: it is answered as it
        is.
        """
        return None

    async def evidence(self, _connection: Connection) -> Evidence:
        """Ask rows' own marks whether an attempt can have landed, when its backend is gone."""
        return Evidence(None)

    @property
    def how_to_ask(self) -> str:
        """Say how a client finds out by rows' own marks whether it landed, when the connection has broken and there was
        no key.
        """
        return HOW_TO_ASK

    def written(self, done: Done) -> Sequence[str]:
        """Name the resources that have marks of their own and were written, or claimed, by what an attempt came to."""
        return (done.resource,)


class Marks(Protocol):
    """Whose marks judge writes to a table: what differs between a row's own and its scope's."""

    @property
    def names_rows(self) -> bool:
        """Whether rows are what is judged, and what a sealed token is for: they are named before they are written."""

    @property
    def in_transaction(self) -> bool:
        """Whether an attempt is several statements that must be one."""

    async def attempt(self, connection: Connection, operation: Operation) -> Outcome: ...

    async def explain(self, connection: Connection, operation: Operation, error: RefusedError) -> Problem | None:
        """Explain a refusal of PostgreSQL's, after everything was undone; None: it is answered as it is."""

    async def evidence(self, connection: Connection, operation: Operation) -> Evidence:
        """Ask the marks whether an attempt can have landed, when its backend is gone."""

    def how_to_ask(self, operation: Operation) -> str:
        """Say how a client finds that out."""

    def written(self, operation: Operation, done: Done) -> Sequence[str]:
        """Name the resources whose marks let it pass, by what an attempt came to."""

    def fit_a_batch(self, table: Table, verb: Verb, change: Change) -> bool:
        """Whether a batch can have such writes judged."""

    def done(self, write: RowWrite, row: FencedRow, *, created: bool) -> Done: ...

    def answers(self, writes: Sequence[RowWrite], rows: Sequence[FencedRow | None], *, created: bool) -> list[Answer]:
        """Give the answers of writes of a row each; ALONE where no row was reached."""

    def made(self, writes: Sequence[RowWrite], rows: Sequence[FencedRow | None]) -> Sequence[Answer]:
        """Give the answers of writes that had to create their rows; ALONE where something was in the way."""

    async def why(self, connection: Connection, steps: RowSteps, writes: Sequence[RowWrite]) -> Sequence[Verdict]:
        """Find out why rows were not reached."""

    async def duplicate(
        self,
        connection: Connection,
        steps: RowSteps,
        missing: tuple[RowWrite, MissingRow],
        error: RefusedError,
        number: int,
    ) -> Answer:
        """Say what it means that a key was taken when a row was to be created, in this round; the error, raised again,
        if it is the request's own.
        """

    async def given_up(self, connection: Connection, steps: RowSteps, write: RowWrite) -> Outcome:
        """Give up a write that nothing refuses and that reached no row."""


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
