"""The outermost layer, once per request: a request id, the time it took, and an answer whatever happens.

Plain ASGI: nothing is copied or buffered on the way.
"""

import asyncio
import itertools
import re
import secrets
import time
from collections.abc import Callable
from typing import Final

import structlog
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fencepost.fencing.problem_types import DATABASE_UNAVAILABLE, INTERNAL_ERROR, OUTCOME_UNKNOWN
from fencepost.fencing.problems import Problem
from fencepost.http.problems.response import problem_response

# An id need only be new: random bytes for each request would cost a system call.
_PROCESS: Final = secrets.token_hex(4).encode()
_numbers: Final = itertools.count(1)
_USABLE_ID: Final = re.compile(rb"[\x21-\x7e]{1,128}\Z")
HUNG_UP: Final = 499
"""What logs and metrics say of a request whose client hung up before it was read, as nginx does."""
_PREFIXES: Final = (
    "/v1/data", "/v1/claims", "/v1/fences", "/v1/leases", "/v1/locks", "/v1/elections/events", "/v1/elections", "/docs",
    "/problems",
)  # fmt: skip
HEAD: Final = "fencepost.head"
"""Whether the method was HEAD: a key of the scope, for what must not begin to stream."""
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

log = structlog.stdlib.get_logger("fencepost.http")

RequestDone = Callable[[str, str, int, float], None]
"""Called with method, route, status and seconds."""


class Edge:
    """Wraps the application."""

    def __init__(self, app: ASGIApp, *, done: RequestDone, access_log: bool) -> None:
        self._app = app
        self._done = done
        self._access_log = access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; lifespan passes through."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        request_id = _request_id(scope)
        structlog.contextvars.bind_contextvars(request_id=request_id.decode("ascii"))
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id)]
            await send(message)

        # HEAD is answered as GET everywhere; the server, which still knows, sends no body.
        inner: Scope = {**scope, "method": "GET", HEAD: True} if scope["method"] == "HEAD" else scope
        try:
            await self._app(inner, receive, send_with_id)
        except asyncio.CancelledError:  # the time for stopping is up
            if not status:
                await problem_response(_stopping_problem(scope["method"]))(scope, receive, send_with_id)
            raise
        except ClientDisconnect:
            status = HUNG_UP  # while it was sending; no client is left to read an answer
        except Exception:
            log.exception("request failed", method=scope["method"], path=scope["path"])
            if status:  # the answer has begun: all that can be done is to cut it off
                raise
            problem = Problem(
                INTERNAL_ERROR, f"The gateway failed; its log has more under request id {request_id.decode('ascii')}."
            )
            await problem_response(problem)(scope, receive, send_with_id)
        finally:
            self._on_finish(scope, status, time.perf_counter() - started)

    def _on_finish(self, scope: Scope, status: int, seconds: float) -> None:
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._done(method, _route(scope), status, seconds)
        if self._access_log:
            log.info("request", method=method, path=scope["path"], status=status, ms=round(seconds * 1000, 2))


def _stopping_problem(method: str) -> Problem:
    """Say what is known of a request that the gateway, stopping, works on no longer."""
    if method in ("GET", "HEAD", "OPTIONS"):
        return Problem(DATABASE_UNAVAILABLE, "The gateway is stopping.", retry_after=1)
    return Problem(
        OUTCOME_UNKNOWN,
        "The gateway was stopped while it worked on the request: it may have landed, or may yet.",
        hint="Repeat it with the same Idempotency-Key, or X-Lease-Secret, if it had one. Else ask GET /v1/fences.",
        retry_after=1,
        extra={"known": None},
    )


def _request_id(scope: Scope) -> bytes:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _USABLE_ID.match(value):
            return bytes(value)
    return b"%s%08x" % (_PROCESS, next(_numbers))


def _route(scope: Scope) -> str:
    """Name the route without what callers can invent: a label must have few values."""
    path: str = scope["path"]
    for prefix in _PREFIXES:
        if path.startswith(prefix):
            return prefix
    return path if path in ("/", "/healthz", "/readyz", "/metrics", "/openapi.json") else "other"
