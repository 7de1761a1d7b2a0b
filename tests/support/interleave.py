"""Stepping connections through an interleaving: start a statement, and go on once it waits for a lock.

    holder, waiter, observer = await connect(), await connect(), await connect()
    await holder.execute("BEGIN; UPDATE …")
    write = await start(observer, waiter.fetch("UPDATE …"), waiter.get_server_pid())
    assert not write.done()
    await holder.execute("COMMIT")
    assert await write == []

The observer must be outside of a transaction: inside one, pg_stat_activity does not change.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeAlias, TypeVar

import asyncpg

from fencepost.server.ops.protect import ProtectPlan
from fencepost.testing.servers.processes import eventually

T = TypeVar("T")

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"
Connect: TypeAlias = Callable[[], Awaitable["asyncpg.Connection[asyncpg.Record]"]]
"""The type of the fixture `connect`: each call gives a new connection to the test's database."""


@asynccontextmanager
async def connection_to(url: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def holding(url: str, statement: str, *arguments: object) -> AsyncIterator[Connection]:
    """Run a statement in a transaction that stays open, and is rolled back at the end unless that was done before."""
    async with connection_to(url) as connection:
        await connection.execute("BEGIN")
        await connection.execute(statement, *arguments)
        yield connection


_WAITS_FOR_LOCK = """
SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1 AND state = 'active' AND wait_event_type = 'Lock')
"""


async def blocked(connection_or_pid: "Connection | int", observer: Connection) -> None:
    """Return once this backend waits for a lock; TimeoutError if it never does."""
    pid = connection_or_pid if isinstance(connection_or_pid, int) else connection_or_pid.get_server_pid()

    async def waits() -> bool:
        return bool(await observer.fetchval(_WAITS_FOR_LOCK, pid))

    await eventually(waits, what=f"backend {pid} waiting for a lock")


async def blocks_another_session(holder: Connection, observer: Connection) -> None:
    """Return once some backend waits for a lock that this one holds; TimeoutError if none ever does."""
    waited_for = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid)))"
    pid = holder.get_server_pid()
    await eventually(lambda: observer.fetchval(waited_for, pid), what=f"a session that waits for backend {pid}")


async def start(observer: Connection, statement: Coroutine[Any, Any, T], pid: int) -> asyncio.Task[T]:
    """Run a statement of the backend `pid` as a task; return the task once it waits for a lock or is done.

    A test checks which of the two it expects with `task.done()`.
    """
    task = asyncio.create_task(statement)

    async def waits_or_is_done() -> bool:
        return task.done() or bool(await observer.fetchval(_WAITS_FOR_LOCK, pid))

    try:
        await eventually(waits_or_is_done, what=f"backend {pid} waiting for a lock, or done")
    except BaseException:
        task.cancel()
        raise
    return task


async def run_plan(connection: Connection, plan: ProtectPlan) -> None:
    """Run what `protect_plan` has given, as psql runs the output of `--sql`."""
    async with connection.transaction(isolation="read_committed"):
        await connection.execute("SET LOCAL search_path = pg_catalog, pg_temp")
        for statement in plan.statements:
            await connection.execute(statement)
