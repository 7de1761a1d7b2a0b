"""Single-row writes as batches decide them (gateway/group_commit.py): one transaction for many requests.

A batch without keys and scopes is one statement, which commits by itself; rows that it did not reach are asked about
in the next one (R5). With them, and for PUT, it is a transaction, in the order that all transactions keep (R20):
Idempotency-Keys, scopes, rows, records. The ids of a queue's messages are recorded like keys, and not looked up
before (idempotency.py). What a batch cannot decide for certain, it leaves to `perform`, which decides a write alone.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from fencepost.server.fence.caller import Caller
from fencepost.server.fence.resource import Scope
from fencepost.server.fence.token import Token
from fencepost.server.gateway.alone import Operation, perform
from fencepost.server.gateway.attempt import Answer, Statements, attempt, statements_of
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.group_commit import AGAIN, ALONE, HELD, Alone, BatchQueue, Broken, RoleQueues
from fencepost.server.gateway.idempotency import IdempotentRequest, Keeping, answer_of
from fencepost.server.gateway.outcomes import Done, Outcome, busy
from fencepost.server.gateway.write import Verb, refused_scope
from fencepost.server.postgres import keyed
from fencepost.server.postgres.connection import Session
from fencepost.server.postgres.database import in_transaction
from fencepost.server.postgres.errors import RefusedError
from fencepost.server.postgres.keyed import CALLER, Change, Record
from fencepost.server.postgres.row_sql import Key, RowWrite
from fencepost.server.postgres.scopes import Entered, Opened, Prelude, ScopeOf, prelude
from fencepost.server.postgres.tables import ProtectedTable, Table

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


def queues_of(table: ProtectedTable, verb: Verb, change: Change, kept: Keeping) -> WriteQueues | None:
    """Make the queues of such writes; None: they cannot share a transaction, or are too rare to be worth it."""
    scope = table.fence.scope
    if not table.shares_transactions or _reaches_further(table, verb, change):
        return None
    if scope is not None and not _fits_a_batch(table, scope, verb, change):
        return None
    statements = statements_of(table, verb, change, "skip")
    scope_of: ScopeOf = "row" if verb in ("patch", "delete") else "body" if verb == "post" else "key and body"
    whose, looked_up = kept if kept is not None else (CALLER, False)
    first = prelude(table, scope, scope_of, whose if looked_up else None)
    simple = verb != "put" and kept is None and scope is None

    def make(caller: Caller) -> WriteQueue:
        # A batch locks a row that it deletes, and a PUT's may create others' rows: alone, a write may need less.
        lenient = caller.role is not None and verb in ("put", "delete")
        batches = _Batches(statements, first, lenient)
        if simple:
            return BatchQueue(batches.run, caller=caller)
        most = MOST_IDEMPOTENT if looked_up else MOST_WRITES
        return BatchQueue(batches.run_in_transaction, _clashes, most, caller=caller)

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


async def in_a_batch(gateway: Gateway, queues: WriteQueues | None, write: Batched) -> Answer | Broken:
    """Have a write decided in a batch; ALONE, HELD or Broken if that cannot be."""
    if queues is None or gateway.together is not None or (queue := queues.of(gateway.caller)) is None:
        return ALONE
    row = write.row
    if gateway.share is None:
        return await gateway.group.write(queue, write, row.key, len(row.raw))
    async with gateway.share.places:
        return await gateway.group.write(queue, write, row.key, len(row.raw), counted=False)


async def alone(
    gateway: Gateway, operation: Operation, queues: WriteQueues | None, write: Batched, why: Alone | Broken
) -> Outcome:
    """Decide by itself what no batch of `queues` has decided; where its row is locked, when its turn comes."""
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
    answer = await in_a_batch(gateway, queues, write)
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
