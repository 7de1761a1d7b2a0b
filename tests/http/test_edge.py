"""The edge: what may arrive, byte by byte, how many connections, the admin port, sites, and the gateway's end."""

import asyncio
import gc
import itertools
import json
import os
import re
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import h11
import httpx
import pytest
import uvicorn
from click.testing import CliRunner
from tests.http.conftest import Start
from tests.http.raw import Answer, RawConnection, ask
from tests.support.asking import SECRET, token
from tests.support.gateways import DemoGateway, Gateway, demo_gateway, serving_process, workers
from tests.support.interleave import Connection, blocks_another_session, connection_to, holding
from tests.support.lease_gateways import post, release
from tests.support.postgres import ReadyMade
from tests.support.use_cases import Sent, patch_line
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.server import ServerState

from fencepost.cli.main import main
from fencepost.server.http.guard import ConnectionBounds
from fencepost.server.http.openapi_answers import HEADERS
from fencepost.server.ops.protect import protect
from fencepost.server.serving.protocol import GuardedProtocol
from fencepost.server.settings import Settings
from fencepost.server.times import EdgeTimes, Times
from fencepost.testing.servers.processes import PATIENCE, eventually

# What may arrive at a connection: no trailers, heads and bodies within bounds. And how many may be open.

T = TypeVar("T")
HEAD_BYTES = ConnectionBounds().head_bytes
HOST = b"Host: localhost\r\n"
PATCH = b"PATCH /v1/data/orders/order-123 HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\n"
HEALTH = b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n"


async def status_of(http: httpx.AsyncClient) -> object:
    return (await http.get("/v1/data/orders/order-123")).json()["status"]


async def turned_away(http: httpx.AsyncClient, code: str) -> float:
    lines = (await http.get("/metrics")).text.splitlines()
    name = f'fencepost_requests_turned_away_total{{code="{code}"}} '
    return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))


async def test_a_trailer_is_no_header(http: httpx.AsyncClient, gateway_url: str) -> None:
    head, body = PATCH + b"Transfer-Encoding: chunked\r\n", b'15\r\n{"status": "shipped"}\r\n0\r\n'
    answer = await ask(gateway_url, head + b"\r\n" + body + b"X-Fence-Token: 1301\r\n\r\n")
    assert (answer.status, answer.body["code"]) == (400, "FP016")
    assert "X-Fence-Token: a field after the body (a trailer) is not taken" in answer.body["detail"]
    assert await status_of(http) == "new"
    whole = await ask(gateway_url, head + b"X-Fence-Token: 1301\r\n\r\n" + body + b"\r\n")
    assert whole.status == 200, "without it, chunks are a body"


async def test_a_head_that_is_too_large_is_431(http: httpx.AsyncClient, gateway_url: str) -> None:
    before = await turned_away(http, "FP034")
    long, many = b"x" * HEAD_BYTES, [b"X-%d: %b\r\n" % (each, b"x" * 1000) for each in range(70)]
    heads = (
        b"GET /healthz HTTP/1.1\r\n" + HOST + b"X-Long: " + long + b"\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n" + HOST + b"".join(many) + b"\r\n",
        b"GET /v1/data/orders?a=" + long + b" HTTP/1.1\r\n" + HOST + b"\r\n",
    )
    for number, head in enumerate(heads, 1):
        answer = await ask(gateway_url, head)
        assert (answer.status, answer.body["code"], answer.headers["connection"]) == (431, "FP034", "close"), number
        assert await turned_away(http, "FP034") == before + number
    within = b"GET /healthz HTTP/1.1\r\n" + HOST + b"".join(many[:60]) + b"\r\n"
    assert (await ask(gateway_url, within)).status == 200


async def test_a_head_without_an_end_is_refused_once_it_is_too_large(raw: RawConnection) -> None:
    await raw.send(b"GET /healthz HTTP/1.1\r\nX-Long: ")
    sent = 0
    answering = asyncio.create_task(raw.answer())
    while not answering.done():
        await asyncio.wait({answering}, timeout=0)  # sending alone may never let it run
        await raw.send(b"x" * 10_000)
        sent += 10_000
        assert sent < 20_000_000, "it takes what has no end"
    assert (await answering).status == 431
    assert await raw.ended()


OFTEN = Times(edge=EdgeTimes(look_every=0.05))


@pytest.fixture(scope="module")
def impatient(databases: ReadyMade) -> Iterator[DemoGateway]:
    """Give a gateway that soon gives up to wait for the rest of a request."""
    with demo_gateway(databases, OFTEN, head_timeout=0.2, body_timeout=600) as gateway:
        yield gateway


@pytest.fixture
async def waiting(impatient: DemoGateway) -> AsyncIterator[RawConnection]:
    connection = await RawConnection.open(impatient.url)
    yield connection
    connection.close()


@pytest.mark.parametrize("begun", [b"GET /healthz HT", HEALTH[:-2]])
async def test_half_a_head_is_408_after_a_while(waiting: RawConnection, begun: bytes) -> None:
    await waiting.send(begun)
    answer = await waiting.answer()
    assert (answer.status, answer.body["code"], answer.body["retryable"]) == (408, "FP033", True)
    assert await waiting.ended()


async def test_half_a_body_is_408_after_a_while(waiting: RawConnection, impatient: DemoGateway) -> None:
    async with httpx.AsyncClient(base_url=impatient.url, trust_env=False) as http:
        before = await turned_away(http, "FP033")
        await waiting.send(PATCH + b'X-Fence-Token: 1301\r\nContent-Length: 21\r\n\r\n{"status": ')
        answer = await waiting.answer()
        assert (answer.status, answer.body["code"]) == (408, "FP033")
        assert "of the request's body came" in answer.body["detail"]
        assert await status_of(http) == "new"
        assert await turned_away(http, "FP033") == before + 1


