"""Breaking the glass in a race: who may, and what is recorded of it.

async with operators(race) as (operator, stranger):
    assert await broken(race.a, "UPDATE …", operator) == "ok"
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import asyncpg
from tests.support.interleave import Connection
from tests.support.racing import Race

REASON = "INC-123: the worker is gone"
OPERATOR = "glass_operator"
STRANGER = "glass_stranger"
ROLE = "fencepost_breakglass"

UPDATE = "UPDATE public.orders SET n = n + 1 WHERE order_id = 'k'"
INSERT = "INSERT INTO public.orders (order_id) VALUES ('k')"
DELETE = "DELETE FROM public.orders WHERE order_id = 'k'"


@asynccontextmanager
async def operators(observer: Connection, *, role: bool = True) -> AsyncIterator[None]:
    """Make two plain logins that may write to the tables of public; OPERATOR is in the role of break-glass."""
    await observer.execute(f"CREATE ROLE {OPERATOR} LOGIN; CREATE ROLE {STRANGER} LOGIN")
    for login in (OPERATOR, STRANGER):
        await observer.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {login}")
    if role:
        await observer.execute(
            f"CREATE ROLE {ROLE}; GRANT EXECUTE ON FUNCTION fencepost.may_break_glass() TO {ROLE};"
            f" GRANT {ROLE} TO {OPERATOR}"
        )
    try:
        yield
    finally:
        await observer.execute("RESET SESSION AUTHORIZATION")
        for name in (OPERATOR, STRANGER, *([ROLE] if role else [])):
            await observer.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


async def run(
    connection: Connection,
    statements: str | Sequence[str],
    *,
    glass: str | None = REASON,
    token: object = None,
    login: str | None = None,
) -> str:
    """Run SQL in a transaction of its own, as a login; "ok" or the SQLSTATE."""
    try:
        if login is not None:
            await connection.execute(f"SET SESSION AUTHORIZATION {login}")
        async with connection.transaction():
            if glass is not None:
                await connection.execute("SELECT set_config('fencepost.break_glass', $1, true)", glass)
            if token is not None:
                await connection.execute("SELECT set_config('fencepost.token', $1, true)", str(token))
            for statement in (statements,) if isinstance(statements, str) else statements:
                await connection.execute(statement)
    except asyncpg.PostgresError as error:
        return error.sqlstate or "?"
    finally:
        if login is not None:
            await connection.execute("RESET SESSION AUTHORIZATION")
    return "ok"


async def records(observer: Connection) -> list[tuple[str, str, str]]:
    """What is recorded: (table, verb, first resource), oldest first."""
    rows = await observer.fetch("SELECT name, verb, resource FROM fencepost.break_glass_log ORDER BY xid, verb")
    return [(row[0], row[1], row[2]) for row in rows]


async def count(race: Race) -> int:
    """How many uses are recorded."""
    number: int = await race.observer.fetchval("SELECT count(*) FROM fencepost.break_glass_log")
    return number
