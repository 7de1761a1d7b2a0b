"""Single-row writes by key: PATCH, PUT, DELETE. One statement decides and writes; the commit precedes the answer."""

from dataclasses import dataclass

from fencepost.fencing.problems import Problem
from fencepost.fencing.token import Token
from fencepost.fencing.verdict import MissingRow
from fencepost.gateway.core import (
    Done,
    Gateway,
    Outcome,
    on_table,
    require_columns,
    require_fence,
    require_key,
    require_token,
)
from fencepost.gateway.evidence import row_evidence
from fencepost.gateway.fence import ROUNDS, Write, contended, refused, write_or_ask
from fencepost.gateway.once import Once, require_once
from fencepost.gateway.operation import Attempt, Operation, perform
from fencepost.gateway.scoped import ScopedWrite
from fencepost.storage import fenced
from fencepost.storage.catalog import Fence, Table
from fencepost.storage.engine import Connection, undoing
from fencepost.storage.errors import RefusedError, translated
from fencepost.storage.fenced import Change, FencedRow, Key
from fencepost.storage.fenced_insert import insert_row
from fencepost.storage.query import QueryError, Select
from fencepost.storage.query_sql import Parameters, render_select

UNIQUE_VIOLATION = "23505"


@dataclass(frozen=True, slots=True)
class Body:
    """A JSON object (or array of objects) as it came, and the keys that it sets."""

    text: str
    columns: tuple[str, ...]
    scalars: dict[str, str]
    """Its string and integer values as text: what a path's key value can be compared with at a glance."""


@dataclass(frozen=True, slots=True)
class KeyedWrite:
    """A write to the row that the path names. `token` None is what R13 refuses."""

    table: str
    key: Key
    token: Token | None
    select: Select = None
    body: Body | None = None
    once: Once | None = None


async def patch(gateway: Gateway, request: KeyedWrite) -> Outcome:
    """Change columns of a row."""
    body = request.body or Body("{}", (), {})

    async def use(table: Table) -> Outcome:
        ready = _ready(table, request, body.columns)
        if isinstance(ready, Problem):
            return ready
        fence, token, target = ready
        columns, named = _without_key(table, body)
        change = Change(columns, body.text, target)
        scoped = ScopedWrite.of(table, fence, token)

        async def attempt(connection: Connection) -> Outcome:
            await _refuse_another_key(connection, table, request, named, body)
            if scoped is not None:
                return await scoped.patch(connection, request.key, change)
            return await _decide(
                connection, table, fence, request.key, token,
                lambda c, careful: fenced.update_row(c, table, fence, request.key, token, change, careful=careful),
            )  # fmt: skip

        return await perform(gateway, _operation(table, fence, token, request, attempt, body, scoped=scoped))

    return await on_table(gateway, request.table, "patch", use)


async def delete(gateway: Gateway, request: KeyedWrite) -> Outcome:
    """Delete a row; its mark stays behind (R6)."""

    async def use(table: Table) -> Outcome:
        ready = _ready(table, request, ())
        if isinstance(ready, Problem):
            return ready
        fence, token, target = ready
        scoped = ScopedWrite.of(table, fence, token)

        async def attempt(connection: Connection) -> Outcome:
            if scoped is not None:
                return await scoped.delete(connection, request.key, target)
            return await _decide(
                connection, table, fence, request.key, token,
                lambda c, _careful: fenced.delete_row(c, table, fence, request.key, token, target),
            )  # fmt: skip

        return await perform(gateway, _operation(table, fence, token, request, attempt, scoped=scoped))

    return await on_table(gateway, request.table, "delete", use)


async def put(gateway: Gateway, request: KeyedWrite) -> Outcome:
    """Create the row, or replace it: columns that the body leaves out get their defaults.

    UPDATE first; where there is no row, INSERT. Each is a fenced operation of its own, so whatever happens in between
    is judged: an INSERT that meets a row after all goes back to the UPDATE.
    """
    body = request.body or Body("{}", (), {})

    async def use(table: Table) -> Outcome:
        ready = _ready(table, request, body.columns)
        if isinstance(ready, Problem):
            return ready
        fence, token, target = ready
        columns, named = _without_key(table, body)
        change = Change(columns, body.text, target, _replaceable(table, columns))
        scoped = ScopedWrite.of(table, fence, token)

        async def attempt(connection: Connection) -> Outcome:
            await _refuse_another_key(connection, table, request, named, body)
            if needs_fitting(table, request.key) and not await _fits(connection, table, request.key):
                raise QueryError(f"path: the key {','.join(request.key)} would be changed when stored in {table.name}")
            if scoped is not None:
                return await scoped.put(connection, request.key, change)
            return await _replace_or_create(connection, table, fence, request.key, token, change)

        operation = _operation(table, fence, token, request, attempt, body, scoped=scoped, creates=True)
        return await perform(gateway, operation)

    return await on_table(gateway, request.table, "put", use)