async def test_a_body_that_never_ends_is_408_however_fast_it_comes(demo_database: str, start_gateway: Start) -> None:
    waiting = await RawConnection.open(await start_gateway(demo_database, OFTEN, body_timeout=0.4, least_rate=1))
    await waiting.send(PATCH + b"X-Fence-Token: 1301\r\nContent-Length: 1000000\r\n\r\n")
    answering = asyncio.create_task(waiting.answer())
    while not answering.done():
        await waiting.send(b" ")
        await asyncio.wait([answering], timeout=0.01)
    assert "the request's body was not there" in (await answering).body["detail"]
    waiting.close()


EARLY = b"PATCH /v1/data/orders/1 HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n"
"""It is refused before its body has arrived."""


async def test_an_idle_connection_is_closed_after_keep_alive(demo_database: str, start_gateway: Start) -> None:
    """Longer after than a proxy in front keeps it, by default: else the proxy sends into a connection that ends."""
    assert Settings().keep_alive > 60
    raw = await RawConnection.open(await start_gateway(demo_database, keep_alive=1))
    await raw.send(HEALTH)
    assert (await raw.answer()).status == 200
    assert await raw.ended()
    raw.close()


@pytest.mark.parametrize(("asked", "then"), [(HEALTH, b"\r\n"), (EARLY, b"{}")], ids=["a line", "the rest of a body"])
async def test_what_is_no_request_keeps_no_connection_open(
    demo_database: str, start_gateway: Start, asked: bytes, then: bytes
) -> None:
    raw = await RawConnection.open(await start_gateway(demo_database, keep_alive=1))
    await raw.send(asked)
    await raw.answer()
    await raw.send(then)
    assert await asyncio.wait_for(raw.ended(), PATIENCE)
    raw.close()


async def test_http_1_0_gets_no_chunks_and_no_100(raw: RawConnection) -> None:
    body = b'{"method":"PATCH","path":"orders/order-123","token":1302,"body":{"status":"paid"}}\n'
    head = b"POST /v1/batch HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
    await raw.send(head + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body))
    await raw.send(body)
    answer = await raw.reader.read(-1)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n"), answer
    fields, _, verdicts = answer.partition(b"\r\n\r\n")
    assert (b"transfer-encoding" in fields.lower(), b"connection: close" in fields.lower()) == (False, True)
    assert [json.loads(line)["status"] for line in verdicts.splitlines()] == [200]


async def test_a_connection_without_a_request_has_no_clock(waiting: RawConnection) -> None:
    await waiting.send(HEALTH)
    assert (await waiting.answer()).status == 200
    waits = asyncio.create_task(waiting.ended())
    await asyncio.wait([waits], timeout=0.6)
    assert not waits.done()
    await waiting.send(HEALTH)
    assert not await waits


async def half(url: str) -> RawConnection:
    connection = await RawConnection.open(url)
    await connection.send(b"GET /healthz HTTP/1.1\r\n")
    return connection


async def test_those_who_send_halves_keep_nobody_out(demo_database: str, start_gateway: Start) -> None:
    url = await start_gateway(demo_database, max_connections_per_address=8)
    halves = [await half(url) for _ in range(40)]
    assert (await ask(url, HEALTH)).status == 200
    answers: list[Answer] = [await each.answer() for each in halves[:30]]
    assert {(each.status, each.body["code"]) for each in answers} == {(408, "FP033")}
    assert "127.0.0.1 has 8 connections: this one had no whole request" in answers[0].body["detail"]
    for each in halves:
        each.close()


@pytest.mark.parametrize("bound", ["max_connections", "max_connections_per_address"])
async def test_more_connections_than_may_be_are_503_while_all_work(
    demo_database: str, start_gateway: Start, bound: str
) -> None:
    url = await start_gateway(demo_database, **{bound: 2})
    streams = [await RawConnection.open(url) for _ in range(2)]
    for each in streams:  # with what is refused behind it: the stream goes on, and counts
        await each.send(b"GET /v1/elections/events?name=a HTTP/1.1\r\n" + HOST + b"\r\nNO HTTP\r\n\r\n")
        await each.reader.readuntil(b"\r\n\r\n")
    assert await status_or_refused(url) == 503
    answer = await ask(url, b"")
    assert (answer.status, answer.body["code"], answer.headers["retry-after"]) == (503, "FP035", "1")
    streams[0].close()

    async def served() -> bool:
        status = await status_or_refused(url)
        assert status in (200, 503)
        return status == 200

    await eventually(served, what="the end of a connection to be noticed")
    streams[1].close()


async def status_or_refused(url: str) -> int:
    """Give the status. Who does not read a refusal within a second finds the connection cut off: 503, too."""
    try:
        return (await ask(url, HEALTH)).status
    except (ConnectionError, asyncio.IncompleteReadError):
        return 503


