"""Writes to tables with a scope (R8): one mark for many rows.

Each is one transaction, in this order:

1. the scopes: read from the rows, without a lock (their columns never change), or rendered from key and body;
2. enter them, in a statement of its own: their marks are judged and raised, sorted, whoever holds them waited for;
3. the write, in a later statement: it sees all that older holders have committed, and is bound to the scopes entered.

No row at 3 that was there at 1: it was deleted, or made anew in another scope. Everything is rolled back, the marks
too, and starts over as after a serialization failure. A refusal rolls back as well (operation.py).
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import asyncpg

from fencepost.fencing.problem_types import ROW_NOT_FOUND
from fencepost.fencing.problems import Problem, bad_request, problem_of
from fencepost.fencing.resource import Resource
from fencepost.fencing.scope import Scope
from fencepost.fencing.token import Token
from fencepost.fencing.verdict import refusal
from fencepost.gateway.core import Done, Outcome
from fencepost.gateway.writes.operation import Evidence
from fencepost.storage.connections.connection import Connection
from fencepost.storage.connections.engine import undoing
from fencepost.storage.errors import RefusedError, translated
from fencepost.storage.statements import scope_marks, scope_names, scoped
from fencepost.storage.statements.fenced import Change, Key
from fencepost.storage.statements.fenced_many import ManyOutcome, ManyRefused, ManyWritten, RefusedRow, TooManyRows
from fencepost.storage.statements.query import Filter, QueryError
from fencepost.storage.tables.catalog import Catalog, Fence, ProtectedTable, Table

UNIQUE_VIOLATION = "23505"

Write = Callable[[str], Awaitable[str | None]]
"""A write of one row, given the scope that was entered: the row as JSON, or None when it is not there."""


@dataclass(slots=True)
class ScopedWrite:
    """One write under one token. `entered`: the scopes whose marks the last attempt raised."""

    table: ProtectedTable
    scope: Scope
    token: Token
    entered: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, table: ProtectedTable, token: Token, entered: str = "") -> "ScopedWrite | None":
        """Begin a write; None: the table has no scope. `entered`: a batch may have entered this scope for it."""
        return None if table.fence.scope is None else cls(table, table.fence.scope, token, [entered] if entered else [])

    async def enter(self, connection: Connection, scopes: Sequence[str]) -> list[scope_marks.Entered]:
        """Enter scopes; those that refused, or nothing."""
        self.entered = sorted(scopes)
        with translated(writing=True):
            outcome = await scope_marks.enter(connection, self.table, self.scope, scopes, self.token)
        return [each for each in outcome if each.refused_by is not None]

    def refused(self, by: scope_marks.Entered) -> Problem:
        """Tell why a scope was not entered."""
        verdict = refusal(self.table.fence.rule, by.scope, by.refused_by or 0, self.token)
        if verdict is None:  # the rule has changed since the catalog was read
            verdict = refusal("strict", by.scope, by.refused_by or 0, self.token)
        if verdict is None:
            raise RuntimeError(f"{by} refused the token {self.token}")
        return problem_of(verdict, self.table.fence.rule)

    async def evidence(self, connection: Connection) -> Evidence:
        """Say by the scopes' marks whether the write can have landed: it would have raised all of them (R15).

        A floor that equals the token is nobody's mark: it may have been pruned, or was another scope's.
        """
        if not self.entered:  # it broke before the marks were asked for: nothing was written yet
            return Evidence(landed=False)
        found = await scope_marks.marks(connection, self.scope, self.entered)
        lowest = min(found, key=lambda each: each.mark)
        if lowest.mark < self.token:
            return Evidence(landed=False, resource=lowest.scope, mark=lowest.mark)
        own = next((each for each in found if each.mark == each.recorded == self.token), None)
        told = own or lowest
        return Evidence(landed=True if own else None, resource=told.scope, mark=told.mark)

    # One row

    async def patch(self, connection: Connection, key: Key, change: Change) -> Outcome:
        """Change a row."""
        return await self._existing(
            connection,
            key,
            change,
            lambda entered: scoped.write_row(connection, self.table, self.scope, entered, key, change),
        )

    async def delete(self, connection: Connection, key: Key, target: str) -> Outcome:
        """Delete a row."""
        return await self._existing(
            connection,
            key,
            Change((), "{}", target),
            lambda entered: scoped.delete_row(connection, self.table, self.scope, entered, key, target),
        )

    async def _existing(self, connection: Connection, key: Key, change: Change, write: Write) -> Outcome:
        self.entered = []
        with translated(writing=False):
            name = await scope_names.scope_of_row(connection, self.table, self.scope, key)
        if name is None:
            return await self._missing(connection, key, change)
        if refused := await self.enter(connection, [name]):
            return self.refused(refused[0])
        with translated(writing=True):
            row = await write(name)
        if row is None:
            if self.table.row_security:  # we may see the row, and a policy keeps us from writing it
                return self._no_row(key)
            with translated(writing=True):
                raise asyncpg.SerializationError(f"{name}: a row left the scope while its mark was waited for")
        return Done([row], self.token, scope=name)

    async def _missing(self, connection: Connection, key: Key, change: Change) -> Problem:
        """There is no row: 409 where its scope can be known, and refuses the token; else 404."""
        if set(self.scope.columns) <= {*key_columns(self.table, key), *change.columns}:
            name = await self._named(connection, key, change)
            if name is not None and (refused := await self.enter(connection, [name])):
                return self.refused(refused[0])
        return self._no_row(key)

    def _no_row(self, key: Key) -> Problem:
        return Problem(ROW_NOT_FOUND, f"There is no row {self.table.name}/{','.join(key)}.")

    async def _named(self, connection: Connection, key: Key, change: Change) -> str | None:
        with translated(writing=False):
            return await scope_names.scope_named(connection, self.table, self.scope, key, change.columns, change.body)

    async def put(self, connection: Connection, key: Key, change: Change) -> Outcome:
        """Create or replace a row. Whoever creates a row of this scope has to enter it, so only a row of another scope
        can come into the way.
        """
        self.entered = []
        named = {*self.table.key, *change.columns}
        if missing := [column for column in self.scope.columns if column not in named]:
            raise QueryError(_lacking(self.table, self.scope, missing))
        name = await self._named(connection, key, change)
        if name is None:
            raise QueryError(_lacking(self.table, self.scope, self.scope.columns))
        if refused := await self.enter(connection, [name]):
            return self.refused(refused[0])
        with translated(writing=True):
            row = await scoped.write_row(connection, self.table, self.scope, name, key, change)
        if row is not None:
            return Done([row], self.token, scope=name)
        with translated(writing=True):
            other = await scope_names.scope_of_row(connection, self.table, self.scope, key)
            if other is not None and other != name:
                raise QueryError(
                    f"{self.table.name}/{','.join(key)} is in the scope {other}, and the request names {name}: a row's"
                    " scope cannot change"
                )
            return await self._create(connection, key, change, name)

    async def _create(self, connection: Connection, key: Key, change: Change, name: str) -> Outcome:
        try:
            with translated(writing=True):
                async with undoing(connection):
                    row = await scoped.insert_row(connection, self.table, key, change)
        except RefusedError as error:
            if error.sqlstate != UNIQUE_VIOLATION:
                raise
            with translated(writing=True):
                taken = await scope_names.scope_of_row(connection, self.table, self.scope, key) is not None
                # A partition's key has a name that the catalog does not know.
                if not taken and error.constraint != self.table.key_constraint:
                    raise
                if not taken and self.table.row_security:
                    return self._no_row(key)
                raise asyncpg.SerializationError(f"{name}: the key was taken in another scope meanwhile") from error
        return Done([row], self.token, created=True, scope=name)

    # Several rows

    async def insert(
        self, connection: Connection, columns: tuple[str, ...], body: str, target: str
    ) -> ManyRefused | Done:
        """Insert rows into one or several scopes, all or none."""
        self.entered = []
        if missing := [column for column in self.scope.columns if column not in columns]:
            raise QueryError(_lacking(self.table, self.scope, missing))
        with translated(writing=False):
            names = await scope_names.scopes_of_body(connection, self.table, self.scope, body)
        known = [name for name in names if name is not None]
        if len(known) < len(names):
            raise QueryError(_lacking(self.table, self.scope, self.scope.columns))
        if known and (refused := await self.enter(connection, known)):
            return all_refused(refused)
        with translated(writing=True):
            rows = await scoped.insert_rows(connection, self.table, columns, body, target)
        if len(rows) != 1:
            return Done([row.json for row in rows], created=True)
        return Done([rows[0].json], self.token, created=True, resource=rows[0].resource, scope=known[0])

    async def write_many(
        self, connection: Connection, filters: tuple[Filter, ...], change: Change | None, target: str, limit: int
    ) -> ManyOutcome:
        """Change (or delete) all rows that match, of however many scopes. Rows that come to match meanwhile are written
        if their scope was entered, and left alone if not.
        """
        self.entered = []
        with translated(writing=False):
            names = await scope_names.scopes_matching(connection, self.table, self.scope, filters, limit)
        if isinstance(names, TooManyRows) or not names:
            return names if isinstance(names, TooManyRows) else ManyWritten([])
        if refused := await self.enter(connection, names):
            return all_refused(refused)
        with translated(writing=True):
            return await scoped.write_many(connection, self.table, self.scope, names, filters, change, target, limit)


def key_columns(table: Table, key: Key) -> tuple[str, ...]:
    """Name the columns that a key gives."""
    return table.key if key else ()


def all_refused(refused: Sequence[scope_marks.Entered]) -> ManyRefused:
    """Tell which scopes refused."""
    return ManyRefused([RefusedRow(each.scope, each.refused_by or 0) for each in refused])


def _lacking(table: Table, scope: Scope, columns: Sequence[str]) -> str:
    return (
        f"body: a row of {table.name} belongs to a scope, {scope.template}:"
        f" every object gives {', '.join(columns)} a value"
    )


# Claims


def table_or_scope(catalog: Catalog, name: str) -> Table | None:
    """Find the table of this name, or one by which the scope of this name is read: no name means both."""
    tables = catalog.scopes.get(name)
    return tables[0] if tables else catalog.find(name)


def scope_named(fence: Fence, resource: Resource) -> Scope | Problem | None:
    """Give the scope that a resource names; None: it names a row. A Problem when it has another number of values."""
    if fence.scope is None or fence.scope.prefix != resource.table:
        return None
    wanted = len(fence.scope.columns)
    if len(resource.key) != wanted:
        return bad_request(f"resource: the scope {fence.scope.template} has {wanted} value(s), not {len(resource.key)}")
    return fence.scope


def claim_the_scope(table: Table, key: Key, scope: Scope) -> Problem:
    """Refuse the claim of a single row whose mark is its scope's."""
    return bad_request(
        f"resource: {table.name}/{','.join(key)} has no mark of its own: claim its scope, {scope.template}",
        f"The fence of {table.name} covers all rows of a scope together.",
    )


async def require_storable(connection: Connection, tables: Sequence[Table], values: Key) -> None:
    """Refuse the claim of a scope that no row can have (QueryError): none of its tables stores the values as they are.
    The claim would fence nobody.
    """
    sharing = [(table, table.fence.scope) for table in tables if table.fence is not None and table.fence.scope]
    if any(not scope_names.may_change(table, scope, values) for table, scope in sharing):
        return
    for table, scope in sharing:
        with translated(writing=False):
            if await scope_names.stores(connection, table, scope, values):
                return
    if sharing:
        named = f"{sharing[0][1].prefix}/{','.join(values)}"
        where = ", ".join(table.name for table, _ in sharing)
        raise QueryError(f"resource: the scope {named} would be changed, or refused, when stored in {where}")


async def claim(connection: Connection, write: ScopedWrite, tables: Sequence[Table], values: Key) -> Outcome:
    """Enter a scope without writing: nobody older can write to its rows from now on. `tables`: those that share it."""
    with translated(writing=False):
        names = await scope_names.scopes_typed(connection, write.table, write.scope, [values])
    await require_storable(connection, tables, values)
    if refused := await write.enter(connection, names):
        return write.refused(refused[0])
    return Done([], write.token, resource=names[0], scope=names[0])
