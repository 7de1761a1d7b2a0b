"""Claims: raising a mark without writing data, so that nobody older can write from now on (R7).

A new holder claims first, and reads the row from the claim's own answer: RETURNING of the claiming UPDATE is the row
that no older holder can change any more. A key without a row is claimed too: nobody older can create it. That goes

1. UPDATE … SET mark, RETURNING: a row came back, done;
2. R5's question: a mark refuses, done; a row is there after all, back to 1;
3. in one transaction, raise the mark of the absent key (which waits for an INSERT or DELETE of it that is under way),
   then look again in a new statement: a row that came into being meanwhile takes the claim instead. Roll back, go to 1.
"""

from dataclasses import dataclass

from fencepost.fencing.problems import Problem
from fencepost.fencing.resource import Resource
from fencepost.fencing.token import Token
from fencepost.fencing.verdict import MissingRow, refusal
from fencepost.gateway.core import Done, Gateway, Outcome, on_table, require_key, require_protected, require_token
from fencepost.gateway.writes.evidence import row_evidence
from fencepost.gateway.writes.fence import ROUNDS, contended, refused, write_or_ask
from fencepost.gateway.writes.keyed import needs_fitting
from fencepost.gateway.writes.once import Once, require_once
from fencepost.gateway.writes.operation import Operation, perform
from fencepost.gateway.writes.plans import target_of
from fencepost.gateway.writes.scoped import ScopedWrite, claim_the_scope, scope_named, table_or_scope
from fencepost.gateway.writes.scoped import claim as claim_scope
from fencepost.storage.connections.connection import Connection
from fencepost.storage.errors import translated
from fencepost.storage.statements import fenced
from fencepost.storage.statements.fenced import Change, FencedRow, Key
from fencepost.storage.statements.marks import Appeared, claim_absent
from fencepost.storage.statements.query import QueryError
from fencepost.storage.tables.catalog import ProtectedTable, Table


@dataclass(frozen=True, slots=True)
class Claim:
    """POST /v1/claims."""

    resource: Resource
    token: Token | None
    once: Once | None = None


async def claim(gateway: Gateway, request: Claim) -> Outcome:
    """Raise the mark, or say who has raised it further. `rows` has the row, or nothing where there is none."""
    key = request.resource.key

    async def use(found: Table) -> Outcome:
        table = require_protected(found)
        if isinstance(table, Problem):
            return table
        fence = table.fence
        scope = scope_named(fence, request.resource)
        if isinstance(scope, Problem):
            return scope
        if scope is None:
            require_key(table, key)
            if fence.scope is not None:
                return claim_the_scope(table, key, fence.scope)
        if (keyless := require_once(fence, request.once)) is not None:
            return keyless
        token = require_token(table, request.token)
        if isinstance(token, Problem):
            return token

        scoped = ScopedWrite.of(table, token)
        sharing = gateway.catalog.current.scopes.get(request.resource.table, ())

        async def attempt(connection: Connection) -> Outcome:
            if scoped is not None:
                return await claim_scope(connection, scoped, sharing, key)
            return await claim_on(connection, table, key, token)

        operation = Operation(
            table,
            attempt,
            transaction=scoped is not None,
            key=() if scoped is not None else key,
            once=request.once,
            evidence=scoped.evidence
            if scoped is not None
            else lambda connection: row_evidence(connection, table, key, token),
        )
        return await perform(gateway, operation)

    return await on_table(gateway, request.resource.table, "claim", use, table_or_scope)


async def claim_on(connection: Connection, table: ProtectedTable, key: Key, token: Token) -> Outcome:
    """Claim on a connection, which may be in a transaction: a grant claims in its own."""
    change = Change((), "", target_of(table, None, shown=True), named=True)
    resource = ""
    for _ in range(ROUNDS):
        verdict = await write_or_ask(
            connection,
            table,
            key,
            token,
            lambda c, careful: fenced.update_row(c, table, key, token, change, careful=careful),
        )
        if isinstance(verdict, FencedRow):
            return Done([verdict.json], verdict.mark, resource=verdict.resource)
        # A row that row security hides is not an absent key: its mark is its own, and out of our reach.
        if not isinstance(verdict, MissingRow) or table.row_security:
            return refused(verdict, table.fence)
        resource = verdict.resource
        outcome = await _claim_absent(connection, table, key, token, resource)
        if outcome is not None:
            return outcome
    return contended(resource)


async def _claim_absent(
    connection: Connection, table: ProtectedTable, key: Key, token: Token, resource: str
) -> Outcome | None:
    """Claim a key that has no row; None: it has one now."""
    if needs_fitting(table, key):
        with translated(writing=False):
            fits = await fenced.fits(connection, table, key)
        if not fits:
            raise QueryError(f"resource: the key {','.join(key)} would be changed when stored in {table.name}")
    with translated(writing=True):
        raised = await claim_absent(connection, table, key, token, resource)
    if isinstance(raised, Appeared):
        return None
    verdict = refusal(table.fence.rule, resource, raised, token) if raised is not None else None
    return refused(verdict, table.fence) if verdict is not None else Done([], token, resource=resource)
