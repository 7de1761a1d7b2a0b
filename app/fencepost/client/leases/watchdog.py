"""The watchdog: renews a lease at a third of its TTL, and ends it when it cannot be trusted any more.

A renewal that fails is tried again, with jitter, as long as trust lasts: a gateway may restart in between. An attempt
that hangs gets half of what is left, so that there is time for another on a new connection. 410 ends trust at once:
the gateway knows better than the clock. A token that is not accepted any more, 401 or 403, is a warning at once, for
the lease is then on its way to its end. Otherwise the clock ends it, whatever is under way.
"""

import itertools
import logging
from typing import Final

from fencepost.client.clock import SLICE, Clock, before
from fencepost.client.errors import ApiError, Forbidden, LeaseLost, Unauthenticated
from fencepost.client.http.retry import Retry
from fencepost.client.leases.lease import Lease

LONGEST_ATTEMPT: Final = 10.0  # seconds
SHORTEST_PAUSE: Final = 0.01  # seconds

_AGAIN: Final = Retry(first=0.05, longest=1.0)

logger = logging.getLogger("fencepost.client")


async def keep(lease: Lease, clock: Clock) -> None:
    """Renew the lease until it is lost; `lease.lost` returns then."""
    trust = lease.trust
    while trust.holds():
        pause = min(trust.renew_at, trust.until) - clock.now()
        if pause > 0:
            await clock.sleep(min(pause, SLICE))
        else:
            await renew_in_time(lease, clock)
    lease.end("expired")


async def renew_in_time(lease: Lease, clock: Clock) -> bool:
    """Try to renew until it succeeds or trust is over; return whether it succeeded."""
    trust = lease.trust
    for failures in itertools.count(1):
        if not trust.holds():
            return False
        try:
            deadline = clock.now() + min(trust.remaining / 2, LONGEST_ATTEMPT)
            return await before(clock, deadline, lease.renew())
        except LeaseLost:
            return False
        except (Unauthenticated, Forbidden) as refusal:
            # A new token may come in time; but this is for people to know while the lease is still held.
            level = logging.WARNING if failures == 1 else logging.INFO
            left = trust.remaining
            logger.log(level, "lease %s is lost in %.1f s, unless the gateway renews it: %s", lease.id, left, refusal)
        except (ApiError, TimeoutError) as error:
            logger.info(
                "lease %s: renewal attempt %d failed: %s", lease.id, failures, str(error) or "no answer in time"
            )
        pause = max(min(_AGAIN.delay(failures), trust.remaining / 4), SHORTEST_PAUSE)
        await clock.sleep(min(pause, trust.remaining))
    raise AssertionError
