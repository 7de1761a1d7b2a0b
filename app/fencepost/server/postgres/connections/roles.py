"""A caller's role on a connection: SET ROLE for as long as a block has the connection, and never longer.

A connection takes role, `request.jwt.claims` and `fencepost.caller` in one statement, and gives them back in one
statement, which also looks whether the login acts in its own name again. `Database` (engine.py) does that around each
block that is lent a connection for a caller with a role. A connection that cannot give its role back is closed: its
statement was interrupted, its transaction is open, it is broken. The pool takes none back that has one (pool.py).

Code of users' that a statement runs (a trigger, a policy) may set what it likes for the whole session, a role too.
Whoever lends a connection for a table with such code says so (`code_ran`): then giving back is to run what makes the
session what it was.

Inside of a transaction that has begun in the gateway's own name (a grant, which makes the lease's claims) the role is
set with SET LOCAL: PostgreSQL takes it back when the transaction ends, however it ends. All the same the connection is
looked at when the block ends: a trigger may have set a role for the session.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import asyncpg

from fencepost.server.fence.caller import Caller
from fencepost.server.postgres.connections.connection import Connection, gateway_connection
from fencepost.server.postgres.errors import RefusedError, RoleError, UnavailableError, map_errors, words_of
from fencepost.server.times import TIMES

# The gateway's statements name functions in full, against the search_path of a role. `true`: SET LOCAL.
_SET: Final = (
    "SELECT pg_catalog.set_config('role', $1, $4), pg_catalog.set_config('request.jwt.claims', $2, $4),"
    " pg_catalog.set_config('fencepost.caller', $3, $4)"
)
_GIVE_BACK: Final = (
    "SELECT pg_catalog.set_config('role', 'none', false), pg_catalog.set_config('request.jwt.claims', '', false),"
    " pg_catalog.set_config('fencepost.caller', '', false), CURRENT_USER OPERATOR(pg_catalog.=) SESSION_USER"
)
_GIVEN_BACK: Final = ("none", "", "", True)
NO_SUCH_ROLE: Final = frozenset({"42501", "22023", "42704"})
"""SQLSTATEs of SET ROLE: it may not be set, or there is none of the name."""


async def take(connection: Connection, caller: Caller, *, local: bool = False) -> None:
    """Take a caller's role, if it has one. RoleError: PostgreSQL does not let the login take it; UnavailableError."""
    if caller.role is None:
        return
    gateway_connection(connection).acting = True
    try:
        with map_errors(writing=False):
            await connection.fetchrow(_SET, caller.role, caller.claims, caller.name, local)
    except RefusedError as error:
        if error.sqlstate not in NO_SUCH_ROLE:
            raise
        raise RoleError(caller.role, str(error)) from error


async def give_back(connection: Connection, within: float = TIMES.connections.give_back_within) -> str | None:
    """Give the role back in so many seconds, and undo what users' code has done to the session; else say why that
    failed. The connection is useless then.
    """
    behind = gateway_connection(connection)
    try:
        async with asyncio.timeout(within):
            if behind.code_ran:
                await connection.fetchval(behind.restoring, True)
                behind.acting = behind.code_ran = False
                return None
            row = await connection.fetchrow(_GIVE_BACK)
    except TimeoutError:
        return f"no answer within {within:g} s"
    except asyncpg.PostgresError as error:
        return words_of(error)
    except (asyncpg.InterfaceError, asyncpg.InternalClientError, OSError) as error:
        return str(error) or type(error).__name__
    if row is None or tuple(row) != _GIVEN_BACK:
        return "its session has another role, or keeps what was set"
    behind.acting = False
    return None


@asynccontextmanager
async def users_code(connection: Connection, caller: Caller, *, runs: bool, local: bool) -> AsyncIterator[None]:
    """Undo what users' code does to the session in this block, in the middle of a transaction that goes on as a caller:
    what comes next in it is not to be judged by a setting of another table's trigger. `runs`: whether any runs.
    `local`: see `take`.
    """
    behind = gateway_connection(connection)
    behind.code_ran |= runs  # also where the block fails, and after a rollback: locks of a session outlive both
    yield
    if runs:
        with map_errors(writing=True):
            await connection.fetchval(behind.restoring, False)
        await take(connection, caller, local=local)


@asynccontextmanager
async def as_caller(connection: Connection, caller: Caller) -> AsyncIterator[None]:
    """Act as a caller in the middle of a transaction that is the gateway's own. A block that fails has the transaction
    undone, and the role with it.
    """
    if caller.role is None:
        yield
        return
    if not connection.is_in_transaction():
        raise RuntimeError("a role can be set for a part of a transaction only inside of one")
    await take(connection, caller, local=True)
    yield
    with map_errors(writing=True):
        # What a deferred constraint trigger does, it does as the caller too, and not at COMMIT as the gateway.
        await connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        if gateway_connection(connection).code_ran:
            await connection.fetchval(gateway_connection(connection).restoring, False)
        else:
            await connection.fetchrow(_SET, "none", "", "", True)


@asynccontextmanager
async def as_gateway(connection: Connection, caller: Caller) -> AsyncIterator[None]:
    """Act as the gateway itself on a connection that was lent for a caller, between two of its statements. A block that
    fails leaves the connection in the gateway's name.
    """
    if caller.role is None:
        yield
        return
    if connection.is_in_transaction():
        raise RuntimeError("a transaction that is undone would bring the role back")
    if (failed := await give_back(connection)) is not None:
        raise UnavailableError(f"the connection does not give its role back: {failed}")
    yield
    await take(connection, caller)
