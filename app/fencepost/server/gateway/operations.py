"""What a write does that is decided alone: to a row by its key, with new rows, to rows that match a filter, to those of
an array. Writes of several rows are all or none (R10).
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fencepost.server.fence.problem_types import (
    ROW_NOT_FOUND,
    SPENT_TOKEN,
    STALE_TOKEN,
    UNISSUED_TOKEN,
    WRONG_TOKEN_SOURCE,
)
from fencepost.server.fence.problems import Problem
from fencepost.server.fence.resource import Scope
from fencepost.server.fence.token import BeyondCeiling, MissingRow, Token, Unissued, shown_mark
from fencepost.server.gateway.alone import Evidence, Operation, row_evidence, rows_evidence
from fencepost.server.gateway.attempt import (
    ROUNDS,
    UNIQUE_VIOLATION,
    Statements,
    attempt_alone,
    contended,
    done_of,
    judge,
    left_its_scope,
    no_row,
    problem_of_verdict,
)
from fencepost.server.gateway.outcomes import Done, Outcome
from fencepost.server.gateway.plan import Plan, more_than_wanted, not_one, too_many
from fencepost.server.gateway.refusals import SUPPRESSED
from fencepost.server.gateway.write import (
    Listed,
    Matching,
    OneRow,
    Write,
    may_need_fitting,
    no_scope,
    require_columns_of,
)
from fencepost.server.postgres import keyed, marks, scopes
from fencepost.server.postgres.connection import RowWrite, Session
from fencepost.server.postgres.errors import RefusedError, conflict
from fencepost.server.postgres.keyed import Change
from fencepost.server.postgres.many import (
    LISTED_REFUSALS,
    ManyOutcome,
    ManyRefused,
    ManyWritten,
    TooManyRows,
    Unwritten,
    write_elements,
    write_matching,
)
from fencepost.server.postgres.marks import ElementState, KeyState, ask_elements, keys_may_change, place_elements
from fencepost.server.postgres.query import Query, QueryError
from fencepost.server.postgres.scopes import Entered, scope_named, scope_of_row
from fencepost.server.postgres.tables import Table


def operation_of(plan: Plan, write: Write, row: RowWrite, max_rows: int, name: str) -> Operation:
    """Give what is done for a write that is decided alone. `name`: that of its row, where its token is sealed."""
    table, change, query = plan.table, plan.change, Query(write.select)
    match write.target:
        case OneRow() if plan.statements is not None:
            statements, columns = plan.statements, change.columns
            return OfRow(table=table, row=row, query=query, statements=statements, columns=columns, name=name)
        case Matching(filters):
            query = Query(write.select, filters)
            return RowsMatching(
                table=table, row=row, query=query, request=write, change=change, limit=_limit(write, max_rows)
            )
        case _ if write.verb == "post":
            return NewRows(table=table, row=row, query=query, change=change)
        case Listed(0):
            return NoRows(table=table, row=row)
        case _:
            return NamedRows(table=table, row=row, query=query, change=change)


def _limit(write: Write, max_rows: int) -> int:
    """How many rows that match it may write, of which the gateway allows `max_rows`."""
    if write.exactly_one:
        return 1
    most = write.preferences.most
    return max_rows if most is None else min(most, max_rows)


# PATCH, PUT, DELETE of a row by its key.
#
# A PUT is an UPDATE (columns that the body leaves out get their defaults) and, where there is no row, an INSERT. Each
# is a fenced operation of its own, so whatever happens in between is judged: an INSERT that meets a row after all goes
# back to the UPDATE.


@dataclass(slots=True, kw_only=True)
class OfRow(Operation):
    """A write of one row."""

    statements: Statements
    columns: tuple[str, ...]
    """Those that the body gives values of."""
    name: str
    """The name of its resource, where its token is sealed."""
    missing: bool = False
    """Whether its scope was looked for, and there is no row, and so none to write."""

    async def write(self, connection: Session) -> Outcome:
        """Write, ask, create, until it is decided."""
        if self.missing:
            return no_row(self.table, self.row.key)
        return await attempt_alone(connection, self.statements, self.row)

    async def scopes(self, connection: Session, scope: Scope) -> list[str]:
        """Read the row's scope; that of a row to be created, or that is missing, the request may name."""
        named = {*self.table.key, *self.columns}
        if self.statements.creates:
            require_columns_of(scope, self.table, named)
            return [await self._named_scope(connection, scope) or no_scope(scope, self.table)]
        name = await scope_of_row(connection, self.table, scope, self.row.key)
        self.missing = name is None
        if name is None and named.issuperset(scope.columns):  # 409 where that scope refuses the token
            name = await self._named_scope(connection, scope)
        return [] if name is None else [name]

    async def _named_scope(self, connection: Session, scope: Scope) -> str | None:
        return await scope_named(connection, self.table, scope, self.row.key, self.columns, self.row.body)

    async def explain(self, connection: Session, error: RefusedError) -> Problem | None:
        """Answer a DELETE as stale or spent where the row was written before in the same transaction (of a batch that
        lands as a whole): PostgreSQL's function sees an own write, and takes it for a trigger's.
        """
        if error.sqlstate != SUPPRESSED or not connection.is_in_transaction():
            return None
        (standing,) = await marks.ask(connection, self.table, [self.row.key])
        verdict = judge(standing, self.table.fence, self.row.token)
        return None if verdict is None else problem_of_verdict(verdict, self.table.fence)

    def written(self, done: Done) -> Sequence[str]:
        """Name the row: that of a PUT as it was stored."""
        return (done.resource or self.name,)

    async def evidence(self, connection: Session) -> Evidence:
        """Ask for the row's mark."""
        creates = self.statements.creates
        return await row_evidence(connection, self.table, self.row.key, self.row.token, creates=creates)


