"""Bugs of the Python client."""

import contextlib
import math
import time
from collections.abc import Mapping
from typing import Any, Final

from tests.torture.bugs.settings import CLIENT_SETS, CLIENTS, CLIENTS_ANSWERS
from tests.torture.planted import Planted, swap

from fencepost.client import Client, Lease
from fencepost.client.clock import SystemClock
from fencepost.client.errors import ApiError, LeaseLost, StaleToken
from fencepost.client.http import KEY_HEADER, Answer, Call, Exchange, new_key

_STEP: Final = 5.0
"""Seconds by which the wall clock is set back, every second."""


def _trust_by_the_wall_clock() -> None:
    """And that is set back, again and again."""
    began = time.monotonic()

    def broken(_clock: SystemClock) -> float:
        now = time.monotonic()
        return time.time() - _STEP * int(now - began)  # noqa: TID251 - the line to break

    swap(SystemClock, "now", broken)


def _a_renewal_that_fails_counts() -> None:
    async def broken(lease: Lease) -> bool:
        started = lease._exchange.clock.now()  # noqa: SLF001
        with contextlib.suppress(ApiError):
            await lease._exchange.once(lease._upkeep("renew"))  # noqa: SLF001
        return lease.trust.record_renewal(started)

    swap(Lease, "renew", broken)


def _each_attempt_has_a_key_of_its_own() -> None:
    async def broken(exchange: Exchange, call: Call, most: float = math.inf) -> Answer:
        if KEY_HEADER in call.headers:
            call = call.under(new_key())
        answer: Answer = await once(exchange, call, most)
        return answer

    once = swap(Exchange, "once", broken)


def _a_stale_write_is_repeated_under_a_new_lease() -> None:
    async def broken(client: Client, table: str, key: Any, row: Mapping[str, Any], *, lease: Lease) -> Any:
        try:
            return await put(client, table, key, row, lease=lease)
        except (StaleToken, LeaseLost):
            async with client.lock(f"{table}/{key}", ttl=1, wait=1) as fresh:
                return await put(client, table, key, row, lease=fresh)

    put = swap(Client, "put", broken)


BUGS: Final = [
    Planted("a lease is trusted by the wall clock", "mutex", CLIENTS, worker=_trust_by_the_wall_clock),
    Planted("a renewal that fails counts as one", "mutex", CLIENTS, worker=_a_renewal_that_fails_counts),
    Planted(
        "each attempt of a write has an Idempotency-Key of its own",
        "set",
        CLIENTS_ANSWERS,
        worker=_each_attempt_has_a_key_of_its_own,
    ),
    Planted(
        "a write that was refused as stale is repeated under a new lease",
        "set",
        CLIENT_SETS,
        worker=_a_stale_write_is_repeated_under_a_new_lease,
    ),
]
