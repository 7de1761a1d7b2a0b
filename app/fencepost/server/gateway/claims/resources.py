"""What a resource's name means: a row of a table, or a scope (R8)."""

from collections.abc import Sequence

from fencepost.server.fence.caller import Caller
from fencepost.server.fence.problem_types import PERMISSION_DENIED, ROW_NOT_FOUND
from fencepost.server.fence.problems import Problem, bad_request
from fencepost.server.fence.resource import Resource, Scope
from fencepost.server.gateway.preconditions import require_key
from fencepost.server.postgres import scopes
from fencepost.server.postgres.connection import Connection
from fencepost.server.postgres.errors import map_errors
from fencepost.server.postgres.query import QueryError
from fencepost.server.postgres.row_sql import Key
from fencepost.server.postgres.tables import ProtectedTable, Table


def scope_named(table: ProtectedTable, resource: Resource) -> Scope | Problem | None:
    """Give the scope that a resource names; None: it names a row. A Problem when it has another number of values."""
    scope = table.fence.scope
    if scope is None or scope.prefix != resource.table:
        return None
    if len(resource.key) != len(scope.columns):
        return bad_request(
            f"resource: the scope {scope.template} has {len(scope.columns)} value(s), not {len(resource.key)}"
        )
    return scope


def claimable(table: ProtectedTable, resource: Resource) -> Scope | Problem | None:
    """Give the scope that a claim names; None: a row with a mark of its own. QueryError: the key does not fit."""
    named = scope_named(table, resource)
    if named is not None:
        return named
    require_key(table, resource.key)
    scope = table.fence.scope
    if scope is None:
        return None
    return bad_request(
        f"resource: {table.name}/{','.join(resource.key)} has no mark of its own: claim its scope, {scope.template}",
        f"The fence of {table.name} covers all rows of a scope together.",
    )


async def require_storable(connection: Connection, tables: Sequence[Table], values: Key) -> None:
    """Refuse the claim of a scope that no row can have (QueryError): none of its tables stores the values as they are.
    The claim would fence no holder.
    """
    sharing = [(table, table.fence.scope) for table in tables if table.fence is not None and table.fence.scope]
    if any(not scopes.may_change(table, scope, values) for table, scope in sharing):
        return
    for table, scope in sharing:
        with map_errors(writing=False):
            if await scopes.stores(connection, table, scope, values):
                return
    if sharing:
        named = f"{sharing[0][1].prefix}/{','.join(values)}"
        where = ", ".join(table.name for table, _ in sharing)
        raise QueryError(f"resource: the scope {named} would be changed, or refused, when stored in {where}")


async def refuse_scope(
    connection: Connection, caller: Caller, scope: Scope, tables: Sequence[Table], name: str, *, writing: bool
) -> Problem | None:
    """Refuse a caller whose role may not see the scope of this name, or (writing) claim it: no row stands for it, which
    PostgreSQL would judge. It needs the privilege for one of the scope's tables; where row security rules them, also
    one row of the scope that the policies let it see, or change. `connection` acts as the caller.
    """
    if caller.role is None:
        return None
    with map_errors(writing=False):
        open_tables = await scopes.tables_open(connection, scope, writing=writing)
        if not open_tables:
            verb = "claim" if writing else "see"
            detail = f"permission denied for scope {scope.prefix}: {caller.role} may {verb} none of its tables"
            return Problem(PERMISSION_DENIED, detail, code="42501", status=403)
        if not all(open_tables.values()):
            return None
        for table in tables:
            if open_tables.get(table.oid) and await scopes.has_row(connection, table, name, writing=writing):
                return None
    return Problem(ROW_NOT_FOUND, f"There is no row of the scope {name}.")
