"""A process that holds a lock until it is killed: `python -m benchmarks.source_holder URL DSN LOCK TTL_MS`.

Prints `held`, and for each line of its input renews once and prints `renewed`. It never renews by itself.
"""

import asyncio
import sys

from benchmarks.source_clients import opened


def _say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


async def _hold(url: str, dsn: str, lock: str, ttl_ms: int) -> None:
    async with opened(url, dsn) as service:
        hold = await service.acquire(lock, ttl_ms, 0)
        _say("held")
        while await asyncio.to_thread(sys.stdin.readline):
            _say("renewed" if await service.renew(lock, hold, ttl_ms) else "lost")


if __name__ == "__main__":
    asyncio.run(_hold(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
