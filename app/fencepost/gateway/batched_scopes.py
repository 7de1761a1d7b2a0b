"""Scopes in a batch (R8): one operation for each, since a transaction that has entered a scope passes it again.

Entering waits for nobody and leaves those scopes alone that refuse, so nothing has to be undone for them. A row that is
then not there any more, or held by somebody without its scope, undoes the batch: its mark has been raised.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import asyncpg

from fencepost.fencing.scope import Scope
from fencepost.gateway.batched_writes import Answer, Batched, BatchedVerb
from fencepost.gateway.core import Done
from fencepost.gateway.scoped import ScopedWrite
from fencepost.storage import scoped_batch
from fencepost.storage.catalog import Fence, Table
from fencepost.storage.connection import Connection
from fencepost.storage.fenced import Change
from fencepost.storage.fenced_batch import RowWrite, Statement
from fencepost.storage.lane import AGAIN
from fencepost.storage.scope_marks import Entered


def scoped_statements(
    table: Table, fence: Fence, scope: Scope, verb: BatchedVerb, change: Change
) -> "ScopedStatements | None":
    """Write the statements of a verb on rows that share a scope's mark; None: it names no scope, or changes nothing."""
    named = {*change.columns, *(() if verb == "post" else table.key)}
    if verb in ("put", "post") and not named.issuperset(scope.columns):
        return None
    match verb:
        case "patch":
            return ScopedStatements(scoped_batch.update(table, scope, change)) if change.columns else None
        case "put":
            if not (change.columns or change.defaults):
                return None
            return ScopedStatements(scoped_batch.update(table, scope, change), scoped_batch.create(table, change))
        case "delete":
            return ScopedStatements(scoped_batch.delete(table, scope, change.target))
        case "post":
            insert = scoped_batch.insert(table, fence.name, change.columns, change.target)
            return ScopedStatements(insert, inserts=True)


async def enter(
    connection: Connection,
    table: Table,
    fence: Fence,
    scope: Scope,
    batch: Sequence[Batched],
    left: Sequence[int],
    answers: list[Answer],
    *,
    by_row: bool,
) -> list[int]:
    """Find the scopes and enter them; gives the numbers of the writes whose scope was entered."""
    await _find(connection, table, scope, [batch[n] for n in left if not batch[n].row.scope], by_row=by_row)
    first: dict[str, int] = {}
    for number in left:
        name = batch[number].row.scope
        if name and first.setdefault(name, number) != number:
            answers[number] = AGAIN
    entering = list(first.items())
    rows = [batch[number].row for _, number in entering]
    told = await scoped_batch.enter_each(
        connection, table, scope, [row.scope for row in rows], [row.token for row in rows]
    )
    entered = []
    for (name, number), each in zip(entering, told, strict=True):
        match each.verdict:
            case "entered":
                entered.append(number)
            case "refused":
                write = ScopedWrite(table, fence, scope, batch[number].row.token)
                answers[number] = write.refused(Entered(name, each.refused_by))
            case "busy":
                answers[number] = AGAIN
            case "unclear":  # by itself it is told what is wrong
                pass
    return sorted(entered)


async def _find(connection: Connection, table: Table, scope: Scope, writes: Sequence[Batched], *, by_row: bool) -> None:
    """Find out which scopes the writes are for. None is left empty: by itself such a write is told what is wrong."""
    if not writes:
        return
    if by_row:
        names = await scoped_batch.scopes_of_rows(connection, table, scope, [write.row.key for write in writes])
    else:
        said = [(write.row.key, write.row.body) for write in writes]
        names = await scoped_batch.scopes_named(connection, table, scope, said)
    for write, name in zip(writes, names, strict=True):
        write.row.scope = name or ""


@dataclass(frozen=True, slots=True)
class ScopedStatements:
    """What a verb runs once the scopes are entered."""

    first: Statement
    create: Statement | None = None
    inserts: bool = False

    async def write(self, connection: Connection, rows: Sequence[RowWrite]) -> list[Answer]:
        """Write each row. 40001 when one could not be: that undoes the marks, and the halves are tried again."""
        answers: list[Answer] = []
        written = await self.first.run(connection, rows)
        missing = [row for row, each in zip(rows, written, strict=True) if each is None]
        created = iter(await self.create.run(connection, missing) if missing and self.create is not None else ())
        for row, found in zip(rows, written, strict=True):
            made = found if found is not None else next(created, None)
            if made is None:
                raise asyncpg.SerializationError(f"{row.scope}: a row was not reached")
            answers.append(
                Done(
                    (made.json,),
                    row.token,
                    created=self.inserts or found is None,
                    resource=made.resource,
                    scope=row.scope,
                )
            )
        return answers
