"""Scopes in a batch (R8): one operation for each, since a transaction that has entered a scope passes it again.

Entering (fencepost.enter_each, in migrations/schema/scopes.sql) waits a moment at most and leaves those scopes alone
that refuse, so nothing has to be undone for them. A row that is then not there any more, or that another transaction
holds without its scope, undoes the batch: its mark has been raised.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import asyncpg

from fencepost.fencing.scope import Scope
from fencepost.gateway.core import Done
from fencepost.gateway.writes.batched_writes import Answer, BatchedVerb
from fencepost.gateway.writes.scoped import ScopedWrite
from fencepost.storage.batches.lane import AGAIN, ALONE
from fencepost.storage.connections.connection import Connection
from fencepost.storage.statements import scoped_batch
from fencepost.storage.statements.batch_prelude import Opened
from fencepost.storage.statements.fenced import Change
from fencepost.storage.statements.fenced_batch import RowWrite, Statement
from fencepost.storage.statements.scope_marks import Entered
from fencepost.storage.tables.catalog import ProtectedTable


def scoped_statements(
    table: ProtectedTable, scope: Scope, verb: BatchedVerb, change: Change
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
            insert = scoped_batch.insert(table, table.fence.name, change.columns, change.target)
            return ScopedStatements(insert, inserts=True)


def barred(table: ProtectedTable, scope: Scope, row: RowWrite, opened: Opened) -> Answer | None:
    """Tell whose scope was not entered; None: it was."""
    match opened.verdict:
        case "entered":
            return None
        case "refused":
            return ScopedWrite(table, scope, row.token).refused(Entered(opened.scope, opened.refused_by))
        case "busy":
            return AGAIN
        case "unclear":  # by itself it is told what is wrong
            return ALONE


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
