"""The marks of scopes (R8): entering them, which raises their marks, and looking them up."""

from collections.abc import Sequence
from dataclasses import dataclass

from fencepost.server.fence.scope import Scope
from fencepost.server.fence.token import Token
from fencepost.server.postgres.connections.connection import Connection
from fencepost.server.postgres.tables.catalog import Fence, Table


@dataclass(frozen=True, slots=True)
class Entered:
    """What became of one scope's mark: accepted, or the mark that refused the token."""

    scope: str
    refused_by: int | None


async def enter(
    connection: Connection, table: Table, scope: Scope, scopes: Sequence[str], token: Token
) -> list[Entered]:
    """Raise the scopes' marks, sorted; RefusedError (FP000) when the table has another scope by now."""
    rows = await connection.fetch(
        "SELECT e.scope, e.refused_by FROM fencepost.gateway_enter($1, $2, $3, $4, $5) AS e",
        scope.prefix,
        list(scopes),
        token,
        table.oid,
        scope.template,
    )
    return [Entered(row["scope"], row["refused_by"]) for row in rows]


@dataclass(frozen=True, slots=True)
class ScopeMark:
    """What is known of one scope: its mark, where it has one (and since when), and the floor of its prefix."""

    scope: str
    recorded: int | None
    floor: int
    changed_at: str | None

    @property
    def mark(self) -> int:
        """The highest token that is refused under `strict`; 0: none."""
        return max(self.recorded or 0, self.floor)


async def marks(connection: Connection, scope: Scope, scopes: Sequence[str]) -> list[ScopeMark]:
    """Look scopes up, in one snapshot."""
    rows = await connection.fetch(
        "SELECT u.scope, m.last_fence_token AS recorded, coalesce(fencepost.gateway_floor_of($1), 0) AS floor,"
        " pg_catalog.to_json(m.changed_at) OPERATOR(pg_catalog.#>>) '{}' AS changed_at"
        " FROM pg_catalog.unnest($2::text[]) AS u(scope)"
        " LEFT JOIN LATERAL fencepost.gateway_mark_record(u.scope) AS m ON true",
        scope.prefix,
        list(scopes),
    )
    return [ScopeMark(row["scope"], row["recorded"], row["floor"], row["changed_at"]) for row in rows]


async def tables_of(connection: Connection, fence: Fence, scope: Scope) -> list[str]:
    """Name the tables that share the scopes; RefusedError (FP000) when the fence's table is none of them by now."""
    rows = await connection.fetch(
        "SELECT p.name FROM fencepost.protected p JOIN pg_class c ON c.oid OPERATOR(pg_catalog.=) p.relation"
        " WHERE pg_catalog.left(p.scope, pg_catalog.strpos(p.scope, '/{') - 1) = $1 ORDER BY p.name",
        scope.prefix,
    )
    names = [row["name"] for row in rows]
    if fence.name not in names:
        await connection.execute("SELECT fencepost.outdated($1)", fence.name)
    return names
