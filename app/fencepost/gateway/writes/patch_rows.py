"""PATCH of an array: each object names its row by the key's columns. One token, one statement, all or nothing (R10).

1. The statement locks the rows in key order, judges them as they are then, and writes all of them or none.
2. None: the next statement asks for the marks of all keys (R5). In this order: an element without a key, or a key given
   twice, is 400; marks that refuse, of rows or of keys without one, are 409, all of them listed; a token that was never
   issued FP018; keys without a row 404, all of them listed.
3. Nothing of that: a row was deleted and made anew between 1 and 2. Again, bounded. Inside a transaction the rows that
   were met stay locked, and to lock more would be out of order: there, everything is undone and starts over.

In a table with a scope 2 comes first, and reads which scopes the rows are in; then these are entered, and 1 writes to
their rows only (R8). Whatever was not met then starts over as well.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import asyncpg

from fencepost.fencing.problem_types import ROW_NOT_FOUND, SPENT_TOKEN, STALE_TOKEN
from fencepost.fencing.problems import Problem
from fencepost.fencing.token import Token
from fencepost.fencing.verdict import Beyond, MissingRow, Unissued
from fencepost.gateway.core import Done, Gateway, Outcome, on_table, require_protected
from fencepost.gateway.writes.collection import more_than_wanted, not_one, ready_to_write, refused_rows, told, too_many
from fencepost.gateway.writes.evidence import rows_evidence
from fencepost.gateway.writes.fence import ROUNDS, contended, judge, refused
from fencepost.gateway.writes.once import Once
from fencepost.gateway.writes.operation import Evidence, Operation, perform
from fencepost.gateway.writes.plans import Body, target_of
from fencepost.gateway.writes.scoped import ScopedWrite, all_refused
from fencepost.storage.connections.connection import Connection
from fencepost.storage.errors import translated
from fencepost.storage.statements import fenced, scope_names
from fencepost.storage.statements.fenced import Change
from fencepost.storage.statements.fenced_many import LISTED_REFUSALS
from fencepost.storage.statements.fenced_rows import Asked, Unwritten, ask_rows, place_rows, update_rows
from fencepost.storage.statements.query import QueryError, Select
from fencepost.storage.tables.catalog import ProtectedTable, Table

_NAMED: Final = 10
"""How many resources a sentence names; `rows` lists them all."""


@dataclass(frozen=True, slots=True)
class RowsPatch:
    """PATCH: `body.text` is a JSON array of `count` objects, each with its row's key."""

    table: str
    token: Token | None
    body: Body
    count: int
    select: Select = None
    exactly_one: bool = False
    """PostgREST's single-object form: anything but one row is refused, and nothing is written."""
    once: Once | None = None
    most: int | None = None
    """How many rows the request may write at most, as its caller wants it."""
    shown: bool = True
    """Whether the answer has the rows; else no column is read but key and mark."""


async def patch_rows(gateway: Gateway, request: RowsPatch) -> Outcome:
    """Change columns of the rows that the objects name, or of none."""

    async def use(found: Table) -> Outcome:
        ready = _ready(gateway, found, request)
        if isinstance(ready, Problem):
            return ready
        table, token = ready
        columns = tuple(c for c in request.body.columns if c not in table.key)
        change = Change(columns, request.body.text, target_of(table, request.select, shown=request.shown))
        scoped = ScopedWrite.of(table, token)
        if scoped is not None:
            return await perform(gateway, _in_scopes(_ScopedRows(scoped, change), request))
        return await perform(gateway, _in_rows(_FencedRows(table, token, change), request))

    return await on_table(gateway, request.table, "patch", use)


def _ready(gateway: Gateway, table: Table, request: RowsPatch) -> tuple[ProtectedTable, Token] | Problem:
    if not isinstance(require_protected(table), Problem):  # 403 first; then what the body lacks, 400; then 428
        target_of(table, request.select, shown=request.shown)
        if request.count and (lacking := [c for c in table.key if c not in request.body.columns]):
            raise QueryError(
                f"body: without {', '.join(lacking)}: every object names its row of {table.name} by the key,"
                f" {', '.join(table.key)}"
            )
        if request.count > gateway.max_rows:
            return too_many(gateway.max_rows, f"the body has {request.count} rows")
        if request.exactly_one and request.count != 1:
            return not_one(request.count)
        if request.most is not None and request.count > request.most:
            return more_than_wanted(request.most, f"the body has {request.count} rows")
    return ready_to_write(table, request.token, request.body.columns, request.once)


# Rows that have marks of their own


