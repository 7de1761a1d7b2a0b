"""A lock of an order in Redis, as many have it: SET NX PX, with it INCR for a token, a release that compares."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from redis.asyncio import Redis

from benchmarks.layers.layers import LOCK_MS, Event

_ACQUIRE: Final = """
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return redis.call('INCR', KEYS[2]) end
return 0
"""
_RELEASE: Final = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end"
_POLL_S: Final = 0.005
COUNTER: Final = "tokens"


class Locks:
    """The locks of one worker, and its memory of what was done."""

    def __init__(self, url: str, name: str, *, on: bool) -> None:
        self._redis: Redis = Redis.from_url(url)
        self._name = name
        self._on = on

    @asynccontextmanager
    async def held(self, event: Event) -> AsyncIterator[int]:
        """Wait for the lock of an event's order; gives the grant's token. Without locks: a token that was drawn now."""
        if not self._on:
            yield int(await self._redis.incr(COUNTER))
            return
        order, owner = event.order, f"{self._name} {event.order} {event.version} {secrets.token_hex(8)}"
        while not (token := await self._script(_ACQUIRE, f"lock:{order}", COUNTER, owner, str(LOCK_MS))):  # noqa: ASYNC110 - Redis sends no notification
            await asyncio.sleep(_POLL_S)
        try:
            yield int(token)
        finally:
            await self._script(_RELEASE, f"lock:{order}", COUNTER, owner)

    async def is_done(self, event: Event) -> bool:
        """Whether a holder of the lock has noted that this event was passed on."""
        return self._on and bool(await self._redis.exists(f"done:{event.id}"))

    async def note(self, event: Event) -> None:
        """Note that it was."""
        if self._on:
            await self._redis.set(f"done:{event.id}", "1")

    async def count_write(self) -> None:
        """Count a write, or message, that was sent."""
        await self._redis.incr("sent")

    async def _script(self, script: str, lock: str, counter: str, *arguments: str) -> Any:
        return await self._redis.eval(script, 2, lock, counter, *arguments)

    async def close(self) -> None:
        """Close its connections."""
        await self._redis.aclose()


async def held_by(redis: Redis, worker: str) -> list[Event]:
    """List the events at which a worker works under a lock."""
    owners = [await redis.get(key) for key in await redis.keys("lock:*")]
    words = [bytes(owner).decode().split() for owner in owners if isinstance(owner, bytes)]
    return [Event(order, int(version)) for name, order, version, _ in words if name == worker]
