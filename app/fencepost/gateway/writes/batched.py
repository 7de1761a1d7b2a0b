"""Single-row writes as batches decide them (storage/batches/group_commit.py): one transaction for many requests.

A batch without keys and scopes is one statement, which commits by itself; rows that it did not reach are asked about
in the next one (R5). With them, and for PUT, it is a transaction, in the order that everybody keeps (R6):
Idempotency-Keys, scopes, rows, records. Whatever a batch cannot say for certain, it leaves to `perform`, which decides
a write alone.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from fencepost.gateway.core import Done, Gateway, Outcome
from fencepost.gateway.writes.batched_scopes import barred, scoped_statements
from fencepost.gateway.writes.batched_writes import Answer, Batched, BatchedVerb, Statements, row_statements
from fencepost.gateway.writes.once import answer_of
from fencepost.gateway.writes.operation import Operation, perform
from fencepost.gateway.writes.turns import busy
from fencepost.storage.batches.lane import ALONE, HELD, Alone, Broken, Lane
from fencepost.storage.connections.connection import Connection
from fencepost.storage.errors import OutcomeUnknownError, UncommittedError, translated
from fencepost.storage.statements import idempotency
from fencepost.storage.statements.batch_prelude import Prelude, ScopeOf, prelude
from fencepost.storage.statements.fenced import Change
from fencepost.storage.tables.catalog import ProtectedTable, Table

MOST: Final = 256
MOST_KEYED: Final = 64
"""Each Idempotency-Key of a batch is a lock, and PostgreSQL has room for some 64 per connection."""


WriteLane = Lane[Batched, Outcome]


def lane(table: ProtectedTable, verb: BatchedVerb, change: Change, *, keyed: bool) -> WriteLane | None:
    """Make the lane of such writes; None: they cannot share a transaction, or are too rare to be worth it."""
    if not table.shares_transactions or _reaches_further(table, verb, change):
        return None
    statements: Statements | None
    if table.fence.scope is not None:
        statements = scoped_statements(table, table.fence.scope, verb, change)
    else:
        statements = row_statements(table, verb, change)
    if statements is None:
        return None
    scope_of: ScopeOf = "row" if verb in ("patch", "delete") else "body" if verb == "post" else "key and body"
    batches = _Batches(table, statements, prelude(table, table.fence.scope, scope_of, keyed=keyed))
    if verb != "put" and not keyed and table.fence.scope is None:
        return Lane(batches.run, _order, _size)
    return Lane(batches.run_in_transaction, _order, _size, _clashes, MOST_KEYED if keyed else MOST)


def _reaches_further(table: Table, verb: BatchedVerb, change: Change) -> bool:
    """Whether such a write may, by a foreign key's action, write to rows of other tables."""
    if verb == "delete":
        return table.deletes_reach_further
    return verb != "post" and not table.updates_reach_further.isdisjoint((*change.columns, *change.defaults))


def _order(write: Batched) -> tuple[str, ...]:
    return write.row.key


def _size(write: Batched) -> int:
    return len(write.row.body)


def _clashes(write: Batched) -> Iterable[tuple[str, str]]:
    """A key's or a scope's second operation in a transaction would pass for the first one's own."""
    if write.once is not None:
        yield ("key", write.once.key)
    if write.row.scope:
        yield ("scope", write.row.scope)


async def decide(
    gateway: Gateway, lane: WriteLane | None, write: Batched, operation: Callable[[str], Operation]
) -> Outcome:
    """Have a write decided in a batch, or alone if that cannot be. `operation` is told the scope that a batch may have
    entered for it.
    """
    if lane is None:
        return await perform(gateway, operation(""))
    answer = await gateway.group.write(lane, write)
    if isinstance(answer, Broken):
        return await perform(gateway, operation(write.row.scope), after=answer)
    if not isinstance(answer, Alone):
        return answer
    alone = operation("")
    if answer is not HELD:
        return await perform(gateway, alone)
    # The rows of POSTs have no name yet, and wait for each other only where PostgreSQL says so.
    name = write.row.scope or ((alone.table.oid, alone.key) if alone.key else write)
    async with gateway.turns.of(name) as mine:
        return await perform(gateway, alone) if mine else busy(alone.table, alone.key)


@dataclass(frozen=True, slots=True)
class _Batches:
    """The batches of one lane."""

    table: ProtectedTable
    statements: Statements
    prelude: Prelude | None

    async def run(self, connection: Connection, batch: Sequence[Batched]) -> list[Answer]:
        """Write, and ask: statements that each commit by themselves."""
        with translated(writing=True):
            return await self.statements.write(connection, [write.row for write in batch])

    async def run_in_transaction(self, connection: Connection, batch: Sequence[Batched]) -> list[Answer]:
        """Look the keys up, enter the scopes, write, record."""
        committing = False
        try:
            with translated(writing=True):
                async with connection.transaction():
                    answers = await self._steps(connection, batch)
                    committing = True
                return answers
        except OutcomeUnknownError as error:
            if committing:
                raise
            raise UncommittedError(str(error)) from error

    async def _steps(self, connection: Connection, batch: Sequence[Batched]) -> list[Answer]:
        answers: list[Answer] = [ALONE] * len(batch)
        left: Sequence[int] = range(len(batch))
        if self.prelude is not None:
            left = await self._open(connection, self.prelude, batch, answers)
        if left:
            written = await self.statements.write(connection, [batch[number].row for number in left])
            for number, answer in zip(left, written, strict=True):
                answers[number] = answer
            await _record(connection, batch, left, answers)
        return answers

    async def _open(
        self, connection: Connection, prelude: Prelude, batch: Sequence[Batched], answers: list[Answer]
    ) -> list[int]:
        """Look keys up and enter scopes; gives the numbers of the writes that may go on."""
        left = []
        for number, opened in enumerate(await prelude.run(connection, [write.row for write in batch])):
            row = batch[number].row
            answer: Answer | None = answer_of(opened.key)
            if answer is None and self.table.fence.scope is not None:
                row.scope = opened.scope
                answer = barred(self.table, self.table.fence.scope, row, opened)
            if answer is None:
                left.append(number)
            else:
                answers[number] = answer
        return left


async def _record(
    connection: Connection, batch: Sequence[Batched], left: Sequence[int], answers: Sequence[Answer]
) -> None:
    """Record what is answered under the keys of those that were accepted, last."""
    records = []
    for number in left:
        once, answer = batch[number].once, answers[number]
        if once is not None and isinstance(answer, Done):
            records.append((once.key, once.payload_hash, once.render(answer)))
    if records:
        await idempotency.record_many(connection, records)
