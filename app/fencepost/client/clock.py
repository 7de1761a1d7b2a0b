"""The clock that trust is measured with, and waiting by it.

CLOCK_BOOTTIME, where there is one: CLOCK_MONOTONIC stands still while a laptop sleeps, and the lease does not. The
event loop's timers use CLOCK_MONOTONIC, so every wait is cut into slices, and the clock is asked again after each.
Nothing here looks at the wall clock.
"""

import asyncio
import sys
import time
from collections.abc import Coroutine
from typing import Any, Final, Protocol, TypeVar

T = TypeVar("T")

SLICE: Final = 1.0  # seconds: how far a wait can overshoot because the machine was suspended


class Clock(Protocol):
    """A clock that never goes back and counts while the machine sleeps. Seconds, from any origin."""

    def now(self) -> float: ...

    async def sleep(self, seconds: float) -> None:
        """Wait for about so long."""
        ...


class SystemClock:
    """The machine's own."""

    if sys.platform == "linux":

        def now(self) -> float:
            """Return the seconds since boot, suspended ones included."""
            return time.clock_gettime(time.CLOCK_BOOTTIME)
    else:

        def now(self) -> float:
            """Return the monotonic time. On macOS and Windows too it may stand still during sleep."""
            return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait by the event loop's timers."""
        await asyncio.sleep(seconds)


async def sleep_until(clock: Clock, deadline: float) -> None:
    """Return once the clock shows `deadline`; at most a slice later if the machine was suspended meanwhile."""
    while (left := deadline - clock.now()) > 0:
        await clock.sleep(min(left, SLICE))


async def before(clock: Clock, deadline: float, work: Coroutine[Any, Any, T]) -> T:
    """Run `work`, and cancel it when the clock shows `deadline`: TimeoutError."""
    running = asyncio.create_task(work)
    timer = asyncio.create_task(sleep_until(clock, deadline))
    try:
        await asyncio.wait({running, timer}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            return running.result()
        raise TimeoutError
    finally:
        running.cancel()
        timer.cancel()
        await asyncio.gather(running, timer, return_exceptions=True)
