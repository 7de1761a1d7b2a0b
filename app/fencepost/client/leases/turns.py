"""Who writes when, among the writes of one lease.

Two writes to one row at the same time would make each other stale: the one with the higher token may arrive first. So
writes to one resource go one after the other, each with a token taken when its turn has come. A write whose rows are
not known beforehand (an insert, a filter) excludes all others of the lease. Writes to different rows run side by side.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass(eq=False, slots=True)
class _Turn:
    resource: str | None
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def excludes(self, other: "_Turn") -> bool:
        return self.resource is None or other.resource is None or self.resource == other.resource


class OperationTurns:
    """First come first served, for those that exclude each other."""

    def __init__(self) -> None:
        self._open: dict[_Turn, None] = {}  # in the order of arrival

    @asynccontextmanager
    async def turn(self, resource: str | None) -> AsyncIterator[None]:
        """Wait for the end of all earlier turns on this resource; None stands for every resource."""
        mine = _Turn(resource)
        earlier = [turn for turn in self._open if turn.excludes(mine)]
        self._open[mine] = None
        try:
            for turn in earlier:
                await turn.over.wait()
            yield
        finally:
            del self._open[mine]
            mine.over.set()
