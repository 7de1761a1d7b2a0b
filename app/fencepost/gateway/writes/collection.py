"""Writes to a collection: POST of one row or many, PATCH and DELETE by filters (R10). All or nothing."""

from dataclasses import dataclass

from fencepost.fencing.problem_types import (
    BODY_TOO_LARGE,
    NOT_ACCEPTABLE,
    SPENT_TOKEN,
    STALE_TOKEN,
    UNISSUED_TOKEN,
    WRONG_TOKEN_SOURCE,
)
from fencepost.fencing.problems import Problem, bad_request
from fencepost.fencing.token import Token
from fencepost.gateway.core import (
    Done,
    Gateway,
    Outcome,
    on_table,
    require_columns,
    require_protected,
    require_token,
)
from fencepost.gateway.writes.batched import WriteLane, decide, lane
from fencepost.gateway.writes.batched_writes import Batched
from fencepost.gateway.writes.evidence import rows_evidence
from fencepost.gateway.writes.fence import judge, refused
from fencepost.gateway.writes.keyed import UNIQUE_VIOLATION, may_need_fitting
from fencepost.gateway.writes.once import Once, require_once
from fencepost.gateway.writes.operation import Attempt, Evidence, Operation, perform
from fencepost.gateway.writes.plans import Body, remember, target_of
from fencepost.gateway.writes.scoped import ScopedWrite
from fencepost.storage.connections.connection import Connection
from fencepost.storage.errors import RefusedError, translated
from fencepost.storage.statements import fenced, fenced_many
from fencepost.storage.statements.fenced import Change
from fencepost.storage.statements.fenced_insert import insert_rows, keys_may_change
from fencepost.storage.statements.fenced_many import ManyOutcome, ManyRefused, ManyWritten, TooManyRows
from fencepost.storage.statements.parameters import Bound
from fencepost.storage.statements.query import Filter, QueryError, Select
from fencepost.storage.statements.query_sql import render_filters
from fencepost.storage.tables.catalog import ProtectedTable, Table

REFUSED_INSERTS = frozenset({UNIQUE_VIOLATION, "FP409"})


@dataclass(frozen=True, slots=True)
class Insert:
    """POST: `body.text` is a JSON array of `count` objects."""

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


@dataclass(frozen=True, slots=True)
class FilteredWrite:
    """PATCH (with a body) or DELETE of the rows that match the filters, of which there is at least one."""

    table: str
    filters: tuple[Filter, ...]
    token: Token | None
    body: Body | None = None
    select: Select = None
    exactly_one: bool = False
    once: Once | None = None
    most: int | None = None
    shown: bool = True

    def limit(self, max_rows: int) -> int:
        """How many rows it may write, of which the gateway allows `max_rows`."""
        if self.exactly_one:
            return 1
        return max_rows if self.most is None else min(self.most, max_rows)


async def insert(gateway: Gateway, request: Insert) -> Outcome:
    """Insert rows under one token; a key that a newer holder wrote, deleted or claimed refuses all of them."""

    async def use(found: Table) -> Outcome:
        target = target_of(found, request.select, shown=request.shown)
        if request.count > gateway.max_rows:
            return too_many(gateway.max_rows, f"the body has {request.count} rows")
        if request.exactly_one and request.count != 1:
            return not_one(request.count)
        if request.most is not None and request.count > request.most:
            return more_than_wanted(request.most, f"the body has {request.count} rows")
        ready = ready_to_write(found, request.token, request.body.columns, request.once)
        if isinstance(ready, Problem):
            return ready
        table, token = ready

        def operation(entered: str) -> Operation:
            scoped = ScopedWrite.of(table, token, entered)
            if scoped is not None:
                return _insert_into_scopes(scoped, request, target)
            return _insert_rows(table, token, request, target)

        one = _lane(table, request, target) if request.count == 1 else None
        return await decide(gateway, one, Batched.of((), token, request.body.text, request.once), operation)

    return await on_table(gateway, request.table, "post", use)


