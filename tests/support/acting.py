"""A gateway whose login may do nothing with users' tables, and roles of callers that may do something each."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tests.support.interleave import Connection
from tests.support.use_cases import open_gateway

from fencepost.cli.migrate import GRANTS
from fencepost.server.fence.caller import Caller
from fencepost.server.gateway.gateway import Gateway
from fencepost.testing.servers.processes import eventually

LOGIN = "fp_login"
ROLES = ("fp_web", "fp_other", "fp_reader", "fp_nothing")
WEB, OTHER, READER, NOTHING = ROLES
RULED = "fp_ruled"

_WHO = """
SELECT CURRENT_USER = SESSION_USER AND current_setting('role') = 'none'
   AND coalesce(current_setting('request.jwt.claims', true), '') = ''
   AND coalesce(current_setting('fencepost.caller', true), '') = ''"""


def caller(role: str, name: str = "", claims: str = "") -> Caller:
    return Caller(name or f"{role}-1", role=role, claims=claims)


@dataclass
class Acting:
    """`owner` made the tables, and looks on."""

    gateway: Gateway
    owner: Connection
    dsn: str

    def of(self, role: str, name: str = "", claims: str = "") -> Gateway:
        return self.gateway.of(caller(role, name, claims))

    async def assert_own_name(self) -> None:
        """Fail if any connection that can be lent acts as a caller, or is lent still."""
        database = self.gateway.database
        for pool in database._pools:  # noqa: SLF001 - nothing of the product shows them

            async def at_rest(pool: object = pool) -> bool:
                return not pool._lent  # type: ignore[attr-defined]  # noqa: SLF001

            await eventually(at_rest, what="connections that come back")
            for connection, _ in tuple(pool._idle):  # noqa: SLF001 - questions of the gateway itself go on
                assert not connection.acting
                assert await connection.fetchval(_WHO), "it acts as a caller still"


@asynccontextmanager
async def acting(
    owner: Connection, dsn: str, sql: str, *, pool_size: int = 1, batch_pool_size: int = 1
) -> AsyncIterator[Acting]:
    """Make login and roles, run `sql`, and open the gateway. All roles go at the end."""
    try:
        await owner.execute(f"CREATE ROLE {LOGIN} LOGIN NOINHERIT PASSWORD 'x'")
        for role in ROLES:
            await owner.execute(f"CREATE ROLE {role}; GRANT {role} TO {LOGIN}; GRANT USAGE ON SCHEMA public TO {role}")
        for grant in GRANTS:
            await owner.execute(grant.format(role=LOGIN))
        await owner.execute(sql)
        account = dsn.partition("://")[2].partition("@")[0]
        theirs = dsn.replace(account, f"{LOGIN}:x", 1)
        async with open_gateway(theirs, pool_size=pool_size, batch_pool_size=batch_pool_size) as gateway:
            yield Acting(gateway, owner, theirs)
    finally:
        for role in (*ROLES, LOGIN):
            await owner.execute(
                f"DO $$ BEGIN IF to_regrole('{role}') IS NOT NULL THEN DROP OWNED BY {role}; DROP ROLE {role};"
                " END IF; END $$"
            )


@asynccontextmanager
async def ruled(owner: Connection, dsn: str, sql: str) -> AsyncIterator[str]:
    """Make a login that policies rule, with a gateway's grants; run `sql`; give its URL. It goes at the end."""
    await owner.execute(f"CREATE ROLE {RULED} LOGIN PASSWORD 'x'")
    try:
        await owner.execute(sql)
        for grant in GRANTS:
            await owner.execute(grant.format(role=RULED))
        yield dsn.replace(dsn.partition("://")[2].partition("@")[0], f"{RULED}:x", 1)
    finally:
        await owner.execute(f"DROP OWNED BY {RULED}; DROP ROLE {RULED}")
