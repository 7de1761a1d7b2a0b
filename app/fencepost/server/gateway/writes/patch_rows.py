"""PATCH of an array: each object names its row by the key's columns. One token, one statement, all or nothing (R10).

1. The statement locks the rows in key order, judges them as they are then, and writes all of them or none.
2. None: the next statement asks for the marks of all keys (R5). In this order: an element without a key, or a key given
   twice, is 400; marks that refuse, of rows or of keys without one, are 409, all of them listed; a token that was never
   issued FP018; keys without a row 404, all of them listed.
3. Nothing of that: a row was deleted and made anew between 1 and 2. Again, bounded. Inside a transaction the rows that
   were met stay locked, and to lock more would be out of order: there, everything is undone and starts over.

In a table with a scope 2 comes first, and reads which scopes the rows are in; then these are entered, and 1 writes to
their rows only (R8). Whatever was not met then starts over as well.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import asyncpg

from fencepost.server.fence.problem_types import ROW_NOT_FOUND, SPENT_TOKEN, STALE_TOKEN
from fencepost.server.fence.problems import Problem
from fencepost.server.fence.resource import Scope
from fencepost.server.fence.token import BeyondCeiling, MissingRow, Unissued
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.outcomes import Done, Outcome
from fencepost.server.gateway.preconditions import Authority, ready_to_write, require_protected, target_of
from fencepost.server.gateway.writes.all_or_nothing import names_of, refused_by_scopes, refused_rows, unfit_count
from fencepost.server.gateway.writes.idempotency import IdempotentRequest
from fencepost.server.gateway.writes.marks import marks_of
from fencepost.server.gateway.writes.operation import Evidence, Marks, Operation, rows_evidence
from fencepost.server.gateway.writes.perform import perform
from fencepost.server.gateway.writes.rounds import (
    ROUNDS,
    Answer,
    Verdict,
    contended,
    decide_alone,
    judge,
    problem_of_verdict,
)
from fencepost.server.gateway.writes.write import Write
from fencepost.server.postgres import scopes as scope_names
from fencepost.server.postgres.connection import Connection
from fencepost.server.postgres.group_commit import AGAIN, ALONE
from fencepost.server.postgres.keyed import Change, Wait
from fencepost.server.postgres.many import LISTED_REFUSALS, Unwritten, write_elements
from fencepost.server.postgres.marks import ElementState, ask_elements, place_elements
from fencepost.server.postgres.query import Query, QueryError
from fencepost.server.postgres.row_sql import RowWrite
from fencepost.server.postgres.scopes import Entered
from fencepost.server.postgres.tables import ProtectedTable, Table

_NAMED: Final = 10
"""How many resources a sentence names; `rows` lists them all."""


async def write(gateway: Gateway, request: Write, count: int, once: IdempotentRequest | None, found: Table) -> Outcome:
    """Decide the write of an array of so many objects."""
    ready = _ready(gateway, found, request, count, once)
    if isinstance(ready, Problem):
        return ready
    table, (token, binding) = ready
    columns = tuple(c for c in request.body.columns if c not in table.key)
    marks = marks_of(table)
    named = binding is not None and marks.names_rows
    target = target_of(table, request.select, gateway.max_answer_bytes, shown=request.shown)
    change = Change(columns, target, request.preferences.in_sql, named=named)
    row = RowWrite((), token, request.body.raw)
    if not count:
        return await perform(gateway, NoRows(table=table, marks=marks, row=row, once=once, binding=binding))
    rows = NamedRows(
        table=table,
        marks=marks,
        row=row,
        body=request.body,
        once=once,
        binding=binding,
        query=Query(request.select),
        change=change,
        rounds=_Rounds(table, marks, row, change),
    )
    return await perform(gateway, rows)


def _ready(
    gateway: Gateway, table: Table, request: Write, count: int, once: IdempotentRequest | None
) -> tuple[ProtectedTable, Authority] | Problem:
    if not isinstance(require_protected(table), Problem):  # 403 first; then what the body lacks, 400; then 428
        target_of(table, request.select, gateway.max_answer_bytes, shown=request.shown)
        if count and (lacking := [c for c in table.key if c not in request.body.columns]):
            raise QueryError(
                f"body: without {', '.join(lacking)}: every object names its row of {table.name} by the key,"
                f" {', '.join(table.key)}"
            )
        unfit = unfit_count(request, count, gateway.max_rows)
        if unfit is not None:
            return unfit
    return ready_to_write(table, request.token, request.body.columns, once, gateway.seals)


@dataclass(slots=True, kw_only=True)
class NoRows(Operation):
    """An empty array: a write that is recorded under its Idempotency-Key, and does nothing."""

    async def write(self, _connection: Connection) -> Outcome:
        return Done([])

    async def scopes(self, _connection: Connection, _scope: Scope) -> list[str]:
        """Enter none."""
        return []

    def written(self, _done: Done) -> Sequence[str]:
        return ()


@dataclass(slots=True, kw_only=True)
class NamedRows(Operation):
    """Rows that are named by their keys."""

    change: Change
    rounds: "_Rounds"
    missing: Sequence[str] = ()
    """The rows whose scopes were looked for, and that are not there."""

    async def write(self, connection: Connection) -> Outcome:
        if self.missing:
            return _no_rows(self.missing)
        return await decide_alone(connection, self.rounds, self.row)

    async def scopes(self, connection: Connection, scope: Scope) -> list[str]:
        """Read the scopes of all rows; where one is missing, the objects may name the scope that it would be in."""
        places = await place_elements(connection, self.table, self.row.body)
        self.rounds.know([(each.element, each.resource) for each in places])
        self.missing = [each.resource for each in places if each.scope is None]
        scopes = {each.scope for each in places}
        given = {*self.table.key, *self.change.columns}
        if None in scopes and given.issuperset(scope.columns):
            scopes |= set(await scope_names.scopes_of_body(connection, self.table, scope, self.row.body))
        return sorted(each for each in scopes if each is not None)

    def refused(self, by: Sequence[Entered]) -> Problem:
        return refused_by_scopes(self.table, self.row.token, by)

    def written(self, done: Done) -> Sequence[str]:
        return names_of(done)

    async def evidence(self, connection: Connection) -> Evidence:
        """Ask for the marks of all keys: the write would have raised all of them (R15)."""
        if self.table.row_security:
            return Evidence(None)
        asked = await ask_elements(connection, self.table, self.row.body)
        return rows_evidence([each.standing for each in asked], self.row.token)


@dataclass(slots=True)
class _Rounds:
    """What R5's loop runs: to it the array is one write."""

    table: ProtectedTable
    marks: Marks
    row: RowWrite
    change: Change
    wait: Wait = "block"
    creates: bool = False
    tried: int = 0
    """How often all marks would have let it pass, and yet it did not reach all rows."""
    known: Sequence[tuple[int, str]] = ()
    """The elements and their rows' names, as they were last asked for."""
    met: frozenset[int] = frozenset()
    """Elements whose rows the last try met."""

    @property
    def unmet(self) -> list[str]:
        """The rows that it did not meet."""
        return [resource for element, resource in self.known if element not in self.met]

    def know(self, known: Sequence[tuple[int, str]]) -> None:
        """Keep the names of the elements' rows (QueryError: they cannot be the rows of one request)."""
        _require_keys(self.table, known)
        self.known = known

    async def write(self, connection: Connection, _writes: Sequence[RowWrite], _number: int) -> list[Answer]:
        outcome = await write_elements(connection, self.table, self.row, self.change)
        if not isinstance(outcome, Unwritten):
            return [Done(outcome.rows, resources=outcome.names)]
        self.met = outcome.met
        return [ALONE]

    async def ask(self, connection: Connection, writes: Sequence[RowWrite]) -> Sequence[Verdict]:
        """Find out why not all rows were reached."""
        return await self.marks.why(connection, self, writes)

    def absent(self, _writes: Sequence[RowWrite]) -> Sequence[Problem]:
        """Answer as if there were none of the rows that were not met."""
        return [_no_rows(self.unmet)]

    async def ask_rows(self, connection: Connection, _writes: Sequence[RowWrite]) -> Sequence[Verdict]:
        """Ask for the marks of all keys. In a transaction, what nothing refuses starts over: step 3 above."""
        asked = await ask_elements(connection, self.table, self.row.body)
        if (problem := self._why(asked)) is not None:
            return [problem]
        self.tried += 1
        if self.tried >= ROUNDS:
            return [self._give_up()]
        # With row security it is more likely a policy that hides rows from writing: not worth the pauses.
        if connection.is_in_transaction() and not self.table.row_security:
            raise asyncpg.SerializationError(f"{self.table.name}: a row came and went meanwhile")
        return [AGAIN]

    def _why(self, asked: Sequence[ElementState]) -> Problem | None:
        self.know([(each.element, each.standing.resource) for each in asked])
        fence = self.table.fence
        verdicts = [judge(each.standing, fence, self.row.token) for each in asked]
        problems = [problem_of_verdict(verdict, fence) for verdict in verdicts if verdict is not None]
        if refusals := [p for p in problems if p.type in (STALE_TOKEN, SPENT_TOKEN)]:
            return refused_rows(self.table, self.row.token, refusals[:LISTED_REFUSALS])
        if unissued := next((v for v in verdicts if isinstance(v, Unissued | BeyondCeiling)), None):
            return problem_of_verdict(unissued, fence)
        missing = [v.resource for v in verdicts if isinstance(v, MissingRow)]
        return _no_rows(missing) if missing else None

    async def create(self, *_: object) -> Sequence[Answer]:
        """Never called: `creates` is false."""
        raise RuntimeError("a PATCH creates no rows")

    async def never_reached(self, *_: object) -> Problem:
        return self._give_up()

    def _give_up(self) -> Problem:
        unmet = self.unmet
        if self.table.row_security and unmet:
            return _no_rows(unmet)  # we may see the rows, and a policy keeps us from writing them
        return contended(unmet[0] if unmet else self.table.name)


def _require_keys(table: Table, named: Sequence[tuple[int, str]]) -> None:
    """Refuse elements without a value for the key, and those that name one row twice: their resources are in key order,
    so equal ones stand side by side, and one key has one name however it is spelled.
    """
    if keyless := [element for element, resource in named if not resource]:
        raise QueryError(
            f"body: element {min(keyless)} names no row of {table.name}: every object has values for its key,"
            f" {', '.join(table.key)}"
        )
    for (one, resource), (other, next_resource) in itertools.pairwise(named):
        if resource == next_resource:
            raise QueryError(f"body: the elements {one} and {other} both name {resource}: a request writes a row once")


def _no_rows(resources: Sequence[str]) -> Problem:
    named = ", ".join(resources[:_NAMED]) + (f" and {len(resources) - _NAMED} more" if len(resources) > _NAMED else "")
    return Problem(
        ROW_NOT_FOUND,
        f"There is no row {named}: nothing was written.",
        hint="`rows` lists the keys without a row. POST inserts rows; PUT creates or replaces one.",
        resource=resources[0],
        extra={"rows": [{"resource": each, "current_token": None} for each in resources[:LISTED_REFUSALS]]},
    )
