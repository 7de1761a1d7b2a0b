"""POST: one row or many under one token, all or none (R10)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fencepost.server.fence.problem_types import SPENT_TOKEN, STALE_TOKEN, UNISSUED_TOKEN, WRONG_TOKEN_SOURCE
from fencepost.server.fence.problems import Problem
from fencepost.server.fence.resource import Scope
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.outcomes import Done, Outcome
from fencepost.server.gateway.preconditions import ready_to_write, target_of
from fencepost.server.gateway.writes.all_or_nothing import names_of, refused_by_scopes, refused_rows, unfit_count
from fencepost.server.gateway.writes.batched import Batched, Lanes, Shape, alone, in_a_batch, lanes_of, shape_of
from fencepost.server.gateway.writes.idempotency import IdempotentRequest
from fencepost.server.gateway.writes.keys import may_need_fitting
from fencepost.server.gateway.writes.marks import marks_of
from fencepost.server.gateway.writes.operation import Evidence, Operation, rows_evidence
from fencepost.server.gateway.writes.rounds import judge, problem_of_verdict
from fencepost.server.gateway.writes.scoped import no_scope, require_columns_of
from fencepost.server.gateway.writes.verbs import UNIQUE_VIOLATION
from fencepost.server.gateway.writes.write import Write
from fencepost.server.postgres import keyed, marks, scopes
from fencepost.server.postgres.connection import Connection
from fencepost.server.postgres.errors import RefusedError, map_errors
from fencepost.server.postgres.group_commit import Alone, Broken
from fencepost.server.postgres.keyed import Change
from fencepost.server.postgres.marks import KeyState, keys_may_change
from fencepost.server.postgres.query import Query
from fencepost.server.postgres.scopes import Entered
from fencepost.server.postgres.tables import ProtectedTable, Table

_MAY_BE_A_MARK: Final = frozenset({UNIQUE_VIOLATION, "FP409"})


async def write(gateway: Gateway, request: Write, count: int, once: IdempotentRequest | None, found: Table) -> Outcome:
    """Decide an insert of so many rows: of one row in a batch, or alone."""
    target = target_of(found, request.select, gateway.max_answer_bytes, shown=request.shown)
    unfit = unfit_count(request, count, gateway.max_rows)
    if unfit is not None:
        return unfit
    ready = ready_to_write(found, request.token, request.body.columns, once, gateway.seals)
    if isinstance(ready, Problem):
        return ready
    table, (token, binding) = ready
    write = Batched.of((), token, request.body.raw, once)
    # Under a seal it goes alone: which row it makes is known only when it is made.
    lanes = None
    if count == 1 and binding is None:
        shape = shape_of(table, request, once)
        lanes = table.kept(_lanes, shape, gateway.max_answer_bytes)
    answer = await in_a_batch(gateway, lanes, write)
    if not isinstance(answer, Alone | Broken):
        return answer
    rows = NewRows(
        table=table,
        marks=marks_of(table),
        row=write.row,
        body=request.body,
        once=once,
        binding=binding,
        query=Query(request.select),
        change=Change(request.body.columns, target, request.preferences.in_sql),
    )
    return await alone(gateway, rows, lanes, write, answer)


def _lanes(table: ProtectedTable, shape: Shape, most_bytes: int) -> Lanes | None:
    target = target_of(table, shape.select, most_bytes, shown=shape.shown)
    return lanes_of(table, shape, Change(shape.columns, target, shape.preferences))


@dataclass(slots=True, kw_only=True)
class NewRows(Operation):
    """New rows. Where each has a mark of its own, triggers judge those of keys without a row (R6)."""

    change: Change

    async def write(self, connection: Connection) -> Outcome:
        with map_errors(writing=True):
            statement = self.table.kept(keyed.insert, self.change, "block")
            rows = await statement.rows(connection, self.row)
        if len(rows) != 1:
            return Done([row.json for row in rows], created=True, resources=[row.resource for row in rows])
        done = self.marks.done(self.row, rows[0], created=True)
        done.resources = (done.resource,)
        return done

    async def scopes(self, connection: Connection, scope: Scope) -> list[str]:
        """Render the scopes that the body names."""
        require_columns_of(scope, self.table, self.change.columns)
        names = await scopes.scopes_of_body(connection, self.table, scope, self.row.body)
        return [name if name is not None else no_scope(scope, self.table) for name in names]

    def refused(self, by: Sequence[Entered]) -> Problem:
        return refused_by_scopes(self.table, self.row.token, by)

    async def explain(self, connection: Connection, error: RefusedError) -> Problem | None:
        """Answer a duplicate under a stale token as stale (FP001, not 23505), and list every row that refuses; one
        under a token that was never issued is FP018.
        """
        table, fence = self.table, self.table.fence
        if error.sqlstate not in _MAY_BE_A_MARK or not self._names_keys():
            return None
        with map_errors(writing=False):
            standings = await self._standings(connection)
        verdicts = [judge(standing, fence, self.row.token) for standing in standings]
        problems = [problem_of_verdict(verdict, fence) for verdict in verdicts if verdict is not None]
        refusals = [p for p in problems if p.type in (STALE_TOKEN, SPENT_TOKEN)]
        if not refusals:
            return next((p for p in problems if p.type in (UNISSUED_TOKEN, WRONG_TOKEN_SOURCE)), None)
        return refusals[0] if len(standings) == 1 else refused_rows(table, self.row.token, refusals)

    def written(self, done: Done) -> Sequence[str]:
        """Name the rows as they were stored: a trigger may have given one another key."""
        return names_of(done)

    async def evidence(self, connection: Connection) -> Evidence:
        """Ask for the marks of all keys, unless the database makes or changes the keys, or a policy hides rows."""
        known = self._names_keys() and not may_need_fitting(self.table)
        if not known or self.table.row_security or await keys_may_change(connection, self.table):
            return Evidence(None)
        return rows_evidence(await self._standings(connection), self.row.token)

    async def _standings(self, connection: Connection) -> list[KeyState]:
        found = await marks.ask_elements(connection, self.table, self.row.body)
        return sorted((each.standing for each in found), key=lambda standing: standing.resource)

    def _names_keys(self) -> bool:
        return bool(self.table.key) and set(self.table.key) <= set(self.change.columns)