def _operation(
    table: Table,
    fence: Fence,
    token: Token,
    request: KeyedWrite,
    attempt: Attempt,
    body: Body | None = None,
    *,
    scoped: ScopedWrite | None,
    creates: bool = False,
) -> Operation:
    return Operation(
        table,
        attempt,
        transaction=scoped is not None,
        body=body,
        key=request.key,
        once=request.once,
        evidence=scoped.evidence
        if scoped is not None
        else lambda connection: row_evidence(connection, table, fence, request.key, token, creates=creates),
    )


async def _replace_or_create(
    connection: Connection, table: Table, fence: Fence, key: Key, token: Token, change: Change
) -> Outcome:
    async def replace(connection: Connection, careful: bool) -> FencedRow | None:
        return await fenced.update_row(connection, table, fence, key, token, change, careful=careful)

    resource = ""
    for number in range(ROUNDS):
        verdict = await write_or_ask(connection, table, fence, key, token, replace)
        if isinstance(verdict, FencedRow):
            return Done([verdict.json], verdict.mark)
        if not isinstance(verdict, MissingRow):
            return refused(verdict, fence)
        resource = verdict.resource
        try:
            with translated(writing=True):
                async with undoing(connection):
                    row = await insert_row(connection, table, fence, key, token, change)
            return Done([row.json], row.mark, created=True)
        except RefusedError as error:
            if error.sqlstate != UNIQUE_VIOLATION or not _may_be_the_key(table, error, number):
                raise
            if table.row_security:  # a row is there, and a policy hides it or keeps us from writing it
                return refused(verdict, fence)
    return contended(resource)


def _may_be_the_key(table: Table, error: RefusedError, number: int) -> bool:
    """Whether the duplicate is the row's own key, so that its row is there after all (or was, a moment ago).

    A partition's key has a name that the catalog does not know: that is believed twice.
    """
    return error.constraint == table.key_constraint or (table.kind == "partitioned table" and number < 2)  # noqa: PLR2004


def may_need_fitting(table: Table) -> bool:
    """Whether storing could change some key's values."""
    return table.lossy_key or any(table.columns[name].max_length is not None for name in table.key)


def needs_fitting(table: Table, key: Key) -> bool:
    """Whether storing could change the key's values: rounded numbers, texts cut to length (of spaces, silently)."""
    lengths = (table.columns[name].max_length for name in table.key)
    too_long = any(most is not None and len(value) > most for most, value in zip(lengths, key, strict=True))
    return table.lossy_key or too_long


async def _fits(connection: Connection, table: Table, key: Key) -> bool:
    with translated(writing=False):
        return await fenced.fits(connection, table, key)


def _ready(table: Table, request: KeyedWrite, columns: tuple[str, ...]) -> tuple[Fence, Token, str] | Problem:
    """Check all that needs no database; gives the fence, the token and the answer's columns."""
    fence = require_fence(table)
    if isinstance(fence, Problem):
        return fence
    require_key(table, request.key)
    require_columns(table, columns)
    target = target_of(table, request.select)  # an unknown column is 400, and that comes before 428
    if (keyless := require_once(fence, request.once)) is not None:
        return keyless
    token = require_token(table, request.token)
    return token if isinstance(token, Problem) else (fence, token, target)


def target_of(table: Table, select: Select) -> str:
    """Render the answer's columns; QueryError for an unknown one."""
    # No parameters may be taken here: the write's own come first, and a JSON path in `select` is the only one with any.
    parameters = Parameters(0)
    target = render_select(table, select, parameters)
    if parameters.values:
        raise QueryError("select: a JSON path can be selected in GET only, not in the answer of a write")
    return target


def _without_key(table: Table, body: Body) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split the body's keys: columns to set, and key columns, which the path has already."""
    columns = tuple(c for c in body.columns if c not in table.key)
    return columns, tuple(c for c in body.columns if c in table.key)


async def _refuse_another_key(
    connection: Connection, table: Table, request: KeyedWrite, named: tuple[str, ...], body: Body
) -> None:
    """A body may repeat the path's key and not contradict it. Asks PostgreSQL only where the texts differ: for an
    integer, 7 and 07 are one key.
    """
    values = dict(zip(table.key, request.key, strict=True))
    doubtful = tuple(c for c in named if body.scalars.get(c) != values[c])
    if not doubtful:
        return
    with translated(writing=False):
        same = await fenced.same_key(connection, table, request.key, doubtful, body.text)
    if not same:
        raise QueryError(
            f"body: {', '.join(doubtful)} contradicts the path's key {','.join(request.key)}; a row's key cannot change"
        )


def _replaceable(table: Table, given: tuple[str, ...]) -> tuple[str, ...]:
    """Columns that PUT sets to their defaults."""
    return tuple(
        name
        for name in table.visible
        if name not in given
        and name not in table.key
        and not table.columns[name].generated
        and table.columns[name].identity != "always"
    )


async def _decide(
    connection: Connection,
    table: Table,
    fence: Fence,
    key: Key,
    token: Token,
    write: Write,
) -> Outcome:
    verdict = await write_or_ask(connection, table, fence, key, token, write)
    return Done([verdict.json], verdict.mark) if isinstance(verdict, FencedRow) else refused(verdict, fence)
