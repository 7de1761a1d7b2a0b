"""Ends holds that live by this process's session (Capabilities.ttl_from_server is False) when their leases are over.

The lease's record has the time: any gateway may have renewed it, or released it. So the record is read when a lease is
due by what this process knows of it, and every few seconds. Should PostgreSQL not be there to be asked, the
hold stays: a lock that is kept for too long delays others, and does no other harm.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any

from fencepost.server.locks.source import Source
from fencepost.server.postgres.connections.connection import Connection
from fencepost.server.postgres.errors import StorageError
from fencepost.server.postgres.leases import source_leases
from fencepost.server.times import TIMES, Times

Ask = Callable[[Callable[[Connection], Awaitable[Any]]], Awaitable[Any]]
"""Runs a statement on a connection to PostgreSQL."""


class HoldWatch:
    """The holds of one source that this process acquired."""

    def __init__(
        self,
        source: Source,
        ask: Ask,
        failed: Callable[[str], None],
        times: Times = TIMES,
    ) -> None:
        self._source, self._ask, self._failed = source, ask, failed
        self._times, self._clock = times.sources, times.clock
        self._holds: dict[int, tuple[str, str]] = {}
        self._next_look = math.inf
        self._watching: asyncio.Task[None] | None = None
        self._resting: asyncio.Task[None] | None = None

    def keep(self, lease_id: int, lock: str, handle: str, remaining_ms: int) -> None:
        """Watch over a hold from now on, whose lease is over in `remaining_ms` unless it is renewed."""
        self._holds[lease_id] = (lock, handle)
        self.due(lease_id, remaining_ms)
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch())

    def due(self, lease_id: int, remaining_ms: int) -> None:
        """A lease is over in `remaining_ms`: look then, if no look is due before that."""
        at = self._clock.monotonic() + min(remaining_ms / 1000, self._times.look_at_least_every)
        if lease_id in self._holds and at < self._next_look:
            self._next_look = at
            if self._resting is not None:
                self._resting.cancel()

    def forget(self, lease_id: int) -> None:
        """The hold has been ended elsewhere."""
        self._holds.pop(lease_id, None)

    async def close(self, within: float) -> None:
        """Release all of them at once, for at most `within` seconds. Those that could not be released are reported with
        their locks: they end with this process's session.
        """
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        endings = [asyncio.create_task(self._end(lease_id)) for lease_id in self._holds]
        if endings:
            _, late = await asyncio.wait(endings, timeout=within)
            for ending in late:
                ending.cancel()
            await asyncio.gather(*endings, return_exceptions=True)
        if self._holds:
            locks = ", ".join(sorted(lock for lock, _ in self._holds.values()))
            self._failed(
                f"at its end this process could not release {len(self._holds)} of its locks, which stay held until its"
                f" session has ended: {locks}"
            )

    async def _watch(self) -> None:
        while self._holds:
            if (left := self._next_look - self._clock.monotonic()) > 0:
                await self._rest(left)
                continue
            self._next_look = math.inf  # what becomes due during the look lowers it again
            pause = await self._look()
            self._next_look = min(self._next_look, self._clock.monotonic() + pause)
        self._next_look = math.inf

    async def _rest(self, seconds: float) -> None:
        self._resting = asyncio.ensure_future(self._clock.sleep(seconds))
        try:
            await asyncio.wait((self._resting,))
        finally:
            self._resting.cancel()
            self._resting = None

    async def _look(self) -> float:
        """End the holds whose leases are over. Returns in how many seconds to look again."""
        try:
            due: dict[int, int] = await self._ask(lambda c: source_leases.due_in(c, list(self._holds)))
        except StorageError as error:
            self._failed(f"which leases are over cannot be asked: {error}")
            return self._times.look_again
        over = [lease_id for lease_id, due_ms in due.items() if due_ms == 0]
        ended = await asyncio.gather(*(self._end(lease_id) for lease_id in over), return_exceptions=True)
        pause = min([self._times.look_at_least_every, *(due_ms / 1000 for due_ms in due.values() if due_ms > 0)])
        for failure in ended:  # one hold that cannot be ended keeps no other
            if failure is not None:
                self._failed(f"a hold whose lease is over could not be ended yet: {failure!r}")
                pause = min(pause, self._times.look_again)
        return pause

    async def _end(self, lease_id: int) -> None:
        lock, handle = self._holds.get(lease_id, (None, None))
        if lock is None or handle is None:
            return
        await self._source.release(lock, handle)
        self.forget(lease_id)
        await self._ask(lambda c: source_leases.end(c, lease_id, by=None))
