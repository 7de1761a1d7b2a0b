"""Requests on their way: credentials, JSON, when a request is repeated, and the exchange that sends it."""

import asyncio
import base64
import binascii
import inspect
import json
import logging
import math
import os
import random
import re
import secrets
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from datetime import time as time_of_day
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, Final, Self, TypeAlias, TypeVar
from uuid import UUID, uuid4

import httpx

from fencepost.client.clock import Clock
from fencepost.client.errors import (
    ApiError,
    LockHeld,
    OutcomeUnknown,
    Problem,
    RowsNotKept,
    SpentToken,
    StaleToken,
    Unavailable,
    error_of,
)


def dumps(value: object) -> bytes:
    """Write JSON. Times and UUIDs go as strings, which PostgreSQL reads exactly; so does a timedelta, as an ISO 8601
    duration of days and seconds. Decimals go as numbers, with all digits. NaN as a float raises ValueError. Half of a
    character goes as its escape.
    """
    mark = ""

    def written(other: object) -> str:
        nonlocal mark
        if isinstance(other, Decimal) and other.is_finite():
            # json writes no number of ours: it gets a string, whose quotes and mark, which no other has, go again.
            mark = mark or secrets.token_hex(16)
            return f"{mark}{other}"
        return _text(other)

    text = json.dumps(value, default=written, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    return (re.sub(f'"{mark}([^"]+)"', r"\1", text) if mark else text).encode(errors="backslashreplace")


def loads(text: bytes, *, decimals: bool = False) -> object:
    """Read JSON; ValueError if it is none. `decimals`: fractions become Decimal, and lose no digit. A number that no
    float holds is a Decimal in any case, so that it can be sent back.
    """
    fraction = Decimal if decimals else _number
    read: object = json.loads(
        text, parse_float=fraction, parse_int=lambda digits: fraction(digits) if digits == "-0" else _integer(digits)
    )
    return read


def _number(text: str) -> float | Decimal:
    number = float(text)
    return number if math.isfinite(number) else Decimal(text)


def _integer(digits: str) -> int | Decimal:
    return int(digits) if len(digits) < _MOST_DIGITS else Decimal(digits)  # Python reads no longer ones


_MOST_DIGITS = 4000


def _text(value: object) -> str:
    if isinstance(value, datetime | date | time_of_day):
        return value.isoformat()
    if isinstance(value, timedelta):
        return f"P{value.days}DT{value.seconds}.{value.microseconds:06}S"
    if isinstance(value, UUID | Decimal):
        return str(value)
    raise TypeError(f"{type(value).__name__} {value!r} cannot be sent as JSON")


# The token or API key that requests carry, and when it is asked for again.
#
# A callable is asked for the first request; again when a JWT that it gave ends soon, by its `exp` and this machine's
# clock; and once when the gateway answers 401. All requests that need it at one time share the question.

Token: TypeAlias = str | Callable[[], str | Awaitable[str]]
"""A token or API key, or what gives one."""

TOKEN_VARIABLE: Final = "FENCEPOST_API_TOKEN"  # noqa: S105 - the variable's name
FILE_VARIABLE: Final = "FENCEPOST_API_TOKEN_FILE"
EARLY: Final = 30.0
"""Seconds before its end at which a JWT is renewed, or a fifth of what was left when it came, if that is less."""
_PARTS_OF_JWT: Final = 3

logger = logging.getLogger("fencepost.client")


def token_from_file(path: str | os.PathLike[str]) -> Callable[[], str]:
    """Give a token that is read from a file whenever it is asked for: the file may be replaced. Reading raises OSError,
    and ValueError for a file that has no token, or more than one; both name the file.
    """

    def read() -> str:
        try:
            found = Path(path).read_text("utf-8-sig").split()
        except UnicodeDecodeError as error:
            raise ValueError(f"{os.fspath(path)}: it is no text") from error
        if len(found) != 1:
            raise ValueError(f"{os.fspath(path)}: {'it has more than a token' if found else 'it is empty'}")
        try:
            return _checked(found[0])
        except ValueError as error:
            raise ValueError(f"{os.fspath(path)}: {error}") from error

    return read


def token_from_environment() -> Token | None:
    """Give the token of FENCEPOST_API_TOKEN_FILE or FENCEPOST_API_TOKEN; None: neither is set. ValueError: both are."""
    file, token = os.environ.get(FILE_VARIABLE), os.environ.get(TOKEN_VARIABLE)
    if file and token:
        raise ValueError(f"{FILE_VARIABLE} and {TOKEN_VARIABLE} are both set: set one of them")
    return token_from_file(file) if file else token or None


class Credentials:
    """What the requests of one client carry."""

    def __init__(self, token: Token | None, clock: Clock, *, wall: Callable[[], float] = time.time) -> None:  # noqa: TID251 - `exp` is a time of day
        self._give = token if callable(token) else None
        self._current = None if token is None or callable(token) else _checked(token)
        self._clock = clock
        self._wall = wall
        self._renew_at: float | None = None
        self._asking = asyncio.Lock()

    async def current(self) -> str | None:
        """Return the token to send; None: there is none. Unavailable: it could not be had."""
        if self._give is None or (self._current is not None and not self._is_due()):
            return self._current
        async with self._asking:
            if self._current is None:
                await self._ask(self._give)
            elif self._is_due():
                await self._ask_early(self._give)
            return self._current

    async def replace(self, refused: str | None) -> bool:
        """Whether there is another token than the one that was refused, to send the request again with."""
        if self._give is None:
            return False
        async with self._asking:
            if self._current == refused:
                await self._ask(self._give)
            return self._current != refused

    def _is_due(self) -> bool:
        return self._renew_at is not None and self._clock.now() >= self._renew_at

    async def _ask_early(self, give: Callable[[], str | Awaitable[str]]) -> None:
        """Ask anew before the end. If that fails, the token that there is will do until then."""
        try:
            await self._ask(give)
        except Unavailable as error:
            logger.warning("%s; the present token is used until it ends", error)
            self._renew_at = self._clock.now() + 1.0

    async def _ask(self, give: Callable[[], str | Awaitable[str]]) -> None:
        try:
            # In a thread: renewals of leases must not wait while one that is not asynchronous asks the network.
            found = give() if inspect.iscoroutinefunction(give) else await asyncio.to_thread(give)
            token = _checked(await found if inspect.isawaitable(found) else found)
        except Exception as error:
            raise Unavailable(f"no token could be had, and nothing was sent: {_reason(error)}") from error
        self._current = token
        ends_in = None if (end := end_of(token)) is None else end - self._wall()
        # One that has ended by our clock is left to the gateway, whose clock counts.
        self._renew_at = None
        if ends_in is not None and ends_in > 0:
            self._renew_at = self._clock.now() + ends_in - min(EARLY, ends_in / 5)


def end_of(token: str) -> float | None:
    """Read when a JWT ends (seconds of Unix time); None for what is no JWT, or does not say. Nothing is verified."""
    parts = token.split(".")
    if len(parts) != _PARTS_OF_JWT:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        end = claims.get("exp") if isinstance(claims, dict) else None
        return None if end is None else float(end)
    except (ValueError, TypeError, OverflowError, binascii.Error, RecursionError):
        return None


def _checked(token: object) -> str:
    """Require what can stand in a header. ValueError, which does not show it."""
    if not isinstance(token, str):
        raise TypeError(f"a token is a str, not {type(token).__name__}")
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError("a token is printable ASCII without blanks, and not empty")
    return token


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


# Which failures are tried again, after how long, and for how long.
#
# Only a request of which it is certain that nothing was done, or that may be repeated because doing it twice is doing
# it once: reads, renewals, mints (the lost tokens are never used), an acquire with its own secret, a release, and
# every write, for it carries an Idempotency-Key and keeps it. A refusal is an answer, and is never repeated: a client
# loop that retries a stale write forever is what Fencepost is designed against.
#
# What ends trying is the time that has passed, not a count: eight tries are over in five seconds when the gateway
# refuses connections, and in minutes when it accepts them and is silent.

T = TypeVar("T")

DEFINITE: Final = (StaleToken, SpentToken, LockHeld)
"""Refusals that hold for an earlier attempt too, wherever it is: marks never fall; a grant is found by its secret."""
IN_FLIGHT: Final = "FP013"
"""Another request works on the same key, and this attempt did nothing."""
MOST_RETRY_AFTER: Final = 30.0  # seconds: what an answer may ask us to wait
LAST_TRY: Final = 1.0  # seconds: with less, a try would be cut off before a gateway can answer


@dataclass(frozen=True, slots=True)
class Retry:
    """For how long a request that failed is sent again, and how long is waited between: first, doubling up to longest,
    with jitter.

    patience: seconds from the first failure on in which a try may begin. All tries together take at most so much longer
    than the first one may. The default is what a gateway's restart fits into; 0 never tries again, `math.inf` for ever.
    """

    patience: float = 5.0  # seconds
    first: float = 0.1  # seconds
    longest: float = 2.0  # seconds

    def __post_init__(self) -> None:
        if not (self.patience >= 0 and 0 <= self.first <= self.longest):
            raise ValueError(f"{self}: patience is at least 0, and 0 <= first <= longest")

    def delay(self, failures: int, retry_after: float | None = None) -> float:
        """Return the seconds to wait after so many failures: from half to all of the step, or Retry-After."""
        step = min(self.first * 2.0 ** min(failures - 1, 60), self.longest)
        return max(step * random.uniform(0.5, 1.0), min(retry_after or 0.0, MOST_RETRY_AFTER))  # noqa: S311 - jitter is no secret


DEFAULT_RETRY: Final = Retry()


class Failures:
    """The failures of one request, one after the other: whether it is tried again, and how long a try may take."""

    def __init__(self, policy: Retry, clock: Clock, seconds: float) -> None:
        """seconds: how long the first try may take."""
        self._policy = policy
        self._clock = clock
        self._due = clock.now() + seconds
        self._count = 0
        self._last_begins = self._end = math.inf

    @property
    def left(self) -> float:
        """Seconds that a try may take now, in which the request's own limit may be shorter; at first there are no
        others.
        """
        return self._end - self._clock.now()

    def pause(self, asked: float | None = None) -> float | None:
        """Note a failure, and return the seconds to wait before the next try. None: there is none, because patience
        ends before, or before the seconds that the gateway has `asked` for (Retry-After).
        """
        now, patience = self._clock.now(), self._policy.patience
        self._count += 1
        if self._count == 1:
            self._end = max(self._due, now) + patience
            self._last_begins = min(now + patience, self._end - min(LAST_TRY, patience / 2))
        left = self._last_begins - now
        if left <= 0 or min(asked or 0.0, MOST_RETRY_AFTER) > left:
            return None
        return min(self._policy.delay(self._count, asked), left)


async def run_with_retry(
    policy: Retry, clock: Clock, attempt: Callable[[float], Awaitable[T]], *, seconds: float, once: bool = False
) -> T:
    """Run `attempt` until it succeeds, cannot be repeated, or patience ends; then its error is raised. It is given the
    seconds that it may take at most. `seconds`: what the first one may take, by a limit of its own.

    `once`: doing it twice is not doing it once, so an unknown outcome ends it. When one attempt's outcome is unknown
    and the last could not be sent, it is unknown all the same; and so it is when the last was refused, for the first
    may still be on its way, and land when the reason is gone. Only a stale token stays stale.
    """
    unknown: OutcomeUnknown | None = None
    failures = Failures(policy, clock, seconds)
    while True:
        try:
            return await attempt(failures.left)
        except (Unavailable, OutcomeUnknown) as error:
            if isinstance(error, OutcomeUnknown) and error.code != IN_FLIGHT:
                unknown = error
            pause = failures.pause(error.retry_after) if _may_repeat(error, once=once) else None
            if pause is None:
                if unknown is not None and error is not unknown:
                    raise unknown from error
                raise
            await clock.sleep(pause)
        except ApiError as refusal:
            if unknown is None or isinstance(refusal, DEFINITE):
                raise
            raise unknown from refusal


def _may_repeat(error: Unavailable | OutcomeUnknown, *, once: bool) -> bool:
    if isinstance(error, Unavailable):
        return error.may_repeat
    return not once


# Idempotency keys (R16): every write has one, so that it can be sent again when its answer got lost.

KEY_HEADER: Final = "Idempotency-Key"
_KEY: Final = re.compile(r"[\x20-\x7e]{1,255}")


def new_key() -> str:
    """Return a key that no other client has."""
    return uuid4().hex


def key_header(key: str) -> str:
    """Return the header's value; ValueError for what cannot be a key: 1 to 255 visible ASCII characters."""
    if not _KEY.fullmatch(key):
        raise ValueError(f"idempotency_key {key[:40]!r}: a key is 1 to 255 visible ASCII characters")
    escaped = key.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


# One request and its answer: what goes out, what comes back, and each way to fail, as one of the client's errors.
#
# Lease upkeep has connections of its own: a renewal must not queue behind a thousand writes, nor behind acquires that
# wait for their turn in the gateway for half a minute.

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
        content = None
        if call.body is not None:
            content = b"".join([text + b"\n" for text in call.body]) if call.lines else dumps(call.body)
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
            if call.lines:
                return [loads(line, decimals=self._decimals) for line in response.content.splitlines()]
            return loads(response.content, decimals=self._decimals)
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
