"""How many requests may wait, in all and for each caller: so that one who asks for very many leaves room for others.

A caller is a text: the name of who asks, or the address of the connection (http/edge.py).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

UNKNOWN: Final = "?"
"""The caller where there is no connection: of what the gateway asks for itself."""
ASKING: Final[ContextVar[str]] = ContextVar("ASKING", default=UNKNOWN)
"""Who asks, in the task of a request."""
PEER: Final[ContextVar[str | None]] = ContextVar("PEER", default=None)
"""The address of its connection; None: it came by none, as a queued write does."""


def most_of(size: int) -> int:
    """Give three quarters, and one at least: so many of `size` may be taken, so that the rest is left to others."""
    return max(1, size - max(1, size // 4))


def waiting_quota(most: int) -> "Quota":
    """Count those that wait for PostgreSQL: FENCEPOST_MAX_WAITING, and of one caller three quarters of it."""
    return Quota(most, most_of(most), "FENCEPOST_MAX_WAITING", "three quarters of FENCEPOST_MAX_WAITING")


class Quota:
    """`most` of something at once, and `most_per_caller` of one caller. `setting`: the name of the first one's
    variable, for those who are refused; `per_caller` that of the other one.
    """

    def __init__(self, most: int, most_per_caller: int, setting: str, per_caller: str | None = None) -> None:
        self._most, self._most_per_caller, self._setting = most, most_per_caller, setting
        self._per_caller = per_caller or f"{setting}_PER_CALLER"
        self._of: dict[str, int] = {}
        self.count = 0
        """How many there are."""

    @contextmanager
    def place(self, caller: str) -> Iterator[str | None]:
        """Take a place for the block; a text instead says why there is none."""
        full = self.take(caller)
        try:
            yield full
        finally:
            if full is None:
                self.give_back(caller)

    def take(self, caller: str, number: int = 1) -> str | None:
        """Take so many places; a text instead says why there are not so many."""
        own = self._of.get(caller, 0) + number
        if own > self._most_per_caller:
            return f"{own - number} of {caller} already ({self._per_caller})"
        if self.count + number > self._most:
            return f"{self.count} already ({self._setting})"
        self.count += number
        self._of[caller] = own
        return None

    def give_back(self, caller: str, number: int = 1) -> None:
        self.count -= number
        if left := self._of[caller] - number:
            self._of[caller] = left
        else:
            del self._of[caller]
