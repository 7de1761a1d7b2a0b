"""Reads of rows, and what is known of a resource's fence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fencepost.server.fence.caller import EVERYBODY, UNKNOWN, Caller
from fencepost.server.fence.problem_types import ROW_NOT_FOUND
from fencepost.server.fence.problems import Problem, bad_request
from fencepost.server.fence.resource import Resource, Scope
from fencepost.server.fence.token import Rule, Token, accepts, shown_mark
from fencepost.server.gateway.claims import refuse_scope, scope_named
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.group_commit import ALONE, Alone, BatchQueue, Broken, RoleQueues
from fencepost.server.gateway.outcomes import Done, Outcome
from fencepost.server.gateway.plan import require_key, require_protected, require_served
from fencepost.server.gateway.refusals import holder_of, is_visible
from fencepost.server.gateway.write import with_column
from fencepost.server.postgres import reading
from fencepost.server.postgres.connection import FencedRow, Key, Session
from fencepost.server.postgres.database import as_gateway
from fencepost.server.postgres.leases import Issued
from fencepost.server.postgres.marks import ResourceState, read_resource
from fencepost.server.postgres.query import Query, Select
from fencepost.server.postgres.scopes import marks, scope_of_row, scopes_typed, tables_of
from fencepost.server.postgres.tables import Fence, ProtectedTable, Table, is_canonical

# Reads: rows by filters, and one row by key. They carry no token and take no lock.


@dataclass(frozen=True, slots=True)
class ReadMany:
    """Rows of a table or view. `count` asks for the number of all that match, whatever the limit."""

    table: str
    query: Query
    count: bool = False
    caller: str = UNKNOWN


@dataclass(frozen=True, slots=True)
class ReadOne:
    """The row that the path names."""

    table: str
    key: Key
    select: Select = None
    caller: str = UNKNOWN


async def read_many(gateway: Gateway, request: ReadMany, table: Table) -> Outcome:
    """Read what matches, at most max_rows of it."""
    if (unserved := require_served(gateway.catalog.current, table)) is not None:
        return unserved
    reading.check(table, request.query)
    most = reading.Most(gateway.max_rows, gateway.max_answer_bytes, gateway.database.statement_timeout)
    try:
        async with (
            gateway.read_connection(request.caller, runs_code=table.reads_run_code) as connection,
            with_column(connection, table, query=request.query),
        ):
            rows, total = await reading.rows(connection, table, request.query, most, count=request.count)
    except reading.TooManyBytesError as error:
        return bad_request(str(error), "?limit= takes fewer rows, ?select= fewer columns; FENCEPOST_MAX_ANSWER_BYTES.")
    return Done(rows, total=total)


async def read_one(gateway: Gateway, request: ReadOne, table: Table) -> Outcome:
    """Read a row by its key."""
    key = request.key
    if not isinstance(table, ProtectedTable) and (unserved := require_served(gateway.catalog.current, table)):
        return unserved
    if len(key) != len(table.key):
        require_key(table, key)
    queues = table.kept(_queues, request.select, gateway.max_answer_bytes)
    if queues is not None and (queue := queues.of(gateway.caller, key)) is not None:
        row = await gateway.reads.write(queue, key, key, sum(map(len, key)), whose=request.caller)
        if not isinstance(row, Alone | Broken):
            return _shown(table, request, row)
    try:
        async with (
            gateway.read_connection(request.caller, runs_code=table.reads_run_code) as connection,
            with_column(connection, table, key=request.key, query=Query(request.select)),
        ):
            row = await reading.row(connection, table, request.key, request.select, gateway.max_answer_bytes)
    except reading.TooManyBytesError as error:
        return bad_request(str(error), "?select= takes fewer columns; FENCEPOST_MAX_ANSWER_BYTES.")
    return _shown(table, request, row)


def _queues(table: Table, select: Select, most_bytes: int) -> "ReadQueues | None":
    reading.check_select(table, select)
    return read_queues(table, select, most_bytes)


def _shown(table: Table, request: ReadOne, row: FencedRow | None) -> Outcome:
    if row is None:
        return Problem(ROW_NOT_FOUND, f"There is no row {table.name}/{','.join(request.key)}.")
    fence = table.fence
    if fence is not None and fence.has_versions:
        return Done([row.json], row.mark, version=row.mark)
    return Done([row.json], shown_mark(fence.rule, row.mark) if fence is not None else None)


# Reads of one row by its key that come at the same time share a statement, as writes do (gateway/group_commit.py).
#
# An idle gateway sends a read at once. While a statement is under way, reads of the same columns gather, and are the
# next one. That is sent after they came, so each sees all that was committed before it was asked. What could keep
# others waiting, or fail for all of them, goes alone: tables with partitions (a statement locks all of them), views,
# row security, casts, code of users', large rows, keys that may be none.
#
# A statement takes a connection as one of those whom it is for, who has one left: else a caller whose reads are slow
# would take those of all.

MOST_READS: Final = 64
"""Reads in a statement."""

ReadQueue = BatchQueue[Key, FencedRow | None]


@dataclass(frozen=True, slots=True)
class ReadQueues:
    """The queues of reads that show the same columns of a table."""

    table: Table
    own_types: bool
    """Whether they show a type of the user's, or an extension's: it may have a cast to JSON that looks at who calls."""
    queues: RoleQueues[Key, FencedRow | None]

    def of(self, caller: Caller, key: Key) -> ReadQueue | None:
        """Find the queue of a caller's reads; None: this one goes alone."""
        if self.own_types and caller.role is not None:
            return None
        if not is_canonical(self.table, key) or any("\0" in text for text in key):
            return None
        return self.queues.of(caller)


