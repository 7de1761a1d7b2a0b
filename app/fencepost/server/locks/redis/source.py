"""Locks and tokens in one Redis: `SET NX PX` with a unique value, and one counter for all locks.

A grant is one script: it looks whether the lock is free, draws tokens by INCRBY, and sets the lock. So a token is drawn
by the holder of the lock at that moment, tokens rise over all locks, and a hold without a token does not exist. A mint
compares the lock's value and draws in one script, too.

What Redis cannot give: with asynchronous replication a replica that takes over may lack the last grants. Then a lock is
granted twice, and the counter goes back. Fencepost sees the latter when a grant's token is not above the highest known
one, and stops to trust the source (R12); `replicas=` makes it rare.
"""

import asyncio
import random
from typing import Any, Final

from fencepost.server.locks.pending_releases import PendingReleases
from fencepost.server.locks.redis.advice import advice
from fencepost.server.locks.redis.counter import last_drawn
from fencepost.server.locks.redis.node import RedisNode, holder, unique_value
from fencepost.server.locks.redis.scripts import EXTEND, GRANT, LOOK, MINT, RELEASE
from fencepost.server.locks.redis.url import PREFIX, REDIS, REPLICAS, WAIT_MS
from fencepost.server.locks.registry import SourceContext
from fencepost.server.locks.source import (
    REQUEST_TIMEOUT,
    Capabilities,
    Grant,
    Holder,
    SourceError,
    SourceUnavailableError,
)
from fencepost.server.locks.source_url import SourceUrl, read

FIRST_PAUSE: Final = 0.02
LONGEST_PAUSE: Final = 0.2
"""Seconds between a waiter's tries, on average: twice as long each time, up to this."""


def from_url(url: str, context: SourceContext) -> "RedisSource":
    """Make the source that a redis:// or rediss:// URL describes. Raises SourceConfigError."""
    where = read(url, context.name, REDIS)
    if WAIT_MS in where and REPLICAS not in where:
        raise where.wrong("has the option wait_ms, which needs replicas=")
    return RedisSource(where)


class RedisSource:
    """A token source (source.py) in one Redis server."""

    capabilities = Capabilities(order="source", fair=False, verifies=True)

    def __init__(self, where: SourceUrl) -> None:
        self._prefix = where[PREFIX]
        self._counter = f"{self._prefix}tokens"
        self._replicas = where[REPLICAS]
        self._wait_ms = where[WAIT_MS]
        self._node = RedisNode(where, where.hosts[0], REQUEST_TIMEOUT)
        self._pending = PendingReleases()

    async def open(self) -> None:
        """Nothing to do: connections are made when they are needed."""

    async def close(self) -> None:
        """Close connections, after what cancelled requests left behind is given back."""
        await self._pending.drain()
        await self._node.close()

    async def acquire(self, lock: str, *, owner: str, ttl_ms: int, tokens: int, wait_s: float) -> Grant | Holder:
        """Take a lock. Who waits asks again and again, with random pauses."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        pause = FIRST_PAUSE
        while True:
            attempt = self._try(lock, unique_value(owner), ttl_ms, tokens)
            answer = await self._pending.acquire_or_release(attempt, lambda grant: self.release(lock, grant.handle))
            left = deadline - loop.time()
            if isinstance(answer, Grant) or left <= 0:
                return answer
            await asyncio.sleep(min(pause * random.uniform(0.5, 1.5), left))  # noqa: S311 - only spreads waiters
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _try(self, lock: str, value: str, ttl_ms: int, tokens: int) -> Grant | Holder:
        try:
            answer = await self._draw(GRANT, lock, value, ttl_ms, tokens)
        except SourceError:
            # It may have been granted all the same.
            self._pending.give_back(self.release(lock, value))
            raise
        return holder(answer) if isinstance(answer, list) else Grant(value, _numbers(answer, tokens))

    async def _draw(self, script: str, lock: str, *values: str | int) -> Any:
        """Run a script that draws tokens; with `replicas=` they count only once enough replicas know of them."""
        keys, about = (self._key(lock), self._counter), self._about(lock)
        if self._replicas == 0:
            return await self._node.run(script, keys, *values, about=about)
        answer, count = await self._node.run_replicated(
            script, keys, *values, about=about, replicas=self._replicas, wait_ms=self._wait_ms
        )
        if isinstance(answer, int) and count < self._replicas:
            raise SourceUnavailableError(
                f"{self._node.name} drew a token for {about}, but only {count} of {self._replicas} replicas had it "
                f"within {self._wait_ms} ms"
            )
        return answer

    async def renew(self, lock: str, handle: str, ttl_ms: int) -> bool:
        """Set the lock's TTL anew, if its value is still ours."""
        return bool(await self._node.run(EXTEND, (self._key(lock),), handle, ttl_ms, about=self._about(lock)))

    async def mint(self, lock: str, handle: str, count: int) -> tuple[int, ...] | None:
        """Draw more tokens, if the lock's value is still ours."""
        last = await self._draw(MINT, lock, handle, count)
        return None if last is None else _numbers(last, count)

    async def release(self, lock: str, handle: str) -> None:
        """Delete the lock, if its value is still ours."""
        await self._node.run(RELEASE, (self._key(lock),), handle, about=self._about(lock))

    async def inspect(self, lock: str) -> Holder | None:
        """Return who has the lock. A lock of a program that sets another kind of value has no owner that we know."""
        held = await self._node.run(LOOK, (self._key(lock),), about=self._about(lock))
        return None if held is None else holder(held)

    async def issued(self, number: int) -> bool:
        """Whether the counter has come as far."""
        return await last_drawn(self._node, self._counter) >= number

    async def advice(self) -> list[str]:
        """See redis/advice.py."""
        return await advice(self._node, self._counter)

    def _key(self, lock: str) -> str:
        return f"{self._prefix}lock:{lock}"

    def _about(self, lock: str) -> str:
        return f"the lock {lock} (keys {self._key(lock)} and {self._counter})"


def _numbers(last: int, count: int) -> tuple[int, ...]:
    return tuple(range(last - count + 1, last + 1))