# What writes of several rows under one token answer: all are written, or none (R10).


def names_of(done: Done) -> Sequence[str]:
    """Name all that was written, where a seal has to be compared with it."""
    if done.resources is None or len(done.resources) != len(done.rows):
        raise RuntimeError("the names of what was written were not asked for")
    return done.resources


def answer_of_many(table: Table, write: Write, token: Token, outcome: ManyOutcome) -> Outcome:
    """Give the answer of a write of many rows."""
    exactly_one, most = write.exactly_one, write.preferences.most
    match outcome:
        case ManyWritten(rows) if exactly_one and not rows:
            return not_one(0)
        case TooManyRows() if exactly_one:
            return not_one(None)
        case ManyWritten(rows, names):
            return Done(rows, resources=names)
        case TooManyRows(limit) if limit == most:
            return more_than_wanted(most, "the filter matches more")
        case TooManyRows(limit):
            return too_many(limit, "the filter matches more")
        case ManyRefused(rows):
            return refused_by_marks(table, token, [(row.resource, row.mark) for row in rows])


def refused_by_marks(table: Table, token: Token, marks: Sequence[tuple[str, int]], of: str = "rows") -> Problem:
    """Give the answer when the marks of these resources, rows or scopes, refuse the token."""
    refusals = [
        Problem(SPENT_TOKEN if mark == token else STALE_TOKEN, "", resource=resource, current_token=mark)
        for resource, mark in marks
    ]
    return refused_rows(table, token, refusals, of)


def refused_by_scopes(table: Table, token: Token, by: Sequence[Entered]) -> Problem:
    """Give the answer when scopes were not entered."""
    return refused_by_marks(table, token, [(each.scope, each.refused_by or 0) for each in by], "scopes")


def refused_rows(table: Table, token: Token, refusals: list[Problem], of: str = "rows") -> Problem:
    """Give the answer when some rows, or scopes, refuse the token: no row was written (R10)."""
    stale = [p for p in refusals if p.type is STALE_TOKEN]
    kind = STALE_TOKEN if stale else SPENT_TOKEN
    first = (stale or refusals)[0]
    shows = (
        all(shown_mark(table.fence.rule, p.current_token or 0) is not None for p in refusals) if table.fence else True
    )
    return Problem(
        kind,
        f"Token {token} is {'stale' if stale else 'spent'} for {len(refusals)} of the {of} of {table.name} that this"
        f" request would write, {first.resource} among them: nothing was written.",
        hint="Do not retry with this token; `rows` lists who refused."
        if stale
        else "Each token writes a resource once: mint another.",
        resource=first.resource,
        presented_token=token,
        current_token=first.current_token,
        shows_mark=shows,
        extra={
            "rows": [
                {"resource": p.resource, "current_token": str(p.current_token) if shows else None} for p in refusals
            ]
        },
    )


# POST: one row or many under one token, all or none (R10).

_MAY_BE_A_MARK: Final = frozenset({UNIQUE_VIOLATION, "FP409"})


