"""What a consumer waits for: before it tries again what could not be done, and while nothing goes on."""

import asyncio
from dataclasses import dataclass

from fencepost.server.consuming.reports import Reports
from fencepost.server.times import ConsumingTimes


@dataclass(slots=True)
class Backoff:
    """Twice as long each time, until something succeeds."""

    times: ConsumingTimes
    seconds: float = 0.0

    def next(self) -> float:
        """Give the next pause, in seconds."""
        self.seconds = min(max(self.seconds * 2, self.times.pause), self.times.longest_pause)
        return self.seconds

    def reset(self) -> None:
        """Something has succeeded."""
        self.seconds = 0.0


@dataclass(slots=True)
class Pause:
    """Why nothing is decided, or nothing is taken, for now; None: it goes on."""

    reports: Reports
    reason: str | None = None

    def begin(self, reason: str) -> None:
        if self.reason is None:
            self.reports.paused(reason)
        self.reason = reason

    def end(self) -> None:
        if self.reason is not None:
            self.reason = None
            self.reports.resumed()


async def wait_for(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event, that long at most; whether it is set."""
    if event.is_set():
        return True
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
