"""PATCH and DELETE of the rows that match a filter: of all of them, or of none (R10)."""

from collections.abc import Sequence
from dataclasses import dataclass

from fencepost.fencing.problems import Problem
from fencepost.gateway.gateway import Gateway
from fencepost.gateway.outcomes import Done, Outcome
from fencepost.gateway.preconditions import Authority, ready_to_write, require_protected, require_reach, target_of
from fencepost.gateway.writes.all_or_nothing import answer_of_many, names_of, refused_by_scopes
from fencepost.gateway.writes.idempotency import IdempotentRequest
from fencepost.gateway.writes.operation import Operation, perform
from fencepost.gateway.writes.scoped import InScopes
from fencepost.gateway.writes.write import Write
from fencepost.storage.connections.connection import Connection
from fencepost.storage.errors import map_errors
from fencepost.storage.statements import scope_names
from fencepost.storage.statements.answers import Shown
from fencepost.storage.statements.keyed import Change
from fencepost.storage.statements.many import ManyOutcome, ManyWritten, TooManyRows, write_matching
from fencepost.storage.statements.parameters import Bound, RowWrite
from fencepost.storage.statements.query import Filter, Query, QueryError
from fencepost.storage.statements.query_sql import render_filters
from fencepost.storage.statements.reading import check_filters
from fencepost.storage.statements.scope_marks import Entered
from fencepost.storage.tables.catalog import ProtectedTable, Table

Filters = tuple[Filter, ...]


async def write(
    gateway: Gateway, request: Write, filters: Filters, once: IdempotentRequest | None, found: Table
) -> Outcome:
    """Decide the write of all rows that match."""
    ready = _ready(gateway, found, request, filters, once)
    if isinstance(ready, Problem):
        return ready
    table, (token, binding) = ready
    if request.verb == "delete" and (refused := require_reach(table, (token, binding))) is not None:
        return refused
    target = target_of(table, request.select, gateway.max_answer_bytes, shown=request.shown)
    change = Change(request.body.columns, target) if request.verb == "patch" else None
    kind = RowsMatching if table.fence.scope is None else RowsMatchingInScopes
    named = binding is not None and table.fence.scope is None
    row = RowWrite((), token, request.body.text)
    matching = MatchingRows(request, filters, change, target, _limit(request, gateway.max_rows), named)
    query = Query(request.select, filters)
    operation = kind(
        table=table,
        row=row,
        body=request.body,
        once=once,
        binding=binding,
        query=query,
        matching=matching,
    )
    return await perform(gateway, operation)


def _limit(request: Write, max_rows: int) -> int:
    """How many rows it may write, of which the gateway allows `max_rows`."""
    if request.exactly_one:
        return 1
    most = request.preferences.most
    return max_rows if most is None else min(most, max_rows)


def _ready(
    gateway: Gateway, table: Table, request: Write, filters: Filters, once: IdempotentRequest | None
) -> tuple[ProtectedTable, Authority] | Problem:
    columns = request.body.columns
    if not isinstance(require_protected(table), Problem):  # 403 first; then unknown columns, 400; then 428
        render_filters(table, filters, Bound())
        check_filters(table, filters)
        target_of(table, request.select, gateway.max_answer_bytes, shown=request.shown)
        if key := [c for c in columns if c in table.key]:
            raise QueryError(f"body: {', '.join(key)} is the primary key, which a write cannot change")
    return ready_to_write(table, request.token, columns, once, gateway.seals)


@dataclass(frozen=True, slots=True)
class MatchingRows:
    """Which rows, and what becomes of them. `change` None: they are deleted."""

    request: Write
    filters: Filters
    change: Change | None
    target: Shown
    limit: int
    named: bool = False
    """Whether the names of the rows are wanted, too."""

    async def write(self, connection: Connection, table: ProtectedTable, row: RowWrite) -> Outcome:
        """Lock, judge and write them in one statement."""
        with map_errors(writing=True):
            outcome = await write_matching(
                connection, table, self.filters, row, self.change, self.target, self.limit, named=self.named
            )
        return self.answer(table, row, outcome)

    def answer(self, table: Table, row: RowWrite, outcome: ManyOutcome) -> Outcome:
        """Give the answer."""
        return answer_of_many(table, self.request, row.token, outcome)


@dataclass(slots=True, kw_only=True)
class RowsMatching(Operation):
    """Rows that have marks of their own."""

    matching: MatchingRows

    async def attempt(self, connection: Connection) -> Outcome:
        """Write all of them, or none."""
        return await self.matching.write(connection, self.table, self.row)

    @property
    def how_to_ask(self) -> str:
        """Name any of the rows, for they were written together."""
        return (
            "Which rows matched is not known any more, and so no mark was asked. All of them were written, or none: ask"
            " GET /v1/fences?resource=… for one that should have been, or read it."
        )

    def written(self, done: Done) -> Sequence[str]:
        """Name the rows that matched."""
        return names_of(done)


@dataclass(slots=True, kw_only=True)
class RowsMatchingInScopes(InScopes):
    """Rows of however many scopes. Rows that come to match meanwhile are written if their scope was entered, and left
    alone if not.
    """

    matching: MatchingRows

    async def find(self, connection: Connection) -> list[str] | Outcome:
        """Read the scopes of the rows that match."""
        each = self.matching
        names = await scope_names.scopes_matching(connection, self.table, self.scope, each.filters, each.limit)
        if isinstance(names, TooManyRows):
            return each.answer(self.table, self.row, names)
        return names or each.answer(self.table, self.row, ManyWritten([]))

    async def write(self, connection: Connection, scopes: list[str]) -> Outcome:
        """Write the rows of these scopes that match now."""
        self.row.scopes = scopes
        return await self.matching.write(connection, self.table, self.row)

    def refused(self, by: Sequence[Entered]) -> Problem:
        """List the scopes that refused."""
        return refused_by_scopes(self.table, self.row.token, by)
