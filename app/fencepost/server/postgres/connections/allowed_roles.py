"""As which roles the gateway acts for callers: those of a list, or, without one, those that its login may take.

Never one that would be more than a caller: a superuser, a role that row level security does not rule, PostgreSQL's own
(`pg_…`), the gateway's login, the owner of the schema fencepost, and any member of these two. What a token says is only
a name, so this is asked before anything is sent as a role.

PostgreSQL is asked once per role and ten seconds, or until the catalog is read again. SET ROLE asks it anew.
"""

from collections.abc import Collection
from typing import Final

from fencepost.server.postgres.connections.engine import Database
from fencepost.server.postgres.connections.known import Known
from fencepost.server.times import TIMES, Times

_WHY_NOT: Final = """
SELECT CASE
  WHEN r.oid IS NULL THEN 'there is no such role'
  WHEN r.rolsuper THEN 'it is a superuser'
  WHEN r.rolbypassrls THEN 'row level security does not rule it (BYPASSRLS)'
  WHEN pg_catalog.starts_with(r.rolname, 'pg_') THEN 'it is one of PostgreSQL''s own'
  WHEN pg_catalog.pg_has_role(r.oid, l.oid, 'MEMBER') THEN 'it may act as the login of the gateway'
  WHEN pg_catalog.pg_has_role(r.oid, n.nspowner, 'MEMBER') THEN 'it may act as the owner of the schema fencepost'
  WHEN NOT pg_catalog.pg_has_role(l.oid, r.oid, CASE WHEN pg_catalog.current_setting('server_version_num')::int4
            OPERATOR(pg_catalog.>=) 160000 THEN 'SET' ELSE 'MEMBER' END)
    THEN pg_catalog.format('the gateway''s login may not act as it (GRANT %I TO %I)', r.rolname, l.rolname)
  WHEN l.rolsuper AND NOT $2 THEN
    'the gateway logs in as a superuser, which may act as any role, and the operator lists none (FENCEPOST_ROLES)' END
  FROM pg_catalog.pg_namespace n
  JOIN pg_catalog.pg_roles l ON l.rolname OPERATOR(pg_catalog.=) SESSION_USER
  LEFT JOIN pg_catalog.pg_roles r ON r.rolname OPERATOR(pg_catalog.=) $1
 WHERE n.nspname OPERATOR(pg_catalog.=) 'fencepost'"""

_LOGIN_IS_SUPERUSER: Final = """
SELECT r.rolsuper FROM pg_catalog.pg_roles r WHERE r.rolname OPERATOR(pg_catalog.=) SESSION_USER"""

NO_LIST: Final = (
    "the gateway logs in as a superuser, which may act as any role: FENCEPOST_ROLES lists the roles of callers. Better,"
    " it logs in as a role of its own (docs/roles.md)"
)


class AllowedRoles:
    """What is known of roles at this gateway. `listed` empty: there is no list."""

    def __init__(
        self,
        listed: Collection[str] = (),
        times: Times = TIMES,
    ) -> None:
        self._listed = frozenset(listed)
        self._known = Known[str, str | None](times.connections.roles_known_for, times.clock)

    async def why_not(self, database: Database, role: str) -> str | None:
        """Say why the gateway does not act as this role; None: it does. Raises UnavailableError."""
        if self._listed and role not in self._listed:
            return "it is none of those that the operator lists (FENCEPOST_ROLES)"

        async def ask() -> str | None:
            async with database.connection() as connection:
                reason: str | None = await connection.fetchval(_WHY_NOT, role, bool(self._listed))
            return reason

        return await self._known.get(role, ask)

    def forget(self) -> None:
        self._known.forget()

    async def why_not_start(self, database: Database) -> str | None:
        """Say why callers with roles cannot be served at all: for the start. Raises UnavailableError."""
        if self._listed:
            return None
        async with database.connection() as connection:
            return NO_LIST if await connection.fetchval(_LOGIN_IS_SUPERUSER) else None
