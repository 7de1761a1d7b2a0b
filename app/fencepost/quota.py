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
        full = self._full(caller)
        if full is not None:
            yield full
            return
        self.count += 1
        self._of[caller] += 1
        try:
            yield None
        finally:
            self.count -= 1
            self._of[caller] -= 1
            if not self._of[caller]:
                del self._of[caller]

    def _full(self, caller: str) -> str | None:
        if self._of[caller] >= self._most_per_caller:
            return f"{self._of[caller]} of {caller} already ({self._per_caller})"
        if self.count >= self._most:
            return f"{self.count} already ({self._setting})"
        return None
