"""`async with client.lock(…) as lease:` acquires, keeps the lease while the body runs, and releases."""

import asyncio
import logging
from types import TracebackType
from typing import Any, Final

from fencepost.client.answers import GrantAnswer
from fencepost.client.errors import ApiError, Forbidden, LeaseLost, OutcomeUnknown, Unauthenticated, Unavailable
from fencepost.client.http import Exchange
from fencepost.client.lease import (
    AcquireRequest,
    Lease,
    PendingReleases,
    Timings,
    acquire,
    keep,
    renew_in_time,
    withdraw,
)

_NOT_CERTAIN: Final = (Unavailable, OutcomeUnknown, Unauthenticated, Forbidden)

logger = logging.getLogger("fencepost.client")


class Lock:
    """Used once, with `async with`. Entering raises LockHeld when the wait is over, or why it could not be asked."""

    def __init__(
        self,
        exchange: Exchange,
        pending: PendingReleases,
        request: AcquireRequest,
        *,
        margin: float | None,
        cancel_on_loss: bool,
    ) -> None:
        Timings.of(request.ttl, margin)
        self._exchange = exchange
        self._pending = pending
        self._request = request
        self._margin = margin
        self._cancel_on_loss = cancel_on_loss
        self._used = False
        self._lease: Lease | None = None
        self._watchdog: asyncio.Task[None] | None = None
        self._body: asyncio.Task[Any] | None = None
        self._cancelling = 0
        self._cancelled_body = False

    @property
    def entered(self) -> bool:
        """Whether the lock was acquired and not left."""
        return self._watchdog is not None

    async def __aenter__(self) -> Lease:
        if self._used:
            raise RuntimeError("each lock() is entered once: call lock() again")
        self._exchange.require_owner()
        self._used = True
        self._lease = lease = await self._acquire_or_withdraw()
        if self._cancel_on_loss:
            self._body = asyncio.current_task()
            self._cancelling = self._body.cancelling() if self._body else 0
            lease.on_loss(self._cancel_body)
        self._watchdog = asyncio.create_task(self._watch(lease), name=f"fencepost: watchdog of lease {lease.id}")
        return lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        lease, watchdog = self._lease, self._watchdog
        if lease is None or watchdog is None:
            raise RuntimeError("this lock() is not entered")
        self._watchdog = None
        body, self._body = self._body, None
        ours = self._cancelled_body and body is not None and body.uncancel() <= self._cancelling
        watchdog.cancel()
        await self._pending.to_end(_left(lease, watchdog))
        if ours and isinstance(error, asyncio.CancelledError):
            lost = await lease.lost
            raise LeaseLost(str(lost), lost.problem, reason=lost.reason) from error

    async def _acquire_or_withdraw(self) -> Lease:
        """Acquire. Whatever may have been granted when that fails is given back."""
        try:
            granted = await acquire(self._exchange, self._request)
        except BaseException as error:
            if not _is_certain(error):
                await self._pending.to_end(withdraw(self._exchange, self._request))
            raise
        try:
            return await self._ready(granted)
        except BaseException:
            await self._pending.to_end(withdraw(self._exchange, self._request))
            raise

    async def _ready(self, granted: GrantAnswer) -> Lease:
        """Make a lease of the grant; renew it first if the answer came late, or repeats an older grant."""
        now = self._exchange.clock.now()
        timings = Timings.of(granted.ttl, self._margin)
        if not granted.repeated and now < granted.started + granted.ttl - timings.renew_after:
            return self._make_lease(granted, timings, granted.started)
        # The lease is not handed out with this trust: it only bounds how long the renewal may take.
        lease = self._make_lease(granted, timings, now)
        if not await renew_in_time(lease, self._exchange.clock):
            raise LeaseLost(
                f"{lease!r} was granted and lost again before it could be used: a ttl of {granted.ttl} s is too short "
                "for this connection",
                reason="expired",
            )
        return lease

    def _make_lease(self, granted: GrantAnswer, timings: Timings, trusted_from: float) -> Lease:
        return Lease(self._exchange, self._request, granted, timings, trusted_from=trusted_from)

    async def _watch(self, lease: Lease) -> None:
        try:
            await keep(lease, self._exchange.clock)
        except Exception:
            logger.exception("the watchdog of lease %s failed", lease.id)
            lease.end("expired")

    def _cancel_body(self) -> None:
        if self._body is not None:
            self._cancelled_body = True
            self._body.cancel()


async def _left(lease: Lease, watchdog: asyncio.Task[None]) -> None:
    await asyncio.wait({watchdog})
    await lease.release()


def _is_certain(error: BaseException) -> bool:
    """Whether the gateway answered that it granted nothing. A refusal for who asks does not say so: it may be of a
    repetition; and of a caller whose key was rotated while it waited, the gateway keeps the grant.
    """
    return isinstance(error, ApiError) and not isinstance(error, _NOT_CERTAIN)
