"""The outermost layer, once per request: which host and page it is from, who sends it, a request id, the time it took,
and an answer whatever happens.

Plain ASGI: nothing is copied or buffered on the way.
"""

import asyncio
import itertools
import math
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final, Literal

import structlog
from limits import RateLimitItem, parse
from limits.storage import MemoryStorage
from limits.strategies import SlidingWindowCounterRateLimiter
from starlette.requests import ClientDisconnect
from starlette.responses import Response, StreamingResponse
from starlette.routing import compile_path
from starlette.types import Message, Receive, Scope, Send
from structlog.contextvars import STRUCTLOG_KEY_PREFIX

from fencepost.server.fence.caller import ANONYMOUS, CALLER, EVERY_ACCESS, EVERYBODY, UNKNOWN, Access, Caller
from fencepost.server.fence.problem_types import (
    AUTHENTICATION_REQUIRED,
    BODY_TOO_LARGE,
    CROSS_SITE,
    DATABASE_UNAVAILABLE,
    INTERNAL_ERROR,
    INVALID_CREDENTIAL,
    OUTCOME_UNKNOWN,
    RATE_LIMITED,
    WRONG_HOST,
)
from fencepost.server.fence.problems import Problem, bad_request, out_of_scope
from fencepost.server.http.guard import STANDING
from fencepost.server.http.problems import problem_response
from fencepost.server.identity.authenticator import Authenticator, Standing
from fencepost.server.observe.events import CallerRefused, Emit, RequestTurnedAway
from fencepost.server.startup import StartupError

# Who sends a request, as far as quotas count callers: the caller that the authenticator has found, or the address of
# the connection.
#
# What a header says of the client (X-Forwarded-For) anyone can write: behind a proxy all are one address.


NETWORK: Final = "fencepost.network"
"""Under which name the scope has what `network_of` gives, where the server has found it once for the connection."""


ASKS: Final = "fencepost.asks"
"""Under which name the scope has what `caller_of` gives, from when the caller is known."""


def caller_of(scope: Scope) -> str:
    """Name the caller."""
    name: str = scope.get(CALLER, EVERYBODY).name
    return name if name and name != ANONYMOUS else network_of(scope)


def network_of(scope: Scope) -> str:
    """Give the address of the connection, of IPv6 its first 64 bits: one client has all addresses that begin so."""
    known: str | None = scope.get(NETWORK)
    if known is not None:
        return known
    address = address_of(scope)
    if ":" not in address:
        return address
    try:
        ip = IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if ip.ipv4_mapped is not None:  # a socket that takes both kinds shows IPv4 addresses so
        return str(ip.ipv4_mapped)
    return str(ip_network((ip, 64), strict=False))


def address_of(scope: Scope) -> str:
    """Give the address of the connection."""
    client = scope.get("client")
    return str(client[0]) if client else UNKNOWN


# How many requests a caller may send, and how often an address may fail to say who it is; in each process apart.
#
# Counted by the library `limits` in memory, as a sliding window of two counters: it needs the same room however many
# requests there are. The header fields are those of draft-ietf-httpapi-ratelimit-headers (RateLimit-Policy: q requests
# in w seconds; RateLimit: r requests are left, and t seconds until there are more).

HEADERS: Final = "fencepost.rate-limit"
"""Under which name the ASGI scope of a request has the fields that its answer shows."""
Fields = tuple[tuple[bytes, bytes], ...]
Counter = Literal["caller", "lease"]
"""What a request counts as: `lease`, a renewal or release of a lease; `caller`, anything else."""


class RateLimitError(StartupError):
    """A setting is no rate limit. The message is one line."""


def read_rate(setting: str, text: str) -> RateLimitItem | None:
    """Read `100/second`, `5 per 10 minutes`; empty: no limit. Raises RateLimitError."""
    if not text.strip():
        return None
    try:
        item = parse(text)
    except ValueError:
        item = None
    if item is None or item.amount < 1:
        raise RateLimitError(f"{setting}: {text!r:.60} is no rate: 100/second, 5 per 10 minutes")
    return item


