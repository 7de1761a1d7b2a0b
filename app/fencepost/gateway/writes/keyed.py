"""Single-row writes by key: PATCH, PUT, DELETE. One statement decides and writes; the commit precedes the answer."""

from dataclasses import replace

from fencepost.fencing.problems import Problem
from fencepost.fencing.token import Token
from fencepost.fencing.verdict import MissingRow
from fencepost.gateway.core import Done, Gateway, Outcome, on_table
from fencepost.gateway.writes.batched import decide
from fencepost.gateway.writes.evidence import row_evidence
from fencepost.gateway.writes.fence import ROUNDS, Write, contended, refused, write_or_ask
from fencepost.gateway.writes.operation import Attempt, Operation
from fencepost.gateway.writes.plans import NO_BODY, Body, KeyedWrite, batched, ready_for
from fencepost.gateway.writes.scoped import ScopedWrite
from fencepost.storage.connections.connection import Connection
from fencepost.storage.connections.engine import undoing
from fencepost.storage.errors import RefusedError, translated
from fencepost.storage.statements import fenced
from fencepost.storage.statements.fenced import Change, FencedRow, Key
from fencepost.storage.statements.fenced_insert import insert_row
from fencepost.storage.statements.query import QueryError
from fencepost.storage.tables.catalog import ProtectedTable, Table

UNIQUE_VIOLATION = "23505"


async def patch(gateway: Gateway, request: KeyedWrite) -> Outcome:
    """Change columns of a row."""

    async def use(found: Table) -> Outcome:
        ready = ready_for(found, request, "patch")
        if isinstance(ready, Problem):
            return ready
        plan, token = ready
        table = plan.table
        body = request.body or NO_BODY
        named = _doubtful(table, request, body) if plan.names_key else ()

        def operation(entered: str) -> Operation:
            scoped = ScopedWrite.of(table, token, entered)
            change = replace(plan.change, body=body.text)

            async def attempt(connection: Connection) -> Outcome:
                await _refuse_another_key(connection, table, request, named, body)
                if scoped is not None:
                    return await scoped.patch(connection, request.key, change)
                return await _decide(
                    connection, table, request.key, token,
                    lambda c, careful: fenced.update_row(c, table, request.key, token, change, careful=careful),
                )  # fmt: skip

            return _operation(table, token, request, attempt, body, scoped=scoped)

        return await decide(gateway, None if named else plan.lane, batched(request, token), operation)

    return await on_table(gateway, request.table, "patch", use)


async def delete(gateway: Gateway, request: KeyedWrite) -> Outcome:
    """Delete a row; its mark stays behind (R6)."""

    async def use(found: Table) -> Outcome:
        ready = ready_for(found, request, "delete")
        if isinstance(ready, Problem):
            return ready
        plan, token = ready
        table = plan.table
        target = plan.change.target

        def operation(entered: str) -> Operation:
            scoped = ScopedWrite.of(table, token, entered)

            async def attempt(connection: Connection) -> Outcome:
                if scoped is not None:
                    return await scoped.delete(connection, request.key, target)
                return await _decide(
                    connection, table, request.key, token,
                    lambda c, _careful: fenced.delete_row(c, table, request.key, token, target),
                )  # fmt: skip

            return _operation(table, token, request, attempt, scoped=scoped)

        return await decide(gateway, plan.lane, batched(request, token), operation)

    return await on_table(gateway, request.table, "delete", use)


async def put(gateway: Gateway, request: KeyedWrite) -> Outcome:
    """Create the row, or replace it: columns that the body leaves out get their defaults.

    UPDATE first; where there is no row, INSERT. Each is a fenced operation of its own, so whatever happens in between
    is judged: an INSERT that meets a row after all goes back to the UPDATE.
    """

    async def use(found: Table) -> Outcome:
        ready = ready_for(found, request, "put")
        if isinstance(ready, Problem):
            return ready
        plan, token = ready
        table = plan.table
        body = request.body or NO_BODY
        named = _doubtful(table, request, body) if plan.names_key else ()
        to_fit = needs_fitting(table, request.key)

        def operation(entered: str) -> Operation:
            scoped = ScopedWrite.of(table, token, entered)
            change = replace(plan.change, body=body.text)

            async def attempt(connection: Connection) -> Outcome:
                await _refuse_another_key(connection, table, request, named, body)
                if to_fit and not await _fits(connection, table, request.key):
                    key = ",".join(request.key)
                    raise QueryError(f"path: the key {key} would be changed when stored in {table.name}")
                if scoped is not None:
                    return await scoped.put(connection, request.key, change)
                return await _replace_or_create(connection, table, request.key, token, change)

            return _operation(table, token, request, attempt, body, scoped=scoped, creates=True)

        return await decide(gateway, None if named or to_fit else plan.lane, batched(request, token), operation)

    return await on_table(gateway, request.table, "put", use)


def _operation(
    table: ProtectedTable,
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
        else lambda connection: row_evidence(connection, table, request.key, token, creates=creates),
    )


async def _replace_or_create(
    connection: Connection, table: ProtectedTable, key: Key, token: Token, change: Change
) -> Outcome:
    async def replace(connection: Connection, careful: bool) -> FencedRow | None:
        return await fenced.update_row(connection, table, key, token, change, careful=careful)

    resource = ""
    for number in range(ROUNDS):
        verdict = await write_or_ask(connection, table, key, token, replace)
        if isinstance(verdict, FencedRow):
            return Done([verdict.json], verdict.mark)
        if not isinstance(verdict, MissingRow):
            return refused(verdict, table.fence)
        resource = verdict.resource
        try:
            with translated(writing=True):
                async with undoing(connection):
                    row = await insert_row(connection, table, key, token, change)
            return Done([row.json], row.mark, created=True)
        except RefusedError as error:
            if error.sqlstate != UNIQUE_VIOLATION or not _may_be_the_key(table, error, number):
                raise
            if table.row_security:  # a row is there, and a policy hides it or keeps us from writing it
                return refused(verdict, table.fence)
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


def _doubtful(table: Table, request: KeyedWrite, body: Body) -> tuple[str, ...]:
    """Name the key columns in the body whose text differs from the path's: for an integer, 7 and 07 are one key."""
    return tuple(
        name
        for name, value in zip(table.key, request.key, strict=True)
        if name in body.columns and not body.says(name, value)
    )


async def _refuse_another_key(
    connection: Connection, table: Table, request: KeyedWrite, doubtful: tuple[str, ...], body: Body
) -> None:
    """A body may repeat the path's key and not contradict it. Only PostgreSQL can tell where the texts differ."""
    if not doubtful:
        return
    with translated(writing=False):
        same = await fenced.same_key(connection, table, request.key, doubtful, body.text)
    if not same:
        raise QueryError(
            f"body: {', '.join(doubtful)} contradicts the path's key {','.join(request.key)}; a row's key cannot change"
        )


async def _decide(
    connection: Connection,
    table: ProtectedTable,
    key: Key,
    token: Token,
    write: Write,
) -> Outcome:
    verdict = await write_or_ask(connection, table, key, token, write)
    return Done([verdict.json], verdict.mark) if isinstance(verdict, FencedRow) else refused(verdict, table.fence)
