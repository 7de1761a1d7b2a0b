"""One lock of the source redis, taken and looked at."""

from collections.abc import Callable

from fencepost.server.locks.source import Grant, Holder, Source

Opened = Callable[[str], Source]


LONG_MS = 60_000
"""A TTL that no test waits for: what is free before was given back."""
LOCK = "orders/order-1"
KEY = f"fencepost:lock:{LOCK}"


async def take(source: Source, *, wait_s: float = 0, tokens: int = 1) -> Grant | Holder:
    return await source.acquire(LOCK, owner="somebody", ttl_ms=LONG_MS, tokens=tokens, wait_s=wait_s)


async def free(source: Source) -> bool:
    return await source.inspect(LOCK) is None
