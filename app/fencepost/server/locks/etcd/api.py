"""etcd's JSON gateway, and how it is asked.

Several endpoints are one service. A request goes to the one that answered last, and on to the next when the connection
breaks, no answer comes, or the node reports that it is not ready (no leader, for example). **So every request may be
done twice, or land after its caller gave up**: callers ask only what may be repeated (see source.py, "Repeats").

All of it, sign-in and other endpoints included, takes REQUEST_TIMEOUT at most. The watch is a stream and has no such
end: the caller of watch gives the time, and relies on it for speed only.
"""

import asyncio
import ssl
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final, cast

import httpx
import orjson

from fencepost.server.locks.etcd.url import EtcdUrl
from fencepost.server.locks.source import REQUEST_TIMEOUT, SourceConfigError, SourceError, SourceUnavailableError

PAUSE: Final = 0.1
"""Seconds between two rounds over the endpoints, and before a look where no watch could be had."""

NOT_FOUND: Final = 5
NO_PRECONDITION: Final = 9
UNAUTHENTICATED: Final = 16
# gRPC's Canceled, Unknown, DeadlineExceeded, Internal, Unavailable: of this node, or of this moment.
UNREADY: Final = frozenset({1, 2, 4, 13, 14})
# These have codes that other refusals have too.
TOO_MANY: Final = "too many requests"
SIGN_IN_AGAIN: Final = ("user name is empty", "revision of auth store is old")