def read_queues(table: Table, select: Select, most_answer_bytes: int) -> ReadQueues | None:
    """Make the queues of such reads; None: they go alone. `most_answer_bytes`: what the answer to one may have."""
    columns = reading.shown(table, select)
    # A protected table has a key, and takes no part in inheritance.
    if columns is None or not isinstance(table, ProtectedTable) or table.kind != "table":
        return None
    if table.row_security or table.reads_run_code:
        return None
    own_types = any("." in table.columns[name].base_type for name in columns)
    reads = reading.keyed_reads(table, select, columns, most_answer_bytes)

    async def run(connection: Session, batch: Sequence[Key]) -> "list[FencedRow | Alone | None]":
        rows = await reads.run(connection, batch)
        return [ALONE] * len(batch) if rows is None else [ALONE if row is reading.UNREAD else row for row in rows]

    def make(caller: Caller) -> ReadQueue:
        return BatchQueue(run, most=MOST_READS, caller=caller)

    return ReadQueues(table, own_types, RoleQueues(make))


# What is known of a resource: its mark, rule and source, and how it came by them.


@dataclass(slots=True)
class Explained(Done):
    """The answer of GET /v1/fences, as members of its JSON body."""

    body: dict[str, object] | None = None


async def explain(gateway: Gateway, resource: Resource, caller: str, asked: Table) -> Outcome:
    """Look a resource up."""
    table = require_protected(asked)
    if isinstance(table, Problem):
        return table
    fence = table.fence
    named = scope_named(table, resource)
    if isinstance(named, Problem):
        return named
    if fence.scope is not None:
        return await _of_scope(gateway, table, fence.scope, resource.key, caller, named=named is not None)
    require_key(table, resource.key)
    async with (
        gateway.read_connection(caller, runs_code=table.reads_run_code) as connection,
        with_column(connection, table, key=resource.key),
    ):
        found = await read_resource(connection, table, resource.key)
        if gateway.caller.role is not None and table.row_security and found.live is None:
            return Problem(ROW_NOT_FOUND, f"There is no row {table.name}/{','.join(resource.key)}.")
        tokens = {found.live, found.recorded} - {None} if fence.pinned else set()
        async with as_gateway(connection, gateway.caller if tokens else EVERYBODY):
            holders = {token: await _holder(gateway, connection, token, fence) for token in tokens if token}
    return Explained([], body=_body(found, fence, holders))


