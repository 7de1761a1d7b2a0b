"""Requests as bytes: the gateway's protocol reads each as h11 does, which is the strict reference, or refuses it."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import h11
import pytest
import uvicorn
from tests.http.raw import RawConnection
from uvicorn.server import ServerState

from fencepost.server.serving.guarded import GuardedProtocol

Read = tuple[bytes, bytes, list[tuple[bytes, bytes]], bytes]
"""Method, target, fields, body."""

HOST = b"Host: localhost\r\n"
GET = b"GET /a HTTP/1.1\r\n" + HOST
PUT = b"PUT /a HTTP/1.1\r\n" + HOST
CHUNKED = PUT + b"Transfer-Encoding: chunked\r\n"
H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
STATUS = re.compile(rb"^HTTP/1\.1 ([2-5]\d\d)", re.MULTILINE)
NEXT = b"DELETE /next HTTP/1.1\r\n" + HOST + b"\r\n"
"""It is put behind each: where a request ends matters most."""

ALIKE = [
    GET + b"\r\n",
    b"GET /a?b=c%23&d=%20+ HTTP/1.1\r\n" + HOST + b"\r\n",
    b"GET http://localhost/a?b HTTP/1.1\r\n" + HOST + b"\r\n",
    GET + b"X:  padded \t\r\nY:\r\nZ: a\tb\r\n\r\n",
    GET + b"X: one\r\nx: two\r\n\r\n",
    GET + b"X: \xe9\xff\r\n\r\n",
    GET + b"X_y: 1\r\nx-y: 2\r\n\r\n",
    b"SOURCE /a HTTP/1.1\r\n" + HOST + b"\r\n",
    GET + H2C + b"\r\n",
    GET + b"Connection: upgrade\r\nUpgrade: websocket\r\n\r\n",
    b"OPTIONS /a HTTP/1.1\r\n" + HOST + b"Content-Length: 2\r\n\r\nok",
    b"DELETE /a HTTP/1.1\r\n" + HOST + b"Content-Length: 2\r\n\r\nok",
    b"GET /a HTTP/1.1\r\n" + HOST + b"Content-Length: 2\r\n\r\nok",
    PUT + b"Content-Length: 0\r\n\r\n",
    PUT + b"Content-Length: 5\r\n\r\n12345",
    PUT + b"Content-Length: 0005\r\n\r\n12345",
    PUT + b"Content-Length:5\r\n\r\n12345",
    PUT + b"Content-Length: 5 \r\n\r\n12345",
    PUT + H2C + b"Content-Length: 5\r\n\r\n12345",
    PUT + b"Upgrade: any/1\r\nConnection: keep-alive, UPGRADE\r\nContent-Length: 5\r\n\r\n12345",
    PUT + b"Connection: upgrade\r\nUpgrade: websocket\r\nContent-Length: %d\r\n\r\n%b" % (len(NEXT), NEXT),
    PUT + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n12345",
    PUT + b"Content-Length: %d\r\n\r\n%b" % (len(NEXT), NEXT),
    PUT + H2C + b"Content-Length: %d\r\n\r\n%b" % (len(NEXT), NEXT),
    CHUNKED + b"\r\n0\r\n\r\n",
    CHUNKED + b"\r\n5\r\n12345\r\n0\r\n\r\n",
    CHUNKED + b"\r\n5;name=value\r\n12345\r\n0\r\n\r\n",
    CHUNKED + b"\r\n00005\r\n12345\r\n0\r\n\r\n",
    CHUNKED + b"\r\na\r\n1234567890\r\nA\r\n1234567890\r\n0\r\n\r\n",
    CHUNKED + H2C + b"\r\n5\r\n12345\r\n0\r\n\r\n",
    CHUNKED + b"\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(NEXT), NEXT),
]
REFUSED = [
    b"GET /a#b HTTP/1.1\r\n" + HOST + b"\r\n",
    b"GET /a b HTTP/1.1\r\n" + HOST + b"\r\n",
    b"GET\t/a HTTP/1.1\r\n" + HOST + b"\r\n",
    b"GET /a\x00 HTTP/1.1\r\n" + HOST + b"\r\n",
    b"GET /\xe9 HTTP/1.1\r\n" + HOST + b"\r\n",
    b"GET a HTTP/1.1\r\n" + HOST + b"\r\n",
    b"GET /a HTTP/1.2\r\n" + HOST + b"\r\n",
    b"GET /a HTTP/2.0\r\n" + HOST + b"\r\n",
    b"GET /a HTTP/0.9\r\n\r\n",
    b"GET /a http/1.1\r\n" + HOST + b"\r\n",
    b"GET /a\r\n\r\n",
    b"GET /a ICE/1.0\r\n" + HOST + b"\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GE(T /a HTTP/1.1\r\n" + HOST + b"\r\n",
    b"GET http://elsewhere/a HTTP/1.1\r\n" + HOST + b"\r\n",
    b"GET ftp://localhost/a HTTP/1.1\r\n" + HOST + b"\r\n",
    b"CONNECT localhost:80 HTTP/1.1\r\n" + HOST + b"\r\n",
    GET + b"X : 1\r\n\r\n",
    GET + b" X: 1\r\n\r\n",
    GET + b"X: 1\r\n 2\r\n\r\n",
    GET + b"X: 1\r\n\t2\r\n\r\n",
    GET + b": 1\r\n\r\n",
    GET + b"X\r\n\r\n",
    GET + b"X(: 1\r\n\r\n",
    GET + b"X: \x00\r\n\r\n",
    GET + b"X: \x01\r\n\r\n",
    GET + b"X: a\rb\r\n\r\n",
    GET + b"X: a\r\r\n\r\n",
    PUT + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\n12345",
    PUT + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n12345",
    PUT + b"Content-Length: 5, 5\r\n\r\n12345",
    PUT + b"Content-Length: +5\r\n\r\n12345",
    PUT + b"Content-Length: -5\r\n\r\n12345",
    PUT + b"Content-Length: 0x5\r\n\r\n12345",
    PUT + b"Content-Length: 5 5\r\n\r\n12345",
    PUT + b"Content-Length:\r\n\r\n12345",
    PUT + b"Content-Length: 99999999999999999999\r\n\r\n12345",
    CHUNKED + b"Content-Length: 5\r\n\r\n5\r\n12345\r\n0\r\n\r\n",
    PUT + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n12345\r\n0\r\n\r\n",
    CHUNKED + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    PUT + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    PUT + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    PUT + b"Transfer-Encoding: identity\r\n\r\n",
    PUT + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    PUT + b"Transfer-Encoding: , chunked\r\n\r\n0\r\n\r\n",
    PUT + b"Transfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\n",
    PUT + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    PUT + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    b"PUT /a HTTP/1.0\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    CHUNKED + b"\r\n5 \r\n12345\r\n0\r\n\r\n",
    CHUNKED + b"\r\n 5\r\n12345\r\n0\r\n\r\n",
    CHUNKED + b"\r\n0x5\r\n12345\r\n0\r\n\r\n",
    CHUNKED + b"\r\n-5\r\n12345\r\n0\r\n\r\n",
    CHUNKED + b"\r\n5\n12345\n0\n\n",
    CHUNKED + b"\r\n5\r\n123456\r\n0\r\n\r\n",
    CHUNKED + b"\r\n5\r\n12345" + b"0\r\n\r\n",
    CHUNKED + b"\r\nfffffffffffffffff\r\n12345\r\n0\r\n\r\n",
    CHUNKED + b"\r\n5\r\n12345\r\n0\r\nX-Fence-Token: 5\r\n\r\n",
]


def by_h11(data: bytes) -> list[Read]:
    """Give the requests that h11 reads, up to the first that it refuses."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data)
    requests: list[Read] = []
    try:
        while True:
            match connection.next_event():
                case h11.Request() as head:
                    body = b""
                case h11.Data() as part:
                    body += bytes(part.data)
                case h11.EndOfMessage():
                    requests.append((head.method, head.target, list(head.headers), body))
                    connection.send(h11.Response(status_code=204, headers=[]))
                    connection.send(h11.EndOfMessage())
                    connection.start_next_cycle()
                case h11.NEED_DATA | h11.PAUSED | h11.ConnectionClosed():
                    return requests
    except h11.RemoteProtocolError:
        return requests


