"""Single-row writes by key: PATCH, PUT, DELETE. The commit precedes the answer.

A PUT is an UPDATE (columns that the body leaves out get their defaults) and, where there is no row, an INSERT. Each is
a fenced operation of its own, so whatever happens in between is judged: an INSERT that meets a row after all goes back
to the UPDATE.

What can be known before PostgreSQL is asked is a Plan: it is checked, and its statements are written, once per table,
verb, columns and select, and kept with the table's picture.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from fencepost.server.fence.caller import Caller
from fencepost.server.fence.problems import Problem
from fencepost.server.fence.resource import Scope
from fencepost.server.fence.seal import SealedToken
from fencepost.server.fence.token import Token
from fencepost.server.gateway.alone import Evidence, Operation, perform, row_evidence
from fencepost.server.gateway.attempt import (
    Answer,
    Statements,
    attempt,
    attempt_alone,
    judge,
    no_row,
    problem_of_verdict,
    statements_of,
)
from fencepost.server.gateway.gateway import Gateway, elsewhere
from fencepost.server.gateway.group_commit import AGAIN, ALONE, HELD, Alone, BatchQueue, Broken, RoleQueues
from fencepost.server.gateway.idempotency import IdempotentRequest, Keeping, answer_of, keeping
from fencepost.server.gateway.outcomes import Done, Outcome, busy
from fencepost.server.gateway.refusals import (
    SUPPRESSED,
    Authority,
    require_columns,
    require_key,
    require_once,
    require_protected,
    require_reach,
    require_token,
    target_of,
)
from fencepost.server.gateway.write import (
    KeyCheck,
    Verb,
    Write,
    doubtful_columns,
    name_of_key,
    needs_fitting,
    no_scope,
    refused_scope,
    require_columns_of,
)
from fencepost.server.postgres import keyed
from fencepost.server.postgres import marks as row_marks
from fencepost.server.postgres.connection import Session
from fencepost.server.postgres.database import in_transaction
from fencepost.server.postgres.errors import RefusedError
from fencepost.server.postgres.keyed import CALLER, Change, Record
from fencepost.server.postgres.query import Query, Select
from fencepost.server.postgres.row_sql import Key, RowWrite
from fencepost.server.postgres.scopes import Entered, Opened, Prelude, ScopeOf, prelude, scope_named, scope_of_row
from fencepost.server.postgres.tables import ProtectedTable, Table

# Single-row writes as batches decide them (gateway/group_commit.py): one transaction for many requests.
#
# A batch without keys and scopes is one statement, which commits by itself; rows that it did not reach are asked about
# in the next one (R5). With them, and for PUT, it is a transaction, in the order that all transactions keep (R20):
# Idempotency-Keys, scopes, rows, records. The ids of a queue's messages are recorded like keys, and not looked up
# before (rounds.py). What a batch cannot decide for certain, it leaves to `perform`, which decides a write alone.

MOST_WRITES: Final = 256
MOST_IDEMPOTENT: Final = 64
"""Each Idempotency-Key that is looked up is a lock, and PostgreSQL has room for some 64 per connection."""


@dataclass(slots=True, eq=False)
class Batched:
    """One request's write. `row.scope` is found out by the first batch that carries it."""

    row: RowWrite
    once: IdempotentRequest | None = None

    @classmethod
    def of(cls, key: Key, token: Token, body: bytes, once: IdempotentRequest | None) -> "Batched":
        if once is None:
            return cls(RowWrite(key, token, body))
        return cls(RowWrite(key, token, body, once.key, once.payload_hash), once)


WriteQueue = BatchQueue[Batched, Outcome]


@dataclass(frozen=True, slots=True)
class WriteQueues:
    """The queues of such writes."""

    queues: RoleQueues[Batched, Outcome]
    shows_caller: bool
    """Whether the table runs something that can see who calls: a default that reads the claims, for example."""

    def of(self, caller: Caller) -> WriteQueue | None:
        """Find the queue of a caller's writes; None: they go alone."""
        return None if caller.role is not None and self.shows_caller else self.queues.of(caller)


class Shape(NamedTuple):
    """All of a write that shapes its SQL: a plan is made of it and the table alone, and kept under it."""

    verb: Verb
    columns: tuple[str, ...]
    select: Select
    shown: bool
    preferences: frozenset[str]
    """Those that change statements."""
    keeping: Keeping
    named: bool
    """Whether the answer names the row that was written, as it was stored."""


def shape_of(table: Table, write: Write, once: IdempotentRequest | None, *, named: bool = False) -> Shape:
    """Give the shape of a write."""
    kept = keeping(once) if table.shares_transactions else None  # it differs in batches only
    preferences = write.preferences.in_sql
    return Shape(write.verb, write.body.columns, write.select, write.shown, preferences, kept, named)