class EtcdRefusedError(SourceError):
    """etcd has answered with a refusal. `code` is gRPC's."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class _UnreadyError(Exception):
    """This node cannot answer now; another one may."""


class EtcdApi:
    """Asks one etcd cluster. For one event loop."""

    def __init__(self, where: EtcdUrl) -> None:
        self.where = where
        self._current = 0
        self._token = ""
        self._signing_in = asyncio.Lock()
        self._client: httpx.AsyncClient | None = None

    async def open(self) -> None:
        """Read the certificates. Raises SourceConfigError."""
        verify: ssl.SSLContext | bool = True
        if self.where.endpoints[0].startswith("https"):
            try:
                verify = ssl.create_default_context(cafile=self.where.ca)
                if self.where.cert is not None:
                    verify.load_cert_chain(self.where.cert, self.where.key)
            except (OSError, ValueError) as error:
                raise SourceConfigError(f"{self.where}: ca, cert or key cannot be read: {error}") from error
        # Each waiter has a stream of its own: no limit. No proxies: a lock service is never behind one by accident.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        self._client = httpx.AsyncClient(verify=verify, trust_env=False, timeout=self._patience(), limits=limits)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def ask(self, path: str, body: dict[str, Any], endpoint: int | None = None) -> dict[str, Any]:
        """Post to /v3/`path`, at any endpoint or only at this one, and return the answer.

        Raises SourceUnavailableError, within REQUEST_TIMEOUT, and EtcdRefusedError where etcd refuses what is asked.
        """
        loop = asyncio.get_running_loop()
        ends = loop.time() + REQUEST_TIMEOUT
        first, places = self._current, len(self.where.endpoints)
        turn = [(first + n) % places for n in range(places)] if endpoint is None else [endpoint]
        while True:
            answered = False
            why: Exception | None = None
            for n, at in enumerate(turn):
                try:
                    async with asyncio.timeout((ends - loop.time()) / (len(turn) - n)):
                        answer = await self._post(at, path, body)
                except httpx.ConnectError as error:
                    why = error
                except (httpx.HTTPError, OSError, _UnreadyError) as error:  # SSLError and TimeoutError are OSErrors
                    answered, why = True, error
                else:
                    if endpoint is None:
                        self._current = at
                    return answer
            if not answered or ends - loop.time() < 5 * PAUSE:
                raise SourceUnavailableError(
                    f"{self.where} cannot be asked ({str(why) or 'no answer in time'}): are most of its nodes up?"
                ) from why
            await asyncio.sleep(PAUSE)

    async def deleted(self, key: str, revision: int, within: float) -> None:
        """Return once this (encoded) key was deleted at this revision or later, or earlier than that: after `within`
        seconds at the latest, and whenever the watch ends. The caller looks again.
        """
        try:
            async with asyncio.timeout(within):
                if not await self._watch(key, revision):
                    await asyncio.sleep(PAUSE)
        except TimeoutError:
            return

    async def _watch(self, key: str, revision: int) -> bool:
        """Whether the watch saw it; False: it could not be had, or broke off."""
        create = {"key": key, "start_revision": str(revision), "filters": ["NOPUT"]}
        headers = {**self._headers(), "Grpc-Metadata-Hasleader": "true"}  # a node cut off from the others ends it
        at = self._current
        request = self._http().stream(
            "POST",
            f"{self.where.endpoints[at]}/v3/watch",
            content=orjson.dumps({"create_request": create}),
            headers=headers,
            timeout=httpx.Timeout(self._patience(), read=None),
        )
        try:
            async with request as response, aclosing(_lines(response)) as lines:
                async for line in lines:
                    result = orjson.loads(line).get("result", {"canceled": True})
                    if result.get("events"):
                        return True
                    # Also when that revision was compacted: deletions can no longer be replayed, and a read shows it.
                    if result.get("canceled"):
                        return False
        except (httpx.HTTPError, OSError, orjson.JSONDecodeError):
            # The look that comes next reports what is wrong there, with errors of its own.
            self._current = (at + 1) % len(self.where.endpoints)
        return False

    async def _post(self, at: int, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if self.where.user is None:
            return await self._exchange(at, path, body)
        used = self._token or await self._sign_in(at, "")
        try:
            return await self._exchange(at, path, body)
        except EtcdRefusedError as error:
            if error.code != UNAUTHENTICATED and not any(words in str(error) for words in SIGN_IN_AGAIN):
                raise
        await self._sign_in(at, used)
        return await self._exchange(at, path, body)

    async def _sign_in(self, at: int, used: str) -> str:
        """Get a token, unless another request has got another than `used` meanwhile: etcd makes each one slowly."""
        async with self._signing_in:
            if self._token == used:
                self._token = ""
                who = {"name": self.where.user, "password": self.where.password}
                try:
                    self._token = (await self._exchange(at, "auth/authenticate", who))["token"]
                except EtcdRefusedError as error:
                    # Signing in is not switched on there. Then none is asked for, as with etcd's own clients.
                    if error.code != NO_PRECONDITION:
                        raise
            return self._token

    async def _exchange(self, at: int, path: str, body: dict[str, Any]) -> dict[str, Any]:
        response = await self._http().post(
            f"{self.where.endpoints[at]}/v3/{path}", content=orjson.dumps(body), headers=self._headers()
        )
        try:
            answer: dict[str, Any] = orjson.loads(response.content.partition(b"\n")[0])  # of a stream, the first
            problem = answer.get("error")
        except (orjson.JSONDecodeError, AttributeError) as error:
            if response.is_server_error:
                raise _UnreadyError(f"HTTP {response.status_code}") from error
            raise EtcdRefusedError(
                f"{self.where} answers /v3/{path} with HTTP {response.status_code}, no JSON: is it etcd 3.4 or newer?",
                0,
            ) from error
        if response.is_success and problem is None:
            return answer
        # A unary call's error is flat, a stream's is nested; releases of the gateway differ in the names.
        shown: dict[str, Any] = problem if isinstance(problem, dict) else answer
        code, message = int(shown.get("grpc_code", shown.get("code", 0))), str(shown.get("message") or problem)
        if code in UNREADY or TOO_MANY in message:
            raise _UnreadyError(message)
        raise EtcdRefusedError(f"{self.where} refused {path}: {message}", code)

    def _patience(self) -> float:
        """Seconds for one step of a request: it ends before `ask` cancels it, which would leave a handshake open."""
        return 0.9 * REQUEST_TIMEOUT / len(self.where.endpoints)

    def _headers(self) -> dict[str, str]:
        return {"Authorization": self._token} if self._token else {}

    def _http(self) -> httpx.AsyncClient:
        if self._client is None:
            raise SourceError(f"{self.where} is not open")
        return self._client


def _lines(response: httpx.Response) -> AsyncGenerator[str, None]:
    return cast("AsyncGenerator[str, None]", response.aiter_lines())
