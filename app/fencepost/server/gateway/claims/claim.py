"""Claims: raising a mark without writing data, so that no older holder can write from now on (R7).

A new holder claims first, and reads the row from the claim's own answer: RETURNING of the claiming UPDATE is the row
that no older holder can change any more. A key without a row is claimed too: no older holder can create it. That goes

1. UPDATE … SET mark, RETURNING: a row came back, done;
2. R5's question: a mark refuses, done; a row is there after all, back to 1;
3. in one transaction, raise the mark of the absent key (which waits for an INSERT or DELETE of it that is under way),
   then look again in a new statement: a row that came into being meanwhile takes the claim instead. Roll back, go to 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from fencepost.server.fence.caller import Caller
from fencepost.server.fence.problem_types import ROW_NOT_FOUND
from fencepost.server.fence.problems import Problem
from fencepost.server.fence.resource import Resource, Scope
from fencepost.server.fence.seal import Presented
from fencepost.server.fence.token import MissingRow, refusal
from fencepost.server.gateway.claims.resources import claimable, refuse_scope, require_storable
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.outcomes import Done, Outcome
from fencepost.server.gateway.preconditions import (
    not_with_queue,
    require_once,
    require_protected,
    require_token,
    target_of,
)
from fencepost.server.gateway.writes.idempotency import Render, once_of
from fencepost.server.gateway.writes.keys import needs_fitting, require_fitting
from fencepost.server.gateway.writes.marks import OWN_MARKS, ScopeMarks
from fencepost.server.gateway.writes.operation import Evidence, Operation, row_evidence
from fencepost.server.gateway.writes.perform import perform
from fencepost.server.gateway.writes.rounds import Answer, decide_alone, problem_of_verdict
from fencepost.server.gateway.writes.verbs import Rows
from fencepost.server.gateway.writes.write import IdempotencyKey
from fencepost.server.postgres import keyed
from fencepost.server.postgres.connection import Connection
from fencepost.server.postgres.group_commit import AGAIN
from fencepost.server.postgres.keyed import Change
from fencepost.server.postgres.marks import Appeared, claim_absent
from fencepost.server.postgres.row_sql import Key, RowWrite
from fencepost.server.postgres.scopes import scopes_typed
from fencepost.server.postgres.tables import ProtectedTable, Table

_MAKE_THE_ROW: Final = (
    "Row security applies to this table: a key is claimed only while you see its row. Fence a new key with its row:"
    " PUT it under the token."
)


@dataclass(frozen=True, slots=True)
class Claim:
    """POST /v1/claims."""

    resource: Resource
    token: Presented | None
    idempotency_key: IdempotencyKey | None = None


async def write(gateway: Gateway, request: Claim, render: Render | None, found: Table) -> Outcome:
    """Decide a claim."""
    once = once_of(request.idempotency_key, gateway.caller, found, render)
    table, key = require_protected(found), request.resource.key
    if isinstance(table, Problem):
        return table
    scope = claimable(table, request.resource) if table.fence.queue is None else not_with_queue(table.fence, "a claim")
    if isinstance(scope, Problem):
        return scope
    if (keyless := require_once(table.fence, once)) is not None:
        return keyless
    checked = require_token(table, request.token, gateway.seals)
    if isinstance(checked, Problem):
        return checked
    token, binding = checked
    if scope is None:
        claim = ClaimOfRow(
            table=table,
            marks=OWN_MARKS,
            row=RowWrite(key, token),
            once=once,
            binding=binding,
            most_bytes=gateway.max_answer_bytes,
        )
        return await perform(gateway, claim)
    sharing = gateway.catalog.current.scopes.get(scope.prefix, ())
    row = RowWrite((), token)
    claim_of_scope = ClaimOfScope(
        table=table,
        marks=ScopeMarks(scope),
        row=row,
        once=once,
        binding=binding,
        scope=scope,
        values=key,
        sharing=sharing,
        caller=gateway.caller,
    )
    return await perform(gateway, claim_of_scope)


@dataclass(slots=True, kw_only=True)
class ClaimOfRow(Operation):
    """The claim of a row, or of a key without one."""

    most_bytes: int
    """How many bytes the row may have, which is the answer."""

    async def write(self, connection: Connection) -> Outcome:
        return await claim_row(connection, self.table, self.row, self.most_bytes)

    async def evidence(self, connection: Connection) -> Evidence:
        return await row_evidence(connection, self.table, self.row.key, self.row.token)


@dataclass(slots=True, kw_only=True)
class ClaimOfScope(Operation):
    """The claim of a scope, by the values of its columns. `sharing`: the tables of the scope."""

    scope: Scope
    values: Key
    sharing: Sequence[Table]
    caller: Caller

    @property
    def runs_code(self) -> bool:
        """Values are stored nowhere, but all tables are asked whether one could store them."""
        return any(table.runs_code for table in self.sharing)

    async def scopes(self, connection: Connection, scope: Scope) -> list[str]:
        names = await scopes_typed(connection, self.table, scope, [self.values])
        await require_storable(connection, self.sharing, self.values)
        return names

    async def write(self, connection: Connection) -> Outcome:
        """Nothing is written: no older holder can write to the rows of the scope from now on."""
        name = self.row.scope
        refused = await refuse_scope(connection, self.caller, self.scope, self.sharing, name, writing=True)
        return refused or Done([], self.row.token, resource=name, scope=name)


async def claim_row(connection: Connection, table: ProtectedTable, row: RowWrite, most_bytes: int) -> Outcome:
    """Claim on a connection, which may be in a transaction: a grant claims in its own."""
    outcome = await decide_alone(connection, table.kept(_steps, most_bytes), row)
    if table.row_security and isinstance(outcome, Problem) and outcome.type is ROW_NOT_FOUND:
        return replace(outcome, hint=_MAKE_THE_ROW)
    return outcome


def _steps(table: ProtectedTable, most_bytes: int) -> "Claiming":
    change = Change((), target_of(table, None, most_bytes, shown=True), frozenset(), named=True)
    first, careful = keyed.update(table, change, "block"), keyed.update(table, change, "block", careful=True)
    return Claiming(table, OWN_MARKS, "block", first, careful)


@dataclass(frozen=True, slots=True)
class Claiming(Rows):
    """An UPDATE that sets nothing but the mark; where there is no row, the mark of the key is raised."""

    @property
    def creates(self) -> bool:
        """A row that row security hides is not an absent key: its mark is its own, and out of our reach."""
        return not self.table.row_security

    async def create(
        self, connection: Connection, missing: Sequence[tuple[RowWrite, MissingRow]], _number: int
    ) -> Sequence[Answer]:
        """Raise the mark of a key without a row; a row that it has by now is written in the next round."""
        ((write, verdict),) = missing
        if needs_fitting(self.table, write.key):
            await require_fitting(connection, self.table, write.key, "resource")
        raised = await claim_absent(connection, self.table, write.key, write.token, verdict.resource)
        if isinstance(raised, Appeared):
            return [AGAIN]
        if raised is not None:
            refusing = refusal(self.table.fence.rule, verdict.resource, raised, write.token)
            if refusing is not None:
                return [problem_of_verdict(refusing, self.table.fence)]
        return [Done([], write.token, resource=verdict.resource)]
