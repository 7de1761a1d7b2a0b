"""Single-row writes by key: PATCH, PUT, DELETE. The commit precedes the answer.

A PUT is an UPDATE (columns that the body leaves out get their defaults) and, where there is no row, an INSERT. Each is
a fenced operation of its own, so whatever happens in between is judged: an INSERT that meets a row after all goes back
to the UPDATE.

What can be known before PostgreSQL is asked is a Plan: it is checked, and its statements are written, once per table,
verb, columns and select, and kept with the table's picture.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fencepost.server.fence.problems import Problem
from fencepost.server.fence.resource import Scope
from fencepost.server.fence.seal import SealedToken
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.outcomes import Done, Outcome
from fencepost.server.gateway.preconditions import (
    Authority,
    require_columns,
    require_key,
    require_once,
    require_protected,
    require_reach,
    require_token,
    target_of,
)
from fencepost.server.gateway.refusals import SUPPRESSED
from fencepost.server.gateway.seals import elsewhere
from fencepost.server.gateway.writes.batched import Batched, Lanes, Shape, alone, in_a_batch, lanes_of, shape_of
from fencepost.server.gateway.writes.idempotency import IdempotentRequest
from fencepost.server.gateway.writes.keys import KeyCheck, doubtful_columns, needs_fitting
from fencepost.server.gateway.writes.naming import name_of_key
from fencepost.server.gateway.writes.operation import Evidence, Marks, Operation, row_evidence
from fencepost.server.gateway.writes.rounds import Steps, decide_alone, judge, problem_of_verdict
from fencepost.server.gateway.writes.scoped import no_scope, require_columns_of
from fencepost.server.gateway.writes.verbs import no_row, steps_of
from fencepost.server.gateway.writes.write import Write
from fencepost.server.postgres import marks as asking
from fencepost.server.postgres.connection import Connection
from fencepost.server.postgres.errors import RefusedError, map_errors
from fencepost.server.postgres.group_commit import Alone, Broken
from fencepost.server.postgres.keyed import Change
from fencepost.server.postgres.query import Query
from fencepost.server.postgres.row_sql import Key
from fencepost.server.postgres.scopes import scope_named, scope_of_row
from fencepost.server.postgres.tables import ProtectedTable, Table


@dataclass(frozen=True, slots=True)
class Plan:
    """What is the same for all writes of one verb that name the same columns: checked and written once."""

    table: ProtectedTable
    marks: Marks
    change: Change
    alone: Steps
    """Its statements for a write that is decided alone."""
    lanes: Lanes | None
    """Its batches; None: it is never in one."""
    names_key: bool
    """Whether the body gives key columns, too."""


async def write(gateway: Gateway, request: Write, key: Key, once: IdempotentRequest | None, found: Table) -> Outcome:
    """Decide a write of the row with this key: in a batch, or alone."""
    ready = _ready_for(gateway, found, request, key, once)
    if isinstance(ready, Problem):
        return ready
    plan, (token, binding) = ready
    name = ""
    if binding is not None and plan.marks.names_rows:
        name = await name_of_key(gateway, plan.table, key)
        if (refused := elsewhere(binding, token, (name,))) is not None:
            return refused
        if request.verb == "delete" and (refused := require_reach(plan.table, (token, binding))) is not None:
            return refused
    doubtful = doubtful_columns(found, key, request.body) if plan.names_key else ()
    to_fit = plan.alone.creates and needs_fitting(found, key)
    write = Batched.of(key, token, request.body.raw, once)
    # A row's scope is known in the transaction only, where a batch would have raised its mark by then.
    goes_alone = doubtful or to_fit or (binding is not None and not plan.marks.names_rows)
    lanes = None if goes_alone else plan.lanes
    answer = await in_a_batch(gateway, lanes, write)
    if not isinstance(answer, Alone | Broken):
        return answer
    operation = OfRow(
        table=plan.table,
        marks=plan.marks,
        row=write.row,
        body=request.body,
        once=once,
        binding=binding,
        query=Query(request.select),
        plan=plan,
        key_check=KeyCheck(plan.table, write.row, doubtful, to_fit),
        name=name,
    )
    return await alone(gateway, operation, lanes, write, answer)


def _ready_for(
    gateway: Gateway, table: Table, request: Write, key: Key, once: IdempotentRequest | None
) -> tuple[Plan, Authority] | Problem:
    protected = require_protected(table)
    if isinstance(protected, Problem):
        return protected
    require_key(protected, key)
    # Under a seal a PUT answers which row it has made: a trigger may have given it another key.
    named = request.verb == "put" and isinstance(request.token, SealedToken)
    shape = shape_of(protected, request, once, named=named)
    plan = protected.kept(_plan, shape, gateway.max_answer_bytes)
    if (keyless := require_once(protected.fence, once)) is not None:
        return keyless
    checked = require_token(protected, request.token, gateway.seals)
    return checked if isinstance(checked, Problem) else (plan, checked)


def _plan(table: ProtectedTable, shape: Shape, most_bytes: int) -> Plan:
    require_columns(table, shape.columns)
    # An unknown column is 400, and that comes before 428.
    target = target_of(table, shape.select, most_bytes, shown=shape.shown)
    given = tuple(c for c in shape.columns if c not in table.key)
    defaults = replaceable(table, given) if shape.verb == "put" else ()
    change = Change(given, target, shape.preferences, defaults, shape.named, deletes=shape.verb == "delete")
    names_key = len(given) < len(shape.columns)
    alone = steps_of(table, shape.verb, change, "block")
    return Plan(table, alone.marks, change, alone, lanes_of(table, shape, change), names_key)


def replaceable(table: Table, given: tuple[str, ...]) -> tuple[str, ...]:
    """Columns that PUT sets to their defaults."""
    return tuple(
        name
        for name in table.visible
        if name not in given
        and name not in table.key
        and not table.columns[name].generated
        and table.columns[name].identity != "always"
    )


@dataclass(slots=True, kw_only=True)
class OfRow(Operation):
    """A write of one row."""

    plan: Plan
    name: str
    """The name of its resource, where its token is sealed."""
    missing: bool = False
    """Whether its scope was looked for, and there is no row, and so none to write."""

    async def write(self, connection: Connection) -> Outcome:
        """Write, ask, create, until it is decided."""
        if self.missing:
            return no_row(self.table, self.row.key)
        return await decide_alone(connection, self.plan.alone, self.row)

    async def scopes(self, connection: Connection, scope: Scope) -> list[str]:
        """Read the row's scope; that of a row to be created, or that is missing, the request may name."""
        named = {*self.table.key, *self.plan.change.columns}
        if self.plan.alone.creates:
            require_columns_of(scope, self.table, named)
            return [await self._named_scope(connection, scope) or no_scope(scope, self.table)]
        name = await scope_of_row(connection, self.table, scope, self.row.key)
        self.missing = name is None
        if name is None and named.issuperset(scope.columns):  # 409 where that scope refuses the token
            name = await self._named_scope(connection, scope)
        return [] if name is None else [name]

    async def _named_scope(self, connection: Connection, scope: Scope) -> str | None:
        columns = self.plan.change.columns
        return await scope_named(connection, self.table, scope, self.row.key, columns, self.row.body)

    async def explain(self, connection: Connection, error: RefusedError) -> Problem | None:
        """Answer a DELETE as stale or spent where the row was written before in the same transaction (of a batch that
        lands as a whole): PostgreSQL's function sees an own write, and takes it for a trigger's.
        """
        if error.sqlstate != SUPPRESSED or not connection.is_in_transaction():
            return None
        with map_errors(writing=False):
            (standing,) = await asking.ask(connection, self.table, [self.row.key])
        verdict = judge(standing, self.table.fence, self.row.token)
        return None if verdict is None else problem_of_verdict(verdict, self.table.fence)

    def written(self, done: Done) -> Sequence[str]:
        """Name the row: that of a PUT as it was stored."""
        return (done.resource or self.name,)

    async def evidence(self, connection: Connection) -> Evidence:
        """Ask for the row's mark."""
        creates = self.plan.alone.creates
        return await row_evidence(connection, self.table, self.row.key, self.row.token, creates=creates)
