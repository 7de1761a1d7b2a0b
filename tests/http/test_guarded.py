"""What may arrive at a connection: no trailers, heads and bodies within bounds. And how many may be open."""

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Iterator
from typing import TypeVar

import asyncpg
import httpx
import pytest
from tests.http.conftest import StartGateway
from tests.http.raw import Answer, RawConnection, ask
from tests.support.gateways import DemoGateway, demo_gateway
from tests.support.postgres import ReadyMade
from tests.support.use_cases import Sent, patch_line
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from fencepost.server.http.guard import ConnectionBounds
from fencepost.server.ops.protect import protect
from fencepost.server.serving.guarded import GuardedProtocol
from fencepost.server.settings import Settings
from fencepost.server.times import EdgeTimes, Times
from fencepost.testing.servers.processes import PATIENCE, eventually

T = TypeVar("T")
HEAD_BYTES = ConnectionBounds().head_bytes
HOST = b"Host: localhost\r\n"
PATCH = b"PATCH /v1/data/orders/order-123 HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\n"
HEALTH = b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n"


async def status_of(http: httpx.AsyncClient) -> object:
    return (await http.get("/v1/data/orders/order-123")).json()["status"]


async def turned_away(http: httpx.AsyncClient, code: str) -> float:
    """Give how often this code is in the metrics."""
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
    """Give a connection to it."""
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


async def test_a_body_that_never_ends_is_408_however_fast_it_comes(
    demo_database: str, start_gateway: StartGateway
) -> None:
    waiting = await RawConnection.open(await start_gateway(demo_database, OFTEN, body_timeout=0.4, least_rate=1))
    await waiting.send(PATCH + b"X-Fence-Token: 1301\r\nContent-Length: 1000000\r\n\r\n")
    answering = asyncio.create_task(waiting.answer())
    while not answering.done():
        await waiting.send(b" ")
        await asyncio.wait([answering], timeout=0.01)
    assert "the request's body was not there" in (await answering).body["detail"]
    waiting.close()


async def test_an_idle_connection_is_closed_after_keep_alive(demo_database: str, start_gateway: StartGateway) -> None:
    """Longer after than a proxy in front keeps it, by default: else the proxy sends into a connection that ends."""
    assert Settings().keep_alive > 60
    raw = await RawConnection.open(await start_gateway(demo_database, keep_alive=1))
    await raw.send(HEALTH)
    assert (await raw.answer()).status == 200
    assert await raw.ended()
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


async def test_those_who_send_halves_keep_nobody_out(demo_database: str, start_gateway: StartGateway) -> None:
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
    demo_database: str, start_gateway: StartGateway, bound: str
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
        assert (answer.status, answer.body["code"], answer.headers["x-content-type-options"]) == (
            400,
            "FP016",
            "nosniff",
        )
        assert answer.headers["content-type"] == "application/problem+json", bad
        assert (await ask(gateway_url, upgrade)).status == 200
    assert await turned_away(http, "FP016") == before + 30
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert not [each for each in lines if "Invalid HTTP" in each or "pgrade" in each]
    assert 0 < len([each for each in lines if "turned away" in each]) < 30


async def test_a_batch_is_not_too_slow_while_its_lines_come_whole(
    demo_database: str, start_gateway: StartGateway
) -> None:
    url = await start_gateway(demo_database, head_timeout=0.1, least_rate=1_000_000_000, body_timeout=600)
    sent = await Sent.open(url)
    for token in (1301, 1302):
        await sent.send(patch_line("order-123", token, note="x"))
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
    "small",
    [b"GET /x HTTP/1.1\r\n" + HOST, b"HEAD /x HTTP/1.1\r\n" + HOST, PATCH + b"Content-Length: 4\r\n\r\n\r\n"],
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
async def large(demo_database: str, start_gateway: StartGateway) -> str:
    """Start a gateway with a table whose one row has 12 MB."""
    database = await asyncpg.connect(demo_database)
    await database.execute("CREATE TABLE large AS SELECT repeat('x', 12000000) AS note")
    await database.close()
    return await start_gateway(demo_database, serve_unprotected=True, max_answer_bytes=13_000_000)


BATCH = b"POST /v1/batch HTTP/1.1\r\nContent-Type: application/x-ndjson\r\n" + HOST
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


async def test_verdicts_that_are_not_taken_are_kept_answers_too(
    demo_database: str, start_gateway: StartGateway
) -> None:
    database = await asyncpg.connect(demo_database)
    await database.execute("CREATE TABLE wide (id int PRIMARY KEY, note text)")
    await database.execute("INSERT INTO wide SELECT n, repeat('x', 1000000) FROM generate_series(0, 17) n")
    await protect(database, "wide")
    await database.close()
    url = await start_gateway(demo_database, max_answer_bytes=13_000_000)
    async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
        stuck = []
        for row in range(18):
            lines = b"".join(b'{"claim": "wide/%d", "token": "%d"}\n' % (row, token) for token in range(1, 31))
            stuck.append(await RawConnection.open(url))
            await stuck[-1].send(BATCH + b"Content-Length: %d\r\n\r\n" % len(lines) + lines)

        async def cut_off() -> bool:
            return await turned_away(http, "FP033") > 0

        await eventually(cut_off, what="one is cut off")
    for each in stuck:
        each.close()
