"""What a request leaves behind that is cancelled, fails or gets no answer, and who gives it back.

A request to a lock service that is under way cannot be called back: it may be carried out after a release that was sent
behind it over another connection. So a cancelled acquire first waits for the answer, then releases, and only then is
cancelled. Cancelled once more, the caller goes, and this goes on.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from fencepost.server.locks.source import Grant, SourceError

T = TypeVar("T")


class PendingReleases:
    """Tasks that outlive the requests they belong to."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Do this, whatever becomes of the caller."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def to_end(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.shield(self.begin(work))

    async def acquire_or_release(
        self, attempt: Coroutine[Any, Any, T], release: Callable[[Grant], Awaitable[None]]
    ) -> T:
        """Await an attempt to acquire. Cancelled, it ends all the same, and what it was granted is released."""
        task = self.begin(attempt)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await self.give_back(self._undo(task, release))
            raise

    def give_back(self, release: Awaitable[None]) -> "asyncio.Future[None]":
        """Release what may have been granted. Who does not wait for that need not await it. It raises no SourceError:
        what cannot be released expires, and the caller has an answer or an error of its own.
        """
        return asyncio.shield(self.begin(_tried(release)))

    async def drain(self, within: float | None = None) -> None:
        """Return once all is given back, or has failed to, or so many seconds are over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                while self._tasks:
                    await asyncio.wait(self._tasks)

    @staticmethod
    async def _undo(task: asyncio.Task[T], release: Callable[[Grant], Awaitable[None]]) -> None:
        (answer,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(answer, Grant):
            await release(answer)


async def _tried(release: Awaitable[None]) -> None:
    with suppress(SourceError):
        await release
