"""What verbs do to single rows: their statements, made once for a plan, and what R5's loop (rounds.py) makes of them.

A verb is there twice: with statements that leave a held row alone, for batches, and with statements that wait, for
writes that are decided alone. What else differs: a batch cannot know why a row was not created, and leaves it to be
decided alone; alone, a duplicate key is PostgreSQL's error, and is read.

Rows have marks of their own (`Rows`), or share those of their scopes (`ScopedRows`): these were judged and raised
before (operation.py, batch_prelude.py), so there is nothing left to ask. A row that is not reached is missing, or has
left the scope: then everything is undone, the scopes' marks too, and starts over.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import asyncpg

from fencepost.fencing.problem_types import ROW_NOT_FOUND
from fencepost.fencing.problems import Problem
from fencepost.fencing.scope import Scope
from fencepost.fencing.verdict import MissingRow
from fencepost.gateway.outcomes import Done, Outcome
from fencepost.gateway.writes.rounds import ROUNDS, Answer, Steps, Verdict, contended, judge, problem_of_verdict
from fencepost.gateway.writes.write import Verb
from fencepost.storage.batches.batch_queue import AGAIN, ALONE, Alone
from fencepost.storage.connections.connection import Connection
from fencepost.storage.connections.transactions import savepoint
from fencepost.storage.errors import RefusedError, map_errors
from fencepost.storage.statements import asking, keyed
from fencepost.storage.statements.keyed import Change, FencedRow, Wait, WriteStatement
from fencepost.storage.statements.parameters import Key, RowWrite
from fencepost.storage.statements.query import QueryError
from fencepost.storage.statements.scope_names import scope_of_row
from fencepost.storage.tables.catalog import ProtectedTable, Table

UNIQUE_VIOLATION: Final = "23505"
BELIEVED_ROUNDS: Final = 2
"""In how many rounds a duplicate of a partition counts as the row's own key, without a look."""


def steps_of(table: ProtectedTable, verb: Verb, change: Change, wait: Wait) -> Steps:
    """Make a verb's statements."""
    kind = ScopedRows if table.fence.scope is not None else Rows
    if verb == "post":
        first = keyed.insert(table, change.columns, change.target, wait)
        return kind(table, wait, first, first, inserts=True)
    if verb == "delete":
        first = careful = keyed.delete(table, change.target, wait)
    else:
        first = keyed.update(table, change, wait)
        careful = keyed.update(table, change, wait, careful=True) if wait == "block" else first
    creating = keyed.create(table, change, wait) if verb == "put" else None
    return kind(table, wait, first, careful, creating)


@dataclass(frozen=True, slots=True)
class _Statements:
    """A verb's statements. `careful` runs from the second round on: it locks the row first, and undoes itself if
    something then keeps the row from being written.
    """

    table: ProtectedTable
    wait: Wait
    first: WriteStatement
    careful: WriteStatement
    creating: WriteStatement | None = None
    """A PUT's. In a batch it needs a transaction: if the connection breaks while it creates, that is unknown."""
    inserts: bool = False
    """Whether it is a POST, whose first statement creates."""

    @property
    def creates(self) -> bool:
        """Whether a missing row is created."""
        return self.creating is not None

    async def insert(self, connection: Connection, writes: Sequence[RowWrite]) -> list[FencedRow | None]:
        """Create rows. A duplicate answers nothing in a batch, and is an error (which undoes only itself) alone."""
        if self.creating is None:
            raise RuntimeError("this verb creates no rows")
        if self.wait == "skip":
            return await self.creating.run(connection, writes)
        with map_errors(writing=True):
            async with savepoint(connection):
                return await self.creating.run(connection, writes)


@dataclass(frozen=True, slots=True)
class Rows(_Statements):
    """Rows that have marks of their own."""

    async def write(self, connection: Connection, writes: Sequence[RowWrite], number: int) -> list[Answer]:
        """Change or delete rows whose marks let their tokens pass."""
        rows = await (self.careful if number else self.first).run(connection, writes)
        created = self.inserts
        return [ALONE if row is None else Done((row.json,), row.mark, created, resource=row.resource) for row in rows]

    async def ask(self, connection: Connection, writes: Sequence[RowWrite]) -> Sequence[Verdict]:
        """Ask for the marks of rows and keys. What kept a POST from inserting is found out alone."""
        if self.inserts:
            return [ALONE] * len(writes)
        standings = await asking.ask(connection, self.table, [write.key for write in writes])
        fence = self.table.fence
        return [judge(each, fence, write.token) or AGAIN for each, write in zip(standings, writes, strict=True)]

    async def create(
        self, connection: Connection, missing: Sequence[tuple[RowWrite, MissingRow]], number: int
    ) -> Sequence[Answer]:
        """Create rows. A row that is there after all is written in the next round."""
        created: Sequence[FencedRow | None] = (None,)
        try:
            created = await self.insert(connection, [write for write, _ in missing])
        except RefusedError as error:
            if self.wait == "skip" or not await self._may_be_the_key(connection, missing[0][0].key, error, number):
                raise
            if self.table.row_security:  # a row is there, and a policy hides it or keeps us from writing it
                return [problem_of_verdict(missing[0][1], self.table.fence)]
        return [
            ALONE if row is None else Done((row.json,), row.mark, created=True, resource=row.resource)
            for row in created
        ]

    async def _may_be_the_key(self, connection: Connection, key: Key, error: RefusedError, number: int) -> bool:
        """Whether a duplicate is the row's own key, so that its row is there after all (or was, a moment ago).

        A partition's key has a name that the catalog does not know: in two rounds that is believed, later if a row is
        there.
        """
        if error.sqlstate != UNIQUE_VIOLATION or error.constraint == self.table.key_constraint:
            return error.sqlstate == UNIQUE_VIOLATION
        if self.table.kind != "partitioned table":
            return False
        return number < BELIEVED_ROUNDS or await asking.exists(connection, self.table, key)

    async def never_reached(self, connection: Connection, write: RowWrite) -> Outcome:
        """Give up. With row security we may see the row, and a policy keeps us from writing it: a PUT tries to create
        it all the same, which a policy may refuse, by name.
        """
        (standing,) = await asking.ask(connection, self.table, [write.key])
        if not self.table.row_security:
            return problem_of_verdict(contended(standing.resource), self.table.fence)
        missing = MissingRow(standing.resource)
        if self.creates:
            (answer,) = await self.create(connection, [(write, missing)], ROUNDS)
            if not isinstance(answer, Alone):
                return answer
        return problem_of_verdict(missing, self.table.fence)