def lanes_of(table: ProtectedTable, shape: Shape, change: Change) -> WriteQueues | None:
    """Make the queues of such writes; None: they cannot share a transaction, or are too rare to be worth it."""
    verb, kept, scope = shape.verb, shape.keeping, table.fence.scope
    if not table.shares_transactions or _reaches_further(table, verb, change):
        return None
    if scope is not None and not _fits_a_batch(table, scope, verb, change):
        return None
    statements = statements_of(table, verb, change, "skip")
    scope_of: ScopeOf = "row" if verb in ("patch", "delete") else "body" if verb == "post" else "key and body"
    caller, looked_up = kept if kept is not None else (CALLER, False)
    first = prelude(table, scope, scope_of, caller if looked_up else None)
    simple = verb != "put" and kept is None and scope is None

    def make(lane: Caller) -> WriteQueue:
        # A batch locks a row that it deletes, and a PUT's may create others' rows: alone, a write may need less.
        lenient = lane.role is not None and verb in ("put", "delete")
        batches = _Batches(statements, first, lenient)
        if simple:
            return BatchQueue(batches.run, caller=lane)
        most = MOST_IDEMPOTENT if looked_up else MOST_WRITES
        return BatchQueue(batches.run_in_transaction, _clashes, most, caller=lane)

    return WriteQueues(RoleQueues(make), table.shows_caller)


def _reaches_further(table: Table, verb: Verb, change: Change) -> bool:
    """Whether such a write may, by a foreign key's action, write to rows of other tables."""
    if verb == "delete":
        return table.deletes_reach_further
    return verb != "post" and not table.updates_reach_further.isdisjoint(change.sets)


def _fits_a_batch(table: Table, scope: Scope, verb: Verb, change: Change) -> bool:
    """Whether such a write of a table with a scope changes something, and names its scope if no row does."""
    if verb in ("patch", "put") and not change.sets:
        return False
    named = {*change.columns, *(() if verb == "post" else table.key)}
    return verb in ("patch", "delete") or named.issuperset(scope.columns)


def _clashes(write: Batched) -> Iterable[tuple[str, str]]:
    """A key's or a scope's second operation in a transaction would pass for the first one's own."""
    if write.once is not None:
        yield ("key", write.once.key)
    if write.row.scope:
        yield ("scope", write.row.scope)


async def in_a_batch(gateway: Gateway, lanes: WriteQueues | None, write: Batched) -> Answer | Broken:
    """Have a write decided in a batch; ALONE, HELD or Broken if that cannot be."""
    if lanes is None or gateway.together is not None or (queue := lanes.of(gateway.caller)) is None:
        return ALONE
    row = write.row
    if gateway.share is None:
        return await gateway.group.write(queue, write, row.key, len(row.raw))
    async with gateway.share.places:
        return await gateway.group.write(queue, write, row.key, len(row.raw), counted=False)


async def alone(
    gateway: Gateway, operation: Operation, lanes: WriteQueues | None, write: Batched, why: Alone | Broken
) -> Outcome:
    """Decide by itself what no batch of `lanes` has decided; where its row is locked, when its turn comes."""
    if isinstance(why, Broken):
        return await perform(gateway, operation, after=why)
    if why is not HELD:
        return await perform(gateway, operation)
    # The rows of POSTs have no name yet, and wait for each other only where PostgreSQL makes them.
    row = write.row.scope or ((operation.table.oid, write.row.key) if write.row.key else write)
    async with gateway.turns.of(row) as mine:
        if mine:
            return await perform(gateway, operation)
    # Others had all turns, for locks of theirs. This row may be free by now.
    answer = await in_a_batch(gateway, lanes, write)
    if not isinstance(answer, Alone | Broken):
        return answer
    if answer is HELD:
        return busy(operation.table, write.row.key)
    return await alone(gateway, operation, None, write, answer)


