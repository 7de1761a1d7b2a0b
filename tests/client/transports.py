"""Transports for tests: one that counts what a client really sends, and mocks that fail as the test sets them."""

import asyncio
import json
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import httpx
from tests.support.manual_clock import ManualClock

from fencepost.client.answers import FenceToken, GrantAnswer
from fencepost.client.http import Exchange, Retry
from fencepost.client.lease import AcquireRequest, Lease, Timings

GRANT = {
    "lease_id": "7", "lock": "a", "locks": ["a"], "owner": "us", "token": "8", "tokens": ["8"], "claims": [],
    "ttl_ms": 30000, "waited_ms": 0, "granted_at": None, "expires_at": None,
}  # fmt: skip
"""The answer to an acquire."""


class Counting(httpx.AsyncBaseTransport):
    """The real transport, with every request noted as `METHOD path`."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self._real = httpx.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(f"{request.method} {request.url.path}")
        return await self._real.handle_async_request(request)

    async def aclose(self) -> None:
        await self._real.aclose()

    def count(self, start: str) -> int:
        return sum(1 for request in self.requests if request.startswith(start))


class Mock(httpx.AsyncBaseTransport):
    """A mock: each request meets the next of these, an error to raise or an answer; the last one for ever."""

    def __init__(self, *fates: Exception | Callable[[], httpx.Response]) -> None:
        self.fates = list(fates)
        self.requests: list[httpx.Request] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        fate = self.fates.pop(0) if len(self.fates) > 1 else self.fates[0]
        if isinstance(fate, Exception):
            raise fate
        return fate()


def problem(status: int, code: str | None, *, retryable: bool, **headers: str) -> Callable[[], httpx.Response]:
    members = {"code": code, "detail": "As the test says.", "retryable": retryable, "status": status}
    return lambda: httpx.Response(status, json=members, headers={"Content-Type": "application/problem+json", **headers})


# A mock gateway for leases: it keeps one lease by the test's clock, and delays, loses or refuses as the test sets it.

GONE = {"code": "FP012", "detail": "The lease is lost.", "retryable": False, "status": 410}


@dataclass(frozen=True)
class Fate:
    """What happens to one request: seconds on each way, and where it is lost."""

    out: float = 0.0
    back: float = 0.0
    lost_out: bool = False
    lost_back: bool = False


class ScriptedGateway(httpx.AsyncBaseTransport):
    """A mock: it holds one lease, and each request meets the next fate of the script."""

    def __init__(self, clock: ManualClock, ttl: float, script: Iterable[Fate] = ()) -> None:
        self.clock = clock
        self.ttl = ttl
        self.script = deque(script)
        self.expires = clock.now() + ttl
        self.held = True
        self.newest = 100
        self.requests: list[str] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(f"{request.method} {request.url.path}")
        fate = self.script.popleft() if self.script else Fate()
        await self._pass(fate.out)
        if fate.lost_out:
            raise httpx.ConnectError("lost on the way out")
        answer = self._answer(request)
        await self._pass(fate.back)
        if fate.lost_back:
            raise httpx.ReadError("lost on the way back")
        return answer

    def lease_is_held(self) -> bool:
        self.held = self.held and self.clock.now() < self.expires
        return self.held

    def _answer(self, request: httpx.Request) -> httpx.Response:
        if request.method == "DELETE":
            self.held = False
            return httpx.Response(204)
        if not self.lease_is_held():
            return httpx.Response(410, headers={"Content-Type": "application/problem+json"}, json=GONE)
        if request.url.path.endswith("/renew"):
            self.expires = self.clock.now() + self.ttl
            return httpx.Response(200, json={"lease_id": "1"})
        count = json.loads(request.content)["count"]
        self.newest += count
        tokens = [str(token) for token in range(self.newest - count + 1, self.newest + 1)]
        return httpx.Response(200, json={"lease_id": "1", "tokens": tokens})

    async def _pass(self, seconds: float) -> None:
        if seconds == float("inf"):
            await asyncio.get_running_loop().create_future()
        if seconds:
            await self.clock.sleep(seconds)


WISH = AcquireRequest(locks=("a",), claims=(), owner="us", ttl=30.0, wait=0.0, tokens=1, secret="s" * 22)


def scripted_lease(
    gateway: ScriptedGateway,
    *,
    margin: float | None = None,
    retry: Retry | None = None,
    tokens: tuple[int, ...] = (100,),
) -> Lease:
    """Give a lease that this mock holds, granted now."""
    clock = gateway.clock
    exchange = Exchange(
        "http://mock",
        retry=retry or Retry(),
        clock=clock,
        timeout=30.0,
        headers={},
        verify=False,
        transport=gateway,
        decimals=False,
    )
    granted = GrantAnswer(
        lease_id="1",
        locks=("a",),
        owner="us",
        ttl=gateway.ttl,
        tokens=tuple(map(FenceToken, tokens)),
        granted_at=None,
        expires_at=None,
        claims=(),
        started=clock.now(),
        repeated=False,
    )
    return Lease(exchange, WISH, granted, Timings.of(gateway.ttl, margin), trusted_from=clock.now())