def _lane(table: ProtectedTable, request: Insert, target: str) -> WriteLane | None:
    """Find the lane of such single rows."""
    name = ("post", request.body.columns, request.select, request.shown, request.once is not None)
    if name not in table.plans:
        change = Change(request.body.columns, "", target)
        remember(table, name, lane(table, "post", change, keyed=request.once is not None))
    found: WriteLane | None = table.plans[name]
    return found


def _insert_into_scopes(scoped: ScopedWrite, request: Insert, target: str) -> Operation:
    async def attempt(connection: Connection) -> Outcome:
        outcome = await scoped.insert(connection, request.body.columns, request.body.text, target)
        if isinstance(outcome, Done):
            return outcome
        return told(scoped.table, scoped.token, outcome, exactly_one=False)

    return Operation(
        scoped.table, attempt, transaction=True, body=request.body, once=request.once, evidence=scoped.evidence
    )


def _insert_rows(table: ProtectedTable, token: Token, request: Insert, target: str) -> Operation:
    body = request.body

    async def attempt(connection: Connection) -> Outcome:
        with translated(writing=True):
            rows = await insert_rows(connection, table, token, body.columns, body.text, target)
        if len(rows) == 1:
            return Done([rows[0].json], rows[0].mark, created=True, resource=rows[0].resource)
        return Done([row.json for row in rows], created=True)

    async def explain(connection: Connection, error: RefusedError) -> Problem | None:
        return await _why_refused(connection, table, token, body, error)

    async def evidence(connection: Connection) -> Evidence:
        # The database made the keys, or changes them; or a policy hides the rows.
        known = table.key and set(table.key) <= set(body.columns) and not may_need_fitting(table)
        if not known or table.row_security or await keys_may_change(connection, table):
            return Evidence(None)
        return rows_evidence(await fenced.ask_many(connection, table, body.text), token)

    return Operation(table, attempt, body=body, explain=explain, once=request.once, evidence=evidence)


async def _why_refused(
    connection: Connection, table: ProtectedTable, token: Token, body: Body, error: RefusedError
) -> Problem | None:
    """A duplicate under a stale token is stale (FP001, not 23505), and a refusal lists every row that refused; one
    under a token that was never issued is FP018.
    """
    if error.sqlstate not in REFUSED_INSERTS or not table.key or not set(table.key) <= set(body.columns):
        return None
    with translated(writing=False):
        standings = await fenced.ask_many(connection, table, body.text)
    problems = [
        refused(verdict, table.fence)
        for standing in standings
        if (verdict := judge(standing, table.fence, token)) is not None
    ]
    refusals = [p for p in problems if p.type in (STALE_TOKEN, SPENT_TOKEN)]
    if not refusals:
        return next((p for p in problems if p.type in (UNISSUED_TOKEN, WRONG_TOKEN_SOURCE)), None)
    return refusals[0] if len(standings) == 1 else refused_rows(table, token, refusals)


async def patch_many(gateway: Gateway, request: FilteredWrite) -> Outcome:
    """Change columns of every row that matches, or of none."""
    body = request.body or Body("{}", (), {})

    async def use(found: Table) -> Outcome:
        ready = _ready_many(found, request, body.columns)
        if isinstance(ready, Problem):
            return ready
        table, token = ready
        change = Change(body.columns, body.text, target_of(table, request.select, shown=request.shown))
        limit = request.limit(gateway.max_rows)
        scoped = ScopedWrite.of(table, token)

        async def attempt(connection: Connection) -> Outcome:
            if scoped is not None:
                outcome = await scoped.write_many(connection, request.filters, change, change.target, limit)
                return told(table, token, outcome, exactly_one=request.exactly_one, most=request.most)
            with translated(writing=True):
                outcome = await fenced_many.update_many(connection, table, request.filters, token, change, limit)
            return told(table, token, outcome, exactly_one=request.exactly_one, most=request.most)

        return await perform(gateway, _operation(table, attempt, scoped, request, body))

    return await on_table(gateway, request.table, "patch", use)


