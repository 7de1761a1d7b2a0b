"""What verbs do to single rows: their statements, made once for a plan, and what R5's loop (rounds.py) makes of them.

A verb is there twice: with statements that leave a held row alone, for batches, and with statements that wait, for
writes that are decided alone. What else differs: a batch cannot know why a row was not created, and leaves it to be
decided alone; alone, a duplicate key is PostgreSQL's error, and is read. What the answers mean depends on whose marks
judge the rows (marks.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fencepost.server.fence.problem_types import ROW_NOT_FOUND
from fencepost.server.fence.problems import Problem
from fencepost.server.fence.token import MissingRow
from fencepost.server.gateway.outcomes import Outcome
from fencepost.server.gateway.writes.marks import marks_of
from fencepost.server.gateway.writes.operation import Marks
from fencepost.server.gateway.writes.rounds import Answer, Verdict, judge
from fencepost.server.gateway.writes.write import Verb
from fencepost.server.postgres import keyed
from fencepost.server.postgres import marks as asking
from fencepost.server.postgres.connection import Connection
from fencepost.server.postgres.database import savepoint
from fencepost.server.postgres.errors import RefusedError, map_errors
from fencepost.server.postgres.group_commit import AGAIN, ALONE
from fencepost.server.postgres.keyed import Change, FencedRow, Wait, WriteStatement
from fencepost.server.postgres.row_sql import Key, RowWrite
from fencepost.server.postgres.tables import ProtectedTable, Table

UNIQUE_VIOLATION: Final = "23505"


def steps_of(table: ProtectedTable, verb: Verb, change: Change, wait: Wait) -> "Rows":
    """Make a verb's statements."""
    marks = marks_of(table)
    if verb == "post":
        first = keyed.insert(table, change, wait)
        return Rows(table, marks, wait, first, first, inserts=True)
    if verb == "delete":
        first = careful = keyed.delete(table, change, wait)
    else:
        first = keyed.update(table, change, wait)
        careful = keyed.update(table, change, wait, careful=True) if wait == "block" else first
    creating = keyed.create(table, change, wait) if verb == "put" else None
    return Rows(table, marks, wait, first, careful, creating)


@dataclass(frozen=True, slots=True)
class Rows:
    """A verb's statements. `careful` runs from the second round on: it locks the row first, and undoes itself if
    something then keeps the row from being written.
    """

    table: ProtectedTable
    marks: Marks
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

    async def write(self, connection: Connection, writes: Sequence[RowWrite], number: int) -> list[Answer]:
        """Change or delete rows that the marks let pass."""
        rows = await (self.careful if number else self.first).run(connection, writes)
        return self.marks.answers(writes, rows, created=self.inserts)

    async def ask(self, connection: Connection, writes: Sequence[RowWrite]) -> Sequence[Verdict]:
        """Find out why rows were not reached."""
        return await self.marks.why(connection, self, writes)

    async def ask_rows(self, connection: Connection, writes: Sequence[RowWrite]) -> Sequence[Verdict]:
        """Ask for the marks of rows and keys. What kept a POST from inserting is found out alone."""
        if self.inserts:
            return [ALONE] * len(writes)
        standings = await asking.ask(connection, self.table, [write.key for write in writes])
        # What a transaction has deleted itself it may make anew (R1): whether it has, the INSERT's trigger knows.
        perhaps_own = self.creates and self.wait == "block" and connection.is_in_transaction()
        return [
            MissingRow(each.resource)
            if perhaps_own and each.live is None and each.without_row == write.token
            else judge(each, self.table.fence, write.token) or AGAIN
            for each, write in zip(standings, writes, strict=True)
        ]

    def absent(self, writes: Sequence[RowWrite]) -> Sequence[Problem]:
        return [no_row(self.table, write.key) for write in writes]

    async def create(
        self, connection: Connection, missing: Sequence[tuple[RowWrite, MissingRow]], number: int
    ) -> Sequence[Answer]:
        """Create rows. A duplicate answers nothing in a batch, and is an error (which undoes only itself) alone."""
        writes = [write for write, _ in missing]
        if self.wait == "skip":
            return self.marks.made(writes, await self._insert(connection, writes))
        try:
            with map_errors(writing=True):
                async with savepoint(connection):
                    rows = await self._insert(connection, writes)
        except RefusedError as error:
            if error.sqlstate != UNIQUE_VIOLATION:
                raise
            return [await self.marks.duplicate(connection, self, missing[0], error, number)]
        return self.marks.made(writes, rows)

    async def _insert(self, connection: Connection, writes: Sequence[RowWrite]) -> Sequence[FencedRow | None]:
        if self.creating is None:
            raise RuntimeError("this verb creates no rows")
        return await self.creating.run(connection, writes)

    async def never_reached(self, connection: Connection, write: RowWrite) -> Outcome:
        return await self.marks.given_up(connection, self, write)


def no_row(table: Table, key: Key) -> Problem:
    """Give the answer for a key without a row."""
    return Problem(ROW_NOT_FOUND, f"There is no row {table.name}/{','.join(key)}.")