class Recorded:
    """The gateway's protocol on a port, before an application that keeps what it was given."""

    def __init__(self) -> None:
        self.requests: list[Read] = []
        self.config = uvicorn.Config(self.application, lifespan="off", interface="asgi3", log_config=None)
        self.config.load()

    async def application(
        self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        body, more = b"", True
        while more:
            part = await receive()
            body, more = body + part.get("body", b""), part.get("more_body", False)
            if part["type"] != "http.request":
                return
        target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
        self.requests.append((scope["method"].encode(), target, list(scope["headers"]), body))
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def protocol(self) -> GuardedProtocol:
        return GuardedProtocol(config=self.config, server_state=ServerState(), app_state={})


@pytest.fixture
async def recorded() -> AsyncIterator[tuple[Recorded, str]]:
    one, loop = Recorded(), asyncio.get_running_loop()
    errors: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: errors.append(context))
    server = await loop.create_server(one.protocol, "127.0.0.1", 0)
    async with server:
        yield one, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    assert errors == []


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


async def by_gateway(recorded: tuple[Recorded, str], data: bytes, size: int) -> tuple[list[Read], list[int]]:
    """Give what the application was given, and the status of each answer."""
    one, url = recorded
    one.requests.clear()
    connection = await RawConnection.open(url)
    for piece in pieces(data, size):
        await connection.send(piece)
    connection.writer.write_eof()
    answers = await connection.reader.read()
    connection.close()
    return list(one.requests), [int(status) for status in STATUS.findall(answers)]


@pytest.mark.parametrize("size", [100_000, 7, 1])
async def test_each_request_is_read_as_h11_reads_it(recorded: tuple[Recorded, str], size: int) -> None:
    differ = {}
    for data in ALIKE:
        read, _ = await by_gateway(recorded, data + NEXT, size)
        expected = [(m, t.removeprefix(b"http://localhost"), f, b) for m, t, f, b in by_h11(data + NEXT)]
        if read != expected or len(read) != 2:
            differ[data] = (read, expected)
    assert list(differ) == []


@pytest.mark.parametrize("size", [100_000, 7])
async def test_what_is_no_request_is_refused_with_all_that_follows(recorded: tuple[Recorded, str], size: int) -> None:
    taken = {}
    for data in REFUSED:
        read, statuses = await by_gateway(recorded, data + NEXT, size)
        if read or statuses != [400]:
            taken[data] = (read, statuses)
    assert list(taken) == []


async def test_a_head_that_is_refused_is_answered_without_a_body(recorded: tuple[Recorded, str]) -> None:
    connection = await RawConnection.open(recorded[1])
    await connection.send(b"HEAD /a#b HTTP/1.1\r\n" + HOST + b"\r\n")
    answer = await connection.reader.read()
    assert (answer[:12], answer[-4:]) == (b"HTTP/1.1 400", b"\r\n\r\n")
    connection.close()
