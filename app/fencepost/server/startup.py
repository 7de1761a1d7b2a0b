"""What keeps the gateway from starting, and how long it tries."""

import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from fencepost.server.times import TIMES, Times

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
