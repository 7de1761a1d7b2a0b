"""A lease: asked for, trusted as long as it has certainly not expired, renewed, and given back."""

import asyncio
import getpass
import itertools
import logging
import math
import os
import secrets
import socket
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from fencepost.client.answers import Claimed, FenceToken, GrantAnswer, Row, canonical, read_tokens
from fencepost.client.clock import SLICE, Clock, before
from fencepost.client.errors import (
    ApiError,
    BadRequest,
    FencepostError,
    Forbidden,
    LeaseLost,
    LockHeld,
    LossReason,
    SealRefused,
    Unauthenticated,
)
from fencepost.client.http import DEFAULT_RETRY, Answer, Call, Exchange, Retry, new_key, run_with_retry

if TYPE_CHECKING:
    from datetime import datetime

    from fencepost.client.errors import Problem


FIRST_BLOCK: Final = 8
LARGEST_BLOCK: Final = 256


class TokenPool:
    """Hands the tokens of a lease out, each once and in rising order. `mint(count)` asks the gateway for more: one mint
    at a time, each twice as large.
    """

    def __init__(self, tokens: Sequence[int], mint: Callable[[int], Awaitable[Sequence[int]]]) -> None:
        self._tokens: deque[FenceToken] = deque()
        self._mint = mint
        self._newest = 0
        self._block = max(FIRST_BLOCK, 2 * len(tokens))
        self._largest = LARGEST_BLOCK
        self._turn = asyncio.Lock()
        self._add(tokens)

    async def take(self) -> FenceToken:
        """Return an unused token, larger than all before it. Mints when there is none left."""
        async with self._turn:
            if not self._tokens:
                self._add(await self._more())
            return self._tokens.popleft()

    def forget(self) -> None:
        """Take none of those at hand any more: their seals have ended."""
        self._tokens.clear()

    async def _more(self) -> Sequence[int]:
        while True:
            count = min(self._block, self._largest)
            try:
                tokens = await self._mint(count)
            except BadRequest:
                if count == 1:
                    raise
                self._largest = count // 2  # the gateway is set to draw fewer at once
            else:
                self._block = 2 * count
                return tokens

    def _add(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if token <= self._newest:
                raise FencepostError(f"the gateway gave token {token} after token {self._newest}: tokens must rise")
            self._newest = token
            self._tokens.append(token if isinstance(token, FenceToken) else FenceToken(token))


# Who writes when, among the writes of one lease.
#
# Two writes to one row at the same time would make each other stale: the one with the higher token may arrive first.
# So writes to one resource go one after the other, each with a token taken when its turn has come. A write whose rows
# are not known beforehand (an insert, a filter) excludes all others of the lease. Writes to different rows run side by
# side.


@dataclass(eq=False, slots=True)
class _Turn:
    resource: str | None
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def excludes(self, other: "_Turn") -> bool:
        return self.resource is None or other.resource is None or self.resource == other.resource


class OperationTurns:
    """First come first served, for those that exclude each other."""

    def __init__(self) -> None:
        self._open: dict[_Turn, None] = {}  # in the order of arrival

    @asynccontextmanager
    async def turn(self, resource: str | None) -> AsyncIterator[None]:
        """Wait for the end of all earlier turns on this resource; None stands for every resource."""
        mine = _Turn(resource)
        earlier = [turn for turn in self._open if turn.excludes(mine)]
        self._open[mine] = None
        try:
            for turn in earlier:
                await turn.over.wait()
            yield
        finally:
            del self._open[mine]
            mine.over.set()


# How long a holder may believe that the lease is its own.
#
# The database grants until `granted + ttl` by its clock, and the client never learns when `granted` was on its own. It
# knows a moment that was certainly not later: when it sent the request (plus the time that the request then waited
# in the queue, by the gateway's answer). Counted from there, trust ends before the lease does, however long the answer
# took:
#
#     attempt started + waited + ttl - margin
#
# Each renewal counts from the start of its own attempt. One that fails or hangs extends nothing, and neither does the
# repeated answer to an acquire whose first answer was lost: its grant may be old. The margin is for
# clocks that run at different speeds. Trust that has ended never comes back; ending early is safe, ending late is not.
#
# Trust decides when the client stops. It is no fence: a process can be paused between the question and the write, and
# it is the gateway that refuses the write then.

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
        self._ended = True


# Acquiring a lock: as many requests as it takes.
#
# The client chooses the lease's secret, once per acquire. A request whose answer is lost is sent again: the gateway
# knows the secret, and answers with the lease that it had granted, or goes on waiting in the same place of the queue.
# A long wait is cut into slices for the same reason, and so that proxies do not cut it: each but the last asks the
# gateway to keep our place until the next.
#
# An acquire that was given up (cancelled, or no answer in time) may have been granted without the client's knowing, or
# may be granted yet: so the client withdraws it (`withdraw`).

WAIT_SLICE: Final = 25.0  # seconds
ANSWER_SECONDS: Final = 10.0  # how long after the end of its slice an answer may take
SECRET_HEADER: Final = "X-Lease-Secret"  # noqa: S105 - the header's name
AGAIN_SLICE: Final = 2.0  # seconds
_TOO_SOON: Final = 0.5  # seconds: an answer before that did not wait at all
_CREATED: Final = 201
_NOTHING: Final = 204


@dataclass(frozen=True, slots=True, kw_only=True)
class AcquireRequest:
    """What is to be acquired. Times in seconds; `wait` None waits for ever.

    next: the lock is that of the next row of a table (`table`, `where`, `order`), and not one of `locks`.
    """

    locks: tuple[str, ...]
    claims: tuple[str, ...]
    owner: str
    ttl: float
    wait: float | None
    tokens: int
    source: str | None = None
    writes: tuple[str, ...] = ()
    next: Mapping[str, str] | None = None
    secret: str = field(repr=False)

    @property
    def shown(self) -> str:
        """What is asked for, in a message."""
        return ", ".join(self.locks) if self.next is None else f"the next row of {self.next['table']}"

    def call(self, wait: float, *, keep_place: bool) -> Call:
        """Give the request for one slice of the wait."""
        body: dict[str, object] = {
            "owner": self.owner,
            "ttl_ms": round(self.ttl * 1000),
            "wait_ms": round(wait * 1000),
            "tokens": self.tokens,
        }
        if self.next is None:  # the next row is claimed in any case, and there is no place in a queue for it
            body |= {"claim": list(self.claims), "keep_place": keep_place}
        if self.source is not None:
            body["source"] = self.source
        if self.writes:
            body["writes"] = list(self.writes)
        if self.next is not None:
            body["next"] = dict(self.next)
        else:
            body |= {"lock": self.locks[0]} if len(self.locks) == 1 else {"locks": list(self.locks)}
        return Call(
            method="POST",
            path="/v1/leases",
            headers={SECRET_HEADER: self.secret},
            body=body,
            upkeep=True,
            read_seconds=wait + ANSWER_SECONDS,
        )


class NoRow(LockHeld):
    """There is no next row, and the wait for one is over."""


async def acquire(exchange: Exchange, request: AcquireRequest) -> GrantAnswer:
    """Return the grant. LockHeld (of a next row: NoRow) when the wait is over, and whatever `Exchange.repeat` raises;
    all that when the wait, ANSWER_SECONDS and the patience of `retry` have passed, at the latest.
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
        if answer.status == _NOTHING:
            raise NoRow(f"{request.shown}: there is none")
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


# Giving back what is held, or may be: releases, and withdrawals of acquires that were given up.
#
# Both go on when their caller is cancelled, each for a limited time. What does not arrive is left to the TTL: it is
# logged, and no error is raised, for the caller has an end, or an error, of its own.

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
        logger.info("an acquire of %s was given up and may hold it until its TTL: %s", request.shown, why)


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


# A lease: one grant of one or more locks, with its tokens, for as long as it can be trusted.

RELEASE_SECONDS: Final = 5.0
LOST_RELEASE_SECONDS: Final = 1.0
TOKEN_HEADER: Final = "X-Fence-Token"  # noqa: S105 - the header's name

_HOW: Final[dict[LossReason, str]] = {
    "expired": "could not be renewed in time, and can no longer be trusted",
    "gone": "is no longer held",
    "released": "was released",
}


class Lease:
    """What `async with client.lock(…) as lease` gives."""

    id: str
    """The lease's public id."""
    secret: str
    """What renews, mints and releases; keep it."""
    locks: tuple[str, ...]
    """The names of all its locks."""
    owner: str
    """The holder's name, as others see it."""
    ttl: float
    """Seconds."""
    granted_at: "datetime | None"
    """When it was granted, by the database's clock."""
    expires_at: "datetime | None"
    """When it would have expired, as of the grant, by the database's clock."""
    claims: tuple[Claimed, ...]
    """What was claimed with the grant, in the order of the claims asked for."""

    def __init__(
        self,
        exchange: Exchange,
        request: AcquireRequest,
        granted: GrantAnswer,
        timings: Timings,
        *,
        trusted_from: float,
    ) -> None:
        self.id = granted.lease_id
        self.secret = request.secret
        self.locks = granted.locks
        self.owner = granted.owner
        self.ttl = granted.ttl
        self.granted_at = granted.granted_at
        self.expires_at = granted.expires_at
        self.claims = granted.claims
        self._exchange = exchange
        self._trust = Trust(exchange.clock, timings, trusted_from)
        self._pool = TokenPool(granted.tokens, self._mint)
        self._turns = OperationTurns()
        self._refused = ""
        self._lost: asyncio.Future[LeaseLost] = asyncio.get_running_loop().create_future()

    def __repr__(self) -> str:
        return f"<Lease {self.id} of {', '.join(self.locks)}, {self._trust.remaining:.3f} s of trust left>"

    @property
    def lock(self) -> str | None:
        """The lock's name; None if the lease has several."""
        return self.locks[0] if len(self.locks) == 1 else None

    @property
    def row(self) -> Row | None:
        """The row that the claim returned, as it is behind the fence; None where the key has no row.

        LookupError if the lock was not acquired with exactly one claim: `claims` has them all.
        """
        if len(self.claims) != 1:
            raise LookupError(f"row: the lease was acquired with {len(self.claims)} claims, not one; see claims")
        return self.claims[0].row

    @property
    def trusted(self) -> bool:
        """Whether the lease can be trusted at this moment, by the clock. Once it was False it stays False."""
        return self._trust.holds()

    @property
    def remaining(self) -> float:
        """Seconds of trust that are left unless a renewal comes; 0 once it has ended."""
        return self._trust.remaining

    @property
    def lost(self) -> Awaitable[LeaseLost]:
        """`await lease.lost` returns, once the lease is lost, the LeaseLost that a write would raise now.

        It returns also when the lease is released; `reason` has which. Cancelling the wait is harmless.
        """
        return asyncio.shield(self._lost)

    def check(self) -> None:
        """Raise LeaseLost unless the lease can be trusted at this moment."""
        if not self._trust.holds():
            if self._lost.done():
                known = self._lost.result()
                raise self._loss(known.reason, known.problem)
            raise self._loss("expired")

    async def next_token(self) -> FenceToken:
        """Return a fresh token, larger than all before it: for one operation on each resource, and never used twice.

        Mints a block when there is none left. LeaseLost if the lease is not trusted.
        """
        self.check()
        return await self._pool.take()

    @asynccontextmanager
    async def operation(self, resource: str | None = None) -> AsyncIterator[FenceToken]:
        """Give a fresh token when no other write of this lease is under way on the resource (None: on any).

        What the client's own writes use; for writes of your own, in SQL (`SET LOCAL fencepost.token`) or elsewhere.
        """
        async with self._turns.turn(None if resource is None else canonical(resource)):
            token = await self.next_token()
            self.check()
            yield token

    async def claim(self, resource: str) -> Row | None:
        """Claim with a fresh token: no older holder can write from now on. Returns the row behind the fence (R7)."""
        key = new_key()
        answer = await self.write(resource, lambda token: claim_call(resource, token).under(key))
        return Claimed.read(answer.body).row

    async def write(self, resource: str | None, call: Callable[[int], Call]) -> Answer:
        """Send a write in its turn, with a fresh token. Where the seals of the tokens at hand have ended, once more
        with one that is minted now: a refused seal has no effect.
        """
        async with self.operation(resource) as token:
            try:
                return await self.send(call(token))
            except SealRefused as refused:
                if not refused.outlived:
                    raise
            self._pool.forget()
            return await self.send(call(await self.next_token()))

    async def send(self, call: Call) -> Answer:
        """Send a request under the lease: before each attempt, LeaseLost unless it can be trusted."""
        exchange = self._exchange

        async def send_trusted(most: float) -> Answer:
            self.check()
            return await exchange.once(call, most)

        seconds = exchange.seconds(call)
        return await run_with_retry(exchange.retry, exchange.clock, send_trusted, seconds=seconds, once=call.once)

    async def release(self) -> None:
        """Give the lock back. Errors are logged, not raised: a release that is not delivered is left to the TTL.

        Leaving the `async with` does it. Repeating it, or releasing what is lost, is harmless.
        """
        known = self._lost.result() if self._lost.done() else None
        if known is not None and known.reason in ("gone", "released"):
            return
        trusted = self._trust.holds()
        self.end("released" if trusted else "expired")
        patience = max(min(RELEASE_SECONDS, self.ttl), LOST_RELEASE_SECONDS) if trusted else LOST_RELEASE_SECONDS
        await release(self._exchange, self.id, self.secret, ", ".join(self.locks), seconds=patience)

    # What the watchdog needs.

    @property
    def trust(self) -> Trust:
        return self._trust

    async def renew(self) -> bool:
        """Renew once, without retries. Trust counts from the start of this attempt; False: it had ended meanwhile."""
        started = self._exchange.clock.now()
        try:
            await self._exchange.once(self._upkeep("renew"))
        except LeaseLost as gone:
            self.end("gone", gone.problem)
            raise
        except (Unauthenticated, Forbidden) as refusal:
            self._refused = f"; the last renewal was refused: {refusal}"
            raise
        self._refused = ""
        return self._trust.record_renewal(started)

    def end(self, reason: LossReason, problem: "Problem | None" = None) -> None:
        """End trust for good, and wake those who wait for it. Only the first reason counts."""
        self._trust.end()
        if not self._lost.done():
            self._lost.set_result(self._loss(reason, problem))

    def on_loss(self, callback: Callable[[], object]) -> None:
        """Call `callback` when the lease is lost, other than by its release."""
        self._lost.add_done_callback(lambda lost: None if lost.result().reason == "released" else callback())

    async def _mint(self, count: int) -> Sequence[int]:
        try:
            answer = await self.send(self._upkeep("tokens", {"count": count}))
        except LeaseLost as gone:
            if gone.problem is not None:
                self.end("gone", gone.problem)
            raise
        return read_tokens(answer.body)

    def _upkeep(self, verb: str, body: object = None) -> Call:
        headers = {SECRET_HEADER: self.secret}
        return Call(method="POST", path=f"/v1/leases/{self.id}/{verb}", headers=headers, body=body, upkeep=True)

    def _loss(self, reason: LossReason, problem: "Problem | None" = None) -> LeaseLost:
        text = f"lease {self.id} of {', '.join(self.locks)} {_HOW[reason]}"
        if reason == "expired":
            text += self._refused
        if problem is not None and problem.text("detail"):
            text = f"{text}: {problem.text('detail')}"
        return LeaseLost(text, problem, reason=reason)


def write_headers(token: int | None, prefer: str | None = None) -> dict[str, str]:
    """Give the headers of a write, but for its Idempotency-Key. `token` None: its place in a queue is its token."""
    headers = {} if token is None else {TOKEN_HEADER: token.text if isinstance(token, FenceToken) else str(token)}
    if prefer is not None:
        headers["Prefer"] = prefer
    return headers


def claim_call(resource: str, token: int | None) -> Call:
    """Give the request that claims a resource."""
    return Call(
        method="POST",
        path="/v1/claims",
        headers=write_headers(token),
        body={"resource": resource},
        writes=True,
        resource=resource,
        token=token,
    )


# The watchdog: renews a lease at a third of its TTL, and ends it when it cannot be trusted any more.
#
# A renewal that fails is tried again, with jitter, as long as trust lasts: a gateway may restart in between. An
# attempt that hangs gets half of what is left, so that there is time for another on a new connection. 410 ends trust
# at once: the gateway knows better than the clock. A token that is not accepted any more, 401 or 403, is a warning at
# once, for the lease is then on its way to its end. Otherwise the clock ends it, whatever is under way.

LONGEST_ATTEMPT: Final = 10.0  # seconds
SHORTEST_PAUSE: Final = 0.01  # seconds

_AGAIN: Final = Retry(first=0.05, longest=1.0)


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


Names: TypeAlias = str | Sequence[str]
"""A lock's name, or several that are taken together: all or none."""

Claims: TypeAlias = bool | str | Sequence[str]
"""True: what the locks are named after. Or resources, `table/key`."""

Writes: TypeAlias = str | Sequence[str]
"""What sealed tokens may be used for beside what the locks are named after and what is claimed: resources, or how their
names begin, with * at the end: `orders/*`."""

FIRST_TOKENS: Final = 8
SECRET_BYTES: Final = 32
LONGEST_OWNER: Final = 256


def make_acquire_request(
    name: Names,
    *,
    ttl: float,
    wait: float | None,
    claim: Claims,
    owner: str,
    tokens: int,
    source: str | None = None,
    writes: Writes = (),
) -> AcquireRequest:
    """Check the arguments of `lock`, and choose the lease's secret. ValueError names what makes no sense."""
    locks = several(name)
    if not locks:
        raise ValueError("lock: at least one name")
    if wait is not None and not 0 <= wait < float("inf"):
        raise ValueError(f"wait={wait!r}: 0 or more seconds, or None to wait for ever")
    if tokens < 1:
        raise ValueError(f"tokens={tokens!r}: a grant draws at least 1 token")
    return AcquireRequest(
        locks=locks,
        claims=_claims(claim, locks),
        owner=owner,
        ttl=ttl,
        wait=wait,
        tokens=tokens,
        source=source,
        writes=several(writes),
        secret=secrets.token_urlsafe(SECRET_BYTES),
    )


def default_owner() -> str:
    """Return user@host:pid: who to look for when a lock is held."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container's user without a name, or one of Windows
        user = str(os.getuid()) if hasattr(os, "getuid") else "?"
    return f"{user}@{socket.gethostname()}:{os.getpid()}"[:LONGEST_OWNER]


def _claims(claim: Claims, locks: tuple[str, ...]) -> tuple[str, ...]:
    if isinstance(claim, bool):
        return locks if claim else ()
    return several(claim)


def several(names: Names) -> tuple[str, ...]:
    """Give the names, also where it is one."""
    return (names,) if isinstance(names, str) else tuple(names)