@dataclass(slots=True, kw_only=True)
class NewRows(Operation):
    """New rows. Where each has a mark of its own, triggers judge those of keys without a row (R6)."""

    change: Change

    async def write(self, connection: Session) -> Outcome:
        statement = self.table.kept(keyed.insert, self.change, "block")
        rows = await statement.rows(connection, self.row)
        if len(rows) != 1:
            return Done([row.json for row in rows], created=True, resources=[row.resource for row in rows])
        done = done_of(self.table, self.row, rows[0], True)
        done.resources = (done.resource,)
        return done

    async def scopes(self, connection: Session, scope: Scope) -> list[str]:
        """Render the scopes that the body names."""
        require_columns_of(scope, self.table, self.change.columns)
        names = await scopes.scopes_of_body(connection, self.table, scope, self.row.body)
        return [name if name is not None else no_scope(scope, self.table) for name in names]

    def refused(self, by: Sequence[Entered]) -> Problem:
        return refused_by_scopes(self.table, self.row.token, by)

    async def explain(self, connection: Session, error: RefusedError) -> Problem | None:
        """Answer a duplicate under a stale token as stale (FP001, not 23505), and list every row that refuses; one
        under a token that was never issued is FP018.
        """
        table, fence = self.table, self.table.fence
        if error.sqlstate not in _MAY_BE_A_MARK or not self._names_keys():
            return None
        standings = await self._standings(connection)
        verdicts = [judge(standing, fence, self.row.token) for standing in standings]
        problems = [problem_of_verdict(verdict, fence) for verdict in verdicts if verdict is not None]
        refusals = [p for p in problems if p.type in (STALE_TOKEN, SPENT_TOKEN)]
        if not refusals:
            return next((p for p in problems if p.type in (UNISSUED_TOKEN, WRONG_TOKEN_SOURCE)), None)
        return refusals[0] if len(standings) == 1 else refused_rows(table, self.row.token, refusals)

    def written(self, done: Done) -> Sequence[str]:
        """Name the rows as they were stored: a trigger may have given one another key."""
        return names_of(done)

    async def evidence(self, connection: Session) -> Evidence:
        """Ask for the marks of all keys, unless the database makes or changes the keys, or a policy hides rows."""
        known = self._names_keys() and not may_need_fitting(self.table)
        if not known or self.table.row_security or await keys_may_change(connection, self.table):
            return Evidence(None)
        return rows_evidence(await self._standings(connection), self.row.token)

    async def _standings(self, connection: Session) -> list[KeyState]:
        found = await marks.ask_elements(connection, self.table, self.row.body)
        return sorted((each.standing for each in found), key=lambda standing: standing.resource)

    def _names_keys(self) -> bool:
        return bool(self.table.key) and set(self.table.key) <= set(self.change.columns)


# PATCH and DELETE of the rows that match a filter: of all of them, or of none (R10).


@dataclass(slots=True, kw_only=True)
class RowsMatching(Operation):
    """All rows that match. Of a table with a scope, rows that come to match meanwhile are written if their scope was
    entered, and left alone if not.
    """

    request: Write
    change: Change
    limit: int

    async def write(self, connection: Session) -> Outcome:
        """Lock, judge and write them in one statement: all of them, or none."""
        filters = self.query.filters
        outcome = await write_matching(connection, self.table, filters, self.row, self.change, self.limit)
        return self._answer(outcome)

    async def scopes(self, connection: Session, scope: Scope) -> list[str] | Outcome:
        filters = self.query.filters
        names = await scopes.scopes_matching(connection, self.table, scope, filters, self.limit)
        if isinstance(names, TooManyRows):
            return self._answer(names)
        return names or self._answer(ManyWritten([]))

    def _answer(self, outcome: ManyOutcome) -> Outcome:
        return answer_of_many(self.table, self.request, self.row.token, outcome)

    def refused(self, by: Sequence[Entered]) -> Problem:
        return refused_by_scopes(self.table, self.row.token, by)

    @property
    def how_to_ask(self) -> str:
        """Name any of the rows, for they were written together."""
        return (
            "Which rows matched is not known any more, and so no mark was asked. All of them were written, or none: ask"
            " GET /v1/fences?resource=… for one that should have been, or read it."
        )

    def written(self, done: Done) -> Sequence[str]:
        return names_of(done)


# PATCH of an array: each object names its row by the key's columns. One token, one statement, all or nothing (R10).
#
# 1. The statement locks the rows in key order, judges them as they are then, and writes all of them or none.
# 2. None: the next statement asks for the marks of all keys (R5). In this order: an element without a key, or a key
#    given twice, is 400; marks that refuse, of rows or of keys without one, are 409, all of them listed; a token that
#    was never issued FP018; keys without a row 404, all of them listed.
# 3. Nothing of that: a row was deleted and made anew between 1 and 2. Again, bounded. Inside a transaction the rows
#    that were met stay locked, and to lock more would be out of order: there, everything is undone and starts over.
#
# In a table with a scope 2 comes first, and reads which scopes the rows are in; then these are entered, and 1 writes
# to their rows only (R8). Whatever was not met then starts over as well.

