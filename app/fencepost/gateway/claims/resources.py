"""What a resource's name means: a row of a table, or a scope (R8)."""

from collections.abc import Sequence

from fencepost.fencing.problems import Problem, bad_request
from fencepost.fencing.resource import Resource
from fencepost.fencing.scope import Scope
from fencepost.gateway.preconditions import require_key
from fencepost.storage.connections.connection import Connection
from fencepost.storage.errors import map_errors
from fencepost.storage.statements import scope_names
from fencepost.storage.statements.parameters import Key
from fencepost.storage.statements.query import QueryError
from fencepost.storage.tables.catalog import ProtectedTable, Table


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
    if any(not scope_names.may_change(table, scope, values) for table, scope in sharing):
        return
    for table, scope in sharing:
        with map_errors(writing=False):
            if await scope_names.stores(connection, table, scope, values):
                return
    if sharing:
        named = f"{sharing[0][1].prefix}/{','.join(values)}"
        where = ", ".join(table.name for table, _ in sharing)
        raise QueryError(f"resource: the scope {named} would be changed, or refused, when stored in {where}")