class RateLimits:
    """`per_caller`: requests of one caller, or of one address where the caller is the anonymous one. `failed`: requests
    of one address whose token or key was not accepted. None: no limit.
    """

    def __init__(self, per_caller: RateLimitItem | None = None, failed: RateLimitItem | None = None) -> None:
        self._per_caller, self._failed = per_caller, failed
        self._limiter = SlidingWindowCounterRateLimiter(MemoryStorage())

    def take(self, caller: Caller, address: str | None, counter: Counter = "caller") -> tuple[Problem | None, Fields]:
        """Count a request, `address` where it is an anonymous one; a problem if it is one too many. Gives the fields of
        its answer. `counter`: renewals and releases of leases are counted apart, each up to the limit.
        """
        limit = self._per_caller
        if limit is None:
            return None, ()
        who = (counter, "caller", caller.name) if address is None else (counter, "address", address)
        allowed = self._limiter.hit(limit, *who)
        remaining, seconds = self._left(limit, *who)
        fields = (
            (b"ratelimit-policy", b'"%s";q=%d;w=%d' % (counter.encode(), limit.amount, limit.get_expiry())),
            (b"ratelimit", b'"%s";r=%d;t=%d' % (counter.encode(), remaining, seconds)),
        )
        if allowed:
            return None, fields
        of = f"The caller {caller.name}" if address is None else f"The address {address}"
        sent = "renewals and releases of leases" if counter == "lease" else "requests"
        detail = f"{of} has sent more {sent} than {limit}, which is what one may send to a process of this gateway."
        return Problem(RATE_LIMITED, detail, retry_after=max(seconds, 1)), fields

    def pace(self, caller: Caller, address: str | None) -> "Pace | None":
        """Give how fast the lines of a batch of this caller may come; None: there is no limit."""
        if self._per_caller is None:
            return None
        return Pace(self, self._per_caller, ("caller", caller.name) if address is None else ("address", address))

    def count(self, limit: RateLimitItem, who: tuple[str, str], cost: int) -> int:
        """Count so many requests at once, if they are not too many: then give the seconds until there are more."""
        if self._limiter.hit(limit, "caller", *who, cost=cost):
            return 0
        return max(self._left(limit, "caller", *who)[1], 1)

    def failing(self, address: str) -> Problem | None:
        """Refuse to verify a credential of an address that has sent too many that were not accepted."""
        limit = self._failed
        if limit is None or self._limiter.test(limit, "failed", address):
            return None
        _, seconds = self._left(limit, "failed", address)
        return Problem(
            RATE_LIMITED,
            f"The address {address} has sent more tokens or keys that are not accepted than {limit}.",
            hint="A token or key that was accepted a moment ago is served all the same.",
            retry_after=max(seconds, 1),
        )

    def failed(self, address: str) -> None:
        """Count a credential that was not accepted."""
        if self._failed is not None:
            self._limiter.hit(self._failed, "failed", address)

    def _left(self, limit: RateLimitItem, *who: str) -> tuple[int, int]:
        """Give how many are left, and the seconds until there are more."""
        stats = self._limiter.get_window_stats(limit, *who)
        return stats.remaining, max(math.ceil(stats.reset_time - time.time()), 0)  # noqa: TID251 - the library's clock


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast the lines of a batch may come: each counts as a request of its caller."""

    limits: RateLimits
    limit: RateLimitItem
    who: tuple[str, str]

    def take(self, lines: int = 1) -> int:
        """Count so many lines. 0: they may go on; else the seconds after which to ask again: they were not counted."""
        return self.limits.count(self.limit, self.who, lines)

    def refusal(self, lines: int) -> Problem | None:
        """Count so many lines, which are to go on together; say why they may not."""
        if lines >= self.limit.amount:  # the batch itself is a request, too
            detail = f"The batch and its {lines} lines, which are to land as a whole, are more than {self.limit}."
            return Problem(BODY_TOO_LARGE, detail)
        seconds = self.take(lines)
        if not seconds:
            return None
        detail = f"With {lines} lines, which are to land as a whole, the caller would have sent more than {self.limit}."
        return Problem(RATE_LIMITED, detail, retry_after=seconds)


# Whether a request's caller is known, and may ask for this: looked at before any route, for all of them.

_NOBODY: Final = Caller(ANONYMOUS, access=frozenset())
"""The caller of a request to an open route."""

Needs = Access | Literal["nothing", "more for callers", "a caller", "a name"]
"""What a request's caller must be allowed to do. `more for callers`: nothing, and known callers are shown more. `a
name`: a request without a credential does not see it, whatever else it may. Routes say it (http/routes.py).
"""
_OPEN: Final = frozenset({"nothing", "more for callers"})
READS: Final = frozenset({"GET", "HEAD"})


def counted_as(method: str, path: str) -> Counter:
    """Say what a request counts as. A holder that writes much must not lose its leases by that: what keeps a lease, or
    gives it back, has a counter of its own.
    """
    keeps = path.startswith("/v1/leases") and (method == "DELETE" or path.endswith("/renew"))
    return "lease" if keeps else "caller"


def is_named(scope: Scope) -> bool:
    """Say whether the caller of a request is known. Where there is no authentication, all are."""
    caller: Caller = scope.get(CALLER, EVERYBODY)
    return caller.name != ANONYMOUS


def is_nobody(scope: Scope) -> bool:
    """Say whether a request came to an open route only because the route is open: its caller is not known, and there is
    no role for such callers.
    """
    return scope.get(CALLER) is _NOBODY


class Admission:
    """Asks the authenticator, and puts the caller into the request's scope."""

    def __init__(self, authenticator: Authenticator, limits: RateLimits, needs: Callable[[str, str], Needs]) -> None:
        """`needs`: by method and path."""
        self._authenticator, self._limits, self._needs = authenticator, limits, needs

    def admit(self, scope: Scope, credentials: Sequence[bytes]) -> "Problem | Unverified | None":
        """Let a request in whose caller is known; or say why not, or that its credential is to be verified first."""
        if len(credentials) > 1:
            return bad_request(f"Authorization: {len(credentials)} headers, and a request has one.")
        credential = credentials[0] if credentials else None
        caller = self._authenticator.known(credential)
        if caller is not None:
            return self.enter(scope, caller, credential)
        needed = self._needs(scope["method"], scope["path"])
        # Where callers are shown more, a credential that is there is looked at.
        if needed == "nothing" or (needed == "more for callers" and credential is None):
            scope[CALLER] = _NOBODY
            return None
        return Unverified(self, scope, credential)

    async def identify(self, scope: Scope, credential: bytes | None) -> Caller | Problem:
        """Find the caller, unless its address has failed too often."""
        if credential is None:
            return await self._authenticator.identify(None)
        address = network_of(scope)
        # A client that sends bad credentials must not keep others at its address from renewing their leases.
        if not self._authenticator.was_accepted(credential) and (limited := self._limits.failing(address)) is not None:
            return limited
        found = await self._authenticator.identify(credential)
        if isinstance(found, Problem) and found.type is INVALID_CREDENTIAL:
            self._limits.failed(address)
        return found

    def enter(self, scope: Scope, caller: Caller, credential: bytes | None) -> Problem | None:
        """Let this caller's request in, or say why not."""
        scope[CALLER] = caller
        scope[STANDING] = Standing(self._authenticator, caller, credential)
        wanted = self._needs(scope["method"], scope["path"])
        if wanted in _OPEN:
            return None  # probes of health count for no caller
        anonymous = caller is self._authenticator.anonymous
        counter = counted_as(scope["method"], scope["path"])
        limited, scope[HEADERS] = self._limits.take(caller, network_of(scope) if anonymous else None, counter)
        if limited is not None:
            return limited
        if caller.access is EVERY_ACCESS:
            return None
        if not anonymous:
            return out_of_scope(caller, wanted) if wanted in EVERY_ACCESS - caller.access else None
        if wanted == "a name" or wanted in EVERY_ACCESS - caller.access:
            return Problem(AUTHENTICATION_REQUIRED, "This is not for requests without a credential.")
        return None


@dataclass(frozen=True, slots=True)
class Unverified:
    """A request whose caller is not known yet."""

    admission: Admission
    scope: Scope
    credential: bytes | None

    async def verify(self) -> Problem | None:
        """Find the caller, and let the request in, or say why not."""
        found = await self.admission.identify(self.scope, self.credential)
        return found if isinstance(found, Problem) else self.admission.enter(self.scope, found, self.credential)


# Which host a request must name, and which pages of the web may send one.
#
# A gateway without authentication is for all programs that reach its port. A page in a browser on the same machine is
# one of them: it sends requests to any address, without being able to read the answers; or, under a name that leads to
# that address (DNS rebinding), as its own site. Browsers say so: in Host, Origin and Sec-Fetch-Site.

LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "[::1]")
"""Always served."""
ANY: Final = "*"
"""Allows any host: for where a proxy checks it."""
_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]@/?#\s]+)(?::\d{1,5})?")
_ORIGIN: Final = re.compile(r"https?://(\[[0-9a-f:.]+\]|[^:\[\]@/?#\s*]+)(:\d{1,5})?")
_MOST_KEPT: Final = 1000

ASKED_HEADERS: Final = (
    "Accept", "Accept-Profile", "Authorization", "Content-Profile", "Content-Type", "Idempotency-Key", "If-Match",
    "If-None-Match", "Last-Event-ID", "Prefer", "X-Fence-Token", "X-Lease-Secret", "X-Request-Id",
)  # fmt: skip
"""What pages of other sites may send, where the operator allows them."""
ANSWERED_HEADERS: Final = (
    "Content-Location", "Content-Range", "ETag", "Idempotent-Replayed", "Location", "Preference-Applied", "RateLimit",
    "RateLimit-Policy", "Retry-After", "WWW-Authenticate", "X-Fence-Mark", "X-Fence-Scope", "X-Request-Id",
)  # fmt: skip
"""What they may read."""


class SitesError(StartupError):
    """A setting cannot be read. The message is one line."""


@dataclass
class Sites:
    """`hosts`: names without a port, or ANY. `origins`: as https://shop.example, of pages that may use the gateway.
    `addresses`: whether each address is served: DNS rebinding needs a name, and Prometheus asks by address.
    """

    hosts: frozenset[str]
    origins: frozenset[str]
    addresses: bool = False
    _served: set[bytes] = field(default_factory=set)
    """Values of Host that were found to be served."""

    def refusal(
        self, method: str, hosts: Sequence[bytes], origin: bytes | None, fetch_site: bytes | None, *, version: str
    ) -> Problem | None:
        """Say why a request is refused, by its headers Host (each of them), Origin and Sec-Fetch-Site."""
        if len(hosts) != 1:
            if hosts or version != "1.0":
                return bad_request(f"Host: {len(hosts) or 'no'} headers, and a request has one.")
        elif hosts[0] not in self._served and (problem := self._host_refusal(hosts[0])) is not None:
            return problem
        if method in READS or (origin is None and fetch_site is None):
            return None
        return self._page_refusal(hosts[0] if hosts else b"", origin, fetch_site)

    def _host_refusal(self, host: bytes) -> Problem | None:
        text = host.decode("latin-1").lower()
        found = _HOST.fullmatch(text)
        if found is None:
            return bad_request(f"Host: {text[:100]!r} is no host.")
        if ANY not in self.hosts and found[1] not in self.hosts and not (self.addresses and _is_address(found[1])):
            return Problem(
                WRONG_HOST,
                f"Host: {text[:100]} is not served.",
                hint=f"FENCEPOST_ALLOWED_HOSTS={found[1][:100]} allows it.",
            )
        if len(self._served) < _MOST_KEPT:
            self._served.add(host)
        return None

    def _page_refusal(self, host: bytes, origin: bytes | None, fetch_site: bytes | None) -> Problem | None:
        if origin is not None:
            text = origin.decode("latin-1").lower()
            _, _, of = text.partition("://")
            if "," not in text and (text in self.origins or (of and of == host.decode("latin-1").lower())):
                return None
            return Problem(
                CROSS_SITE,
                f"Origin: {text[:100]} is another site than {host.decode('latin-1')[:100]}.",
                hint=f"FENCEPOST_CORS_ORIGINS={text[:100]} allows its pages.",
            )
        if fetch_site is not None and b"cross-site" in fetch_site.lower():
            return Problem(CROSS_SITE, "Sec-Fetch-Site: cross-site: a page of another site sent the request.")
        return None

    def for_page(self, origin: bytes | None) -> dict[str, str]:
        """Give the headers by which a page of an allowed site may read an answer that is made before any route."""
        text = (origin or b"").decode("latin-1")
        if text.lower() not in self.origins:
            return {}
        exposed = ", ".join(ANSWERED_HEADERS)
        return {"Access-Control-Allow-Origin": text, "Access-Control-Expose-Headers": exposed, "Vary": "Origin"}


def read_sites(listens_on: str, allowed_hosts: str, cors_origins: str, *, addresses: bool = False) -> Sites:
    """Read the settings. Raises SitesError. `addresses`: each address is served, too."""
    hosts = {*LOOPBACK_NAMES, *_names(allowed_hosts)}
    for host in hosts - {ANY}:
        if (found := _HOST.fullmatch(host)) is None or found[1] != host:
            raise SitesError(
                f"allowed hosts: {host!r} is no name of a host: shop.example, 10.0.0.5 or [fd00::5], without a port"
            )
    origins = _names(cors_origins)
    for origin in origins:
        if not _ORIGIN.fullmatch(origin):
            raise SitesError(f"CORS origins: {origin!r} is no origin: https://shop.example, without a path")
    own = listens_on.lower()
    return Sites(frozenset({*hosts, f"[{own}]" if ":" in own else own}), frozenset(origins), addresses)


def _names(setting: str) -> list[str]:
    return [name for each in setting.split(",") if (name := each.strip().lower())]


def _is_address(host: str) -> bool:
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


# The layer itself: an id, the time, an answer whatever happens.

# An id need only be new: random bytes for each request would cost a system call.
_PROCESS: Final = secrets.token_hex(4).encode()
_numbers: Final = itertools.count(1)
_USABLE_ID: Final = re.compile(rb"[\x21-\x7e]{1,128}\Z")
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


Answering = Callable[[Scope, Receive, Send], Awaitable[Response | None]]
"""An ASGI application; one that returns its answer does not send it: the edge does."""
NAMED: Final = "fencepost.named"
"""Under which name the scope has the request's headers by their names, where none of them came twice."""
_REQUEST_ID: Final[ContextVar[str]] = ContextVar(f"{STRUCTLOG_KEY_PREFIX}request_id")
"""What structlog's `merge_contextvars` adds to the lines of a request. Its `bind_contextvars` takes longer."""


class Paths:
    """Says what answers a request that does not go to FastAPI: its router and middleware cost as much as a write.

    `raw`: by a path as it came, undecoded; one that ends with a slash stands for those below it. `routes`: by method
    and decoded path, whose parts are put into the scope; it is matched as Starlette does. HEAD is as GET.
    """

    def __init__(self, routes: Iterable[tuple[str, str, Answering]], raw: Mapping[bytes, Answering]) -> None:
        self._raw = tuple(raw.items())
        self._by_method: dict[str, list[tuple[re.Pattern[str], Answering]]] = {}
        for route_method, path, answering in routes:
            for method in READS if route_method == "GET" else (route_method,):
                self._by_method.setdefault(method, []).append((compile_path(path)[0], answering))

    def find(self, scope: Scope) -> Answering | None:
        """Find it. None: FastAPI, with pages, OpenAPI and the refusals of what is no route."""
        raw: bytes = scope["raw_path"]
        for known, answering in self._raw:
            if raw == known or (known.endswith(b"/") and raw.startswith(known)):
                return answering
        for pattern, answering in self._by_method.get(scope["method"], ()):
            if (found := pattern.match(scope["path"])) is not None:
                scope["path_params"] = found.groupdict()
                return answering
        return None


class Edge:
    """Wraps an application; with `paths`, what these have for a request instead: where they have nothing, the
    application answers, which has an edge of its own.
    """

    def __init__(
        self,
        app: Answering,
        *,
        done: RequestDone,
        access_log: bool,
        sites: Sites,
        emit: Emit,
        admission: Admission | None = None,
        paths: Paths | None = None,
    ) -> None:
        self._app, self._sites, self._admission, self._emit = app, sites, admission, emit
        self._done, self._access_log = done, access_log
        self._find: Callable[[Scope], Answering | None] = paths.find if paths else lambda _scope: app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; lifespan passes through."""
        app = self._find(scope) if scope["type"] == "http" else None
        if app is None:
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        request_id, refusal = self._look(scope)
        _REQUEST_ID.set(request_id.decode("ascii"))
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                added = (b"x-request-id", request_id), _NO_SNIFFING, *scope.get(HEADERS, ())
                message["headers"] = [*message.get("headers", ()), *added]
            await send(message)

        try:
            if refusal is not None:
                app = await self._refused(scope, refusal) or app
            scope[ASKS] = caller_of(scope)
            # HEAD is answered as GET everywhere; the server, which still knows, sends no body.
            inner: Scope = {**scope, "method": "GET", HEAD: True} if scope["method"] == "HEAD" else scope
            answer = await app(inner, receive, send_with_id)
            if answer is not None:
                # The connection's own `send`, and nothing between that would add to the answer: it goes in one step.
                send_whole = getattr(getattr(send, "__self__", None), "send_whole", None)
                if send_whole is None or isinstance(answer, StreamingResponse):
                    await answer(inner, receive, send_with_id)
                else:
                    status = answer.status_code
                    added = (b"x-request-id", request_id), _NO_SNIFFING, *scope.get(HEADERS, ())
                    await send_whole(status, (*answer.raw_headers, *added), answer.body)
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
        raw = scope["headers"]
        named: dict[bytes, bytes] = dict(raw)
        hosts, origin, fetch_site = _once(named, b"host"), named.get(b"origin"), named.get(b"sec-fetch-site")
        credentials, request_id = _once(named, b"authorization"), named.get(b"x-request-id")
        if len(named) == len(raw):
            scope[NAMED] = named
        else:
            hosts, credentials = _each(raw, b"host"), _each(raw, b"authorization")
            origin = b", ".join(_each(raw, b"origin")) if origin is not None else None
            fetch_site = b", ".join(_each(raw, b"sec-fetch-site")) if fetch_site is not None else None
            request_id = next((value for value in _each(raw, b"x-request-id") if _USABLE_ID.match(value)), None)
        if request_id is None or not _USABLE_ID.match(request_id):
            request_id = b"%s%08x" % (_PROCESS, next(_numbers))
        version = scope.get("http_version", "1.1")
        refusal = self._sites.refusal(scope["method"], hosts, origin, fetch_site, version=version)
        if refusal is None and self._admission is not None:
            return bytes(request_id), self._admission.admit(scope, credentials)
        return bytes(request_id), refusal

    async def _refused(self, scope: Scope, refusal: Problem | Unverified) -> Response | None:
        """Give the answer with the problem; None: the credential turned out to be good."""
        problem = await refusal.verify() if isinstance(refusal, Unverified) else refusal
        if problem is None:
            return None
        address = address_of(scope)
        self._emit(RequestTurnedAway(address, problem.name, problem.detail))
        if problem.type.of_caller:
            caller = scope.get(CALLER, EVERYBODY).name or f"address {network_of(scope)}"
            self._emit(CallerRefused(caller, problem.name, problem.detail))
        return problem_response(problem)

    def _on_finish(self, scope: Scope, status: int, seconds: float) -> None:
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._done(method, _route(scope), status, seconds)
        if self._access_log:
            log.info("request", method=method, path=scope["path"], status=status, ms=round(seconds * 1000, 2))


def _once(named: Mapping[bytes, bytes], name: bytes) -> Sequence[bytes]:
    return (named[name],) if name in named else ()


def _each(raw: Iterable[tuple[bytes, bytes]], name: bytes) -> Sequence[bytes]:
    return [value for each, value in raw if each == name]


def _stopping_problem(method: str) -> Problem:
    """Return what is known of a request that the gateway, stopping, works on no longer."""
    if method in ("GET", "HEAD", "OPTIONS"):
        return Problem(DATABASE_UNAVAILABLE, "The gateway is stopping.")
    return Problem(
        OUTCOME_UNKNOWN,
        "The gateway was stopped while it worked on the request: it may have landed, or may yet.",
        hint="Repeat it with the same Idempotency-Key, or X-Lease-Secret, if it had one. Else ask GET /v1/fences.",
        extra={"known": None},
    )


def _route(scope: Scope) -> str:
    """Name the route without what callers can invent: a label must have few values."""
    path: str = scope["path"]
    for prefix in _PREFIXES:
        if path.startswith(prefix):
            return prefix
    return path if path in ("/", "/healthz", "/readyz", "/metrics", "/openapi.json") else "other"
