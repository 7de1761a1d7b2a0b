"""Whose marks judge a write: its rows' own, or those of their scopes. What differs between the two stands here.

A row has a mark of its own, which the statement that writes it compares with the token (R1); why a row was not reached
is asked of it (R5).

Or it shares that of its scope, of which there is one for many rows (R8). Then an attempt is one transaction, in this
order:

1. the scopes: read from the rows, without a lock (their columns never change), or rendered from key and body;
2. enter them, in a statement of its own: their marks are judged and raised, sorted; who holds them is waited for;
3. the write, in a later statement: it sees all that older holders have committed, and is bound to the scopes entered.

So there is nothing left to ask when 3 reaches no row: it is missing, was deleted, or made anew in another scope.
Everything is rolled back, the marks too, and starts over as after a serialization failure. A refusal rolls back as well
(perform.py). In a batch, 1 and 2 are one statement for all of its writes (scopes.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import asyncpg

from fencepost.server.fence.problems import Problem
from fencepost.server.fence.resource import Scope
from fencepost.server.fence.token import MissingRow
from fencepost.server.gateway.outcomes import Done, Outcome
from fencepost.server.gateway.writes.operation import HOW_TO_ASK, Evidence, Marks, Operation
from fencepost.server.gateway.writes.rounds import ROUNDS, Answer, RowSteps, Verdict, contended, problem_of_verdict
from fencepost.server.gateway.writes.scoped import enter
from fencepost.server.gateway.writes.write import Verb
from fencepost.server.postgres import marks
from fencepost.server.postgres import scopes as scope_marks
from fencepost.server.postgres.connection import Connection
from fencepost.server.postgres.errors import RefusedError, map_errors
from fencepost.server.postgres.group_commit import ALONE, Alone
from fencepost.server.postgres.keyed import Change, FencedRow
from fencepost.server.postgres.query import QueryError
from fencepost.server.postgres.row_sql import Key, RowWrite
from fencepost.server.postgres.scopes import scope_of_row
from fencepost.server.postgres.tables import ProtectedTable, Table

BELIEVED_ROUNDS: Final = 2
"""In how many rounds a duplicate of a partition counts as the row's own key, without a look."""


def marks_of(table: ProtectedTable) -> Marks:
    """Say whose marks judge the writes to a table."""
    scope = table.fence.scope
    return OWN_MARKS if scope is None else ScopeMarks(scope)


class OwnMarks:
    """Each row has one."""

    names_rows: ClassVar = True
    in_transaction: ClassVar = False

    async def attempt(self, connection: Connection, operation: Operation) -> Outcome:
        await operation.check(connection)
        return await operation.write(connection)

    async def explain(self, connection: Connection, operation: Operation, error: RefusedError) -> Problem | None:
        return await operation.explain(connection, error)

    async def evidence(self, connection: Connection, operation: Operation) -> Evidence:
        return await operation.evidence(connection)

    def how_to_ask(self, operation: Operation) -> str:
        """Have the rows' asked for."""
        return operation.how_to_ask

    def written(self, operation: Operation, done: Done) -> Sequence[str]:
        return operation.written(done)

    def fit_a_batch(self, _table: Table, _verb: Verb, _change: Change) -> bool:
        """Rows are judged wherever they are written."""
        return True

    def done(self, _write: RowWrite, row: FencedRow, *, created: bool) -> Done:
        """Answer with the row's mark, and its name where it was asked for."""
        return Done((row.json,), row.mark, created, resource=row.resource)

    def answers(self, _writes: Sequence[RowWrite], rows: Sequence[FencedRow | None], *, created: bool) -> list[Answer]:
        """Answer the same for each: here without a call, for these are the rows of batches."""
        return [ALONE if row is None else Done((row.json,), row.mark, created, resource=row.resource) for row in rows]

    def made(self, writes: Sequence[RowWrite], rows: Sequence[FencedRow | None]) -> Sequence[Answer]:
        """A row that is there after all is written in the next round."""
        return self.answers(writes, rows, created=True)

    async def why(self, connection: Connection, steps: RowSteps, writes: Sequence[RowWrite]) -> Sequence[Verdict]:
        return await steps.ask_rows(connection, writes)

    async def duplicate(
        self,
        connection: Connection,
        steps: RowSteps,
        missing: tuple[RowWrite, MissingRow],
        error: RefusedError,
        number: int,
    ) -> Answer:
        """A row is there after all: it is written in the next round. With row security a policy hides it, or keeps us
        from writing it.
        """
        table, (write, verdict) = steps.table, missing
        if not await _may_be_the_key(connection, table, write.key, error, number):
            raise error
        return problem_of_verdict(verdict, table.fence) if table.row_security else ALONE

    async def given_up(self, connection: Connection, steps: RowSteps, write: RowWrite) -> Outcome:
        """Give up. With row security we may see the row, and a policy keeps us from writing it: a PUT tries to create
        it all the same, which a policy may refuse, by name.
        """
        table = steps.table
        (standing,) = await marks.ask(connection, table, [write.key])
        if not table.row_security:
            return contended(standing.resource)
        missing = MissingRow(standing.resource)
        if steps.creates:
            (answer,) = await steps.create(connection, [(write, missing)], ROUNDS)
            if not isinstance(answer, Alone):
                return answer
        return problem_of_verdict(missing, table.fence)


OWN_MARKS: Final = OwnMarks()


async def _may_be_the_key(
    connection: Connection, table: ProtectedTable, key: Key, error: RefusedError, number: int
) -> bool:
    """Whether a duplicate is the row's own key, so that its row is there after all (or was, a moment ago).

    A partition's key has a name that the catalog does not know: in two rounds that is believed, later if a row is
    there.
    """
    if error.constraint == table.key_constraint:
        return True
    if table.kind != "partitioned table":
        return False
    return number < BELIEVED_ROUNDS or await marks.exists(connection, table, key)