async def delete_many(gateway: Gateway, request: FilteredWrite) -> Outcome:
    """Delete every row that matches, or none; their marks stay behind."""

    async def use(found: Table) -> Outcome:
        ready = _ready_many(found, request, ())
        if isinstance(ready, Problem):
            return ready
        table, token = ready
        target = target_of(table, request.select, shown=request.shown)
        limit = request.limit(gateway.max_rows)
        scoped = ScopedWrite.of(table, token)

        async def attempt(connection: Connection) -> Outcome:
            if scoped is not None:
                outcome = await scoped.write_many(connection, request.filters, None, target, limit)
                return told(table, token, outcome, exactly_one=request.exactly_one, most=request.most)
            with translated(writing=True):
                outcome = await fenced_many.delete_many(connection, table, request.filters, token, target, limit)
            return told(table, token, outcome, exactly_one=request.exactly_one, most=request.most)

        return await perform(gateway, _operation(table, attempt, scoped, request))

    return await on_table(gateway, request.table, "delete", use)


def _operation(
    table: Table, attempt: Attempt, scoped: ScopedWrite | None, request: FilteredWrite, body: Body | None = None
) -> Operation:
    if scoped is None:
        return Operation(table, attempt, body=body, once=request.once)
    return Operation(table, attempt, transaction=True, body=body, once=request.once, evidence=scoped.evidence)


def ready_to_write(
    table: Table, token: Token | None, columns: tuple[str, ...], once: Once | None
) -> tuple[ProtectedTable, Token] | Problem:
    """Check what every write to a collection needs: a fence, columns that there are, a token."""
    protected = require_protected(table)
    if isinstance(protected, Problem):
        return protected
    require_columns(table, columns)
    if (keyless := require_once(protected.fence, once)) is not None:
        return keyless
    checked = require_token(table, token)
    return checked if isinstance(checked, Problem) else (protected, checked)


def _ready_many(
    table: Table, request: FilteredWrite, columns: tuple[str, ...]
) -> tuple[ProtectedTable, Token] | Problem:
    if not isinstance(require_protected(table), Problem):  # 403 first; then unknown columns, 400; then 428
        render_filters(table, request.filters, Bound())
        target_of(table, request.select, shown=request.shown)
        if key := [c for c in columns if c in table.key]:
            raise QueryError(f"body: {', '.join(key)} is the primary key, which a write cannot change")
    return ready_to_write(table, request.token, columns, request.once)


def told(table: Table, token: Token, outcome: ManyOutcome, *, exactly_one: bool, most: int | None = None) -> Outcome:
    """Tell how a write of many rows ended."""
    match outcome:
        case ManyWritten(rows) if exactly_one and not rows:
            return not_one(0)
        case TooManyRows() if exactly_one:
            return not_one(None)
        case ManyWritten(rows):
            return Done(rows)
        case TooManyRows(limit) if limit == most:
            return more_than_wanted(most, "the filter matches more")
        case TooManyRows(limit):
            return too_many(limit, "the filter matches more")
        case ManyRefused(rows):
            return refused_rows(
                table,
                token,
                [
                    Problem(
                        SPENT_TOKEN if row.mark == token else STALE_TOKEN,
                        "",
                        resource=row.resource,
                        current_token=row.mark,
                    )
                    for row in rows
                ],
            )


def refused_rows(table: Table, token: Token, refusals: list[Problem]) -> Problem:
    """Tell that some rows refused the token, and that therefore none was written (R10)."""
    stale = [p for p in refusals if p.type is STALE_TOKEN]
    kind = STALE_TOKEN if stale else SPENT_TOKEN
    first = (stale or refusals)[0]
    of = "scopes" if table.fence is not None and table.fence.scope is not None else "rows"
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
        extra={"rows": [{"resource": p.resource, "current_token": str(p.current_token)} for p in refusals]},
    )


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
