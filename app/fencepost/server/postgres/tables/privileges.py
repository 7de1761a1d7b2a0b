"""What roles may do with tables, asked before a write of theirs is queued: it is made later, when nobody can be told.

PostgreSQL says what a role may do with a table and each of its columns, once per role and table and for a while. What a
write of one row needs stands in docs/roles.md. The write may be denied all the same when it is made: by a policy or a
trigger, for a sequence or a function that a default uses, or as a PUT that makes its row, which takes INSERT.
"""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from fencepost.server.postgres.connections.engine import Database
from fencepost.server.postgres.connections.known import Known
from fencepost.server.postgres.errors import StorageError
from fencepost.server.postgres.tables.catalog import MARK_COLUMN, ProtectedTable
from fencepost.server.times import TIMES, Times


def _columns(privilege: str) -> str:
    may = f"pg_catalog.has_column_privilege(r.oid, c.oid, a.attnum, '{privilege}')"
    return f"pg_catalog.array_agg(a.attname::pg_catalog.text) FILTER (WHERE {may})"


_PRIVILEGES: Final = f"""
SELECT pg_catalog.has_schema_privilege(r.oid, c.relnamespace, 'USAGE') AS schema,
       pg_catalog.has_table_privilege(r.oid, c.oid, 'DELETE') AS deletes, p.*
  FROM pg_catalog.pg_class c
  JOIN pg_catalog.pg_roles r ON r.rolname OPERATOR(pg_catalog.=) coalesce($1::pg_catalog.name, SESSION_USER)
 CROSS JOIN LATERAL (SELECT {_columns("SELECT")} AS selects, {_columns("INSERT")} AS inserts,
                            {_columns("UPDATE")} AS updates
                       FROM pg_catalog.pg_attribute a
                      WHERE a.attrelid OPERATOR(pg_catalog.=) c.oid AND a.attnum OPERATOR(pg_catalog.>) 0::int2
                        AND NOT a.attisdropped) AS p
 WHERE c.oid OPERATOR(pg_catalog.=) $2::pg_catalog.oid"""


@dataclass(frozen=True, slots=True)
class Privileges:
    """What a role may do with a table: whether it may use the table's schema, delete rows, and which columns it may
    read, give values in new rows, and change.
    """

    schema: bool
    deletes: bool
    selects: frozenset[str]
    inserts: frozenset[str]
    updates: frozenset[str]

    def denial(self, table: ProtectedTable, verb: str, sets: Collection[str], shown: Collection[str]) -> str | None:
        """Say in PostgreSQL's words that a write of one row is denied: it `sets` columns, and its answer has those that
        are `shown`. None: it is not.
        """
        if not self.schema:
            return f"permission denied for schema {table.schema}"
        scope = table.fence.scope
        mark = (MARK_COLUMN,) if scope is None else ()
        reads = {*table.key, *shown, *(mark if scope is None else scope.columns)}
        match verb:
            case "post":
                writes = self.inserts.issuperset((*sets, *mark))
            case "delete":  # of a scope the row is locked first, which takes UPDATE of some column
                writes = self.deletes and (scope is None or bool(self.updates))
            case _:
                writes = bool(self.updates) and self.updates.issuperset((*sets, *mark))
        return None if writes and reads <= self.selects else f"permission denied for table {table.relation}"


class KnownPrivileges:
    """What is known at this gateway."""

    def __init__(self, times: Times = TIMES) -> None:
        self._within = times.requests.submit_within
        self._known = Known[tuple[str | None, int], Privileges | None](times.connections.roles_known_for, times.clock)

    async def of(self, database: Database, role: str | None, table: ProtectedTable) -> Privileges | None:
        """Say what a role, or the gateway's login (None), may do with a table. Where PostgreSQL cannot be asked that is
        what it last said; None: nothing is known.
        """
        key = (role, table.oid)

        async def ask() -> Privileges | None:
            try:
                async with asyncio.timeout(self._within), database.connection() as connection:
                    row = await connection.fetchrow(_PRIVILEGES, role, table.oid)
            except (StorageError, TimeoutError):
                return self._known.last(key)
            if row is None:  # the role or the table has just gone
                return None
            columns = (frozenset(row[kind] or ()) for kind in ("selects", "inserts", "updates"))
            return Privileges(row["schema"], row["deletes"], *columns)

        return await self._known.get(key, ask)

    def forget(self) -> None:
        self._known.forget()
