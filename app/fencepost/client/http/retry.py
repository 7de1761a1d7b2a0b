"""Which failures are tried again, and after how long.

Only a request of which it is certain that nothing was done, or that may be repeated because doing it twice is doing
it once: reads, renewals, mints (the lost tokens are never used), an acquire with its own secret, a release, and every
write, for it carries an Idempotency-Key and keeps it. A refusal is an answer, and is never repeated: a client loop that
retries a stale write forever is what Fencepost is designed against.
"""

import itertools
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


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a request is sent, and how long is waited between: first, doubling up to longest, with jitter.

    The default keeps trying for about five seconds, which a gateway's restart fits into. `Retry(attempts=1)` never
    tries again.
    """

    attempts: int = 8
    first: float = 0.1  # seconds
    longest: float = 2.0  # seconds

    def __post_init__(self) -> None:
        if self.attempts < 1 or not 0 <= self.first <= self.longest:
            raise ValueError(f"{self}: attempts is at least 1, and 0 <= first <= longest")

    def delay(self, failures: int, retry_after: float | None = None) -> float:
        """Return the seconds to wait after so many failures: from half to all of the step, or Retry-After."""
        step = min(self.first * 2.0 ** min(failures - 1, 60), self.longest)
        return max(step * random.uniform(0.5, 1.0), min(retry_after or 0.0, MOST_RETRY_AFTER))  # noqa: S311 - jitter is no secret


DEFAULT_RETRY: Final = Retry()


async def run_with_retry(policy: Retry, clock: Clock, attempt: Callable[[], Awaitable[T]], *, once: bool = False) -> T:
    """Run `attempt` until it succeeds, cannot be repeated, or has been run often enough; then its error is raised.

    `once`: doing it twice is not doing it once, so an unknown outcome ends it. When one attempt's outcome is unknown
    and the last could not be sent, it is unknown all the same; and so it is when the last was refused, for the first
    may still be on its way, and land when the reason is gone. Only a stale token stays stale.
    """
    unknown: OutcomeUnknown | None = None
    for failures in itertools.count(1):
        try:
            return await attempt()
        except (Unavailable, OutcomeUnknown) as error:
            if isinstance(error, OutcomeUnknown) and error.code != IN_FLIGHT:
                unknown = error
            if failures >= policy.attempts or not _may_repeat(error, once=once):
                if unknown is not None and error is not unknown:
                    raise unknown from error
                raise
            await clock.sleep(policy.delay(failures, error.retry_after))
        except ApiError as refusal:
            if unknown is None or isinstance(refusal, DEFINITE):
                raise
            raise unknown from refusal
    raise AssertionError


def _may_repeat(error: Unavailable | OutcomeUnknown, *, once: bool) -> bool:
    if isinstance(error, Unavailable):
        return error.may_repeat
    return not once
