"""Which failures are tried again, after how long, and for how long.

Only a request of which it is certain that nothing was done, or that may be repeated because doing it twice is doing
it once: reads, renewals, mints (the lost tokens are never used), an acquire with its own secret, a release, and every
write, for it carries an Idempotency-Key and keeps it. A refusal is an answer, and is never repeated: a client loop that
retries a stale write forever is what Fencepost is designed against.

What ends trying is the time that has passed, not a count: eight tries are over in five seconds when the gateway refuses
connections, and in minutes when it accepts them and is silent.
"""

import math
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from fencepost.client.clock import Clock
from fencepost.client.errors import ApiError, LockHeld, OutcomeUnknown, SpentToken, StaleToken, Unavailable

T = TypeVar("T")

DEFINITE: Final = (StaleToken, SpentToken, LockHeld)
"""Refusals that hold for an earlier attempt too, wherever it is: marks never fall; a grant is found by its secret."""
IN_FLIGHT: Final = "FP013"
"""Another request works on the same key, and this attempt did nothing."""
MOST_RETRY_AFTER: Final = 30.0  # seconds: what an answer may ask us to wait
LAST_TRY: Final = 1.0  # seconds: with less, a try would be cut off before a gateway can answer


@dataclass(frozen=True, slots=True)
class Retry:
    """For how long a request that failed is sent again, and how long is waited between: first, doubling up to longest,
    with jitter.

    patience: seconds from the first failure on in which a try may begin. All tries together take at most so much longer
    than the first one may. The default is what a gateway's restart fits into; 0 never tries again, `math.inf` for ever.
    """

    patience: float = 5.0  # seconds
    first: float = 0.1  # seconds
    longest: float = 2.0  # seconds

    def __post_init__(self) -> None:
        if not (self.patience >= 0 and 0 <= self.first <= self.longest):
            raise ValueError(f"{self}: patience is at least 0, and 0 <= first <= longest")

    def delay(self, failures: int, retry_after: float | None = None) -> float:
        """Return the seconds to wait after so many failures: from half to all of the step, or Retry-After."""
        step = min(self.first * 2.0 ** min(failures - 1, 60), self.longest)
        return max(step * random.uniform(0.5, 1.0), min(retry_after or 0.0, MOST_RETRY_AFTER))  # noqa: S311 - jitter is no secret


DEFAULT_RETRY: Final = Retry()


class Failures:
    """The failures of one request, one after the other: whether it is tried again, and how long a try may take."""

    def __init__(self, policy: Retry, clock: Clock, seconds: float) -> None:
        """seconds: how long the first try may take."""
        self._policy = policy
        self._clock = clock
        self._due = clock.now() + seconds
        self._count = 0
        self._last_begins = self._end = math.inf

    @property
    def left(self) -> float:
        """Seconds that a try may take now, in which the request's own limit may be shorter; at first there are no
        others.
        """
        return self._end - self._clock.now()

    def pause(self, asked: float | None = None) -> float | None:
        """Note a failure, and return the seconds to wait before the next try. None: there is none, because patience
        ends before, or before the seconds that the gateway has `asked` for (Retry-After).
        """
        now, patience = self._clock.now(), self._policy.patience
        self._count += 1
        if self._count == 1:
            self._end = max(self._due, now) + patience
            self._last_begins = min(now + patience, self._end - min(LAST_TRY, patience / 2))
        left = self._last_begins - now
        if left <= 0 or min(asked or 0.0, MOST_RETRY_AFTER) > left:
            return None
        return min(self._policy.delay(self._count, asked), left)


async def run_with_retry(
    policy: Retry, clock: Clock, attempt: Callable[[float], Awaitable[T]], *, seconds: float, once: bool = False
) -> T:
    """Run `attempt` until it succeeds, cannot be repeated, or patience ends; then its error is raised. It is given the
    seconds that it may take at most. `seconds`: what the first one may take, by a limit of its own.

    `once`: doing it twice is not doing it once, so an unknown outcome ends it. When one attempt's outcome is unknown
    and the last could not be sent, it is unknown all the same; and so it is when the last was refused, for the first
    may still be on its way, and land when the reason is gone. Only a stale token stays stale.
    """
    unknown: OutcomeUnknown | None = None
    failures = Failures(policy, clock, seconds)
    while True:
        try:
            return await attempt(failures.left)
        except (Unavailable, OutcomeUnknown) as error:
            if isinstance(error, OutcomeUnknown) and error.code != IN_FLIGHT:
                unknown = error
            pause = failures.pause(error.retry_after) if _may_repeat(error, once=once) else None
            if pause is None:
                if unknown is not None and error is not unknown:
                    raise unknown from error
                raise
            await clock.sleep(pause)
        except ApiError as refusal:
            if unknown is None or isinstance(refusal, DEFINITE):
                raise
            raise unknown from refusal


def _may_repeat(error: Unavailable | OutcomeUnknown, *, once: bool) -> bool:
    if isinstance(error, Unavailable):
        return error.may_repeat
    return not once
