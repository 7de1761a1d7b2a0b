"""A process that takes a lock again and again: `python -m tests.kube.racer URL LOCK ROUNDS`.

Prints in one line of JSON the tokens of each round: that of the grant, and two minted ones.
"""

import asyncio
import json
import sys

from fencepost.locks.registry import SourceContext, make
from fencepost.locks.source import Grant


async def _race(url: str, lock: str, rounds: int) -> list[list[int]]:
    source = make(url, SourceContext("racer", ""))
    drawn: list[list[int]] = []
    for _ in range(rounds):
        grant = await source.acquire(lock, owner="racer", ttl_ms=30_000, tokens=1, wait_s=60)
        assert isinstance(grant, Grant)
        minted = await source.mint(lock, grant.handle, 2)
        assert minted is not None
        drawn.append([*grant.tokens, *minted])
        await source.release(lock, grant.handle)
    await source.close()
    return drawn


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(_race(sys.argv[1], sys.argv[2], int(sys.argv[3])))))