@dataclass(frozen=True, slots=True)
class ScopeMarks:
    """Each scope has one, for all of its rows."""

    scope: Scope
    names_rows: ClassVar = False
    in_transaction: ClassVar = True

    async def attempt(self, connection: Connection, operation: Operation) -> Outcome:
        """Check, find the scopes, enter them, write."""
        operation.entered, row = [], operation.row
        with map_errors(writing=False):
            await operation.check(connection)
            scopes = await operation.scopes(connection, self.scope)
        if not isinstance(scopes, list):
            return scopes
        if scopes:
            operation.entered = sorted(scopes)
            if refused_by := await enter(connection, operation.table, self.scope, scopes, row.token):
                return operation.refused(refused_by)
        row.scopes, row.scope = scopes, scopes[0] if scopes else ""
        return await operation.write(connection)

    async def explain(self, _connection: Connection, _operation: Operation, _error: RefusedError) -> Problem | None:
        """The scopes' marks were judged before; rows have none."""
        return None

    async def evidence(self, connection: Connection, operation: Operation) -> Evidence:
        """Find out by the scopes' marks whether the write can have landed: it would have raised all of them (R15).

        A floor that equals the token is no operation's mark: it may have been pruned, or was another scope's.
        """
        if not operation.entered:  # it broke before the marks were asked for: nothing was written yet
            return Evidence(landed=False)
        token = operation.row.token
        found = await scope_marks.marks(connection, self.scope, operation.entered)
        lowest = min(found, key=lambda each: each.mark)
        if lowest.mark < token:
            return Evidence(landed=False, resource=lowest.scope, mark=lowest.mark)
        own = next((each for each in found if each.mark == each.recorded == token), None)
        shown = own or lowest
        return Evidence(landed=True if own else None, resource=shown.scope, mark=shown.mark)

    def how_to_ask(self, _operation: Operation) -> str:
        return HOW_TO_ASK

    def written(self, operation: Operation, _done: Done) -> Sequence[str]:
        """Name the scopes: the write is bound to those that were entered."""
        return operation.entered

    def fit_a_batch(self, table: Table, verb: Verb, change: Change) -> bool:
        """Whether such a write changes something, and names its scope if no row does."""
        if verb in ("patch", "put") and not change.sets:
            return False
        named = {*change.columns, *(() if verb == "post" else table.key)}
        return verb in ("patch", "delete") or named.issuperset(self.scope.columns)

    def done(self, write: RowWrite, row: FencedRow, *, created: bool) -> Done:
        """Answer with the token, which is the scope's mark now, and the scope's name."""
        return Done((row.json,), write.token, created, resource=row.resource, scope=write.scope)

    def answers(self, writes: Sequence[RowWrite], rows: Sequence[FencedRow | None], *, created: bool) -> list[Answer]:
        return [
            ALONE if row is None else self.done(write, row, created=created)
            for write, row in zip(writes, rows, strict=True)
        ]

    def made(self, writes: Sequence[RowWrite], rows: Sequence[FencedRow | None]) -> Sequence[Answer]:
        """Start over if a key is taken."""
        if None in rows:
            raise asyncpg.SerializationError(f"{writes[0].scope}: a key is taken in another scope, or held")
        return self.answers(writes, rows, created=True)

    async def why(self, connection: Connection, steps: RowSteps, writes: Sequence[RowWrite]) -> Sequence[Verdict]:
        """The marks let the tokens pass: what was not reached is missing, or has left its scope. With row security we
        may see a row, and a policy keeps us from writing it: starting over would end the same way.
        """
        if steps.creates:
            if steps.wait == "block":
                await self._require_no_other_scope(connection, steps.table, writes[0])
            return [MissingRow("")] * len(writes)
        if steps.wait == "block" and steps.table.row_security:
            return steps.absent(writes)
        raise asyncpg.SerializationError(
            f"{_named(steps.table, writes[0])}: a row left the scope, or is held, and its mark was raised"
        )

    async def _require_no_other_scope(self, connection: Connection, table: ProtectedTable, write: RowWrite) -> None:
        """Refuse a PUT to a row of another scope. Who creates a row of this scope has to enter it, so only a row of
        another one can be there.
        """
        other = await scope_of_row(connection, table, self.scope, write.key)
        if other is not None and other != write.scope:
            raise QueryError(
                f"{table.name}/{','.join(write.key)} is in the scope {other}, and the request names {write.scope}:"
                " a row's scope cannot change"
            )

    async def duplicate(
        self,
        connection: Connection,
        steps: RowSteps,
        missing: tuple[RowWrite, MissingRow],
        error: RefusedError,
        _number: int,
    ) -> Answer:
        """Start over if the row's own key is taken; else the duplicate is the request's. With row security, a row that
        we do not see, or see in the scope that was entered, is one that a policy keeps us from writing: starting over
        would end the same way.
        """
        table, (write, _) = steps.table, missing
        taken = await scope_of_row(connection, table, self.scope, write.key)
        # A partition's key has a name that the catalog does not know.
        if taken is None and error.constraint != table.key_constraint:
            raise error
        if table.row_security and taken in (None, write.scope):
            return steps.absent([write])[0]
        raise asyncpg.SerializationError(f"{write.scope}: the key was taken in another scope meanwhile") from error

    async def given_up(self, _connection: Connection, _steps: RowSteps, write: RowWrite) -> Outcome:
        return contended(write.scope)


def _named(table: ProtectedTable, write: RowWrite) -> str:
    """Name the scope of a write; the table where it has several."""
    return write.scope if len(write.scopes) <= 1 else table.name
