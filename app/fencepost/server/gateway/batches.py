"""What batches (POST /v1/batch) have of this process: places for their lines, and a share of the connections.

Who sends a million lines at once is not to keep others from writing, nor who sends a few to rows that are locked. So
lines that share transactions are decided some at a time, whichever batch they are of. Of half of the pool's connections
one half is for lines that go alone, no batch having all of these, and one for batches that land as a whole. Who waits
for a lock has no place meanwhile. Lines are never refused for want of a place or of a connection, and take none of
FENCEPOST_MAX_WAITING.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

from fencepost.server.gateway.turns import Turns
from fencepost.server.postgres.connection import Connection
from fencepost.server.postgres.errors import UnavailableError
from fencepost.server.quota import ASKING, Shares, most_of

BATCHES_AT_ONCE: Final = 4
"""So many batches decide all lines that they may have in hand; the lines of more of them wait for places. A batch whose
table is locked keeps its places for as long, and leaves those of three others."""


class Batches:
    """`lines`: a batch has so many in hand at most. `connections` of the pool are for those that go alone, `wait`
    seconds at most for a turn at a locked row. One at a time looks whether a table has changed (`looks`). A batch that
    is to land as a whole waits for `pool_timeout` seconds at most.
    """

    def __init__(self, lines: int, connections: int, wait: float, pool_timeout: float) -> None:
        self.lines, self.wait = lines, wait
        of_whole = max(connections // 2, 1)
        self.of_lines = max(connections - of_whole, 1)
        self._pool_timeout = pool_timeout
        self.places = asyncio.Semaphore(BATCHES_AT_ONCE * lines)
        self.looks = asyncio.Semaphore(1)
        self.room = asyncio.Semaphore(self.of_lines)
        self._whole, self._of_caller = asyncio.Semaphore(of_whole), Shares(most_of(of_whole))
        self._stopping: asyncio.Future[None] | None = None  # made in the loop that it belongs to
        self._stopped = False

    @asynccontextmanager
    async def whole(self) -> AsyncIterator[None]:
        """Have a turn for a batch that is to land as a whole: it keeps a connection, as a request does, and they have
        half of those of batches; one caller's have three quarters of these. UnavailableError: the turn did not come in
        time, or the gateway stops.
        """
        with self._of_caller.of(ASKING.get()) as own:
            async with self._in_time(own), self._in_time(self._whole):
                if self._stopped:
                    raise UnavailableError("the gateway is stopping: nothing was written")
                yield

    @asynccontextmanager
    async def _in_time(self, places: asyncio.Semaphore) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._pool_timeout):
                await places.acquire()
        except TimeoutError as error:
            reason = f"other batches that land as a whole were not done within {self._pool_timeout:g} s"
            raise UnavailableError(f"{reason}: nothing was written") from error
        try:
            yield
        finally:
            places.release()

    @property
    def stopping(self) -> "asyncio.Future[None]":
        """Done once the process is asked to stop: batches read no more then. It is not to be cancelled."""
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_future()
            if self._stopped:
                self._stopping.set_result(None)
        return self._stopping

    def stop(self) -> None:
        self._stopped = True
        if self._stopping is not None and not self._stopping.done():
            self._stopping.set_result(None)


class Share:
    """What one batch has: connections for all lines of it but one's, and turns of its own at locked rows."""

    def __init__(self, batches: Batches) -> None:
        self.places, self.looks = batches.places, batches.looks
        at_once = max(batches.of_lines // 2, 1)
        self.turns = Turns(at_once=at_once, wait=batches.wait, most_waiting=sys.maxsize, of_one_caller=True)
        self._all = batches.room
        self._own = asyncio.Semaphore(max(batches.of_lines - 1, 1))

    @asynccontextmanager
    async def connection(self, connection: AbstractAsyncContextManager[Connection]) -> AsyncIterator[Connection]:
        """Lend it as one of the share, which is waited for as long as it takes."""
        async with self._own, self._all, connection as lent:
            yield lent
