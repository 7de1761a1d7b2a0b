"""Ctrl-C: the first one asks the run to end, so that no fault is left half undone; the second one does not wait.

One that comes within a second of the first counts as the same: `timeout`, and some supervisors, signal a process and
then its group, and so signal it twice.
"""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_THE_SAME: Final = 1.0  # seconds


class Interruption:
    """Whether an end was asked for."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = 0.0
        self.asked = False

    def heed(self, _number: int, _frame: FrameType | None) -> None:
        """Take a signal. Raises KeyboardInterrupt at the second one."""
        if not self.asked:
            self.asked, self._since = True, self._clock()
        elif self._clock() - self._since >= _THE_SAME:
            raise KeyboardInterrupt


@contextmanager
def heeding_interrupts() -> Iterator[Interruption]:
    """Heed SIGINT and SIGTERM in this block. Main thread only."""
    interruption = Interruption()
    before = {number: signal.signal(number, interruption.heed) for number in _SIGNALS}
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
