"""A lease: one grant of one or more locks, with its tokens, for as long as it can be trusted."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from fencepost.client.answers import Claimed, GrantAnswer, Row
from fencepost.client.errors import Forbidden, LeaseLost, LossReason, SealRefused, Unauthenticated
from fencepost.client.fence_token import FenceToken, read_tokens
from fencepost.client.http.exchange import Answer, Call, Exchange
from fencepost.client.http.idempotency import new_key
from fencepost.client.http.retry import run_with_retry
from fencepost.client.keys import canonical
from fencepost.client.leases import pending_releases
from fencepost.client.leases.acquiring import SECRET_HEADER, AcquireRequest
from fencepost.client.leases.tokens import TokenPool
from fencepost.client.leases.trust import Timings, Trust
from fencepost.client.leases.turns import OperationTurns

if TYPE_CHECKING:
    from datetime import datetime

    from fencepost.client.problem import Problem

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
        await pending_releases.release(self._exchange, self.id, self.secret, ", ".join(self.locks), seconds=patience)

    # What the watchdog needs.

    @property
    def trust(self) -> Trust:
        """Its trust arithmetic."""
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

    def on_loss(self, callback: Callable[[], None]) -> None:
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