_NAMED: Final = 10
"""How many resources a sentence names; `rows` lists them all."""


@dataclass(slots=True, kw_only=True)
class NoRows(Operation):
    """An empty array: a write that is recorded under its Idempotency-Key, and does nothing."""

    async def write(self, _connection: Session) -> Outcome:
        return Done([])

    async def scopes(self, _connection: Session, _scope: Scope) -> list[str]:
        """Enter none."""
        return []

    def written(self, _done: Done) -> Sequence[str]:
        return ()


@dataclass(slots=True, kw_only=True)
class NamedRows(Operation):
    """Rows that are named by their keys."""

    change: Change
    missing: Sequence[str] = ()
    """The rows whose scopes were looked for, and that are not there."""
    tried: int = 0
    """How often all marks would have let it pass, and yet it did not reach all rows."""
    known: Sequence[tuple[int, str]] = ()
    """The elements and their rows' names, as they were last asked for."""

    async def write(self, session: Session) -> Outcome:
        """Write, and ask why not all rows were reached, until it is decided."""
        if self.missing:
            return _no_rows(self.missing)
        while True:
            outcome = await write_elements(session, self.table, self.row, self.change)
            if not isinstance(outcome, Unwritten):
                return Done(outcome.rows, resources=outcome.names)
            if (problem := await self._explain_zero_rows(session, outcome.met)) is not None:
                return problem

    async def _explain_zero_rows(self, session: Session, met: frozenset[int]) -> Problem | None:
        """Find out why no row was written, though `met` elements' rows were met. None: nothing refuses it. In a
        transaction that starts over: step 3 above.
        """
        table = self.table
        if table.fence.scope is not None:
            if table.row_security:
                return _no_rows(self._unmet(met))
            raise left_its_scope(table, self.row)
        asked = await ask_elements(session, table, self.row.body)
        if (problem := self._why(asked)) is not None:
            return problem
        self.tried += 1
        if self.tried >= ROUNDS:
            unmet = self._unmet(met)
            if table.row_security and unmet:
                return _no_rows(unmet)  # we may see the rows, and a policy keeps us from writing them
            return contended(unmet[0] if unmet else table.name)
        # With row security it is more likely a policy that hides rows from writing: not worth the pauses.
        if session.is_in_transaction() and not table.row_security:
            raise conflict(f"{table.name}: a row came and went meanwhile")
        return None

    def _why(self, asked: Sequence[ElementState]) -> Problem | None:
        self._know([(each.element, each.standing.resource) for each in asked])
        fence = self.table.fence
        verdicts = [judge(each.standing, fence, self.row.token) for each in asked]
        problems = [problem_of_verdict(verdict, fence) for verdict in verdicts if verdict is not None]
        if refusals := [p for p in problems if p.type in (STALE_TOKEN, SPENT_TOKEN)]:
            return refused_rows(self.table, self.row.token, refusals[:LISTED_REFUSALS])
        if unissued := next((v for v in verdicts if isinstance(v, Unissued | BeyondCeiling)), None):
            return problem_of_verdict(unissued, fence)
        missing = [v.resource for v in verdicts if isinstance(v, MissingRow)]
        return _no_rows(missing) if missing else None

    def _know(self, known: Sequence[tuple[int, str]]) -> None:
        """Keep the names of the elements' rows (QueryError: they cannot be the rows of one request)."""
        _require_keys(self.table, known)
        self.known = known

    def _unmet(self, met: frozenset[int]) -> list[str]:
        return [resource for element, resource in self.known if element not in met]

    async def scopes(self, session: Session, scope: Scope) -> list[str]:
        """Read the scopes of all rows; where one is missing, the objects may name the scope that it would be in."""
        places = await place_elements(session, self.table, self.row.body)
        self._know([(each.element, each.resource) for each in places])
        self.missing = [each.resource for each in places if each.scope is None]
        found = {each.scope for each in places}
        given = {*self.table.key, *self.change.columns}
        if None in found and given.issuperset(scope.columns):
            found |= set(await scopes.scopes_of_body(session, self.table, scope, self.row.body))
        return sorted(each for each in found if each is not None)

    def refused(self, by: Sequence[Entered]) -> Problem:
        return refused_by_scopes(self.table, self.row.token, by)

    def written(self, done: Done) -> Sequence[str]:
        return names_of(done)

    async def evidence(self, session: Session) -> Evidence:
        """Ask for the marks of all keys: the write would have raised all of them (R15)."""
        if self.table.row_security:
            return Evidence(None)
        asked = await ask_elements(session, self.table, self.row.body)
        return rows_evidence([each.standing for each in asked], self.row.token)


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
