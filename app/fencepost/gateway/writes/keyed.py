"""Single-row writes by key: PATCH, PUT, DELETE. The commit precedes the answer.

A PUT is an UPDATE (columns that the body leaves out get their defaults) and, where there is no row, an INSERT. Each is
a fenced operation of its own, so whatever happens in between is judged: an INSERT that meets a row after all goes back
to the UPDATE.
"""

from dataclasses import dataclass

from fencepost.fencing.problems import Problem
from fencepost.gateway.gateway import Gateway
from fencepost.gateway.outcomes import Outcome
from fencepost.gateway.writes.batched import Batched, alone, in_a_batch
from fencepost.gateway.writes.evidence import row_evidence
from fencepost.gateway.writes.keys import KeyCheck, needs_fitting
from fencepost.gateway.writes.operation import Evidence, Operation
from fencepost.gateway.writes.plans import NO_BODY, Body, KeyedVerb, KeyedWrite, Plan, ready_for
from fencepost.gateway.writes.rounds import decide_alone
from fencepost.gateway.writes.scoped import InScopes, no_scope, require_columns_of
from fencepost.gateway.writes.verbs import no_row
from fencepost.storage.batches.batch_queue import Alone, Broken
from fencepost.storage.connections.connection import Connection
from fencepost.storage.statements.scope_names import scope_named, scope_of_row
from fencepost.storage.tables.catalog import Table


async def write(gateway: Gateway, request: KeyedWrite, verb: KeyedVerb, found: Table) -> Outcome:
    """Decide a write: in a batch, or alone."""
    ready = ready_for(found, request, verb)
    if isinstance(ready, Problem):
        return ready
    plan, token = ready
    body = request.body or NO_BODY
    doubtful = _doubtful(found, request, body) if plan.names_key else ()
    to_fit = plan.alone.creates and needs_fitting(found, request.key)
    write = Batched.of(request.key, token, body.text, request.once)
    answer = await in_a_batch(gateway, None if doubtful or to_fit else plan.queue, write)
    if not isinstance(answer, Alone | Broken):
        return answer
    kind = OfRow if plan.table.fence.scope is None else OfRowInScope
    check = KeyCheck(plan.table, write.row, doubtful, to_fit)
    operation = kind(table=plan.table, row=write.row, body=request.body, once=request.once, plan=plan, check=check)
    return await alone(gateway, operation, write, answer)


def _doubtful(table: Table, request: KeyedWrite, body: Body) -> tuple[str, ...]:
    """Name the key columns in the body whose text differs from the path's: for an integer, 7 and 07 are one key."""
    return tuple(
        name
        for name, value in zip(table.key, request.key, strict=True)
        if name in body.columns and not body.says(name, value)
    )


@dataclass(slots=True, kw_only=True)
class OfRow(Operation):
    """A write of a row that has a mark of its own."""

    plan: Plan
    check: KeyCheck

    async def attempt(self, connection: Connection) -> Outcome:
        """Write, ask, create, until it is decided."""
        await self.check.run(connection)
        return await decide_alone(connection, self.plan.alone, self.row)

    async def evidence(self, connection: Connection) -> Evidence:
        """Ask for the row's mark."""
        creates = self.plan.alone.creates
        return await row_evidence(connection, self.table, self.row.key, self.row.token, creates=creates)


@dataclass(slots=True, kw_only=True)
class OfRowInScope(InScopes):
    """A write of a row that shares its scope's mark. `missing`: there is no row, and so none to write."""

    plan: Plan
    check: KeyCheck
    missing: bool = False

    async def find(self, connection: Connection) -> list[str]:
        """Read the row's scope; that of a row to be created, or that is missing, the request may name."""
        await self.check.run(connection)
        if self.plan.alone.creates:
            require_columns_of(self.scope, self.table, self._named_columns())
            return [await self._named_scope(connection) or no_scope(self.scope, self.table)]
        name = await scope_of_row(connection, self.table, self.scope, self.row.key)
        self.missing = name is None
        if name is None and self._named_columns().issuperset(
            self.scope.columns
        ):  # 409 where that scope refuses the token
            name = await self._named_scope(connection)
        return [] if name is None else [name]

    async def write(self, connection: Connection, scopes: list[str]) -> Outcome:
        """Write the row of the scope."""
        if self.missing:
            return no_row(self.table, self.row.key)
        self.row.scope = scopes[0]
        return await decide_alone(connection, self.plan.alone, self.row)

    def _named_columns(self) -> set[str]:
        return {*self.table.key, *self.plan.change.columns}

    async def _named_scope(self, connection: Connection) -> str | None:
        columns = self.plan.change.columns
        return await scope_named(connection, self.table, self.scope, self.row.key, columns, self.row.body)
