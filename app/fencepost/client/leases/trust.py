"""How long a holder may believe that the lease is its own.

The database grants until `granted + ttl` by its clock, and the client never learns when `granted` was on its own. It
knows a moment that was certainly not later: when it sent the request (plus the time that the request then waited
in the queue, by the gateway's answer). Counted from there, trust ends before the lease does, however long the answer
took:

    attempt started + waited + ttl - margin

Each renewal counts from the start of its own attempt. One that fails or hangs extends nothing, and neither does the
repeated answer to an acquire whose first answer was lost: its grant may be old. The margin is for
clocks that run at different speeds. Trust that has ended never comes back; ending early is safe, ending late is not.

Trust decides when the client stops. It is no fence: a process can be paused between the question and the write, and
it is the gateway that refuses the write then.
"""

import math
from dataclasses import dataclass
from typing import Final, Self

from fencepost.client.clock import Clock

MARGIN_SHARE: Final = 0.05
LEAST_MARGIN: Final = 0.02  # seconds
RENEWALS_PER_TTL: Final = 3


@dataclass(frozen=True, slots=True)
class Timings:
    """TTL and margin, in seconds, checked against each other. Renewals start at a third of the TTL."""

    ttl: float
    margin: float

    @classmethod
    def of(cls, ttl: float, margin: float | None = None) -> Self:
        """Check them, and fill in the margin: 5 % of the TTL, and at least 20 ms. ValueError if they make no sense."""
        if not (math.isfinite(ttl) and ttl >= 0.001):  # noqa: PLR2004 - a millisecond is what the gateway counts in
            raise ValueError(f"ttl={ttl!r}: a lease lives for at least 0.001 seconds")
        if margin is None:
            margin = max(ttl * MARGIN_SHARE, LEAST_MARGIN)
        if not (math.isfinite(margin) and margin >= 0):
            raise ValueError(f"margin={margin!r}: a margin is 0 or more seconds")
        if margin >= ttl * (RENEWALS_PER_TTL - 1) / RENEWALS_PER_TTL:
            raise ValueError(
                f"ttl={ttl!r}, margin={margin!r}: the margin must be less than two thirds of the TTL, because the "
                "first renewal is sent after one third"
            )
        return cls(ttl, margin)

    @property
    def renew_after(self) -> float:
        """Seconds from one successful attempt's start to the next attempt."""
        return self.ttl / RENEWALS_PER_TTL


class Trust:
    """Whether a lease can be trusted at this moment. Reading it is safe from any thread."""

    def __init__(self, clock: Clock, timings: Timings, started: float) -> None:
        self._clock = clock
        self._timings = timings
        self._started = started
        self._ended = False

    @property
    def until(self) -> float:
        """When trust ends, on the clock, unless a renewal succeeds before."""
        return self._started + self._timings.ttl - self._timings.margin

    @property
    def renew_at(self) -> float:
        """When the next renewal is due, on the clock."""
        return self._started + self._timings.renew_after

    @property
    def remaining(self) -> float:
        """How many seconds are left; 0 once it has ended."""
        return max(self.until - self._clock.now(), 0.0) if self.holds() else 0.0

    def holds(self) -> bool:
        """Ask the clock. Once it was False it stays False."""
        if not self._ended and self._clock.now() >= self.until:
            self._ended = True
        return not self._ended

    def record_renewal(self, started: float) -> bool:
        """Count from `started`, when a renewal that succeeded was sent. False: it came too late, trust has ended."""
        if not self.holds():
            return False
        self._started = max(self._started, started)
        return True

    def end(self) -> None:
        """End it now."""
        self._ended = True
