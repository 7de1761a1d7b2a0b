"""Giving back what is held, or may be: releases, and withdrawals of acquires that were given up.

Both go on when their caller is cancelled, each for a limited time. What does not arrive is left to the TTL: it is
logged, and no error is raised, for the caller has an end, or an error, of its own.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final

from fencepost.client.clock import Clock, before
from fencepost.client.errors import ApiError
from fencepost.client.http.exchange import Call, Exchange
from fencepost.client.http.retry import DEFAULT_RETRY, run_with_retry
from fencepost.client.leases.acquiring import SECRET_HEADER, AcquireRequest

ABANDON_SECONDS: Final = 2.0

logger = logging.getLogger("fencepost.client")


class PendingReleases:
    """Tasks that go on when their caller has ended, such as the release of a lease whose holder was cancelled."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    async def to_end(self, work: Coroutine[Any, Any, None]) -> None:
        """Do the work, and wait for its end. A caller that is cancelled leaves; the work goes on."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.shield(task)

    async def drain(self) -> None:
        """Wait for the end of all of it. Each piece has its own time limit."""
        if self._tasks:
            await asyncio.wait(self._tasks)


async def release(exchange: Exchange, lease_id: str, secret: str, names: str, *, seconds: float) -> None:
    """Give a lease back, and try for so many seconds. `names`: of its locks, for the log."""
    sending = exchange.repeat(release_call(lease_id, secret))
    if (why := await _undelivered(exchange.clock, sending, seconds)) is not None:
        logger.warning("lease %s of %s could not be released: %s", lease_id, names, why)


async def withdraw(exchange: Exchange, request: AcquireRequest) -> None:
    """Withdraw an acquire that was given up: what it was granted is given back."""
    call = Call(method="DELETE", path="/v1/leases", headers={SECRET_HEADER: request.secret}, upkeep=True)
    sending = run_with_retry(
        DEFAULT_RETRY, exchange.clock, lambda most: exchange.once(call, most), seconds=ABANDON_SECONDS
    )
    if (why := await _undelivered(exchange.clock, sending, ABANDON_SECONDS)) is not None:
        names = ", ".join(request.locks)
        logger.info("an acquire of %s was given up and may hold it until its TTL: %s", names, why)


def release_call(lease_id: str, secret: str) -> Call:
    """Give the request that releases a lease; repeating it is harmless."""
    return Call(method="DELETE", path=f"/v1/leases/{lease_id}", headers={SECRET_HEADER: secret}, upkeep=True)


async def _undelivered(clock: Clock, sending: Coroutine[Any, Any, object], seconds: float) -> str | None:
    """Wait for the answer, and give the reason why there was none."""
    try:
        await before(clock, clock.now() + seconds, sending)
    except (ApiError, TimeoutError) as error:
        return str(error) or f"no answer within {seconds:.3g} s"
    return None
