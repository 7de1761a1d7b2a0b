"""Counts what callers were refused for who they are, until it is written down (postgres/upkeep.py)."""

import time
from collections.abc import Callable, Mapping
from typing import Final

from fencepost.server.observe.events import CallerRefused, Event

MOST: Final = 1000
"""Callers and codes that are counted apart in a day, by one process."""
DAY: Final = 86_400.0
OTHERS: Final = "others"
_LONGEST: Final = 500
"""Characters of a name or a detail that are kept."""

Counts = Mapping[tuple[str, str], tuple[int, str]]
"""By caller and code: how often, and the detail of the last one."""


class CallerRefusals:
    """Subscribes to events."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._counts: dict[tuple[str, str], tuple[int, str]] = {}
        self._clock, self._day = clock, clock()
        self._seen: set[tuple[str, str]] = set()
        """What is counted apart today: each is a row."""

    def on_event(self, event: Event) -> None:
        if isinstance(event, CallerRefused):
            self._add(event.caller[:_LONGEST], event.code, 1, event.detail[:_LONGEST])

    def take(self) -> Counts:
        counts, self._counts = self._counts, {}
        return counts

    def give_back(self, counts: Counts) -> None:
        """Add what was taken and could not be written down."""
        for (caller, code), (count, detail) in counts.items():
            self._add(caller, code, count, detail)

    def _add(self, caller: str, code: str, count: int, detail: str) -> None:
        key = (caller, code)
        if self._clock() - self._day > DAY:
            self._day, self._seen = self._clock(), set()
        if key not in self._seen and len(self._seen) >= MOST:
            key = (OTHERS, code)
        else:
            self._seen.add(key)
        before, _ = self._counts.get(key, (0, ""))
        self._counts[key] = before + count, detail