async def test_a_target_names_the_same_host_as_the_header(gateway_url: str) -> None:
    for request_, status in (
        (b"GET http://evil.example/healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET http://localhost@evil.example/healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET http://evil.example?/healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET http://evil.example/healthz HTTP/1.1\r\nHost: evil.example\r\n\r\n", 421),
        (b"GET http://localhost/healthz HTTP/1.1\r\nHost: LOCALHOST\r\n\r\n", 200),
        (b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
    ):
        assert (await ask(gateway_url, request_)).status == status, (request_, status)


async def test_what_is_no_http_is_a_problem_and_is_logged_with_its_peer_and_not_each_time(
    http: httpx.AsyncClient, gateway_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Uvicorn logged each of these, and each Upgrade twice."""
    before = await turned_away(http, "FP016")
    upgrade = b"GET /healthz HTTP/1.1\r\n" + HOST + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    no_http = (b"NO HTTP\r\n\r\n", b"GET / HTTP/1.1\r\nHost localhost\r\n\r\n", b"\x16\x03\x01\x02\x00")
    for bad in no_http * 10:
        answer = await ask(gateway_url, bad)
        assert (answer.status, answer.body["code"]) == (400, "FP016"), bad
        kinds = (answer.headers["content-type"], answer.headers["x-content-type-options"])
        assert kinds == ("application/problem+json", "nosniff"), bad
        assert (await ask(gateway_url, upgrade)).status == 200
    assert await turned_away(http, "FP016") == before + 30
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert not [each for each in lines if "Invalid HTTP" in each or "pgrade" in each]
    assert 0 < len([each for each in lines if "turned away" in each]) < 30


async def test_a_batch_is_not_too_slow_while_its_lines_come_whole(demo_database: str, start_gateway: Start) -> None:
    url = await start_gateway(demo_database, head_timeout=0.1, least_rate=1_000_000_000, body_timeout=600)
    sent = await Sent.open(url)
    for number in (1301, 1302):
        await sent.send(patch_line("order-123", number, note="x"))
        verdict = await sent.next()
        assert verdict is not None
        assert verdict["status"] == 200
        slow = PATCH + b"X-Fence-Token: 1400\r\nContent-Length: 100\r\n\r\n{"  # which is looked at beside it
        assert (await ask(url, slow)).status == 408
    await sent.end()
    assert await sent.rest() == []
    sent.connection.close()


def in_memory(kind: type[T]) -> list[T]:
    return [each for each in gc.get_objects() if isinstance(each, kind)]


@pytest.mark.parametrize(
    "small", [b"GET /x HTTP/1.1\r\n" + HOST, b"HEAD /x HTTP/1.1\r\n" + HOST, PATCH + b"Content-Length: 4\r\n\r\n\r\n"]
)
async def test_requests_behind_answers_that_are_not_taken_wait_as_bytes(
    raw: RawConnection, gateway_url: str, small: bytes
) -> None:
    large, last = b"GET /openapi.json HTTP/1.1\r\n" + HOST + b"\r\n", HEALTH[:-2] + b"Connection: close\r\n\r\n"
    before = len(in_memory(RequestResponseCycle))
    await raw.send(large * 200 + (small + b"\r\n") * 1000 + last)
    assert (await ask(gateway_url, HEALTH)).status == 200  # it came later: the others were read, as far as they are
    assert len(in_memory(RequestResponseCycle)) < before + 100
    answers = await raw.reader.read(-1)
    assert answers.count(b"HTTP/1.1 ") == 1201
    assert answers.endswith(b'{"status":"ok"}'), answers[-300:]


async def test_a_client_that_pipelines_without_an_end_is_read_as_it_is_answered(raw: RawConnection) -> None:
    write = PATCH + b'X-Fence-Token: 1301\r\nContent-Length: 21\r\n\r\n{"status": "shipped"}'
    raw.writer.write(write * 100_000)
    for _ in range(100):
        assert (await raw.answer()).status in (200, 409)
    assert max(len(each.arrived) for each in in_memory(GuardedProtocol)) < 1_000_000


@pytest.fixture
async def large(demo_database: str, start_gateway: Start) -> str:
    """Start a gateway with a table whose one row has 12 MB."""
    async with connection_to(demo_database) as database:
        await database.execute("CREATE TABLE large AS SELECT repeat('x', 12000000) AS note")
    return await start_gateway(demo_database, serve_unprotected=True, max_answer_bytes=13_000_000)


LARGE = b"GET /v1/data/large HTTP/1.%d\r\n" + HOST + b"Connection: %b\r\n\r\n"


async def test_a_request_is_not_begun_before_the_answer_to_the_one_before_it_is_taken(large: str) -> None:
    one = await RawConnection.open(large)
    async with httpx.AsyncClient(base_url=large, trust_env=False) as http:
        body = b'X-Fence-Token: 1301\r\nContent-Length: 21\r\n\r\n{"status": "shipped"}'
        await one.send(LARGE % (1, b"keep-alive") + PATCH + body)
        head = await one.reader.readuntil(b"\r\n\r\n")
        assert await status_of(http) == "new"
        await one.reader.readexactly(int(head.partition(b"content-length: ")[2].split()[0]))
        assert (await one.answer()).status == 200
    one.close()


async def test_one_caller_cannot_have_all_that_is_kept_of_answers(large: str) -> None:
    async with httpx.AsyncClient(base_url=large, trust_env=False) as http:
        kinds, stuck = [(1, b"keep-alive"), (1, b"close"), (0, b"close")], []
        for number in range(18):
            stuck.append(await RawConnection.open(large))
            await stuck[-1].send(LARGE % kinds[number % 3])
            await stuck[-1].reader.readuntil(b"\r\n\r\n")
        assert await turned_away(http, "FP033") > 0
    other = httpx.AsyncHTTPTransport(local_address="127.0.0.2")
    async with httpx.AsyncClient(base_url=large, transport=other, timeout=PATIENCE) as http:
        assert len((await http.get("/v1/data/large")).content) > 12_000_000
    for each in stuck:
        each.close()


async def test_verdicts_that_are_not_taken_are_kept_answers_too(demo_database: str, start_gateway: Start) -> None:
    async with connection_to(demo_database) as database:
        await database.execute("CREATE TABLE wide (id int PRIMARY KEY, note text)")
        await database.execute("INSERT INTO wide SELECT n, repeat('x', 1000000) FROM generate_series(0, 17) n")
        await protect(database, "wide")
    url = await start_gateway(demo_database, max_answer_bytes=13_000_000)
    batch = b"POST /v1/batch HTTP/1.1\r\nContent-Type: application/x-ndjson\r\n" + HOST
    async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
        stuck = []
        for row in range(18):
            lines = b"".join(b'{"claim": "wide/%d", "token": "%d"}\n' % (row, token) for token in range(1, 31))
            stuck.append(await RawConnection.open(url))
            await stuck[-1].send(batch + b"Content-Length: %d\r\n\r\n" % len(lines) + lines)

        async def cut_off() -> bool:
            return await turned_away(http, "FP033") > 0

        await eventually(cut_off, what="one is cut off")
    for each in stuck:
        each.close()


# Requests as bytes: the gateway's protocol reads each as h11 does, which is the strict reference, or refuses it.

Read = tuple[bytes, bytes, list[tuple[bytes, bytes]], bytes]
"""Method, target, fields, body."""
GET = b"GET /a HTTP/1.1\r\n" + HOST
PUT = b"PUT /a HTTP/1.1\r\n" + HOST
CHUNKED = PUT + b"Transfer-Encoding: chunked\r\n"
STATUS = re.compile(rb"^HTTP/1\.1 ([2-5]\d\d)", re.MULTILINE)
NEXT = b"DELETE /next HTTP/1.1\r\n" + HOST + b"\r\n"
"""It is put behind each: where a request ends matters most."""


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
    h2c = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
    alike = [
        *(line + b"\r\n" + HOST + b"\r\n" for line in (
            b"GET /a?b=c%23&d=%20+ HTTP/1.1", b"GET http://localhost/a?b HTTP/1.1", b"SOURCE /a HTTP/1.1",
        )),
        *(GET + fields + b"\r\n" for fields in (
            b"", b"X:  padded \t\r\nY:\r\nZ: a\tb\r\n", b"X: one\r\nx: two\r\n", b"X: \xe9\xff\r\n",
            b"X_y: 1\r\nx-y: 2\r\n", h2c, b"Connection: upgrade\r\nUpgrade: websocket\r\n",
        )),
        *(method + b" /a HTTP/1.1\r\n" + HOST + b"Content-Length: 2\r\n\r\nok"
          for method in (b"OPTIONS", b"DELETE", b"GET")),
        PUT + b"Content-Length: 0\r\n\r\n",
        *(PUT + fields + b"\r\n\r\n12345" for fields in (
            b"Content-Length: 5", b"Content-Length: 0005", b"Content-Length:5", b"Content-Length: 5 ",
            h2c + b"Content-Length: 5", b"Upgrade: any/1\r\nConnection: keep-alive, UPGRADE\r\nContent-Length: 5",
            b"Expect: 100-continue\r\nContent-Length: 5",
        )),
        *(PUT + fields + b"Content-Length: %d\r\n\r\n%b" % (len(NEXT), NEXT) for fields in (
            b"", h2c, b"Connection: upgrade\r\nUpgrade: websocket\r\n",
        )),
        *(CHUNKED + b"\r\n" + chunks + b"0\r\n\r\n" for chunks in (
            b"", b"5\r\n12345\r\n", b"5;name=value\r\n12345\r\n", b"00005\r\n12345\r\n",
            b"a\r\n1234567890\r\nA\r\n1234567890\r\n", b"%x\r\n%b\r\n" % (len(NEXT), NEXT),
        )),
        CHUNKED + h2c + b"\r\n5\r\n12345\r\n0\r\n\r\n",
    ]  # fmt: skip
    for data in alike:
        read, _ = await by_gateway(recorded, data + NEXT, size)
        expected = [(m, t.removeprefix(b"http://localhost"), f, b) for m, t, f, b in by_h11(data + NEXT)]
        if read != expected or len(read) != 2:
            differ[data] = (read, expected)
    assert list(differ) == []


@pytest.mark.parametrize("size", [100_000, 7])
async def test_what_is_no_request_is_refused_with_all_that_follows(recorded: tuple[Recorded, str], size: int) -> None:
    taken = {}
    refused = [
        *(line + b"\r\n" + HOST + b"\r\n" for line in (
            b"GET /a#b HTTP/1.1", b"GET /a b HTTP/1.1", b"GET\t/a HTTP/1.1", b"GET /a\x00 HTTP/1.1",
            b"GET /\xe9 HTTP/1.1", b"GET a HTTP/1.1", b"GET /a HTTP/1.2", b"GET /a HTTP/2.0", b"GET /a http/1.1",
            b"GET /a ICE/1.0", b"GE(T /a HTTP/1.1", b"GET http://elsewhere/a HTTP/1.1",
            b"GET ftp://localhost/a HTTP/1.1", b"CONNECT localhost:80 HTTP/1.1",
        )),
        *(b"GET /a HTTP/0.9\r\n\r\n", b"GET /a\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        *(GET + field + b"\r\n\r\n" for field in (
            b"X : 1", b" X: 1", b"X: 1\r\n 2", b"X: 1\r\n\t2", b": 1", b"X", b"X(: 1", b"X: \x00", b"X: \x01",
            b"X: a\rb", b"X: a\r",
        )),
        *(PUT + fields + b"\r\n\r\n12345" for fields in (
            b"Content-Length: 5\r\nContent-Length: 5", b"Content-Length: 5\r\nContent-Length: 6",
            b"Content-Length: 5, 5", b"Content-Length: +5", b"Content-Length: -5", b"Content-Length: 0x5",
            b"Content-Length: 5 5", b"Content-Length:", b"Content-Length: 99999999999999999999",
        )),
        CHUNKED + b"Content-Length: 5\r\n\r\n5\r\n12345\r\n0\r\n\r\n",
        PUT + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n12345\r\n0\r\n\r\n",
        *(PUT + b"Transfer-Encoding: " + coding + b"\r\n\r\n0\r\n\r\n" for coding in (
            b"chunked\r\nTransfer-Encoding: chunked", b"gzip, chunked", b"chunked, identity", b"xchunked",
            b", chunked", b"chunked;q=1", b"gzip\r\nTransfer-Encoding: chunked", b"\x0bchunked",
        )),
        PUT + b"Transfer-Encoding: identity\r\n\r\n",
        b"PUT /a HTTP/1.0\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        *(CHUNKED + b"\r\n" + chunks for chunks in (
            b"5 \r\n12345\r\n0\r\n\r\n", b" 5\r\n12345\r\n0\r\n\r\n", b"0x5\r\n12345\r\n0\r\n\r\n",
            b"-5\r\n12345\r\n0\r\n\r\n", b"5\n12345\n0\n\n", b"5\r\n123456\r\n0\r\n\r\n", b"5\r\n123450\r\n\r\n",
            b"fffffffffffffffff\r\n12345\r\n0\r\n\r\n", b"5\r\n12345\r\n0\r\nX-Fence-Token: 5\r\n\r\n",
        )),
    ]  # fmt: skip
    for data in refused:
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


# Clients that close the connection, or their half of it, before they are answered.

ROW = "/v1/data/orders/order-123"


def request(method: str, path: str, body: object = None, token: int | None = None) -> bytes:
    text = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(text)}\r\n"
    head += "" if body is None else "Content-Type: application/json\r\n"
    head += "" if token is None else f"X-Fence-Token: {token}\r\n"
    return f"{head}\r\n".encode() + text


@dataclass
class Holder:
    """A session that has locked the row, and another one that looks on."""

    session: Connection
    observer: Connection

    @classmethod
    @asynccontextmanager
    async def of(cls, dsn: str, rows: str) -> AsyncIterator["Holder"]:
        """Lock the orders of this condition."""
        statement = f"SELECT FROM orders WHERE {rows} FOR UPDATE"
        async with holding(dsn, statement) as session, connection_to(dsn) as observer:
            yield cls(session, observer)

    async def is_waited_for(self) -> None:
        await blocks_another_session(self.session, self.observer)

    async def commits(self) -> None:
        await self.session.execute("COMMIT")


@pytest.fixture
async def holder(gateway_url: str, shared: DemoGateway) -> AsyncIterator[Holder]:  # noqa: ARG001 - it makes the row
    async with Holder.of(shared.dsn, "order_id = 'order-123'") as holder:
        yield holder


WRITES = [request("PATCH", ROW, {"note": str(token)}, token) for token in (1301, 1302, 1303)]


@pytest.mark.parametrize(("behind", "last"), [(b"", None), (WRITES[0][:-3], None), (b"NO HTTP\r\n\r\n", 400)])
async def test_whole_requests_are_answered_in_order_and_then_what_is_behind_them(
    raw: RawConnection, holder: Holder, behind: bytes, last: int | None
) -> None:
    await raw.send(b"".join(WRITES) + behind)
    raw.writer.write_eof()
    await holder.is_waited_for()
    await holder.commits()
    for note in ("1301", "1302", "1303"):
        answer = await raw.answer()
        assert (answer.status, answer.body["note"]) == (200, note)
    if last is not None:
        assert (await raw.answer()).status == last
    assert await raw.ended()


async def test_what_is_granted_to_a_client_that_has_gone_is_given_back(
    raw: RawConnection, gateway_url: str, holder: Holder
) -> None:
    """Also without `wait_ms`: the claim waits for the row."""
    wanted = {"lock": "nightly", "claim": ["orders/order-123"], "ttl_ms": 3_600_000}
    await raw.send(request("POST", "/v1/leases", wanted))
    await holder.is_waited_for()
    raw.writer.write_eof()
    await holder.commits()
    answer = await raw.answer()
    assert (answer.status, answer.body["code"]) == (400, "FP016")
    assert "nothing is held" in answer.body["detail"]
    assert await raw.ended()
    another = await RawConnection.open(gateway_url)
    await another.send(request("POST", "/v1/leases", wanted))
    assert (await another.answer()).status == 201
    another.close()


async def test_what_is_granted_to_a_client_that_withdraws_meanwhile_is_given_back(
    raw: RawConnection, http: httpx.AsyncClient, holder: Holder
) -> None:
    """It has chosen the secret, so that having gone alone is no reason."""
    wanted = {"lock": "weekly", "claim": ["orders/order-123"], "ttl_ms": 3_600_000}
    secret = {"X-Lease-Secret": "0123456789-withdrawn-secret"}
    acquire = request("POST", "/v1/leases", wanted)
    await raw.send(
        acquire.replace(b"\r\n\r\n", b"\r\nX-Lease-Secret: %b\r\n\r\n" % secret["X-Lease-Secret"].encode(), 1)
    )
    await holder.is_waited_for()
    raw.writer.write_eof()
    under_way = await http.delete("/v1/leases", headers=secret)
    assert (under_way.status_code, under_way.headers["retry-after"]) == (503, "1")
    await holder.commits()
    assert "nothing is held" in (await raw.answer()).body["detail"]
    assert (await http.delete("/v1/leases", headers=secret)).status_code == 204
    assert (await http.get("/v1/locks?name=weekly")).json() == []
    again = await http.post("/v1/leases", json=wanted, headers=secret)
    assert (again.status_code, "was withdrawn" in again.json()["detail"]) == (400, True)


ALIVE = request("GET", "/healthz")
ENDS: list[Callable[[RawConnection], None]] = [RawConnection.close, lambda raw: raw.writer.write_eof()]


@pytest.mark.parametrize("end", ENDS, ids=["closed", "half closed"])
@pytest.mark.parametrize(("behind", "later"), [(b"", b""), (ALIVE * 100, b""), (b"", ALIVE), (b"", ALIVE * 6)])
async def test_who_has_gone_waits_for_no_lock_whatever_it_sent_behind_the_request(
    raw: RawConnection, http: httpx.AsyncClient, behind: bytes, later: bytes, end: Callable[[RawConnection], None]
) -> None:
    lease = (await post(http, "G", ttl_ms=3_600_000)).json()

    async def waiters(count: int) -> bool:
        (lock,) = (await http.get("/v1/locks?name=G")).json()
        return len(lock["waiters"]) == count

    await raw.send(request("POST", "/v1/leases", {"lock": "G", "wait_ms": 60_000, "ttl_ms": 3_600_000}) + behind)
    await eventually(lambda: waiters(1), what="the waiter")
    await raw.send(later)
    end(raw)
    await eventually(lambda: waiters(0), what="the queue without it")
    await release(http, lease)
    assert (await post(http, "G")).status_code == 201
    if not raw.writer.is_closing():
        answers = [await raw.answer() for _ in range(1 + (behind + later).count(b"GET"))]
        assert [each.status for each in answers] == [400] + [200] * (len(answers) - 1)
        assert await raw.ended()


async def test_a_stream_ends_when_its_client_has_gone_whatever_it_sent_behind_the_request(raw: RawConnection) -> None:
    await raw.send(request("GET", "/v1/elections/events?name=scheduler") + ALIVE * 100)
    await raw.reader.readuntil(b"event: vacant")
    raw.writer.write_eof()
    async with asyncio.timeout(PATIENCE):
        assert (await raw.reader.read()).count(b"HTTP/1.1 200") == 100


# The admin port: figures and details are there, and nowhere else; nothing else is there.

ADMIN = ("--admin-port", "0")


def admin_url(gateway: Gateway) -> str:
    found = re.search(r"^  admin (http://\S+)$", gateway.greeting, re.MULTILINE)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("workers", [pytest.param("1"), pytest.param("2", marks=pytest.mark.long("several workers"))])
async def test_what_is_on_which_port(demo_database: str, short_dir: Path, workers: str) -> None:
    given = ("--database-url", demo_database, *ADMIN, "--workers", workers, "--cors-origins", "https://shop.example")
    async with (
        serving_process(short_dir, *given) as gateway,
        httpx.AsyncClient(base_url=gateway.url, trust_env=False) as gate,
        httpx.AsyncClient(base_url=admin_url(gateway), trust_env=False) as admin,
    ):
        for each in (gate, admin):
            assert (await each.get("/healthz?verbose")).json() == {"status": "ok"}
        assert (await gate.get("/readyz")).json() == {"status": "ready"}
        assert (await admin.get("/readyz")).json().keys() > {"status", "database", "origin", "catalog"}
        assert ((await gate.get("/metrics")).status_code, (await gate.head("/metrics")).status_code) == (404, 404)
        assert "/metrics" not in (await gate.get("/openapi.json")).json()["paths"]
        for path in ("/", "/docs", "/openapi.json", "/v1/data/orders", "/problems"):
            answer = await admin.get(path)
            assert (answer.status_code, answer.json()["code"]) == (404, "FP019"), path
        written = await admin.patch("/v1/data/orders/order-123", headers={"X-Fence-Token": "99"}, json={"note": "x"})
        assert written.status_code == 404
        assert (await admin.post("/metrics")).json()["code"] == "FP020"
        # A client cannot choose the port by what it says.
        named = {"Host": admin_url(gateway).removeprefix("http://")}
        assert (await gate.get("/metrics", headers=named)).status_code == 404
        assert (await gate.get(f"{admin_url(gateway)}/metrics")).status_code == 200, "it is the address that counts"

        async def counted() -> bool:
            figures = (await admin.get("/metrics")).text
            return 'fencepost_http_request_seconds_count{method="GET",route="/readyz",status="200"} 2.0' in figures

        await eventually(counted, what="that what all workers did is counted")
        # Names, addresses and pages.
        for host, status in (("10.1.2.3:9000", 200), ("[fd00::1]:9000", 200), ("10.1.2.3.rebound.example", 421)):
            assert (await admin.get("/metrics", headers={"Host": host})).status_code == status, host
        page = await admin.get("/metrics", headers={"Origin": "https://shop.example"})
        assert "access-control-allow-origin" not in page.headers
        assert (await gate.get("/healthz", headers={"Host": "10.1.2.3"})).status_code == 421


async def test_clients_with_all_connections_or_no_key_keep_no_operator_out(demo_database: str, short_dir: Path) -> None:
    on = ("--database-url", demo_database, *ADMIN)
    given = ("--max-connections", "3", "--jwt-secret", SECRET, "--jwt-role-claim-key", "")
    head = "GET /v1/elections/events?name=x HTTP/1.1\r\nHost: localhost\r\n"
    events = f"{head}Authorization: Bearer {token()}\r\n\r\n".encode()
    async with serving_process(short_dir, *on, *given) as gateway, AsyncExitStack() as stack:
        port = int(gateway.url.rpartition(":")[2])
        for _ in range(3):
            held = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            held.sendall(events)
            assert (await asyncio.to_thread(held.recv, 9)) == b"HTTP/1.1 ", "a stream that goes on: it gives no way"
        async with httpx.AsyncClient(trust_env=False) as client:
            assert (await client.get(f"{gateway.url}/healthz")).json()["code"] == "FP035"
            for _ in range(6):
                assert (await client.get(f"{admin_url(gateway)}/metrics")).status_code == 200, "it wants no key"


def test_what_cannot_be(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = str(busy.getsockname()[1])
        for arguments, message in (
            (("--port", "1234", "--admin-port", "1234"), "--port and --admin-port are both 1234"),
            (
                ("--port", "0", "--admin-port", "0", "--admin-host", "0.0.0.0"),
                "0.0.0.0 can be reached from other machines",
            ),
            (
                ("--port", "0", "--admin-port", "0", "--admin-host", "no.such.invalid"),
                "(--admin-host, FENCEPOST_ADMIN_HOST)",
            ),
            (("--port", "0", "--admin-port", port), "--admin-port or FENCEPOST_ADMIN_PORT"),
        ):
            # In this process: it fails before it starts anything.
            result = CliRunner().invoke(main, ["serve", *arguments, "--data-dir", str(tmp_path / "data")])
            assert (result.exit_code, message in result.stderr, result.stderr.count("\n")) == (1, True, 1), (
                result.output
            )
            assert not (tmp_path / "data").exists(), arguments


# Which host a request names, and which pages of the web may send one.

LEASE = {"lock": "nightly", "ttl_ms": 3_600_000, "owner": "me"}


async def test_another_host_is_421(gateway_url: str) -> None:
    for host in ("evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.nip.io"):
        for path in ("/v1/data/orders", "/v1/locks", "/healthz"):
            answer = await ask(gateway_url, f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            assert (answer.status, answer.body["code"]) == (421, "FP031"), path
            assert answer.body["hint"] == f"FENCEPOST_ALLOWED_HOSTS={host.partition(':')[0]} allows it.", path


async def test_a_request_has_one_host(gateway_url: str) -> None:
    for version, hosts, status in (
        ("1.1", "", 400), ("1.1", "Host: localhost\r\nHost: localhost\r\n", 400),
        ("1.1", "Host: localhost\r\nHost: evil.example\r\n", 400),
        ("1.0", "Host: localhost\r\nHost: evil.example\r\n", 400), ("1.1", "Host: a b\r\n", 400),
        ("1.1", "Host: \r\n", 400), ("1.1", "Host: localhost@evil.example\r\n", 400), ("1.0", "", 200),
        ("1.0", "Host: evil.example\r\n", 421),
    ):  # fmt: skip
        answer = await ask(gateway_url, f"GET /v1/data/orders HTTP/{version}\r\n{hosts}\r\n".encode())
        assert answer.status == status, (version, hosts, status)


async def test_a_page_of_another_site_may_not_write(http: httpx.AsyncClient) -> None:
    for headers in (
        {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"},
        {"Origin": "https://evil.example"}, {"Origin": "null"}, {"Origin": "http://localhost:1"},
        [("Origin", "https://evil.example"), ("Origin", "https://evil.example")],
        [("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Site", "same-origin")], {"Sec-Fetch-Site": "Cross-Site"},
    ):  # fmt: skip
        for method, path in (("POST", "/v1/leases"), ("PATCH", "/v1/data/orders/order-123")):
            answer = await http.request(method, path, json=LEASE, headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (403, "FP032"), (method, path)
            assert (await http.get("/v1/locks")).json() == [], (method, path)


async def test_the_origin_null_is_no_host_of_a_request_without_one(gateway_url: str) -> None:
    head = b"POST /v1/leases HTTP/1.0\r\nOrigin: null\r\nContent-Type: application/json\r\nContent-Length: 12\r\n\r\n"
    answer = await ask(gateway_url, head + b'{"lock":"x"}')
    assert (answer.status, answer.body["code"]) == (403, "FP032")


async def test_hosts_and_pages_that_are_allowed_are_served(demo_database: str, start_gateway: Start) -> None:
    url = await start_gateway(
        demo_database, cors_origins="https://shop.example", allowed_hosts="Shop.example, 10.0.0.5"
    )
    page = {"Origin": "https://shop.example", "Sec-Fetch-Site": "cross-site"}
    asked = {"Access-Control-Request-Method": "PATCH", "Access-Control-Request-Headers": "x-fence-token"}
    async with httpx.AsyncClient(base_url=url) as client:
        for host, status in (("shop.example:443", 200), ("10.0.0.5", 200), ("localhost", 200), ("10.0.0.6", 421)):
            assert (await client.get("/v1/data/orders", headers={"Host": host})).status_code == status
        before = await client.request("OPTIONS", "/v1/data/orders/order-123", headers={**page, **asked})
        assert (before.status_code, before.headers["access-control-allow-origin"]) == (200, "https://shop.example")
        written = await client.patch(
            "/v1/data/orders/order-123", json={"status": "shipped"}, headers={**page, "X-Fence-Token": "1301"}
        )
        assert (written.status_code, written.headers["access-control-allow-origin"]) == (200, "https://shop.example")
        for path in ("/v1/data/orders", "/v1/locks"):
            read = await client.get(path, headers=page)
            assert read.headers["access-control-allow-origin"] == "https://shop.example"
            shown = set(read.headers["access-control-expose-headers"].split(", "))
            assert shown >= HEADERS.keys(), "all headers of answers that OpenAPI describes"
        large = {**page, "X-Large": "x" * 70_000}
        refused = await client.get("/v1/data/orders", headers=large)
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (431, "https://shop.example")
        assert refused.headers["access-control-expose-headers"] == read.headers["access-control-expose-headers"]
        others = await client.get("/v1/data/orders", headers=large | {"Origin": "https://evil.example"})
        assert (others.status_code, "access-control-allow-origin" in others.headers) == (431, False)
        other = await client.post("/v1/leases", json=LEASE, headers={"Origin": "https://evil.example"})
        assert other.status_code == 403


# SIGTERM under keep-alive: no request of which a byte had arrived stays without an answer.

HEAD = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
REQUEST = HEAD + b"\r\n"


async def ask_draining(client: RawConnection, request: bytes = REQUEST) -> Answer | None:
    """Send a request and read the answer; None at the end of the stream."""
    await client.send(request)
    try:
        return await client.answer()
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def last(answer: Answer | None) -> bool:
    """Whether an answer says that the connection ends after it."""
    assert answer is not None
    assert answer.status == 200
    return answer.headers.get("connection") == "close"


Connected = Callable[[Gateway], Awaitable[RawConnection]]


@pytest.fixture
async def connected() -> AsyncIterator[Connected]:
    """Give what connects to a gateway. All connections are closed afterwards."""
    clients: list[RawConnection] = []

    async def connected(gateway: Gateway) -> RawConnection:
        clients.append(await RawConnection.open(gateway.url))
        return clients[-1]

    yield connected
    for client in clients:
        client.close()


@asynccontextmanager
async def stopping(gateway: Gateway, connected: Connected) -> AsyncIterator[None]:
    """Send SIGTERM, and go on once the gateway accepts no more; afterwards it has ended in order."""
    os.kill(gateway.process.pid, signal.SIGTERM)

    async def refuses() -> bool:
        try:
            await connected(gateway)
        except ConnectionError:
            return True
        return False

    await eventually(refuses, what="the gateway accepts no more")
    yield
    assert await gateway.ended() == 0, gateway.errors.read_text()


@pytest.mark.long("gateways that stop, and databases that hang")
@workers
async def test_an_idle_connection_may_be_used_once_more_and_a_request_that_has_begun_to_arrive_is_answered(
    workers: str, short_dir: Path, connected: Connected
) -> None:
    async with serving_process(short_dir, "--workers", workers, "--shutdown-timeout", "600") as gateway:
        idle, fresh, used = [await connected(gateway) for _ in range(3)]
        assert not last(await ask_draining(idle))
        await ask_draining(used)
        for client in (fresh, used):
            await client.send(HEAD)
        await ask_draining(await connected(gateway))  # what came before is likely to be read by then
        async with stopping(gateway, connected):
            while not last(await ask_draining(idle)):  # a worker may drain a moment after the parent accepts no more
                pass
            assert await idle.ended()
            for client in (fresh, used):
                last(await ask_draining(client, b"\r\n"))
                assert await client.ended()


@pytest.mark.long("gateways that stop, and databases that hang")
@workers
async def test_clients_that_ask_for_ever_miss_no_answer(workers: str, short_dir: Path, connected: Connected) -> None:
    async with serving_process(short_dir, "--workers", workers) as gateway:
        answered, lost = itertools.count(), []
        busy = asyncio.Event()

        async def ask_again_and_again(client: RawConnection) -> None:
            while True:
                answer = await ask_draining(client)
                if answer is None:
                    lost.append(client)
                    return
                if next(answered) > 500:
                    busy.set()
                if last(answer):
                    return

        clients = [await connected(gateway) for _ in range(50)]
        assert all(
            await asyncio.gather(*(ask_draining(client) for client in clients))
        )  # the gateway has accepted them all
        async with asyncio.TaskGroup() as group:
            for client in clients:
                group.create_task(ask_again_and_again(client))
            await busy.wait()
            async with stopping(gateway, connected):
                pass
        assert lost == []


@pytest.mark.long("gateways that stop, and databases that hang")
async def test_a_batch_that_goes_on_is_ended_with_how_far_it_came(short_dir: Path, connected: Connected) -> None:
    async with serving_process(short_dir, "--workers", "2", "--shutdown-timeout", "600") as gateway:
        sent = await Sent.open(gateway.url)
        await sent.send(*[patch_line("order-123", 1000 + each, note=str(each)) for each in range(10)])
        verdicts = [await sent.next() for _ in range(10)]
        assert [verdict["status"] for verdict in verdicts if verdict is not None] == [200] * 10
        async with stopping(gateway, connected):
            assert await sent.next() == {"stopped": True, "lines": 10, "reason": "The gateway is stopping."}
            assert await sent.next() is None
        sent.connection.close()
