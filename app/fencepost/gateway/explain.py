"""What is known of a resource: its mark, rule and source, and how it came by them."""

from collections.abc import Mapping
from dataclasses import dataclass

from fencepost.fencing.problems import Problem, bad_request
from fencepost.fencing.resource import Resource
from fencepost.fencing.scope import Scope
from fencepost.fencing.token import NO_MARK
from fencepost.gateway.claims.resources import scope_named
from fencepost.gateway.gateway import Gateway
from fencepost.gateway.outcomes import Done, Outcome
from fencepost.gateway.preconditions import require_key, require_protected
from fencepost.gateway.superseded import holder_of
from fencepost.gateway.writes.culprit import with_column
from fencepost.storage.errors import map_errors
from fencepost.storage.leases.issued import Issued
from fencepost.storage.statements.asking import ResourceState, read_resource
from fencepost.storage.statements.parameters import Key
from fencepost.storage.statements.scope_marks import marks, tables_of
from fencepost.storage.statements.scope_names import scope_of_row, scopes_typed
from fencepost.storage.tables.catalog import Fence, ProtectedTable, Table


@dataclass(slots=True)
class Explained(Done):
    """The answer of GET /v1/fences, as members of its JSON body."""

    body: dict[str, object] | None = None


async def explain(gateway: Gateway, resource: Resource, asked: Table) -> Outcome:
    """Look a resource up."""
    table = require_protected(asked)
    if isinstance(table, Problem):
        return table
    fence = table.fence
    named = scope_named(table, resource)
    if isinstance(named, Problem):
        return named
    if fence.scope is not None:
        return await _of_scope(gateway, table, fence.scope, resource.key, named=named is not None)
    require_key(table, resource.key)
    async with (
        gateway.database.connection() as connection,
        with_column(connection, table, None, resource.key),
    ):
        with map_errors(writing=False):
            found = await read_resource(connection, table, resource.key)
        tokens = {found.live, found.recorded} if fence.pinned else set()
        holders = {token: await holder_of(connection, token, fence.source) for token in tokens if token}
    return Explained([], body=_body(found, fence, holders))


async def _of_scope(gateway: Gateway, table: ProtectedTable, scope: Scope, key: Key, *, named: bool) -> Outcome:
    if not named:
        require_key(table, key)
    async with gateway.database.connection() as connection:
        with map_errors(writing=False):
            if named:
                name = (await scopes_typed(connection, table, scope, [key]))[0]
            elif (of_row := await scope_of_row(connection, table, scope, key)) is not None:
                name = of_row
            else:
                return bad_request(
                    f"resource: there is no row {table.name}/{','.join(key)}, and its mark would be that of its scope",
                    f"Ask for the scope: {scope.template}.",
                )
            tables = await tables_of(connection, table.fence, scope)
            (found,) = await marks(connection, scope, [name])
        known_token = found.recorded if table.fence.pinned else None
        by = None if known_token is None else await holder_of(connection, known_token, table.fence.source)
    story = (
        [
            {
                "event": "last written or claimed",
                "token": str(found.recorded),
                "at": found.changed_at,
                "by": by.body() if by else None,
            }
        ]
        if found.recorded is not None
        else []
    )
    body: dict[str, object] = {
        "resource": name,
        "mark": str(found.mark),
        "rule": table.fence.rule,
        "source": table.fence.source,
        **_ceiling(table.fence),
        "row_exists": False,
        "story": story,
        "tables": tables,
    }
    return Explained([], body=body)


def _ceiling(fence: Fence) -> dict[str, object]:
    """How high a token may be, where the source is external."""
    if fence.ceiling is None:
        return {}
    jump = fence.ceiling.max_jump
    return {"max_token": str(fence.ceiling.max_token), "max_jump": None if jump is None else str(jump)}


def _body(found: ResourceState, fence: Fence, holders: Mapping[int, Issued | None]) -> dict[str, object]:
    def entry(event: str, token: int, at: str | None) -> dict[str, object]:
        by = holders.get(token)
        return {"event": event, "token": str(token), "at": at, "by": by.body() if by else None}

    absent = found.recorded if found.row_absent else None
    mark = found.live if found.live is not None else absent
    story: list[dict[str, object]] = []
    if found.recorded is not None:
        event = "deleted, or claimed without a row" if found.row_absent else "created"
        story.append(entry(event, found.recorded, found.changed_at))
    if found.live is not None and found.live != found.recorded:
        story.append(entry("last written or claimed", found.live, None))
    return {
        "resource": found.resource,
        "mark": str(mark if mark is not None else NO_MARK),
        "rule": fence.rule,
        "source": fence.source,
        **_ceiling(fence),
        "row_exists": found.live is not None,
        "story": story,
    }
