"""Transports for tests: one that counts what a client really sends, and a mock that fails as the test sets it."""

from collections.abc import Callable

import httpx

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
    """Give what makes a problem's answer."""
    members = {"code": code, "detail": "As the test says.", "retryable": retryable, "status": status}
    return lambda: httpx.Response(status, json=members, headers={"Content-Type": "application/problem+json", **headers})
