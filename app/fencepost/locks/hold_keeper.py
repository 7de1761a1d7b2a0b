"""Ends holds that live by this process's session (Capabilities.ttl_from_server is False) when their leases are over.

The lease's record says when: any gateway may have renewed it, or released it. Should PostgreSQL not be there to be
asked, the hold stays: a lock that is kept for too long is in the way, and harms nobody.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from fencepost.locks.source import Source, SourceError
from fencepost.storage import source_leases
from fencepost.storage.connection import Connection
from fencepost.storage.errors import StorageError

LOOKS_AGAIN: Final = 1.0
"""Seconds until it is tried again when PostgreSQL or the service could not be asked."""
LOOKS_AT_LEAST: Final = 5.0
"""Seconds between two looks: a lease that was released through another gateway is over at once."""


Ask = Callable[[Callable[[Connection], Awaitable[Any]]], Awaitable[Any]]
"""Runs a statement on a connection to PostgreSQL."""


class HoldKeeper:
    """The holds of one source that this process acquired."""

    def __init__(self, source: Source, ask: Ask, failed: Callable[[str], None]) -> None:
        self._source, self._ask, self._failed = source, ask, failed
        self._holds: dict[int, tuple[str, str]] = {}
        self._watching: asyncio.Task[None] | None = None

    def keep(self, lease_id: int, lock: str, handle: str) -> None:
        """Watch over a hold from now on."""
        self._holds[lease_id] = (lock, handle)
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch())

    def forget(self, lease_id: int) -> None:
        """Somebody else has ended it."""
        self._holds.pop(lease_id, None)

    async def close(self) -> None:
        """End all of them: their session ends with this process."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        for lease_id in list(self._holds):
            with suppress(SourceError, StorageError):  # the session's end does the same, later
                await self._end(lease_id)

    async def _watch(self) -> None:
        while self._holds:
            pause = LOOKS_AT_LEAST
            try:
                due: dict[int, int] = await self._ask(lambda c: source_leases.over(c, list(self._holds)))
            except StorageError as error:
                self._failed(f"which leases are over cannot be asked: {error}")
                due, pause = {}, LOOKS_AGAIN
            for lease_id in [each for each, due_ms in due.items() if due_ms == 0]:
                try:
                    await self._end(lease_id)
                except Exception as error:  # noqa: BLE001 - one hold that cannot be ended keeps no other
                    self._failed(f"a hold whose lease is over could not be ended yet: {error!r}")
                    pause = LOOKS_AGAIN
            await asyncio.sleep(min([pause, *(due_ms / 1000 for due_ms in due.values() if due_ms > 0)]))

    async def _end(self, lease_id: int) -> None:
        lock, handle = self._holds.get(lease_id, (None, None))
        if lock is None or handle is None:
            return
        await self._source.release(lock, handle)
        self.forget(lease_id)
        await self._ask(lambda c: source_leases.end(c, lease_id, released=False))
