"""Queued writes for code that is not asynchronous."""

from typing import Generic, TypeVar

from fencepost.client.queued.write import QueuedWrite, State
from fencepost.client.sync.loop import Loop

T = TypeVar("T")


class SyncQueuedWrite(Generic[T]):
    """A write that was queued, as `QueuedWrite` is."""

    def __init__(self, queued: QueuedWrite[T], loop: Loop) -> None:
        self._queued = queued
        self._loop = loop

    def __repr__(self) -> str:
        return repr(self._queued).replace("<QueuedWrite", "<SyncQueuedWrite", 1)

    @property
    def id(self) -> str | None:
        """What names it."""
        return self._queued.id

    def state(self) -> State:
        """Ask what became of it, without waiting. NotFound when the gateway no longer knows."""
        return self._loop.run(self._queued.state)

    def result(self, timeout: float | None = None) -> T:
        """Wait until it is decided, and return what the same write would have returned at once: the row; None after a
        delete. May be called again.

        timeout: seconds, then StillQueued; None: for ever. A gateway that cannot be reached is asked again, however
        long that takes: StillQueued has the last such error as its cause. StaleToken, SpentToken: the fence refused its
        token. WriteFailed: it was refused for another reason, and is a dead letter. NotFound: the gateway no longer
        knows.
        """
        return self._loop.run(lambda: self._queued.result(timeout))
