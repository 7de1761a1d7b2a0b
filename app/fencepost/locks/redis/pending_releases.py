"""What an acquire leaves behind when it is cancelled or gets no answer, and who gives it back.

A request that is under way cannot be called back: it may be carried out after a release that was sent behind it over
another connection. So a cancelled acquire first waits for the answer, then releases, and only then is cancelled.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from fencepost.locks.source import Grant, SourceError

T = TypeVar("T")


class PendingReleases:
    """Tasks that outlive the requests they belong to."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    async def acquire_or_release(
        self, attempt: Coroutine[Any, Any, T], release: Callable[[Grant], Awaitable[None]]
    ) -> T:
        """Await an attempt to acquire. Cancelled, it ends all the same, and what it was granted is released."""
        task = self._start(attempt)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            # Cancelled once more, the caller goes and this goes on.
            await asyncio.shield(self._start(self._undo(task, release)))
            raise

    def give_back(self, release: Coroutine[Any, Any, None]) -> None:
        """Release behind the caller's back what may have been granted."""
        self._start(self._tried(release))

    async def finish(self) -> None:
        """Return once all is given back, or has failed to."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _start(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _undo(self, task: asyncio.Task[T], release: Callable[[Grant], Awaitable[None]]) -> None:
        (answer,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(answer, Grant):
            await self._tried(release(answer))

    async def _tried(self, release: Awaitable[None]) -> None:
        # What cannot be released expires by its TTL, and no caller is left to get the error.
        with suppress(SourceError):
            await release
