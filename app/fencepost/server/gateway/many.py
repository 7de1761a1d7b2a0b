"""Writes of several rows, all or none: by POST, by filters, by an array whose elements name their rows."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fencepost.server.fence.problem_types import (
    BODY_TOO_LARGE,
    NOT_ACCEPTABLE,
    ROW_NOT_FOUND,
    SPENT_TOKEN,
    STALE_TOKEN,
    UNISSUED_TOKEN,
    WRONG_TOKEN_SOURCE,
)
from fencepost.server.fence.problems import Problem, bad_request
from fencepost.server.fence.resource import Scope
from fencepost.server.fence.token import BeyondCeiling, MissingRow, Token, Unissued, shown_mark
from fencepost.server.gateway.alone import Evidence, Operation, perform, rows_evidence
from fencepost.server.gateway.attempt import (
    ROUNDS,
    UNIQUE_VIOLATION,
    contended,
    done_of,
    judge,
    left_its_scope,
    problem_of_verdict,
)
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.group_commit import Alone, Broken
from fencepost.server.gateway.idempotency import IdempotentRequest
from fencepost.server.gateway.keyed import (
    Batched,
    Shape,
    WriteQueues,
    alone,
    in_a_batch,
    lanes_of,
    shape_of,
)
from fencepost.server.gateway.outcomes import Done, Outcome
from fencepost.server.gateway.refusals import Authority, ready_to_write, require_protected, require_reach, target_of
from fencepost.server.gateway.write import Write, may_need_fitting, no_scope, require_columns_of
from fencepost.server.postgres import keyed, marks, scopes
from fencepost.server.postgres.connection import Session
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
from fencepost.server.postgres.query import Filter, Query, QueryError, render_filters
from fencepost.server.postgres.reading import check_filters
from fencepost.server.postgres.row_sql import Bound, RowWrite
from fencepost.server.postgres.scopes import Entered
from fencepost.server.postgres.tables import ProtectedTable, Table

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


def unfit_count(write: Write, count: int, max_rows: int) -> Problem | None:
    """Refuse a body of `count` rows that the gateway, or the request itself, does not want."""
    most = write.preferences.most
    what = f"the body has {count} rows"
    if count > max_rows:
        return too_many(max_rows, what)
    if write.exactly_one and count != 1:
        return not_one(count)
    return more_than_wanted(most, what) if most is not None and count > most else None


def not_one(count: int | None) -> Problem:
    """Refuse what was to concern exactly one row; None: more than one. Nothing was written."""
    there = "there are more" if count is None else f"there are {count}"
    return Problem(NOT_ACCEPTABLE, f"The Accept header wants exactly one row, and {there}. Nothing was written.")


def more_than_wanted(most: int, what: str) -> Problem:
    """Refuse what would write more rows than its caller wants to."""
    return bad_request(
        f"Prefer: max-affected={most}: {what}. Nothing was written.",
        "Narrow the request, or allow it more rows.",
    )


def too_many(limit: int, what: str) -> Problem:
    """Refuse what would write more rows than one request may."""
    return Problem(
        BODY_TOO_LARGE,
        f"One request writes at most {limit} rows, and {what}. Nothing was written.",
        hint="Write in smaller parts, or raise FENCEPOST_MAX_ROWS.",
    )


# POST: one row or many under one token, all or none (R10).

_MAY_BE_A_MARK: Final = frozenset({UNIQUE_VIOLATION, "FP409"})


async def insert_rows(
    gateway: Gateway, request: Write, count: int, once: IdempotentRequest | None, found: Table
) -> Outcome:
    """Decide an insert of so many rows: of one row in a batch, or alone."""
    target = target_of(found, request.select, gateway.max_answer_bytes, shown=request.shown)
    unfit = unfit_count(request, count, gateway.max_rows)
    if unfit is not None:
        return unfit
    ready = ready_to_write(found, request.token, request.body.columns, once, gateway.seals)
    if isinstance(ready, Problem):
        return ready
    table, (token, binding) = ready
    write = Batched.of((), token, request.body.raw, once)
    # Under a seal it goes alone: which row it makes is known only when it is made.
    lanes = None
    if count == 1 and binding is None:
        shape = shape_of(table, request, once)
        lanes = table.kept(_lanes, shape, gateway.max_answer_bytes)
    answer = await in_a_batch(gateway, lanes, write)
    if not isinstance(answer, Alone | Broken):
        return answer
    rows = NewRows(
        table=table,
        row=write.row,
        body=request.body,
        once=once,
        binding=binding,
        query=Query(request.select),
        change=Change(request.body.columns, target, request.preferences.in_sql),
    )
    return await alone(gateway, rows, lanes, write, answer)


def _lanes(table: ProtectedTable, shape: Shape, most_bytes: int) -> WriteQueues | None:
    target = target_of(table, shape.select, most_bytes, shown=shape.shown)
    return lanes_of(table, shape, Change(shape.columns, target, shape.preferences))


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

Filters = tuple[Filter, ...]


async def write_where(
    gateway: Gateway, request: Write, filters: Filters, once: IdempotentRequest | None, found: Table
) -> Outcome:
    """Decide the write of all rows that match."""
    ready = _ready(gateway, found, request, filters, once)
    if isinstance(ready, Problem):
        return ready
    table, (token, binding) = ready
    own_marks = table.fence.scope is None
    deletes = request.verb == "delete"
    if deletes and own_marks:
        refused = require_reach(table, (token, binding))
        if refused is not None:
            return refused
    target = target_of(table, request.select, gateway.max_answer_bytes, shown=request.shown)
    named = binding is not None and own_marks
    rows = RowsMatching(
        table=table,
        row=RowWrite((), token, request.body.raw),
        body=request.body,
        once=once,
        binding=binding,
        query=Query(request.select, filters),
        request=request,
        change=Change(request.body.columns, target, request.preferences.in_sql, named=named, deletes=deletes),
        limit=_limit(request, gateway.max_rows),
    )
    return await perform(gateway, rows)


def _limit(request: Write, max_rows: int) -> int:
    """How many rows it may write, of which the gateway allows `max_rows`."""
    if request.exactly_one:
        return 1
    most = request.preferences.most
    return max_rows if most is None else min(most, max_rows)


def _ready(
    gateway: Gateway, table: Table, request: Write, filters: Filters, once: IdempotentRequest | None
) -> tuple[ProtectedTable, Authority] | Problem:
    columns = request.body.columns
    if not isinstance(require_protected(table), Problem):  # 403 first; then unknown columns, 400; then 428
        render_filters(table, filters, Bound())
        check_filters(table, filters)
        target_of(table, request.select, gateway.max_answer_bytes, shown=request.shown)
        if key := [c for c in columns if c in table.key]:
            raise QueryError(f"body: {', '.join(key)} is the primary key, which a write cannot change")
    return ready_to_write(table, request.token, columns, once, gateway.seals)


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


async def patch_array(
    gateway: Gateway, request: Write, count: int, once: IdempotentRequest | None, found: Table
) -> Outcome:
    """Decide the write of an array of so many objects."""
    ready = _ready_for_array(gateway, found, request, count, once)
    if isinstance(ready, Problem):
        return ready
    table, (token, binding) = ready
    columns = tuple(c for c in request.body.columns if c not in table.key)
    own_marks = table.fence.scope is None
    named = binding is not None and own_marks
    target = target_of(table, request.select, gateway.max_answer_bytes, shown=request.shown)
    change = Change(columns, target, request.preferences.in_sql, named=named)
    row = RowWrite((), token, request.body.raw)
    if not count:
        return await perform(gateway, NoRows(table=table, row=row, once=once, binding=binding))
    rows = NamedRows(
        table=table,
        row=row,
        body=request.body,
        once=once,
        binding=binding,
        query=Query(request.select),
        change=change,
    )
    return await perform(gateway, rows)


def _ready_for_array(
    gateway: Gateway, table: Table, request: Write, count: int, once: IdempotentRequest | None
) -> tuple[ProtectedTable, Authority] | Problem:
    if not isinstance(require_protected(table), Problem):  # 403 first; then what the body lacks, 400; then 428
        target_of(table, request.select, gateway.max_answer_bytes, shown=request.shown)
        if count and (lacking := [c for c in table.key if c not in request.body.columns]):
            raise QueryError(
                f"body: without {', '.join(lacking)}: every object names its row of {table.name} by the key,"
                f" {', '.join(table.key)}"
            )
        unfit = unfit_count(request, count, gateway.max_rows)
        if unfit is not None:
            return unfit
    return ready_to_write(table, request.token, request.body.columns, once, gateway.seals)


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
