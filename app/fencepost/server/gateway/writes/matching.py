"""PATCH and DELETE of the rows that match a filter: of all of them, or of none (R10)."""

from collections.abc import Sequence
from dataclasses import dataclass

from fencepost.server.fence.problems import Problem
from fencepost.server.fence.resource import Scope
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.outcomes import Done, Outcome
from fencepost.server.gateway.preconditions import (
    Authority,
    ready_to_write,
    require_protected,
    require_reach,
    target_of,
)
from fencepost.server.gateway.writes.all_or_nothing import answer_of_many, names_of, refused_by_scopes
from fencepost.server.gateway.writes.idempotency import IdempotentRequest
from fencepost.server.gateway.writes.marks import marks_of
from fencepost.server.gateway.writes.operation import Operation
from fencepost.server.gateway.writes.perform import perform
from fencepost.server.gateway.writes.write import Write
from fencepost.server.postgres import scopes
from fencepost.server.postgres.connection import Connection
from fencepost.server.postgres.errors import map_errors
from fencepost.server.postgres.keyed import Change
from fencepost.server.postgres.many import ManyOutcome, ManyWritten, TooManyRows, write_matching
from fencepost.server.postgres.query import Filter, Query, QueryError, render_filters
from fencepost.server.postgres.reading import check_filters
from fencepost.server.postgres.row_sql import Bound, RowWrite
from fencepost.server.postgres.scopes import Entered
from fencepost.server.postgres.tables import ProtectedTable, Table

Filters = tuple[Filter, ...]


async def write(
    gateway: Gateway, request: Write, filters: Filters, once: IdempotentRequest | None, found: Table
) -> Outcome:
    """Decide the write of all rows that match."""
    ready = _ready(gateway, found, request, filters, once)
    if isinstance(ready, Problem):
        return ready
    table, (token, binding) = ready
    marks = marks_of(table)
    deletes = request.verb == "delete"
    if deletes and marks.names_rows:
        refused = require_reach(table, (token, binding))
        if refused is not None:
            return refused
    target = target_of(table, request.select, gateway.max_answer_bytes, shown=request.shown)
    named = binding is not None and marks.names_rows
    rows = RowsMatching(
        table=table,
        marks=marks,
        row=RowWrite((), token, request.body.raw),
        body=request.body,
        once=once,
        binding=binding,
        query=Query(request.select, filters),
        request=request,
        change=Change(request.body.columns, target, request.preferences.in_sql, named=named, deletes=deletes),
        limit=_limit(request, gateway.max_rows),
    )
    return await perform(gateway, rows)


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


@dataclass(slots=True, kw_only=True)
class RowsMatching(Operation):
    """All rows that match. Of a table with a scope, rows that come to match meanwhile are written if their scope was
    entered, and left alone if not.
    """

    request: Write
    change: Change
    limit: int

    async def write(self, connection: Connection) -> Outcome:
        """Lock, judge and write them in one statement: all of them, or none."""
        filters = self.query.filters
        with map_errors(writing=True):
            outcome = await write_matching(connection, self.table, filters, self.row, self.change, self.limit)
        return self._answer(outcome)

    async def scopes(self, connection: Connection, scope: Scope) -> list[str] | Outcome:
        filters = self.query.filters
        names = await scopes.scopes_matching(connection, self.table, scope, filters, self.limit)
        if isinstance(names, TooManyRows):
            return self._answer(names)
        return names or self._answer(ManyWritten([]))

    def _answer(self, outcome: ManyOutcome) -> Outcome:
        return answer_of_many(self.table, self.request, self.row.token, outcome)

    def refused(self, by: Sequence[Entered]) -> Problem:
        return refused_by_scopes(self.table, self.row.token, by)

    @property
    def how_to_ask(self) -> str:
        """Name any of the rows, for they were written together."""
        return (
            "Which rows matched is not known any more, and so no mark was asked. All of them were written, or none: ask"
            " GET /v1/fences?resource=… for one that should have been, or read it."
        )

    def written(self, done: Done) -> Sequence[str]:
        return names_of(done)
