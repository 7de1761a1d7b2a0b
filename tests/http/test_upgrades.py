"""Requests that offer another protocol (`Upgrade`): they are served as they are, and nothing of them is run twice."""

import asyncio
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.http.raw import RawConnection

ROW = b"/v1/data/orders/order-123 HTTP/1.1\r\nHost: localhost\r\n"
OFFERS = (
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n",
    b"Connection: upgrade\r\nUpgrade: websocket\r\n",
    b"Upgrade: any/1\r\nConnection: keep-alive, UPGRADE\r\n",
)
JSON = b"Content-Type: application/json\r\n"
BODY = b'{"note": "%d"}'
DELETE = b"DELETE /v1/data/orders/order-124 HTTP/1.1\r\nHost: localhost\r\nX-Fence-Token: 50\r\n\r\n"
GET = b"GET " + ROW + b"\r\n"


async def in_pieces(raw: RawConnection, request: bytes, size: int) -> None:
    for at in range(0, len(request), size):
        await raw.send(request[at : at + size])
        await asyncio.sleep(0)


def framed(body: bytes, chunked: bool) -> bytes:
    if chunked:
        return b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


async def test_its_body_is_read_in_whatever_pieces_it_comes(raw: RawConnection) -> None:
    token = 1300
    for offer in OFFERS:
        for size in (1, 40, 10_000):
            for chunked in (False, True):
                token += 1
                head = b"PATCH " + ROW + offer + JSON + b"X-Fence-Token: %d\r\n" % token
                await in_pieces(raw, head + framed(BODY % token, chunked) + GET, size)
                for _ in range(2):  # the request behind it is read, too
                    answer = await raw.answer()
                    assert (answer.status, answer.body["note"]) == (200, str(token)), (offer, size)


async def test_a_body_that_looks_like_a_request_is_none(raw: RawConnection) -> None:
    for offer in OFFERS:
        head = b"PATCH " + ROW + offer + JSON + b"Expect: 100-continue\r\nX-Fence-Token: 1300\r\n"
        await raw.send(head + b"Content-Length: %d\r\n\r\n" % len(DELETE))
        assert (await raw.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 "), "the head has been read"
        await raw.send(DELETE + GET.replace(b"order-123", b"order-124"))
        assert (await raw.answer()).status == 400, "it is no JSON"
        assert (await raw.answer()).status == 200, "the row is there"


async def test_one_without_a_body_is_answered_and_a_body_that_may_not_be_is_refused(raw: RawConnection) -> None:
    await raw.send(GET[:-2] + OFFERS[0] + b"\r\n" + GET)
    assert [(await raw.answer()).status for _ in range(2)] == [200, 200]
    await raw.send(DELETE[:-2] + OFFERS[0] + JSON + b"Content-Length: 3\r\n\r\n[1]")
    assert (await raw.answer()).status == 400


async def test_curl_that_would_rather_speak_http_2(gateway_url: str) -> None:
    url, large = f"{gateway_url}/v1/data/orders/from-curl", '{"status": "new", "note": "' + 300_000 * "x" + '"}'
    command = ["curl", "--http2", "-sS", "-o", "/dev/null", "-w", "%{http_code} %{http_version}"]
    body = ["-H", "Content-Type: application/json", "-d", "@-"]
    for token, (verb, status) in enumerate((("PUT", 201), ("PATCH", 200), ("DELETE", 204), ("POST", 201)), 1400):
        to = url.removesuffix("/from-curl") if verb == "POST" else url
        more = [to, "-X", verb, "-H", f"X-Fence-Token: {token}", *(body if verb != "DELETE" else [])]
        sent = large.replace("{", '{"order_id": "of-curl", ', 1) if verb == "POST" else large
        assert await run([*command, *more], sent) == f"{status} 1.1", verb
    assert await run([*command, f"{url.removesuffix('from-curl')}of-curl"]) == "200 1.1"
    assert await run([*command, "--head", f"{url.removesuffix('from-curl')}of-curl"]) == "200 1.1"


async def run(command: list[str], sent: str = "") -> str:
    done = await asyncio.to_thread(subprocess.run, command, input=sent, capture_output=True, text=True, check=True)
    return done.stdout


JAVA = shutil.which("java")
SOURCE = Path(__file__).with_name("AllVerbs.java")


@pytest.mark.long("a Java client")
@pytest.mark.skipif(JAVA is None, reason="no Java: apt-get install default-jdk-headless")
async def test_java_that_would_rather_speak_http_2(gateway_url: str) -> None:
    command = [JAVA or "java", "-XX:TieredStopAtLevel=1", str(SOURCE), gateway_url]
    found = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    once = ["PUT 201", "PATCH 200", "GET 200", "HEAD 200", "POST 200", "DELETE 204"]
    assert found.stdout.splitlines() == [f"{each} HTTP_1_1" for each in once * 2], found.stderr
