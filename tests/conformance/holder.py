"""A process that holds a lock, to be killed or stopped: `python -m tests.conformance.holder URL DSN LOCK TTL_MS`.

Prints what came of the acquire in one line of JSON, then answers each line of its input (mint, renew, release) with
one. It never renews by itself.
"""

import asyncio
import json
import sys

from fencepost.server.locks.source import Grant, SourceContext, make


def _print(answer: object) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


async def _hold(url: str, dsn: str, lock: str, ttl_ms: int) -> None:
    source = make(url, SourceContext("held", dsn))
    await source.open()
    grant = await source.acquire(lock, owner="holder", ttl_ms=ttl_ms, tokens=1, wait_s=0)
    if not isinstance(grant, Grant):
        raise SystemExit(f"{lock} is held")
    _print({"tokens": grant.tokens})
    while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
        match line:
            case "mint":
                _print(await source.mint(lock, grant.handle, 1))
            case "renew":
                _print(await source.renew(lock, grant.handle, ttl_ms))
            case "release":
                await source.release(lock, grant.handle)
                _print("released")


if __name__ == "__main__":
    asyncio.run(_hold(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