async def _of_scope(
    gateway: Gateway, table: ProtectedTable, scope: Scope, key: Key, caller: str, *, named: bool
) -> Outcome:
    if not named:
        require_key(table, key)
    sharing = gateway.catalog.current.scopes.get(scope.prefix, ())
    runs_code = any(each.reads_run_code for each in (table, *sharing))
    async with gateway.read_connection(caller, runs_code=runs_code) as connection:
        if named:
            name = (await scopes_typed(connection, table, scope, [key]))[0]
        elif (of_row := await scope_of_row(connection, table, scope, key)) is not None:
            name = of_row
        else:
            return bad_request(
                f"resource: there is no row {table.name}/{','.join(key)}, and its mark would be that of its scope",
                f"Ask for the scope: {scope.template}.",
            )
        if refused := await refuse_scope(connection, gateway.caller, scope, sharing, name, writing=False):
            return refused
        tables = await tables_of(connection, table.fence, scope)
        (found,) = await marks(connection, scope, [name])
        token = found.recorded if table.fence.pinned else None
        async with as_gateway(connection, gateway.caller if token else EVERYBODY):
            by = None if token is None else await _holder(gateway, connection, token, table.fence)
    written = None
    if found.recorded is not None:
        written = _entry("last written or claimed", found.recorded, found.mark, table.fence.rule, found.changed_at, by)
    body: dict[str, object] = {
        "resource": name,
        "mark": _mark(table.fence.rule, found.mark),
        "rule": table.fence.rule,
        "source": table.fence.source,
        "sealed": table.fence.sealed,
        **_ceiling(table.fence),
        "row_exists": False,
        "story": [written] if written else [],
        "tables": tables,
    }
    return Explained([], body=body)


async def _holder(gateway: Gateway, connection: Session, token: int, fence: Fence) -> Issued | None:
    """Look up whose token this is; None also where the caller may not see his locks."""
    found = await holder_of(connection, token, fence.source)
    return found if found is not None and is_visible(found, gateway.caller) else None


def _ceiling(fence: Fence) -> dict[str, object]:
    """How high a token may be, where the source is external."""
    if fence.ceiling is None:
        return {}
    jump = fence.ceiling.max_jump
    return {"max_token": str(fence.ceiling.max_token), "max_jump": None if jump is None else str(jump)}


def _mark(rule: Rule, mark: int) -> str | None:
    shown = shown_mark(rule, mark)
    return None if shown is None else str(shown)


def _entry(event: str, token: int, mark: int, rule: Rule, at: str | None, by: Issued | None) -> dict[str, object]:
    """Write a line of a resource's story. A token that its rule accepts still is not shown."""
    shown = None if accepts(rule, mark, Token(token)) else str(token)
    return {"event": event, "token": shown, "at": at, "by": by.body() if by else None}


def _body(found: ResourceState, fence: Fence, holders: Mapping[int, Issued | None]) -> dict[str, object]:
    mark = found.mark
    story: list[dict[str, object]] = []
    if found.recorded is not None:
        event = "deleted, or claimed without a row" if found.row_absent else "created"
        by = holders.get(found.recorded)
        story.append(_entry(event, found.recorded, mark, fence.rule, found.changed_at, by))
    if found.live is not None and found.live != found.recorded:
        by = holders.get(found.live)
        story.append(_entry("last written or claimed", found.live, mark, fence.rule, None, by))
    return {
        "resource": found.resource,
        "mark": _mark(fence.rule, mark),
        "rule": fence.rule,
        "source": fence.source,
        "sealed": fence.sealed,
        **_ceiling(fence),
        "row_exists": found.live is not None,
        "story": story,
    }