@dataclass(frozen=True, slots=True)
class _Batches:
    """The batches of one queue."""

    statements: Statements
    prelude: Prelude | None
    lenient: bool
    """Whether a write alone may need fewer privileges than the batch."""

    async def run(self, connection: Session, batch: Sequence[Batched]) -> Sequence[Answer]:
        """Write, and ask: statements that each commit by themselves."""
        try:
            return await attempt(connection, self.statements, [write.row for write in batch], committed=True)
        except RefusedError as error:
            return self._left_alone(batch, error)

    async def run_in_transaction(self, connection: Session, batch: Sequence[Batched]) -> Sequence[Answer]:
        """Look the keys up, enter the scopes, write, record."""
        try:
            return await in_transaction(connection, lambda: self._in_order(connection, batch))
        except RefusedError as error:
            return self._left_alone(batch, error)

    def _left_alone(self, batch: Sequence[Batched], error: RefusedError) -> Sequence[Answer]:
        if self.lenient and error.lacks_privilege:
            return [ALONE] * len(batch)
        raise error

    async def _in_order(self, connection: Session, batch: Sequence[Batched]) -> list[Answer]:
        answers: list[Answer] = [ALONE] * len(batch)
        left: Sequence[int] = range(len(batch))
        if self.prelude is not None:
            left = await self._open(connection, self.prelude, batch, answers)
        if left:
            written = await attempt(connection, self.statements, [batch[number].row for number in left])
            for number, answer in zip(left, written, strict=True):
                answers[number] = answer
            await _record(connection, batch, left, answers)
        return answers

    async def _open(
        self, connection: Session, prelude: Prelude, batch: Sequence[Batched], answers: list[Answer]
    ) -> list[int]:
        """Look keys up and enter scopes; gives the numbers of the writes that may go on."""
        left = []
        for number, opened in enumerate(await prelude.run(connection, [write.row for write in batch])):
            row = batch[number].row
            answer: Answer | None = answer_of(opened.key)
            if answer is None:
                row.scope = opened.scope
                answer = None if opened.verdict == "entered" else _not_entered(self.statements.table, row, opened)
            if answer is None:
                left.append(number)
            else:
                answers[number] = answer
        return left


def _not_entered(table: ProtectedTable, row: RowWrite, opened: Opened) -> Answer | None:
    """Give the answer of a write whose scope was not entered; None: it was."""
    match opened.verdict:
        case "entered":
            return None
        case "refused":
            return refused_scope(table, Entered(opened.scope, opened.refused_by), row.token)
        case "busy":
            return AGAIN
        case "unclear":  # alone it is found out what is wrong
            return ALONE


async def _record(
    connection: Session, batch: Sequence[Batched], left: Sequence[int], answers: Sequence[Answer]
) -> None:
    """Record what is answered under the keys of those that were accepted, last."""
    records: list[Record] = []
    for number in left:
        once, answer = batch[number].once, answers[number]
        if once is not None and isinstance(answer, Done):
            records += once.records(answer)
    if records:
        await keyed.record_many(connection, records)


# PATCH, PUT and DELETE of a row: checked and planned once for writes that look alike, then decided.


@dataclass(frozen=True, slots=True)
class Plan:
    """What is the same for all writes of one verb that name the same columns: checked and written once."""

    table: ProtectedTable
    change: Change
    alone: Statements
    """Its statements for a write that is decided alone."""
    lanes: WriteQueues | None
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
    has_scope = plan.table.fence.scope is not None
    if binding is not None and not has_scope:
        name = await name_of_key(gateway, plan.table, key)
        if (refused := elsewhere(binding, token, (name,))) is not None:
            return refused
        if request.verb == "delete" and (refused := require_reach(plan.table, (token, binding))) is not None:
            return refused
    doubtful = doubtful_columns(found, key, request.body) if plan.names_key else ()
    to_fit = plan.alone.creates and needs_fitting(found, key)
    write = Batched.of(key, token, request.body.raw, once)
    # A row's scope is known in the transaction only, where a batch would have raised its mark by then.
    goes_alone = doubtful or to_fit or (binding is not None and has_scope)
    lanes = None if goes_alone else plan.lanes
    answer = await in_a_batch(gateway, lanes, write)
    if not isinstance(answer, Alone | Broken):
        return answer
    operation = OfRow(
        table=plan.table,
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
    alone = statements_of(table, shape.verb, change, "block")
    return Plan(table, change, alone, lanes_of(table, shape, change), names_key)


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

    async def write(self, connection: Session) -> Outcome:
        """Write, ask, create, until it is decided."""
        if self.missing:
            return no_row(self.table, self.row.key)
        return await attempt_alone(connection, self.plan.alone, self.row)

    async def scopes(self, connection: Session, scope: Scope) -> list[str]:
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

    async def _named_scope(self, connection: Session, scope: Scope) -> str | None:
        columns = self.plan.change.columns
        return await scope_named(connection, self.table, scope, self.row.key, columns, self.row.body)

    async def explain(self, connection: Session, error: RefusedError) -> Problem | None:
        """Answer a DELETE as stale or spent where the row was written before in the same transaction (of a batch that
        lands as a whole): PostgreSQL's function sees an own write, and takes it for a trigger's.
        """
        if error.sqlstate != SUPPRESSED or not connection.is_in_transaction():
            return None
        (standing,) = await row_marks.ask(connection, self.table, [self.row.key])
        verdict = judge(standing, self.table.fence, self.row.token)
        return None if verdict is None else problem_of_verdict(verdict, self.table.fence)

    def written(self, done: Done) -> Sequence[str]:
        """Name the row: that of a PUT as it was stored."""
        return (done.resource or self.name,)

    async def evidence(self, connection: Session) -> Evidence:
        """Ask for the row's mark."""
        creates = self.plan.alone.creates
        return await row_evidence(connection, self.table, self.row.key, self.row.token, creates=creates)
