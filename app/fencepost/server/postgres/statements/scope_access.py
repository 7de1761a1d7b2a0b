"""Whether a role has to do with a scope: with the tables that share it, and the rows in it. Asked as that role."""

from typing import Final

from fencepost.server.fence.scope import Scope
from fencepost.server.postgres.connections.connection import Connection
from fencepost.server.postgres.statements.row_sql import row_scope
from fencepost.server.postgres.tables.catalog import Table

_OPEN: Final = """
SELECT c.oid::int8 AS oid, pg_catalog.row_security_active(c.oid) AS ruled
  FROM fencepost.protected p JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) p.relation
 WHERE pg_catalog.left(p.scope, pg_catalog.strpos(p.scope, '/{') OPERATOR(pg_catalog.-) 1) OPERATOR(pg_catalog.=) $1
   AND pg_catalog.has_schema_privilege(c.relnamespace, 'USAGE')
   AND CASE WHEN $2 THEN pg_catalog.has_table_privilege(c.oid, 'DELETE')
                         OR pg_catalog.has_any_column_privilege(c.oid, 'INSERT, UPDATE')
            ELSE pg_catalog.has_any_column_privilege(c.oid, 'SELECT') END"""
"""What fencepost.may_write asks for writers, for the role of now."""


async def tables_open(connection: Connection, scope: Scope, *, writing: bool) -> dict[int, bool]:
    """List the tables of a scope that the role may read, or write to: by oid, whether row security rules it there."""
    rows = await connection.fetch(_OPEN, scope.prefix, writing)
    return {row["oid"]: row["ruled"] for row in rows}


async def has_row(connection: Connection, table: Table, name: str, *, writing: bool) -> bool:
    """Whether the policies of a table show a row of the scope; writing: one that may be changed. It is locked then, so
    that it stays; the scope's mark was taken before (R20).
    """
    if table.fence is None or table.fence.scope is None:
        return False
    lock = " FOR KEY SHARE" if writing else ""
    row = await connection.fetchrow(
        f"SELECT 1 FROM {table.sql_name} AS r WHERE {row_scope(table, table.fence.scope)} OPERATOR(pg_catalog.=) $1"
        f" LIMIT 1{lock}",
        name,
    )
    return row is not None
