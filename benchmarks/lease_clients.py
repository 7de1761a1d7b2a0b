"""Clients of the lock services that are compared: each acquires and releases through what its users would use.

Those over HTTP share one bare client, so that what differs is the server.
"""

import asyncio
import json
import secrets
from typing import TYPE_CHECKING, Final, Protocol

import asyncpg
from redis.asyncio import Redis

if TYPE_CHECKING:
    from redis.asyncio.lock import Lock

TTL_MS: Final = 30_000
WAIT_MS: Final = 60_000
_CREATED, _NO_CONTENT = 201, 204


class Client(Protocol):
    """One contender."""

    async def acquire(self, name: str) -> None:
        """Return once the lock is ours."""

    async def release(self) -> None:
        """Give it back."""

    async def close(self) -> None:
        """Hang up."""


class UnexpectedAnswerError(Exception):
    """A server answered what it must not."""


class HttpClient:
    """Leases over HTTP: Fencepost's, or the advisory handler's, which takes and gives a part of the same JSON."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, more: str) -> None:
        self._reader, self._writer, self._more = reader, writer, more
        self._secret = secrets.token_urlsafe(32)
        self._lease = ""

    @classmethod
    async def open(cls, port: int, *, waits: bool, ttl_ms: int = TTL_MS, source: str = "builtin") -> "HttpClient":
        """Connect."""
        more = f', "ttl_ms": {ttl_ms}, "wait_ms": {WAIT_MS if waits else 0}'
        if source != "builtin":
            more += f', "source": "{source}"'
        return cls(*await asyncio.open_connection("127.0.0.1", port), more)

    async def acquire(self, name: str) -> None:
        """POST /v1/leases."""
        body = f'{{"lock": "{name}"{self._more}}}'
        status, answer = await self._ask(
            f"POST /v1/leases HTTP/1.1\r\nHost: localhost\r\nX-Lease-Secret: {self._secret}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
        )
        if status != _CREATED:
            raise UnexpectedAnswerError(f"acquire: {status} {answer!r}")
        self._lease = json.loads(answer)["lease_id"]

    async def release(self) -> None:
        """DELETE /v1/leases/{id}."""
        status, answer = await self._ask(
            f"DELETE /v1/leases/{self._lease} HTTP/1.1\r\nHost: localhost\r\nX-Lease-Secret: {self._secret}\r\n\r\n"
        )
        if status != _NO_CONTENT:
            raise UnexpectedAnswerError(f"release: {status} {answer!r}")

    async def close(self) -> None:
        """Hang up."""
        self._writer.close()
        await self._writer.wait_closed()

    async def _ask(self, request: str) -> tuple[int, bytes]:
        self._writer.write(request.encode())
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0]) if b"content-length: " in head else 0
        return int(head.split(b" ", 2)[1]), await self._reader.readexactly(length)


class AdvisoryClient:
    """`pg_advisory_lock` on a connection of its own: the floor, without HTTP, TTL and tokens."""

    def __init__(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        self._connection = connection

    @classmethod
    async def open(cls, url: str) -> "AdvisoryClient":
        """Connect."""
        return cls(await asyncpg.connect(url))

    async def acquire(self, name: str) -> None:
        """Lock."""
        await self._connection.fetchval("SELECT pg_advisory_lock(hashtextextended($1, 0))", name)

    async def release(self) -> None:
        """Unlock."""
        await self._connection.fetchval("SELECT pg_advisory_unlock_all()")

    async def close(self) -> None:
        """Hang up."""
        await self._connection.close()


class RedisClient:
    """redis-py's own Lock: SET NX PX, a Lua script to release, and polling every 0.1 s where it is held."""

    def __init__(self, port: int) -> None:
        self._redis = Redis(host="127.0.0.1", port=port, single_connection_client=True)
        self._lock: Lock | None = None

    async def acquire(self, name: str) -> None:
        """Lock."""
        self._lock = self._redis.lock(name, timeout=TTL_MS / 1000)
        if not await self._lock.acquire():
            raise UnexpectedAnswerError("redis: not acquired")

    async def release(self) -> None:
        """Unlock, if it is still ours."""
        if self._lock is not None:
            await self._lock.release()

    async def close(self) -> None:
        """Hang up."""
        await self._redis.aclose()
