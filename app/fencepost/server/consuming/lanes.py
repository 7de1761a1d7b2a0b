"""Messages of one resource one after the other, those of different resources at once: a lane is a resource's messages,
in the order in which they were taken, and the task that decides them.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from fencepost.server.queues.log import Received

Decide = Callable[[Received], Awaitable[None]]
"""Decides a message, however long it takes. Raises nothing."""


class Lanes:
    """The lanes of a consumer."""

    def __init__(self, decide: Decide) -> None:
        self._decide: Final = decide
        self._lanes: dict[bytes, deque[Received]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, received: Received) -> None:
        """Put a message at the end of its resource's lane."""
        key = received.message.key
        lane = self._lanes.get(key)
        if lane is not None:
            lane.append(received)
            return
        lane = self._lanes[key] = deque((received,))
        task = asyncio.get_running_loop().create_task(self._run(key, lane))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, key: bytes, lane: deque[Received]) -> None:
        try:
            while lane:
                await self._decide(lane[0])
                lane.popleft()
        finally:
            del self._lanes[key]

    def leave_out(self, partitions: frozenset[int] | None = None) -> list[Received]:
        """Take out the messages that have not begun: of these partitions, or all. Returns them."""
        left: list[Received] = []
        for lane in self._lanes.values():
            first, *others = lane
            kept = [each for each in others if partitions is not None and each.position.partition not in partitions]
            left += [each for each in others if partitions is None or each.position.partition in partitions]
            lane.clear()
            lane.extend((first, *kept))  # a key may be in another partition, too: one where it does not belong
        return left

    def __len__(self) -> int:
        return len(self._lanes)

    async def end(self, within: float) -> None:
        """Wait for those that have begun, and give up the others after `within` seconds."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=within)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
