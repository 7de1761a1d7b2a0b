"""The outermost layer, once per request: which host and page it is from, who sends it, a request id, the time it took,
and an answer whatever happens.

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

from fencepost.server.fence.caller import CALLER, EVERYBODY
from fencepost.server.fence.problem_types import DATABASE_UNAVAILABLE, INTERNAL_ERROR, OF_CALLERS, OUTCOME_UNKNOWN
from fencepost.server.fence.problems import Problem
from fencepost.server.http.admission import Admission, Unverified
from fencepost.server.http.caller import address_of, network_of
from fencepost.server.http.problems.response import problem_response
from fencepost.server.http.rate_limits import HEADERS
from fencepost.server.http.sites import Sites
from fencepost.server.observe.events import CallerRefused, Emit, RequestTurnedAway

# An id need only be new: random bytes for each request would cost a system call.
_PROCESS: Final = secrets.token_hex(4).encode()
_numbers: Final = itertools.count(1)
_USABLE_ID: Final = re.compile(rb"[\x21-\x7e]{1,128}\Z")
_LOOKED_AT: Final = frozenset({b"authorization", b"host", b"origin", b"sec-fetch-site", b"x-request-id"})
HUNG_UP: Final = 499
"""The status, as nginx's, under which logs and metrics count a request whose client hung up before it was read."""
_PREFIXES: Final = (
    "/v1/data", "/v1/claims", "/v1/fences", "/v1/leases", "/v1/locks", "/v1/elections/events", "/v1/elections",
    "/v1/writes", "/v1/batch", "/docs", "/problems",
)  # fmt: skip
HEAD: Final = "fencepost.head"
"""Whether the method was HEAD: a key of the scope, for what must not begin to stream."""
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

log = structlog.stdlib.get_logger("fencepost.http")

RequestDone = Callable[[str, str, int, float], None]
"""Called with method, route, status and seconds."""
_NO_SNIFFING: Final = (b"x-content-type-options", b"nosniff")
"""A browser takes no answer for another type than it says: JSON with a user's HTML in it is no page."""


class Edge:
    """Wraps the application."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        done: RequestDone,
        access_log: bool,
        sites: Sites,
        emit: Emit,
        admission: Admission | None = None,
    ) -> None:
        self._app, self._sites, self._admission, self._emit = app, sites, admission, emit
        self._done = done
        self._access_log = access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; lifespan passes through."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        request_id, refusal = self._look(scope)
        structlog.contextvars.bind_contextvars(request_id=request_id.decode("ascii"))
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                added = (b"x-request-id", request_id), _NO_SNIFFING, *scope.get(HEADERS, ())
                message["headers"] = [*message.get("headers", ()), *added]
            await send(message)

        try:
            app = self._app if refusal is None else await self._unless_refused(scope, refusal)
            # HEAD is answered as GET everywhere; the server, which still knows, sends no body.
            inner: Scope = {**scope, "method": "GET", HEAD: True} if scope["method"] == "HEAD" else scope
            await app(inner, receive, send_with_id)
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

    def _look(self, scope: Scope) -> tuple[bytes, Problem | Unverified | None]:
        """Find the request's id, or make one; and whether it is refused for where it comes from or for its sender."""
        request_id = origin = fetch_site = None
        hosts: list[bytes] = []
        credentials: list[bytes] = []
        for name, value in scope["headers"]:
            if name not in _LOOKED_AT:
                continue
            if name == b"host":
                hosts.append(value)
            elif name == b"authorization":
                credentials.append(value)
            elif name == b"origin":
                origin = value if origin is None else b"%b, %b" % (origin, value)
            elif name == b"sec-fetch-site":
                fetch_site = value if fetch_site is None else b"%b, %b" % (fetch_site, value)
            elif request_id is None and _USABLE_ID.match(value):
                request_id = value
        if request_id is None:
            request_id = b"%s%08x" % (_PROCESS, next(_numbers))
        version = scope.get("http_version", "1.1")
        refusal = self._sites.refusal(scope["method"], hosts, origin, fetch_site, version=version)
        if refusal is None and self._admission is not None:
            return bytes(request_id), self._admission.admit(scope, credentials)
        return bytes(request_id), refusal

    async def _unless_refused(self, scope: Scope, refusal: Problem | Unverified) -> ASGIApp:
        """Give the application when the credential turns out to be good; else what answers with the problem."""
        problem = await refusal.verify() if isinstance(refusal, Unverified) else refusal
        if problem is None:
            return self._app
        address = address_of(scope)
        self._emit(RequestTurnedAway(problem.name, problem.detail, address))
        if problem.type in OF_CALLERS:
            caller = scope.get(CALLER, EVERYBODY).name or f"address {network_of(scope)}"
            self._emit(CallerRefused(caller, problem.name, problem.detail))
        return problem_response(problem)

    def _on_finish(self, scope: Scope, status: int, seconds: float) -> None:
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._done(method, _route(scope), status, seconds)
        if self._access_log:
            log.info("request", method=method, path=scope["path"], status=status, ms=round(seconds * 1000, 2))


def _stopping_problem(method: str) -> Problem:
    """Return what is known of a request that the gateway, stopping, works on no longer."""
    if method in ("GET", "HEAD", "OPTIONS"):
        return Problem(DATABASE_UNAVAILABLE, "The gateway is stopping.", retry_after=1)
    return Problem(
        OUTCOME_UNKNOWN,
        "The gateway was stopped while it worked on the request: it may have landed, or may yet.",
        hint="Repeat it with the same Idempotency-Key, or X-Lease-Secret, if it had one. Else ask GET /v1/fences.",
        retry_after=1,
        extra={"known": None},
    )


def _route(scope: Scope) -> str:
    """Name the route without what callers can invent: a label must have few values."""
    path: str = scope["path"]
    for prefix in _PREFIXES:
        if path.startswith(prefix):
            return prefix
    return path if path in ("/", "/healthz", "/readyz", "/metrics", "/openapi.json") else "other"
