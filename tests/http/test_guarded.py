"""What may arrive at a connection: no trailers, heads and bodies within bounds. And how many may be open."""

import asyncio
from functools import partial

import httpx
import pytest
from tests.http.conftest import StartGateway
from tests.http.raw import Answer, RawConnection, ask

from fencepost.http.guard import Bounds
from fencepost.times import EdgeTimes, Times

HEAD_BYTES = Bounds().head_bytes
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
    for number, field in enumerate(("X-Fence-Token: 1301", "Prefer: return=minimal", "X-Lease-Secret: abc"), 1):
        body = b'15\r\n{"status": "shipped"}\r\n0\r\n'
        before = await status_of(http)
        answer = await ask(
            gateway_url, PATCH + b"Transfer-Encoding: chunked\r\n\r\n" + body + f"{field}\r\n\r\n".encode()
        )
        assert (answer.status, answer.body["code"]) == (400, "FP016"), field
        name = field.partition(":")[0]
        assert f"{name}: a field after the body (a trailer) is not taken" in answer.body["detail"], field
        assert await status_of(http) == before, field
        assert await turned_away(http, "FP016") == number, field


async def test_chunks_without_trailers_are_a_body(gateway_url: str) -> None:
    body = b'15\r\n{"status": "shipped"}\r\n0\r\n\r\n'
    request = PATCH + b"X-Fence-Token: 1301\r\nTransfer-Encoding: chunked\r\n\r\n" + body
    assert (await ask(gateway_url, request)).status == 200


async def test_blanks_around_a_value_are_no_part_of_it(gateway_url: str) -> None:
    request = (
        PATCH.replace(b"localhost", b" \tlocalhost\t ") + b"X-Fence-Token: \t1301 \t\r\nContent-Length: 21\r\n\r\n"
    )
    assert (await ask(gateway_url, request + b'{"status": "shipped"}')).status == 200


async def test_what_a_proxy_may_frame_otherwise_is_400(http: httpx.AsyncClient, gateway_url: str) -> None:
    chunks, old = b'15\r\n{"status": "shipped"}\r\n0\r\n\r\n', PATCH.replace(b"HTTP/1.1", b"HTTP/1.0")
    coded = b"Transfer-Encoding: %b\r\n"
    before = await status_of(http)
    for head in (
        *(PATCH + coded % each for each in (b"gzip, chunked", b", chunked", b"chunked;q=1", b"identity")),
        PATCH + coded % b"gzip" + coded % b"chunked",
        PATCH + coded % b"chunked" + coded % b"chunked",
        old + coded % b"chunked",
    ):
        answer = await ask(gateway_url, head + b"X-Fence-Token: 1301\r\n\r\n" + chunks)
        assert (answer.status, answer.body["code"]) == (400, "FP016"), head
    for version in (b"HTTP/2.0", b"HTTP/0.9"):
        assert (await ask(gateway_url, HEALTH.replace(b"HTTP/1.1", version))).status == 400
    assert await status_of(http) == before


async def test_a_head_that_is_too_large_is_431(http: httpx.AsyncClient, gateway_url: str) -> None:
    heads = (
        HOST + b"X-Long: " + b"x" * HEAD_BYTES + b"\r\n\r\n",
        HOST + b"".join(b"X-%d: %b\r\n" % (each, b"x" * 1000) for each in range(70)) + b"\r\n",
    )
    for number, head in enumerate(heads, 1):
        answer = await ask(gateway_url, b"GET /healthz HTTP/1.1\r\n" + head)
        assert (answer.status, answer.body["code"], answer.headers["connection"]) == (431, "FP034", "close"), number
        assert await turned_away(http, "FP034") == number


async def test_a_target_that_is_too_large_is_431(gateway_url: str) -> None:
    answer = await ask(gateway_url, b"GET /v1/data/orders?a=" + b"x" * HEAD_BYTES + b" HTTP/1.1\r\n" + HOST + b"\r\n")
    assert answer.status == 431


async def test_a_target_with_a_fragment_is_400_and_not_cut_off(http: httpx.AsyncClient, gateway_url: str) -> None:
    before = (await http.get("/v1/data/orders")).json()
    for target in (b"orders?status=neq.x#&order_id=eq.order-123", b"orders/order-123#7", b"orders?order_id=neq.#5"):
        answer = await ask(
            gateway_url, b"DELETE /v1/data/" + target + b" HTTP/1.1\r\n" + HOST + b"X-Fence-Token: 50\r\n\r\n"
        )
        assert answer.status == 400, target
        assert (answer.body["code"], answer.body["hint"]) == ("FP016", "In a value it is %23.")
    assert (await http.get("/v1/data/orders")).json() == before


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


async def test_a_head_within_bounds_is_read(gateway_url: str) -> None:
    fields = b"".join(b"X-%d: %b\r\n" % (each, b"x" * 1000) for each in range(60))
    assert (await ask(gateway_url, b"GET /healthz HTTP/1.1\r\n" + HOST + fields + b"\r\n")).status == 200


