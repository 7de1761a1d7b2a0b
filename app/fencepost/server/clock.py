"""The clock that the parts of a gateway wait by. wiring.py hands it down; a test hands in one that it moves by hand."""

import asyncio
import time
from collections.abc import Callable
from typing import Final, Protocol


class Timer(Protocol):
    """A call that is due later."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Seconds from any origin; it never goes back. What waits by it is woken by it."""

    def monotonic(self) -> float: ...

    async def sleep(self, seconds: float) -> None:
        """Return after so long."""
        ...

    def call_later(self, seconds: float, call: Callable[[], object]) -> Timer:
        """Call this after so long, in the running event loop."""
        ...


class SystemClock:
    """The machine's, by the timers of the running event loop."""

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait by the event loop's timers."""
        await asyncio.sleep(seconds)

    def call_later(self, seconds: float, call: Callable[[], object]) -> Timer:
        """Have the event loop call it."""
        return asyncio.get_running_loop().call_later(seconds, call)


SYSTEM_CLOCK: Final = SystemClock()


async def wait_until_set(event: asyncio.Event, seconds: float, clock: Clock) -> bool:
    """Wait for an event for so long at most; whether it is set."""
    timer = clock.call_later(seconds, (late := asyncio.Event()).set)
    waits = [asyncio.ensure_future(each.wait()) for each in (event, late)]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        timer.cancel()
        for each in waits:
            each.cancel()
    return event.is_set()
