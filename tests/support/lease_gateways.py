"""Gateways without HTTP: the token source with its queue and listener, several on one database in one event loop."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import asyncpg
from tests.support.interleave import Connection
from tests.support.lease_racing import wanted

from fencepost.server.locks.builtin import PostgresLocks, Queue
from fencepost.server.postgres import leases
from fencepost.server.postgres.connection import Limits
from fencepost.server.postgres.database import Database
from fencepost.server.postgres.leases import Acquired, LockRequest
from fencepost.server.postgres.listen import Listener
from fencepost.server.times import TIMES, Times
from fencepost.testing.servers.processes import PATIENCE, eventually

if TYPE_CHECKING:
    from fencepost.server.locks.leases import TakeResult

T = TypeVar("T")

HOUR = 3_600_000  # ms


class Side:
    """One gateway's token source. `failures`: what it reported of its queue and its listener."""

    def __init__(self, database: Database, times: Times = TIMES) -> None:
        self.failures: list[str] = []
        self.queue = Queue(database, self.failures.append, times)
        self.locks = PostgresLocks(database, self.queue)
        self.listening = asyncio.Event()
        self._asked: set[asyncio.Task[TakeResult]] = set()

    async def acquire(
        self, *names: str, secret: str, gone: "asyncio.Future[None] | None" = None, **asked: Any
    ) -> Acquired:
        """Acquire without claims; answers queued as held, as the gateway does."""
        gone = gone or asyncio.get_running_loop().create_future()
        attempted = await self.locks.take(wanted(*names, secret=secret, owner=secret, **asked), None, gone)
        return attempted.acquired

    async def wait(
        self, observer: Connection, *names: str, secret: str, wait_ms: int = HOUR, **asked: Any
    ) -> asyncio.Task[Acquired]:
        """Start waiting; return once the place in the queue is taken."""
        task = asyncio.create_task(self.acquire(*names, secret=secret, wait_ms=wait_ms, **asked))
        await in_line(observer, secret)
        return task


async def in_line(observer: Connection, secret: str) -> None:
    """Return once this waiter has a place."""
    await eventually(
        lambda: observer.fetchval("SELECT EXISTS (SELECT FROM fencepost.live_waiters WHERE owner = $1)", secret),
        what=f"a place for {secret}",
    )


async def let_gateways_be_silent(observer: Connection) -> None:
    """Let the waiters of a gateway count that has not beaten for half an hour, and not for three seconds only."""
    view: str = await observer.fetchval("SELECT pg_get_viewdef('fencepost.live_waiters'::regclass)")
    assert view.count("'00:00:03'::interval") == 2
    longer = view.replace("'00:00:03'::interval", "'00:30:00'::interval")
    await observer.execute(f"CREATE OR REPLACE VIEW fencepost.live_waiters AS {longer}")


async def out_of_line(observer: Connection, secret: str, *, within: float = PATIENCE) -> None:
    """Return once this waiter's place is gone."""
    await eventually(
        lambda: observer.fetchval("SELECT NOT EXISTS (SELECT FROM fencepost.live_waiters WHERE owner = $1)", secret),
        within=within,
        what=f"the end of the place of {secret}",
    )


@asynccontextmanager
async def open_side(dsn: str, *, pool_size: int = 4, times: Times = TIMES) -> AsyncIterator[Side]:
    """Run one gateway's token source until the block ends; afterwards no request of it waits."""
    database = await Database.open(dsn, Limits(pool_size=pool_size))
    side = Side(database, times)

    def listening() -> None:
        side.listening.set()
        side.queue.on_listening()

    async def reload() -> None:
        pass

    listener = Listener(
        dsn=dsn,
        reload=reload,
        lost=side.failures.append,
        channel=side.queue.channel,
        woken=lambda payload: side.queue.on_notify(payload),  # noqa: PLW0108 - looked up late: tests replace it
        connected=listening,
    )
    task = asyncio.create_task(listener.run())
    try:
        await asyncio.wait_for(side.listening.wait(), PATIENCE)
        yield side
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await side.queue.close()
        await database.close()


class Tries:
    """Counts the calls of `fencepost.acquire`, by secret."""

    def __init__(self) -> None:
        self.by_secret: dict[bytes, int] = {}
        self._try_locks = leases.try_locks

    @property
    def total(self) -> int:
        return sum(self.by_secret.values())

    async def __call__(self, connection: Any, asked: LockRequest, *others: Any) -> Acquired:
        self.by_secret[asked.secret_hash] = self.by_secret.get(asked.secret_hash, 0) + 1
        return await self._try_locks(connection, asked, *others)


Sides = Callable[[], AbstractAsyncContextManager[Side]]


async def look_on(dsn: str) -> Connection:
    """Connect as an observer."""
    connection: Connection = await asyncpg.connect(dsn)
    return connection
