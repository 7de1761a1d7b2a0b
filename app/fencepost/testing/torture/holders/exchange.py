"""HTTP/1.1 over one connection, one request at a time, without any repetition: what a history is recorded from.

A client that repeats requests by itself, or that cannot distinguish "never sent" from "sent and not answered", would
hide what is looked for here. This one also costs little: a worker process sends some thousand requests a second.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

import httptools
import orjson

CONNECT_WITHIN = 3.0  # seconds


class NotSentError(Exception):
    """The request was never sent: it has certainly had no effect."""


class LostError(Exception):
    """The request was sent, at least in part, and no whole answer came: whether it had an effect is unknown."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer."""

    status: int
    headers: Mapping[bytes, bytes]
    content: bytes

    @property
    def body(self) -> Any:
        """Its JSON; None without a body. ValueError if it is something else."""
        return orjson.loads(self.content) if self.content else None

    @property
    def mark(self) -> int | None:
        """The mark after a write, or of the row that was read."""
        text = self.headers.get(b"x-fence-mark")
        return None if text is None else int(text)


class Exchange:
    """A connection to the server at `url`, opened when it is needed and again when it was lost."""

    def __init__(self, url: str, *, within: float, token: Callable[[], str] | None = None) -> None:
        parts = urlsplit(url)
        self._token = token
        self.url, self._within = url, within
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._head = f"Host: {self._host}:{self._port}\r\n".encode()
        self._connection: _Connection | None = None

    async def send(self, method: str, path: str, headers: Mapping[str, str], body: object = None) -> Answer:
        """Send one request and return its answer. Raises NotSentError, LostError."""
        content = b"" if body is None else orjson.dumps(body)
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        if self._token is not None:
            lines += f"Authorization: Bearer {self._token()}\r\n"
        if content:
            lines += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n"
        request = f"{method} {path} HTTP/1.1\r\n{lines}".encode() + self._head + b"\r\n" + content
        connection = await self._connected()
        try:
            async with asyncio.timeout(self._within):
                return await connection.answer_to(request)
        except TimeoutError:
            raise LostError(f"no answer within {self._within:g} s") from None
        finally:
            if not connection.reusable:
                self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.abort()
            self._connection = None

    async def closed(self) -> None:
        """Return once the server has closed the connection, if there is one."""
        if self._connection is not None:
            await self._connection.closed.wait()

    async def _connected(self) -> "_Connection":
        if self._connection is None or not self._connection.reusable:
            self.close()
            loop = asyncio.get_running_loop()
            try:
                async with asyncio.timeout(CONNECT_WITHIN):
                    _, self._connection = await loop.create_connection(_Connection, self._host, self._port)
            except (OSError, TimeoutError) as error:
                raise NotSentError(f"no connection to {self.url}: {str(error) or 'timeout'}") from None
        return self._connection


class _Connection(asyncio.Protocol):
    """The bytes of one connection; also what httptools calls back."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Answer] | None = None
        self.closed = asyncio.Event()
        self._begin()

    @property
    def reusable(self) -> bool:
        """Whether another request can be sent on it: it is open, and no answer is still to come."""
        return self._transport is not None and not self._transport.is_closing() and self._answer is None

    async def answer_to(self, request: bytes) -> Answer:
        assert self._transport is not None  # noqa: S101 - for the type: `_connected` has seen to it
        self._begin()
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _begin(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[bytes, bytes] = {}
        self._content: list[bytes] = []

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._lost(f"not HTTP: {error}")
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()
        self._lost(f"the connection was cut: {str(exc or '') or 'closed by the server'}")

    def _lost(self, why: str) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(LostError(why))

    # httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        self._content.append(body)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:  # noqa: PLR2004 - an interim answer: the real one follows
            self._headers = {}
            return
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_result(Answer(status, self._headers, b"".join(self._content)))