@dataclass(slots=True)
class _FencedRows:
    """One write. `tried`: how often all marks would have let it pass, and yet it did not reach all rows."""

    table: ProtectedTable
    token: Token
    change: Change
    tried: int = 0

    async def attempt(self, connection: Connection) -> Outcome:
        """Write, or find out why not."""
        while True:
            with translated(writing=True):
                outcome = await update_rows(connection, self.table, self.token, self.change)
            if not isinstance(outcome, Unwritten):
                return Done(outcome)
            with translated(writing=False):
                asked = await ask_rows(connection, self.table, self.change.body)
            problem = self._why(asked)
            if problem is not None:
                return problem
            self.tried += 1
            if self.tried >= ROUNDS:
                return self._given_up([a.standing.resource for a in asked if a.element not in outcome.met])
            # With row security it is more likely a policy that hides rows from writing: not worth the pauses.
            if connection.is_in_transaction() and not self.table.row_security:
                with translated(writing=True):
                    raise asyncpg.SerializationError(f"{self.table.name}: a row came and went meanwhile")

    def _why(self, asked: Sequence[Asked]) -> Problem | None:
        """Read the answer to R5's question; None: write again."""
        _require_keys(self.table, [(each.element, each.standing.resource) for each in asked])
        verdicts = [judge(each.standing, self.table.fence, self.token) for each in asked]
        problems = [refused(verdict, self.table.fence) for verdict in verdicts if verdict is not None]
        if refusals := [p for p in problems if p.type in (STALE_TOKEN, SPENT_TOKEN)]:
            return refused_rows(self.table, self.token, refusals[:LISTED_REFUSALS])
        if unissued := next((v for v in verdicts if isinstance(v, Unissued | Beyond)), None):
            return refused(unissued, self.table.fence)
        missing = [v.resource for v in verdicts if isinstance(v, MissingRow)]
        return _no_rows(missing) if missing else None

    def _given_up(self, unmet: Sequence[str]) -> Problem:
        if self.table.row_security and unmet:
            return _no_rows(unmet)  # we may see the rows, and a policy keeps us from writing them
        return contended(unmet[0] if unmet else self.table.name)

    async def evidence(self, connection: Connection) -> Evidence:
        """Say by the marks whether the write can have landed: it would have raised all of them (R15)."""
        if self.table.row_security:
            return Evidence(None)
        return rows_evidence(await fenced.ask_many(connection, self.table, self.change.body), self.token)


def _in_rows(rows: _FencedRows, request: RowsPatch) -> Operation:
    if not request.count:
        return Operation(rows.table, _nothing, once=request.once)
    return Operation(rows.table, rows.attempt, body=request.body, once=request.once, evidence=rows.evidence)


async def _nothing(_: Connection) -> Outcome:
    return Done([])


# Rows that share marks


@dataclass(frozen=True, slots=True)
class _ScopedRows:
    """One write to rows of however many scopes."""

    scoped: ScopedWrite
    change: Change

    async def attempt(self, connection: Connection) -> Outcome:
        """Enter the scopes of all rows, and write; or find out why not."""
        scoped, table, change = self.scoped, self.scoped.table, self.change
        scoped.entered = []
        with translated(writing=False):
            places = await place_rows(connection, table, change.body)
        _require_keys(table, [(each.element, each.resource) for each in places])
        scopes = {each.scope for each in places if each.scope is not None}
        missing = [each.resource for each in places if each.scope is None]
        if missing:
            scopes |= await self._named(connection)
        names = sorted(scopes)
        if names and (by := await scoped.enter(connection, names)):
            return told(table, scoped.token, all_refused(by), exactly_one=False)
        if missing:
            return _no_rows(missing)
        with translated(writing=True):
            outcome = await update_rows(connection, table, names, change)
        if not isinstance(outcome, Unwritten):
            return Done(outcome)
        if table.row_security:  # we may see the rows, and a policy keeps us from writing them
            return _no_rows([each.resource for each in places if each.element not in outcome.met])
        with translated(writing=True):
            raise asyncpg.SerializationError(f"{table.name}: a row left its scope while its mark was waited for")

    async def _named(self, connection: Connection) -> set[str]:
        """Render the scopes that the objects name: where a row is missing, they tell in which it would be."""
        scoped = self.scoped
        if not set(scoped.scope.columns) <= {*scoped.table.key, *self.change.columns}:
            return set()
        with translated(writing=False):
            found = await scope_names.scopes_of_body(connection, scoped.table, scoped.scope, self.change.body)
        return {name for name in found if name is not None}


def _in_scopes(rows: _ScopedRows, request: RowsPatch) -> Operation:
    table = rows.scoped.table
    if not request.count:
        return Operation(table, _nothing, once=request.once)
    return Operation(
        table, rows.attempt, transaction=True, body=request.body, once=request.once, evidence=rows.scoped.evidence
    )


# What both have to say


def _require_keys(table: Table, named: Sequence[tuple[int, str]]) -> None:
    """Refuse elements without a value for the key, and those that name one row twice: their resources are in key order,
    so equal ones stand side by side, and one key has one name however it is spelled.
    """
    if keyless := [element for element, resource in named if not resource]:
        raise QueryError(
            f"body: element {min(keyless)} names no row of {table.name}: every object has values for its key,"
            f" {', '.join(table.key)}"
        )
    for (one, resource), (other, next_resource) in itertools.pairwise(named):
        if resource == next_resource:
            raise QueryError(f"body: the elements {one} and {other} both name {resource}: a request writes a row once")


def _no_rows(resources: Sequence[str]) -> Problem:
    named = ", ".join(resources[:_NAMED]) + (f" and {len(resources) - _NAMED} more" if len(resources) > _NAMED else "")
    return Problem(
        ROW_NOT_FOUND,
        f"There is no row {named}: nothing was written.",
        hint="`rows` lists the keys without a row. POST inserts rows; PUT creates or replaces one.",
        resource=resources[0],
        extra={"rows": [{"resource": each, "current_token": None} for each in resources[:LISTED_REFUSALS]]},
    )
