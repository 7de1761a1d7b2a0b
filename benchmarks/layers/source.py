"""The source of events: at least once, and those of an order one after the other.

It waits for the answer to a delivery. None within PATIENCE_S, or one that gets lost: it delivers the event once more,
to any worker. Only then comes the next event of the order.
"""

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from benchmarks.layers.layers import Event

PATIENCE_S: Final = 0.5
LOST: Final = 0.2
"""The share of answers that get lost."""
PACE_S: Final = 0.08
"""The longest between the answer to an event and the next one of the order."""


async def deliver_all(orders: Sequence[str], versions: int, sockets: Sequence[str], seed: int) -> None:
    """Deliver all events of all orders, the orders side by side."""
    chances = [random.Random(f"{seed} {order}") for order in orders]  # noqa: S311 - no secret
    await asyncio.gather(
        *(_deliver_order(order, versions, sockets, chance) for order, chance in zip(orders, chances, strict=True))
    )


async def _deliver_order(order: str, versions: int, sockets: Sequence[str], chance: random.Random) -> None:
    for version in range(1, versions + 1):
        await asyncio.sleep(chance.uniform(0, PACE_S))
        while not await deliver(Event(order, version), chance.choice(sockets)) or chance.random() < LOST:
            pass


async def deliver(event: Event, socket: str) -> bool:
    """Deliver an event to one worker; returns whether it answered in time."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_unix_connection(socket)
            try:
                writer.write(json.dumps(asdict(event)).encode() + b"\n")
                return await reader.readline() == b"ok\n"
            finally:
                writer.close()
                await writer.wait_closed()
    except TimeoutError:
        return False
