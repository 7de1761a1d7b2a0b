"""What the lines of batches (POST /v1/batch) have of this process: places, and a share of the connections.

Who sends a million lines at once is not to keep others from writing. So the lines are decided some at a time, whichever
batch they are of: each waits for a place behind those that asked before it. What cannot share a transaction takes one
of half of the pool's connections. Lines are never refused for want of a place, and take none of FENCEPOST_MAX_WAITING.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fencepost.fencing.caller import Caller
from fencepost.gateway.turns import Turns
from fencepost.storage.connections.connection import Connection
from fencepost.storage.connections.engine import Database


class Batches:
    """`lines` are decided at a time; `connections` of the pool are for those that go alone, `wait` seconds at most for
    a turn at a locked row. One at a time looks whether a table has changed (`looks`).
    """

    def __init__(self, lines: int, connections: int, wait: float) -> None:
        self.lines = lines
        self.places = asyncio.Semaphore(lines)
        self.turns = Turns(at_once=max(connections // 2, 1), wait=wait, most_waiting=lines)
        self.looks = asyncio.Semaphore(1)
        self._room = asyncio.Semaphore(connections)
        self._stopping: asyncio.Future[None] | None = None  # made in the loop that it belongs to
        self._stopped = False

    @asynccontextmanager
    async def connection(self, database: Database, caller: Caller, *, writing: bool) -> AsyncIterator[Connection]:
        """Lend one of the share. It is waited for as long as it takes; raises what Database.connection does."""
        async with self._room, database.connection(writing=writing, caller=caller, counted=False) as connection:
            yield connection

    @property
    def stopping(self) -> "asyncio.Future[None]":
        """Done once the process is asked to stop: batches read no more then. It is not to be cancelled."""
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_future()
            if self._stopped:
                self._stopping.set_result(None)
        return self._stopping

    def stop(self) -> None:
        """Have batches read no more, and end."""
        self._stopped = True
        if self._stopping is not None and not self._stopping.done():
            self._stopping.set_result(None)
