"""Acquiring a lock: as many requests as it takes.

The client chooses the lease's secret, once per acquire. A request whose answer is lost is sent again: the gateway
knows the secret, and answers with the lease that it had granted, or goes on waiting in the same place of the queue. A
long wait is cut into slices for the same reason, and so that proxies do not cut it: each but the last asks the gateway
to keep our place until the next.

An acquire that was given up (cancelled, or no answer in time) may have been granted without the client's knowing, or
may be granted yet: so the client withdraws it (pending_releases.py).
"""

import math
from dataclasses import dataclass, field
from typing import Final

from fencepost.client.answers import GrantAnswer
from fencepost.client.errors import LockHeld
from fencepost.client.http.exchange import Call, Exchange
from fencepost.client.http.retry import run_with_retry

WAIT_SLICE: Final = 25.0  # seconds
ANSWER_SECONDS: Final = 10.0  # how long after the end of its slice an answer may take
SECRET_HEADER: Final = "X-Lease-Secret"  # noqa: S105 - the header's name
AGAIN_SLICE: Final = 2.0  # seconds
_TOO_SOON: Final = 0.5  # seconds: an answer before that did not wait at all
_CREATED: Final = 201


@dataclass(frozen=True, slots=True, kw_only=True)
class AcquireRequest:
    """What is to be acquired. Times in seconds; `wait` None waits for ever."""

    locks: tuple[str, ...]
    claims: tuple[str, ...]
    owner: str
    ttl: float
    wait: float | None
    tokens: int
    source: str | None = None
    writes: tuple[str, ...] = ()
    secret: str = field(repr=False)

    def call(self, wait: float, *, keep_place: bool) -> Call:
        """Give the request for one slice of the wait."""
        body: dict[str, object] = {
            "owner": self.owner,
            "ttl_ms": round(self.ttl * 1000),
            "wait_ms": round(wait * 1000),
            "tokens": self.tokens,
            "claim": list(self.claims),
            "keep_place": keep_place,
        }
        if self.source is not None:
            body["source"] = self.source
        if self.writes:
            body["writes"] = list(self.writes)
        body |= {"lock": self.locks[0]} if len(self.locks) == 1 else {"locks": list(self.locks)}
        return Call(
            method="POST",
            path="/v1/leases",
            headers={SECRET_HEADER: self.secret},
            body=body,
            upkeep=True,
            read_seconds=wait + ANSWER_SECONDS,
        )


async def acquire(exchange: Exchange, request: AcquireRequest) -> GrantAnswer:
    """Return the grant. LockHeld when the wait is over, and whatever `Exchange.repeat` raises; all that when the wait,
    ANSWER_SECONDS and the patience of `retry` have passed, at the latest.
    """
    clock = exchange.clock
    deadline = None if request.wait is None else clock.now() + request.wait
    asked_for_all = False

    def left() -> float:
        return float("inf") if deadline is None else max(deadline - clock.now(), 0.0)

    async def ask_for_slice(most: float) -> GrantAnswer:
        nonlocal asked_for_all
        wait = left()
        # After a failure not for long: an answer shows that the gateway is back, and the next failure is a first one.
        asked = min(wait, WAIT_SLICE if most == math.inf else min(AGAIN_SLICE, most / 2))
        asked_for_all = asked == wait
        sent = clock.now()
        answer = await exchange.once(request.call(asked, keep_place=not asked_for_all), most)
        return GrantAnswer.read(answer.body, sent=sent, received=clock.now(), repeated=answer.status != _CREATED)

    while True:
        started, seconds = clock.now(), min(left(), WAIT_SLICE) + ANSWER_SECONDS
        try:
            return await run_with_retry(exchange.retry, clock, ask_for_slice, seconds=seconds)
        except LockHeld as held:
            if asked_for_all or not left():
                raise
            if clock.now() - started < _TOO_SOON:
                # The gateway does not let us wait so long, or has too many waiters: ask again, without haste.
                await clock.sleep(min(held.retry_after or _TOO_SOON, 2 * _TOO_SOON, left()))