@dataclass(frozen=True, slots=True)
class ScopedRows(_Statements):
    """Rows of scopes that have been entered: each write has its scope."""

    @property
    def scope(self) -> Scope:
        """The scope of the table."""
        if self.table.fence.scope is None:
            raise RuntimeError("the table has no scope")
        return self.table.fence.scope

    async def write(self, connection: Connection, writes: Sequence[RowWrite], number: int) -> list[Answer]:
        """Write rows of the scopes that were entered."""
        rows = await (self.careful if number else self.first).run(connection, writes)
        return [
            ALONE if row is None else _in_scope(write, row, created=self.inserts)
            for write, row in zip(writes, rows, strict=True)
        ]

    async def ask(self, connection: Connection, writes: Sequence[RowWrite]) -> Sequence[Verdict]:
        """The marks let the tokens pass: what was not reached is missing, or has left its scope."""
        if self.wait == "block" and self.creates:
            await self._require_no_other_scope(connection, writes[0])
        if self.creates:
            return [MissingRow("")] * len(writes)
        if (
            self.wait == "block" and self.table.row_security
        ):  # we may see the row, and a policy keeps us from writing it
            return [no_row(self.table, writes[0].key)]
        raise asyncpg.SerializationError(
            f"{writes[0].scope}: a row left the scope, or is held, and its mark was raised"
        )

    async def _require_no_other_scope(self, connection: Connection, write: RowWrite) -> None:
        """Refuse a PUT to a row of another scope. Who creates a row of this scope has to enter it, so only a row of
        another one can be there.
        """
        other = await scope_of_row(connection, self.table, self.scope, write.key)
        if other is not None and other != write.scope:
            raise QueryError(
                f"{self.table.name}/{','.join(write.key)} is in the scope {other}, and the request names {write.scope}:"
                " a row's scope cannot change"
            )

    async def create(
        self, connection: Connection, missing: Sequence[tuple[RowWrite, MissingRow]], _number: int
    ) -> Sequence[Answer]:
        """Create rows, or start over."""
        writes = [write for write, _ in missing]
        try:
            rows = await self.insert(connection, writes)
        except RefusedError as error:
            if self.wait == "skip" or error.sqlstate != UNIQUE_VIOLATION:
                raise
            return [await self._settle_duplicate(connection, writes[0], error)]
        if None in rows:
            raise asyncpg.SerializationError(f"{writes[0].scope}: a key is taken in another scope, or held")
        return [_in_scope(write, row, created=True) for write, row in zip(writes, rows, strict=True) if row is not None]

    async def _settle_duplicate(self, connection: Connection, write: RowWrite, error: RefusedError) -> Problem:
        """Start over if the row's own key is taken; else the duplicate is the request's. With row security, a row that
        we do not see, or see in the scope that was entered, is one that a policy keeps us from writing: starting over
        would end the same way.
        """
        taken = await scope_of_row(connection, self.table, self.scope, write.key)
        # A partition's key has a name that the catalog does not know.
        if taken is None and error.constraint != self.table.key_constraint:
            raise error
        if self.table.row_security and taken in (None, write.scope):
            return no_row(self.table, write.key)
        raise asyncpg.SerializationError(f"{write.scope}: the key was taken in another scope meanwhile") from error

    async def never_reached(self, _connection: Connection, write: RowWrite) -> Problem:
        """Give up."""
        return contended(write.scope)


def _in_scope(write: RowWrite, row: FencedRow, *, created: bool) -> Done:
    return Done((row.json,), write.token, created, resource=row.resource, scope=write.scope)


def no_row(table: Table, key: Key) -> Problem:
    """Give the answer for a key without a row."""
    return Problem(ROW_NOT_FOUND, f"There is no row {table.name}/{','.join(key)}.")
