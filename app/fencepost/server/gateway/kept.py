"""How many bytes of answers a process has kept under Idempotency-Keys (R16), and under the ids of queued writes.

The record of a write is always made: that a write is done once does not depend on how large its answer is. What is
bounded are the rows in it. Of an answer that is too large, or one too many, the record has what the write would have
been answered under `Prefer: return=minimal`, and says so to those who repeat it.

    up to SMALL bytes    kept: the record itself has a tenth of that
    above MOST bytes     never kept
    between them         as long as the caller has not had kept a quarter of `most`, and all have not had kept `most`

What was counted is forgotten evenly over the retention, as the records are later. So twice `most` is there in the end
at most, of a caller half of `most`. Nothing is asked of the database for it.
"""

from functools import partial
from typing import Final

from fencepost.server.clock import SYSTEM_CLOCK, Clock

SMALL: Final = 2_000
"""Bytes that PostgreSQL keeps in a row, without a place of their own."""
MOST: Final = 65_536
_SHARE: Final = 4
"""A caller has the fourth part."""
_MOST_CALLERS: Final = 1_000
"""Callers that are counted; one more, and the shares of all begin anew, within that of all."""


class KeptAnswers:
    """`most` bytes in `retention` seconds."""

    def __init__(self, most: int, retention: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self._all = _Bucket(most, retention, clock)
        self._callers: dict[str, _Bucket] = {}
        self._new = partial(_Bucket, most // _SHARE, retention, clock)

    def takes(self, caller: str, size: int) -> bool:
        """Whether so many bytes of a caller's answer are kept, which are counted then."""
        if size <= SMALL:
            return True
        if size > MOST:
            return False
        own = self._bucket(caller)
        if not (own.has_room(size) and self._all.has_room(size)):
            return False
        own.level += size
        self._all.level += size
        return True

    def _bucket(self, caller: str) -> "_Bucket":
        found = self._callers.get(caller)
        if found is None:
            if len(self._callers) >= _MOST_CALLERS:
                self._callers.clear()
            found = self._callers[caller] = self._new()
        return found


class _Bucket:
    """Bytes that were counted, and are forgotten evenly."""

    def __init__(self, most: int, retention: float, clock: Clock) -> None:
        self.most, self._rate, self._clock = most, most / retention, clock
        self.level, self._at = 0.0, clock.monotonic()

    def has_room(self, size: int) -> bool:
        now = self._clock.monotonic()
        self.level, self._at = max(self.level - (now - self._at) * self._rate, 0.0), now
        return self.level + size <= self.most
