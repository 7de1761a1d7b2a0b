"""Waiting for a condition by asking again and again, with a deadline. Only here the harness waits by the clock."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, TypeVar

T = TypeVar("T")

PATIENCE: Final = 30.0 * float(os.environ.get("FENCEPOST_PATIENCE") or 1)
"""Seconds after which a wait gives up that only guards against hanging. A machine that is busy with other work sets the
variable FENCEPOST_PATIENCE to a factor, as CI does.
"""

_FIRST, _LONGEST = 0.001, 0.01  # seconds: the first pause is short, each further one is twice as long, up to the second


def _pauses() -> Iterator[float]:
    pause = _FIRST
    while True:
        yield pause
        pause = min(2 * pause, _LONGEST)


async def eventually(
    condition: Callable[[], Awaitable[T | None]], *, within: float = PATIENCE, what: str = "the condition"
) -> T:
    """Ask again and again until the answer is truthy, and return it; TimeoutError after `within` seconds."""
    deadline, pauses = time.monotonic() + within, _pauses()
    while not (answer := await condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not come true within {within} s")
        await asyncio.sleep(next(pauses))
    return answer


def wait_until(condition: Callable[[], T | None], *, within: float = PATIENCE, what: str = "the condition") -> T:
    """Do the same for code that is not asynchronous: the calling thread waits."""
    deadline, pauses = time.monotonic() + within, _pauses()
    while not (answer := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not come true within {within} s")
        time.sleep(next(pauses))
    return answer
