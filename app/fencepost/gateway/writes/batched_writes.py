"""What the verbs do with the rows of a batch: write, ask about what was not reached (R5), create what a PUT misses."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, Protocol

from fencepost.fencing.problems import problem_of
from fencepost.fencing.token import Token
from fencepost.fencing.verdict import MissingRow
from fencepost.gateway.core import Done, Outcome
from fencepost.gateway.writes.fence import judge
from fencepost.gateway.writes.once import Once
from fencepost.storage.batches.lane import AGAIN, ALONE, Alone
from fencepost.storage.connections.connection import Connection
from fencepost.storage.errors import StorageError, translated
from fencepost.storage.statements import fenced_batch
from fencepost.storage.statements.fenced import Change, FencedRow, Key
from fencepost.storage.statements.fenced_batch import RowWrite, Statement
from fencepost.storage.tables.catalog import ProtectedTable

BatchedVerb = Literal["patch", "put", "post", "delete"]
Answer = Outcome | Alone


@dataclass(slots=True, eq=False)
class Batched:
    """One request's write. `row.scope` is found out by the first batch that carries it."""

    row: RowWrite
    once: Once | None = None

    @classmethod
    def of(cls, key: Key, token: Token, body: str, once: Once | None) -> "Batched":
        """Put a request as a batch takes it."""
        if once is None:
            return cls(RowWrite(key, token, body))
        return cls(RowWrite(key, token, body, once.key, once.payload_hash), once)


class Statements(Protocol):
    """What a verb runs."""

    async def write(self, connection: Connection, rows: Sequence[RowWrite]) -> list[Answer]:
        """Write each row, or say why not."""


def row_statements(table: ProtectedTable, verb: BatchedVerb, change: Change) -> Statements:
    """Write the statements of a verb on rows that have marks of their own."""
    match verb:
        case "patch":
            return _Existing(table, fenced_batch.update(table, change))
        case "put":
            created = fenced_batch.create(table, change)
            return _Existing(table, fenced_batch.update(table, change), created)
        case "delete":
            return _Existing(table, fenced_batch.delete(table, change.target))
        case "post":
            return _New(fenced_batch.insert(table, change.columns, change.target))


@dataclass(frozen=True, slots=True)
class _New:
    """POST: what answers nothing is a duplicate, which by itself is told whose."""

    insert: Statement

    async def write(self, connection: Connection, rows: Sequence[RowWrite]) -> list[Answer]:
        return [_created(row) for row in await self.insert.run(connection, rows)]


@dataclass(frozen=True, slots=True)
class _Existing:
    """PATCH, PUT and DELETE. A PUT needs a transaction: if its connection breaks while it creates, that is unknown."""

    table: ProtectedTable
    first: Statement
    create: Statement | None = None

    async def write(self, connection: Connection, rows: Sequence[RowWrite]) -> list[Answer]:
        written = await self.first.run(connection, rows)
        answers: list[Answer] = [ALONE if row is None else Done((row.json,), row.mark) for row in written]
        left = [number for number, row in enumerate(written) if row is None]
        if left and connection.is_in_transaction():
            await self._ask(connection, rows, left, answers)
        elif left:
            # What was written is committed: whatever goes wrong now concerns only those that are left.
            with suppress(StorageError), translated(writing=False):
                await self._ask(connection, rows, left, answers)
        return answers

    async def _ask(
        self, connection: Connection, rows: Sequence[RowWrite], left: Sequence[int], answers: list[Answer]
    ) -> None:
        """Answer the writes whose rows were not reached."""
        standings = await fenced_batch.ask(connection, self.table, [rows[n].key for n in left])
        missing = []
        for number, standing in zip(left, standings, strict=True):
            verdict = judge(standing, self.table.fence, rows[number].token)
            if verdict is None:  # held by somebody, or made anew meanwhile
                answers[number] = AGAIN
            elif isinstance(verdict, MissingRow) and self.create is not None:
                missing.append(number)
            else:
                answers[number] = problem_of(verdict, self.table.fence.rule)
        if missing and self.create is not None:
            created = await self.create.run(connection, [rows[number] for number in missing])
            for number, row in zip(missing, created, strict=True):
                answers[number] = _created(row)


def _created(row: FencedRow | None) -> Answer:
    return ALONE if row is None else Done((row.json,), row.mark, created=True, resource=row.resource)
