"""How many requests may wait, in all and for each caller: so that one who asks for very many leaves room for others.

A caller is a text: the name of who asks, or the address of the connection (http/caller.py).
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

UNKNOWN = "?"
"""The caller where there is no connection: of what the gateway asks for itself."""


def most_of(size: int) -> int:
    """Give three quarters, and one at least: so many of `size` may be taken, so that the rest is left to others."""
    return max(1, size - max(1, size // 4))


class Quota:
    """`most` of something at once, and `most_per_caller` of one caller. `setting`: the name of the first one's
    variable, for those who are refused; `per_caller` that of the other one.
    """

    def __init__(self, most: int, most_per_caller: int, setting: str, per_caller: str | None = None) -> None:
        self._most, self._most_per_caller, self._setting = most, most_per_caller, setting
        self._per_caller = per_caller or f"{setting}_PER_CALLER"
        self._of: Counter[str] = Counter()
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
        own = self._of.get(caller, 0)
        if own + number > self._most_per_caller:
            return f"{own} of {caller} already ({self._per_caller})"
        if self.count + number > self._most:
            return f"{self.count} already ({self._setting})"
        self.count += number
        self._of[caller] += number
        return None

    def give_back(self, caller: str, number: int = 1) -> None:
        """Give back what was taken."""
        self.count -= number
        self._of[caller] -= number
        if not self._of[caller]:
            del self._of[caller]
