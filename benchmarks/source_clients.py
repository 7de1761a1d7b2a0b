"""Clients of a lock service without the gateway: its source object alone, as the gateway calls it.

What a source without numbers of its own lacks here is the token: that is drawn in PostgreSQL by the gateway.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final, Protocol

from benchmarks.lease_clients import TTL_MS, WAIT_MS, UnexpectedAnswerError
from fencepost.server.locks.builtin import PostgresLocks, Queue
from fencepost.server.locks.source import Grant, Source, SourceContext, make
from fencepost.server.postgres.connection import Limits
from fencepost.server.postgres.database import Database
from fencepost.server.postgres.leases import Granted, LockRequest, hash_secret

BUILTIN: Final = "builtin"


class Service(Protocol):
    """Locks by name. A hold is known by a text of the service's own."""

    async def acquire(self, lock: str, ttl_ms: int, wait_ms: int) -> str:
        """Take a lock. Raises UnexpectedAnswerError when another client has it all the time."""

    async def renew(self, lock: str, hold: str, ttl_ms: int) -> bool:
        """Prolong a hold; False: it is lost."""

    async def release(self, lock: str, hold: str) -> None:
        """End a hold."""


class SourceService:
    """A lock service behind one of Fencepost's sources."""

    def __init__(self, source: Source) -> None:
        self._source = source

    async def acquire(self, lock: str, ttl_ms: int, wait_ms: int) -> str:
        """Take a lock."""
        grant = await self._source.acquire(lock, owner="benchmark", ttl_ms=ttl_ms, tokens=1, wait_s=wait_ms / 1000)
        if not isinstance(grant, Grant):
            raise UnexpectedAnswerError(f"{lock} is held: {grant}")
        return grant.handle

    async def renew(self, lock: str, hold: str, ttl_ms: int) -> bool:
        """Prolong a hold."""
        return await self._source.renew(lock, hold, ttl_ms)

    async def release(self, lock: str, hold: str) -> None:
        """End a hold."""
        await self._source.release(lock, hold)


class BuiltinService:
    """The built-in source: statements to PostgreSQL, and the token with them. A hold is the lease's secret and id."""

    def __init__(self, locks: PostgresLocks) -> None:
        self._locks = locks

    async def acquire(self, lock: str, ttl_ms: int, wait_ms: int) -> str:
        """Take a lock."""
        secret = secrets.token_hex(16)
        wanted = LockRequest((lock,), secret, "benchmark", ttl_ms, wait_ms=wait_ms)
        attempted = await self._locks.take(wanted, None, asyncio.get_running_loop().create_future())
        if not isinstance(attempted, Granted):
            raise UnexpectedAnswerError(f"{lock}: {attempted}")
        return f"{attempted.lease.lease_id}:{secret}"

    async def renew(self, lock: str, hold: str, ttl_ms: int) -> bool:  # noqa: ARG002 - the lease knows its lock
        """Prolong a hold."""
        lease_id, _, secret = hold.partition(":")
        return await self._locks.renew(int(lease_id), hash_secret(secret), ttl_ms) is not None

    async def release(self, lock: str, hold: str) -> None:
        """End a hold."""
        lease_id, _, secret = hold.partition(":")
        if not await self._locks.release(int(lease_id), hash_secret(secret)):
            raise UnexpectedAnswerError(f"{lock}: the release was refused")


@asynccontextmanager
async def opened(url: str, dsn: str) -> AsyncIterator[Service]:
    """Open the source that `url` names, or the built-in one in the database `dsn`, until the block ends."""
    async with AsyncExitStack() as stack:
        if url == BUILTIN:
            database = await Database.open(dsn, Limits(pool_size=2))
            stack.push_async_callback(database.close)
            queue = Queue(database, print)
            stack.push_async_callback(queue.close)
            yield BuiltinService(PostgresLocks(database, queue))
            return
        source = make(url, SourceContext("benchmark", dsn))
        stack.push_async_callback(source.close)
        await source.open()
        yield SourceService(source)


class AloneClient:
    """One contender for the locks of a service, with the methods of the clients over HTTP."""

    def __init__(self, service: Service, *, waits: bool, ttl_ms: int = TTL_MS) -> None:
        self._service, self._ttl_ms, self._wait_ms = service, ttl_ms, WAIT_MS if waits else 0
        self._held = ("", "")

    async def acquire(self, name: str) -> None:
        """Return once the lock is ours."""
        self._held = name, await self._service.acquire(name, self._ttl_ms, self._wait_ms)

    async def release(self) -> None:
        """Give it back."""
        await self._service.release(*self._held)

    async def close(self) -> None:
        """Do nothing: the service is everybody's."""
