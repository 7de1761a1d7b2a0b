"""What keeps a gateway from starting, how long it tries; and the time that is left at its end."""

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from fencepost.server.times import TIMES, Times

# How much time is left for the end, counted from the moment when the process was asked to stop.

LEAST: Final = 1.0
"""Seconds that there always are, also when requests in flight have used up all of them."""


class Stopping:
    """The process's end. `within`: the seconds of --shutdown-timeout."""

    def __init__(self, within: float, now: Callable[[], float] = time.monotonic) -> None:
        self._within, self._now = within, now
        self._asked: float | None = None

    def ask(self) -> None:
        """The process is asked to stop. Only the first time counts."""
        if self._asked is None:
            self._asked = self._now()

    def left(self) -> float:
        """Seconds that what is still to be closed may take; all of them where the process was not asked."""
        gone = 0.0 if self._asked is None else self._now() - self._asked
        return max(self._within - gone, LEAST)


# What keeps the gateway from starting, and how long it tries.

LOGGER: Final = logging.getLogger("fencepost")
Started = TypeVar("Started")


class StartupError(Exception):
    """The gateway cannot start. The message is one line for the operator: what is wrong, what to do."""


class UnreachableError(StartupError):
    """PostgreSQL cannot be reached, or takes no connections yet. That may pass: `within` tries again."""


async def within(seconds: float, start: Callable[[], Awaitable[Started]], times: Times = TIMES) -> Started:
    """Start, and return what `start` returns. Each UnreachableError is logged, and followed by another try until
    `seconds` have passed since the first one began; then it is raised. Every other error is raised at once.
    """
    end = times.clock.monotonic() + seconds
    logged = ""
    while True:
        try:
            return await start()
        except UnreachableError as error:
            left = end - times.clock.monotonic()
            if left <= 0:
                raise
            if str(error) != logged:
                LOGGER.warning("%s; trying again for %.0f s (--start-timeout)", error, left)
                logged = str(error)
        await times.clock.sleep(min(times.connections.start_pause, left))
