"""How much time is left for the end, counted from the moment when the process was asked to stop."""

import time
from collections.abc import Callable
from typing import Final

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
