"""A lock by itself: taken, held for a moment, given back; or lost, because its time was over or its holder slept."""

import asyncio
from typing import Final

from fencepost.testing.torture.holders.actor import Actor
from fencepost.testing.torture.holders.database import Database
from fencepost.testing.torture.holders.locks import acquire, lapse, mint, release
from fencepost.testing.torture.workloads.workload import Workload

_HELD_FOR: Final = 0.005
"""Seconds, at most."""
_SHORT: Final = 0.6
"""How many grants are for so short a time that they end by themselves, while others are being asked for."""
_SHORT_MS: Final = 100
"""Milliseconds above the least TTL, at most."""
_MINTS: Final = 3
_MINTS_WHEN_SHORT: Final = 30
"""Enough for the grant to end while one more token is being drawn."""
_MINTED: Final = (1, 500, 1000)
"""Tokens at a time. To draw many takes the source some milliseconds, in which the grant may end."""
_WAITS_MS: Final = (0, 20, 400)


class Mutex:
    """One actor."""

    def __init__(self, actor: Actor, database: Database | None) -> None:
        self._actor, self._database, self._dice = actor, database, actor.dice

    async def turn(self) -> None:
        """Take one of the locks, mint as long as it is ours, and give it back."""
        actor, dice = self._actor, self._dice
        number = dice.randrange(actor.assignment.resources)
        short = dice.random() < _SHORT
        ttl_ms = actor.assignment.least_ttl_ms + dice.randint(0, _SHORT_MS) if short else actor.assignment.ttl_ms
        # For every second lock all try at once; a queue would let one try after the other.
        wait_ms = dice.choice(_WAITS_MS) if number % 2 else 0
        lease = await acquire(actor, f"mutex/{number}", tokens=dice.choice((1, 1, 3)), wait_ms=wait_ms, ttl_ms=ttl_ms)
        if lease is None:
            return
        for _ in range(_MINTS_WHEN_SHORT if short else dice.randint(0, _MINTS)):
            if not await mint(actor, lease, dice.choice(_MINTED)):
                return
        await asyncio.sleep(dice.random() * _HELD_FOR)
        if not await lapse(actor, lease, self._database):
            await release(actor, lease)


WORKLOAD: Final = Workload(
    "mutex",
    "a lock by itself: the tokens of its grants must rise",
    Mutex,
    tables=(),
)
