"""One request, one answer: sent at most once, and lost if the answer is not whole."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from fencepost.testing.servers.ports import free_port
from fencepost.torture.holders.exchange import Exchange, LostError, NotSentError

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(serve: Serve, within: float = 10.0) -> AsyncIterator[Exchange]:
    served: list[asyncio.Task[None]] = []

    async def whole(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except ConnectionError:
            pass  # the client has hung up
        finally:
            writer.transport.abort()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(asyncio.create_task(whole(reader, writer)))

    server = await asyncio.start_server(begin, "127.0.0.1", 0)
    exchange = Exchange(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", within=within)
    try:
        yield exchange
    finally:
        exchange.close()
        server.close()
        await asyncio.gather(*served)


def answering(*answers: bytes, requests: list[bytes] | None = None) -> Serve:
    """Answer each request of a connection with the next of these, then hang up."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            head = await reader.readuntil(b"\r\n\r\n")
            if requests is not None:
                requests.append(head)
            writer.write(answer)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    return serve


OK = b"HTTP/1.1 200 OK\r\nX-Fence-Mark: 34\r\nContent-Length: 2\r\n\r\n{}"


async def test_requests_share_a_connection() -> None:
    requests: list[bytes] = []
    async with serving(answering(OK, OK, requests=requests)) as exchange:
        first = await exchange.send("GET", "/a", {"X-Fence-Token": "7"})
        second = await exchange.send("GET", "/b", {})
    assert (first.status, first.mark, first.body) == (200, 34, {})
    assert second.status == 200
    assert requests[0].startswith(b"GET /a HTTP/1.1\r\nX-Fence-Token: 7\r\n")


async def test_a_connection_that_the_server_has_closed_is_opened_again() -> None:
    async with serving(answering(OK)) as exchange:
        assert (await exchange.send("GET", "/", {})).status == 200
        await exchange.closed()
        assert (await exchange.send("GET", "/", {})).status == 200


@pytest.mark.parametrize(
    "answer", [b"", OK[:-1], b"HTTP/1.1 200 OK\r\nContent-Le", b"SSH-2.0-OpenSSH\r\n\r\n"], ids=str
)
async def test_an_answer_that_is_not_whole_is_lost(answer: bytes) -> None:
    async with serving(answering(answer)) as exchange:
        with pytest.raises(LostError):
            await exchange.send("GET", "/", {})


async def test_an_answer_that_does_not_come_in_time_is_lost() -> None:
    async def silent(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with serving(silent, within=0.01) as exchange:
        with pytest.raises(LostError, match=r"within 0\.01 s"):
            await exchange.send("GET", "/", {})


async def test_a_request_to_no_server_is_not_sent() -> None:
    with pytest.raises(NotSentError):
        await Exchange(f"http://127.0.0.1:{free_port()}", within=1).send("GET", "/", {})
