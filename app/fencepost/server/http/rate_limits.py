"""How many requests a caller may send, and how often an address may fail to say who it is; in each process apart.

Counted by the library `limits` in memory, as a sliding window of two counters: it needs the same room however many
requests there are. The header fields are those of draft-ietf-httpapi-ratelimit-headers (RateLimit-Policy: q requests in
w seconds; RateLimit: r requests are left, and t seconds until there are more).
"""

import math
import time
from dataclasses import dataclass
from typing import Final, Literal

from limits import RateLimitItem, parse
from limits.storage import MemoryStorage
from limits.strategies import SlidingWindowCounterRateLimiter

from fencepost.server.fence.caller import Caller
from fencepost.server.fence.problem_types import BODY_TOO_LARGE, RATE_LIMITED
from fencepost.server.fence.problems import Problem
from fencepost.server.startup import StartupError

HEADERS: Final = "fencepost.rate-limit"
"""Under which name the ASGI scope of a request has the fields that its answer shows."""
Fields = tuple[tuple[bytes, bytes], ...]
Counter = Literal["caller", "lease"]
"""What a request counts as: `lease`, a renewal or release of a lease; `caller`, anything else."""


class RateLimitError(StartupError):
    """A setting is no rate limit. The message is one line."""


def read_rate(setting: str, text: str) -> RateLimitItem | None:
    """Read `100/second`, `5 per 10 minutes`; empty: no limit. Raises RateLimitError."""
    if not text.strip():
        return None
    try:
        item = parse(text)
    except ValueError:
        item = None
    if item is None or item.amount < 1:
        raise RateLimitError(f"{setting}: {text!r:.60} is no rate: 100/second, 5 per 10 minutes")
    return item


class RateLimits:
    """`per_caller`: requests of one caller, or of one address where the caller is the anonymous one. `failed`: requests
    of one address whose token or key was not accepted. None: no limit.
    """

    def __init__(self, per_caller: RateLimitItem | None = None, failed: RateLimitItem | None = None) -> None:
        self._per_caller, self._failed = per_caller, failed
        self._limiter = SlidingWindowCounterRateLimiter(MemoryStorage())

    def take(self, caller: Caller, address: str | None, counter: Counter = "caller") -> tuple[Problem | None, Fields]:
        """Count a request, `address` where it is an anonymous one; a problem if it is one too many. Gives the fields of
        its answer. `counter`: renewals and releases of leases are counted apart, each up to the limit.
        """
        limit = self._per_caller
        if limit is None:
            return None, ()
        who = (counter, "caller", caller.name) if address is None else (counter, "address", address)
        allowed = self._limiter.hit(limit, *who)
        remaining, seconds = self._left(limit, *who)
        fields = (
            (b"ratelimit-policy", b'"%s";q=%d;w=%d' % (counter.encode(), limit.amount, limit.get_expiry())),
            (b"ratelimit", b'"%s";r=%d;t=%d' % (counter.encode(), remaining, seconds)),
        )
        if allowed:
            return None, fields
        of = f"The caller {caller.name}" if address is None else f"The address {address}"
        sent = "renewals and releases of leases" if counter == "lease" else "requests"
        detail = f"{of} has sent more {sent} than {limit}, which is what one may send to a process of this gateway."
        return Problem(RATE_LIMITED, detail, retry_after=max(seconds, 1)), fields

    def pace(self, caller: Caller, address: str | None) -> "Pace | None":
        """Give how fast the lines of a batch of this caller may come; None: there is no limit."""
        if self._per_caller is None:
            return None
        return Pace(self, self._per_caller, ("caller", caller.name) if address is None else ("address", address))

    def count(self, limit: RateLimitItem, who: tuple[str, str], cost: int) -> int:
        """Count so many requests at once, if they are not too many: then give the seconds until there are more."""
        if self._limiter.hit(limit, "caller", *who, cost=cost):
            return 0
        return max(self._left(limit, "caller", *who)[1], 1)

    def failing(self, address: str) -> Problem | None:
        """Refuse to verify a credential of an address that has sent too many that were not accepted."""
        limit = self._failed
        if limit is None or self._limiter.test(limit, "failed", address):
            return None
        _, seconds = self._left(limit, "failed", address)
        return Problem(
            RATE_LIMITED,
            f"The address {address} has sent more tokens or keys that are not accepted than {limit}.",
            hint="A token or key that was accepted a moment ago is served all the same.",
            retry_after=max(seconds, 1),
        )

    def failed(self, address: str) -> None:
        """Count a credential that was not accepted."""
        if self._failed is not None:
            self._limiter.hit(self._failed, "failed", address)

    def _left(self, limit: RateLimitItem, *who: str) -> tuple[int, int]:
        """Give how many are left, and the seconds until there are more."""
        stats = self._limiter.get_window_stats(limit, *who)
        return stats.remaining, max(math.ceil(stats.reset_time - time.time()), 0)  # noqa: TID251 - the library's clock


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast the lines of a batch may come: each counts as a request of its caller."""

    limits: RateLimits
    limit: RateLimitItem
    who: tuple[str, str]

    def take(self, lines: int = 1) -> int:
        """Count so many lines. 0: they may go on; else the seconds after which to ask again: they were not counted."""
        return self.limits.count(self.limit, self.who, lines)

    def refusal(self, lines: int) -> Problem | None:
        """Count so many lines, which are to go on together; say why they may not."""
        if lines >= self.limit.amount:  # the batch itself is a request, too
            detail = f"The batch and its {lines} lines, which are to land as a whole, are more than {self.limit}."
            return Problem(BODY_TOO_LARGE, detail)
        seconds = self.take(lines)
        if not seconds:
            return None
        detail = f"With {lines} lines, which are to land as a whole, the caller would have sent more than {self.limit}."
        return Problem(RATE_LIMITED, detail, retry_after=seconds)