async def test_what_is_no_http_is_a_problem(http: httpx.AsyncClient, gateway_url: str) -> None:
    no_http = (b"NO HTTP\r\n\r\n", b"GET / HTTP/1.1\r\nHost localhost\r\n\r\n", b"\x16\x03\x01\x02\x00")
    for number, bad in enumerate(no_http, 1):
        answer = await ask(gateway_url, bad)
        assert (answer.status, answer.body["code"]) == (400, "FP016"), bad
        assert answer.headers["content-type"] == "application/problem+json", bad
        assert await turned_away(http, "FP016") == number, bad


async def test_nothing_is_answered_in_the_place_of_an_earlier_request(raw: RawConnection) -> None:
    """An answer to the second part would be taken for that to the write before it."""
    body = b'{"status": "shipped"}'
    await raw.send(PATCH + b"X-Fence-Token: 1301\r\nContent-Length: %d\r\n\r\n" % len(body) + body + b"NO HTTP\r\n\r\n")
    answer = await raw.answer()
    assert (answer.status, answer.body["status"]) == (200, "shipped")
    answer = await raw.answer()
    assert (answer.status, answer.body["code"], answer.headers["connection"]) == (400, "FP016", "close")
    assert await raw.ended()


async def test_a_request_after_the_refused_one_is_not_looked_at(http: httpx.AsyncClient, raw: RawConnection) -> None:
    body = b'{"status": "shipped"}'
    before = await status_of(http)
    await raw.send(b"NO HTTP\r\n\r\n" + PATCH + b"X-Fence-Token: 1301\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    assert (await raw.answer()).status == 400
    assert await raw.ended()
    assert await status_of(http) == before


OFTEN = Times(edge=EdgeTimes(look_every=0.05))
IMPATIENT = {"head_timeout": 0.2, "body_timeout": 0.4}
with_settings = partial(pytest.mark.parametrize, ("times", "settings"), ids=[""])
impatient = with_settings([(OFTEN, IMPATIENT)])


@impatient
@pytest.mark.parametrize("begun", [b"GET /healthz HT", b"GET /healthz HTTP/1.1\r\nX-Half: a", HEALTH[:-2]])
async def test_half_a_head_is_408_after_a_while(http: httpx.AsyncClient, raw: RawConnection, begun: bytes) -> None:
    await raw.send(begun)
    answer = await raw.answer()
    assert (answer.status, answer.body["code"], answer.body["retryable"]) == (408, "FP033", True)
    assert await raw.ended()
    assert await turned_away(http, "FP033") == 1


@impatient
async def test_half_a_body_is_408_after_a_while(http: httpx.AsyncClient, raw: RawConnection) -> None:
    before = await status_of(http)
    await raw.send(PATCH + b'X-Fence-Token: 1301\r\nContent-Length: 21\r\n\r\n{"status": ')
    answer = await raw.answer()
    assert (answer.status, answer.body["code"]) == (408, "FP033")
    assert "of the request's body came" in answer.body["detail"]
    assert await status_of(http) == before


@with_settings([(OFTEN, {**IMPATIENT, "least_rate": 1})])
async def test_a_body_that_never_ends_is_408_however_fast_it_comes(
    raw: RawConnection,
) -> None:
    await raw.send(PATCH + b"X-Fence-Token: 1301\r\nContent-Length: 1000000\r\n\r\n")
    answering = asyncio.create_task(raw.answer())
    while not answering.done():
        await raw.send(b" ")
        await asyncio.wait([answering], timeout=0.01)
    assert "the request's body was not there" in (await answering).body["detail"]


@impatient
async def test_a_connection_without_a_request_has_no_clock(raw: RawConnection) -> None:
    await raw.send(HEALTH)
    assert (await raw.answer()).status == 200
    waits = asyncio.create_task(raw.ended())
    await asyncio.wait([waits], timeout=0.6)
    assert not waits.done()
    await raw.send(HEALTH)
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
    answer = await ask(url, b"")
    assert (answer.status, answer.body["code"], answer.headers["retry-after"]) == (503, "FP035", "1")
    streams[0].close()

    while (status := await status_or_refused(url)) != 200:  # its end is noticed in a moment
        assert status == 503
    streams[1].close()


async def status_or_refused(url: str) -> int:
    try:
        return (await ask(url, HEALTH)).status
    except (ConnectionResetError, asyncio.IncompleteReadError):
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


async def test_what_cannot_be_parsed_is_logged_with_its_peer_and_not_each_time(
    http: httpx.AsyncClient, gateway_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Uvicorn logged each of these, and each Upgrade twice."""
    caplog.clear()
    upgrade = b"GET /healthz HTTP/1.1\r\n" + HOST + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    for _ in range(30):
        answer = await ask(gateway_url, b"X\r\n\r\n")
        assert (answer.status, answer.body["code"], answer.headers["x-content-type-options"]) == (
            400,
            "FP016",
            "nosniff",
        )
        assert (await ask(gateway_url, upgrade)).status == 200
    assert await turned_away(http, "FP016") == 30
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert not [each for each in lines if "Invalid HTTP" in each or "pgrade" in each]
    assert 0 < len([each for each in lines if "turned away" in each]) < 30
