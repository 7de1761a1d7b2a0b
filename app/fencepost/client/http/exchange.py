"""One request and its answer: what goes out, what comes back, and each way to fail, as one of the client's errors.

Lease upkeep has connections of its own: a renewal must not queue behind a thousand writes, nor behind acquires that
wait for their turn in the gateway for half a minute.
"""

import asyncio
import math
import os
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Self, TypeAlias

import httpx

from fencepost.client.clock import Clock
from fencepost.client.errors import ApiError, OutcomeUnknown, RowsNotKept, Unavailable
from fencepost.client.http.credentials import Credentials, Token
from fencepost.client.http.idempotency import KEY_HEADER, key_header
from fencepost.client.http.jsontext import dumps, join_lines, loads, loads_lines
from fencepost.client.http.retry import Retry, run_with_retry
from fencepost.client.problem import Problem
from fencepost.client.problem_errors import error_of

Pairs: TypeAlias = Sequence[tuple[str, str]]

CONNECT_SECONDS: Final = 5.0
DATA_CONNECTIONS: Final = 100
IDLE_CONNECTIONS: Final = 20
# Less than the gateway's own 5: a write that meets a connection which is just being closed has an unknown outcome.
IDLE_SECONDS: Final = 3.0

_PROBLEM: Final = "application/problem+json"
_NOTHING_READ: Final = b""
_UNAUTHENTICATED: Final = 401
_LAST_PORT: Final = 65535
_NEVER_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_NEVER_BUILT: Final = (httpx.UnsupportedProtocol, httpx.InvalidURL, httpx.CookieConflict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request. `writes`: without an answer it is not known what was done. `resource` and `token` are for errors
    to name. `lines`: the answer is a list, a line for each element, and the body one of texts.
    """

    method: str
    path: str
    params: Pairs = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    lines: bool = False
    writes: bool = False
    upkeep: bool = False
    read_seconds: float | None = None
    resource: str | None = None
    token: int | None = None

    @property
    def once(self) -> bool:
        """Whether doing it twice is not doing it once: a write without an Idempotency-Key."""
        return self.writes and KEY_HEADER not in self.headers

    def under(self, key: str) -> "Call":
        """Give the same request under an Idempotency-Key (R16)."""
        return replace(self, headers={**self.headers, KEY_HEADER: key_header(key)})


@dataclass(frozen=True, slots=True)
class Answer:
    """A success. `body` is its JSON, or None when it has none."""

    status: int
    headers: Mapping[str, str]
    body: Any


@contextmanager
def foreign_errors(call: Call) -> Iterator[None]:
    """Turn each of httpx's errors into one of ours: the only place where that happens."""
    try:
        yield
    except _NEVER_SENT as error:
        raise Unavailable(f"{_shown(call)} could not be sent: {_reason(error)}") from error
    except _NEVER_BUILT as error:
        raise Unavailable(f"{_shown(call)} could not be built: {_reason(error)}", may_repeat=False) from error
    except (httpx.HTTPError, httpx.StreamError) as error:
        raise no_answer(call, _reason(error)) from error


class Exchange:
    """The connections to one gateway."""

    def __init__(  # noqa: PLR0913 - what the client is made with
        self,
        url: str,
        *,
        retry: Retry,
        clock: Clock,
        timeout: float,
        headers: Mapping[str, str],
        verify: ssl.SSLContext | bool,
        transport: httpx.AsyncBaseTransport | None,
        decimals: bool,
        token: Token | None = None,
    ) -> None:
        if token is not None and any(name.lower() == "authorization" for name in headers):
            raise ValueError("token: there is a header Authorization already")
        self._credentials = Credentials(token, clock)
        self.clock = clock
        self.retry = retry
        self._decimals = decimals
        self._timeout = timeout
        connections = partial(
            httpx.AsyncClient,
            base_url=_check_url(url),
            headers=headers,
            timeout=httpx.Timeout(timeout, connect=min(timeout, CONNECT_SECONDS)),
            verify=verify,
            transport=transport,
            trust_env=False,
        )
        try:
            self._data = connections(limits=_pooled(DATA_CONNECTIONS, DATA_CONNECTIONS))
            self._upkeep = connections(limits=_pooled(None, IDLE_CONNECTIONS))
        except OSError as error:  # of the file that Python's ssl writes keys to
            raise ValueError(f"TLS cannot be used: {_reason(error)} (SSLKEYLOGFILE)") from error
        self._owner: tuple[asyncio.AbstractEventLoop, int] | None = None
        """The event loop and the process that have used the connections, which belong to them."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections."""
        await self._data.aclose()
        await self._upkeep.aclose()

    def seconds(self, call: Call) -> float:
        """Give how long a try of a request may take: silence for so long ends it. One of a lease's upkeep, whose
        answers are small, ends after so long in any case.
        """
        return self._timeout if call.read_seconds is None else call.read_seconds

    async def once(self, call: Call, most: float = math.inf) -> Answer:
        """Send a request, one time, which takes `most` seconds if its own limit is longer; whatever is not a success is
        raised. A request that was refused for its token, and so did nothing, is sent once more if there is another
        token.
        """
        seconds = min(self.seconds(call), most)
        client = self._connections(call)
        written = join_lines if call.lines else dumps
        content = None if call.body is None else written(call.body)
        token = await self._credentials.current()
        response = await self._send(client, call, content, token, seconds)
        if response.status_code == _UNAUTHENTICATED and await self._credentials.replace(token):
            response = await self._send(client, call, content, await self._credentials.current(), seconds)
        if not response.is_success:
            raise error_of(_problem(response), writes=call.writes)
        if "return=minimal" in response.headers.get("Preference-Applied", ""):  # which no call of the client asks for
            raise RowsNotKept(f"{_shown(call)} is done, and its rows were not kept for a repetition: read them")
        return Answer(response.status_code, response.headers, self._body(call, response))

    async def _send(
        self, client: httpx.AsyncClient, call: Call, content: bytes | None, token: str | None, seconds: float
    ) -> httpx.Response:
        headers = _headers(call, token)
        if content is not None:
            headers["Content-Type"] = "application/x-ndjson" if call.lines else "application/json"
        try:
            async with asyncio.timeout(seconds if call.upkeep else None):
                with foreign_errors(call):
                    return await client.request(
                        call.method,
                        call.path,
                        params=list(call.params) or None,
                        headers=headers,
                        content=content,
                        timeout=self._limits(seconds),
                    )
        except TimeoutError as error:
            raise no_answer(call, "no answer in time") from error

    @asynccontextmanager
    async def stream(self, call: Call) -> AsyncIterator[AsyncIterator[str]]:
        """Send a request whose answer goes on, one time (as `once` does); gives its lines as they come. `read_seconds`
        ends silence.
        """
        client = self._connections(call)
        token = await self._credentials.current()
        with foreign_errors(call):
            async with AsyncExitStack() as stack:
                response = await stack.enter_async_context(self._opened(client, call, token))
                if response.status_code == _UNAUTHENTICATED and await self._credentials.replace(token):
                    token = await self._credentials.current()
                    response = await stack.enter_async_context(self._opened(client, call, token))
                if not response.is_success:
                    await response.aread()
                    raise error_of(_problem(response), writes=call.writes)
                yield response.aiter_lines()

    def _opened(
        self, client: httpx.AsyncClient, call: Call, token: str | None
    ) -> AbstractAsyncContextManager[httpx.Response]:
        return client.stream(
            call.method,
            call.path,
            params=list(call.params) or None,
            headers=_headers(call, token),
            timeout=self._limits(self.seconds(call)),
        )

    def require_owner(self) -> None:
        """Raise RuntimeError in another event loop or process than the one that has the connections."""
        self._owner = self._owner or (asyncio.get_running_loop(), os.getpid())
        # In a forked process no event loop runs.
        if self._owner[1] != os.getpid() or self._owner[0] is not asyncio.get_running_loop():
            raise RuntimeError(
                "this Client was used in another event loop, or before a fork, and its connections belong there:"
                " make a Client in each, `async with Client(url) as c:`"
            )

    def _connections(self, call: Call) -> httpx.AsyncClient:
        self.require_owner()
        client = self._upkeep if call.upkeep else self._data
        if client.is_closed:
            raise Unavailable(f"{_shown(call)} was not sent: the client is closed", may_repeat=False)
        return client

    def _limits(self, seconds: float) -> httpx.Timeout:
        other = min(self._timeout, seconds)
        return httpx.Timeout(other, connect=min(other, CONNECT_SECONDS), read=seconds)

    async def repeat(self, call: Call) -> Answer:
        """Send a request, again if that can help and the client's `retry` allows it."""
        return await run_with_retry(
            self.retry, self.clock, lambda most: self.once(call, most), seconds=self.seconds(call), once=call.once
        )

    def _body(self, call: Call, response: httpx.Response) -> object:
        if response.content == _NOTHING_READ:
            return None
        try:
            return (loads_lines if call.lines else loads)(response.content, decimals=self._decimals)
        except (ValueError, RecursionError) as error:
            raise no_answer(call, f"the answer {response.status_code} is not JSON") from error


def _headers(call: Call, token: str | None) -> dict[str, str]:
    headers = dict(call.headers)
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    return headers


def _problem(response: httpx.Response) -> Problem:
    members: object = None
    if response.headers.get("content-type", "").partition(";")[0] == _PROBLEM:
        try:
            members = loads(response.content)
        except ValueError:
            members = None
    after = response.headers.get("retry-after", "")
    return Problem(
        members if isinstance(members, dict) else {},
        response.status_code,
        float(after) if after.isascii() and after.isdigit() else None,
    )


def no_answer(call: Call, reason: str) -> ApiError:
    """Give the error for a request whose answer did not come, or cannot be read."""
    if call.writes:
        return OutcomeUnknown(
            f"{_shown(call)} was sent, and its answer is not known: {reason}. It may have landed, or may still",
            resource=call.resource,
            presented_token=call.token,
        )
    return Unavailable(f"{_shown(call)} was not answered: {reason}")


def _shown(call: Call) -> str:
    return f"{call.method} {call.path}"


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _pooled(most: int | None, idle: int) -> httpx.Limits:
    return httpx.Limits(max_connections=most, max_keepalive_connections=idle, keepalive_expiry=IDLE_SECONDS)


def _check_url(url: str) -> httpx.URL:
    """Read the gateway's URL; ValueError if it is none, which shows no password."""
    shown = "url" if "@" in url else f"url {url!r}"
    try:
        read = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ValueError(f"{shown}: {'it cannot be read' if '@' in url else error}") from error
    if read.scheme not in ("http", "https") or not read.host:
        raise ValueError(f"{shown}: a gateway is at http://host:port or https://host:port")
    if read.port is not None and read.port > _LAST_PORT:
        raise ValueError(f"{shown}: a port is at most {_LAST_PORT}")
    if read.userinfo:  # messages name the gateway by its URL
        raise ValueError(
            f"{shown}: a gateway's URL has no user and no password (what stands before the @): a gateway takes a token"
        )
    if "?" in url or "#" in url:
        raise ValueError(f"{shown}: a gateway's URL has no query (?) and no fragment (#)")
    return read
