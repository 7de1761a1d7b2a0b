"""The load generator in C against a server that writes down what it was sent."""

import asyncio
import contextlib
import re
import shutil
from collections import defaultdict

import pytest
from benchmarks.load import HOST, Plan, Result, generate
from benchmarks.walk import Walk

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler: apt-get install gcc libc6-dev")

CONNECTIONS, FIRST_TOKEN, SECONDS = 3, 500, 600.0
REQUESTS = 40  # of each connection, which the server then closes: no clock ends the load
WALK = Walk(first_key=1000, rows=30, stride=7)
REQUEST = (
    "PATCH /v1/data/orders/order-%(key)d HTTP/1.1\r\nX-Fence-Token: %(token)d\r\n"
    "Idempotency-Key: %(same)d-%(token)d\r\nContent-Length: 0\r\n\r\n"
)


class RecordingServer:
    """Answers REQUESTS requests of each connection with the same bytes, in two halves, and keeps them."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.seen: defaultdict[int, list[str]] = defaultdict(list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            for _ in range(REQUESTS):
                request = (await reader.readuntil(b"\r\n\r\n")).decode()
                self.seen[id(writer)].append(request)
                half = len(self.answer) // 2
                writer.write(self.answer[:half])
                await asyncio.sleep(0)
                writer.write(self.answer[half:])
            # A request that is not read when its connection is closed may cost the answer before it.
            await reader.readuntil(b"\r\n\r\n")
        writer.close()


async def load(answer: bytes, request: str = REQUEST, text: str = "order-") -> tuple[Result, list[list[str]]]:
    recording = RecordingServer(answer)
    server = await asyncio.start_server(recording.serve, HOST, 0)
    async with server:
        plan = Plan(
            port=server.sockets[0].getsockname()[1],
            request=request,
            connections=CONNECTIONS,
            first_token=FIRST_TOKEN,
            rising=True,
            expected_status=200,
            expected_text=text,
            warmup=0,
            seconds=SECONDS,
            walk=WALK,
        )
        result = await asyncio.to_thread(generate, plan)
    return result, sorted(recording.seen.values())


def keys(request: str) -> list[int]:
    return [int(key) for key in re.findall(r"order-(\d+)", request)]


async def test_the_generator_in_c_walks_as_walk_py_does() -> None:
    result, seen = await load(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\norder-1")
    assert len(seen) == CONNECTIONS
    for requests in seen:
        number = keys(requests[0])[0] % CONNECTIONS - WALK.first_key % CONNECTIONS
        for step, request in enumerate(requests, 1):
            key = WALK.key(number % CONNECTIONS, step, CONNECTIONS)
            assert request == REQUEST.replace("%(token)d", f"{FIRST_TOKEN + step}").replace(
                "%(key)d", f"{key}"
            ).replace("%(same)d", f"{key}")
    last = {keys(request)[0]: step for requests in seen for step, request in enumerate(requests, 1)}
    assert result["statuses"] == {"200": sum(map(len, seen))}
    assert (result["accepted"], result["faults"]) == (CONNECTIONS * REQUESTS, {"connection lost": CONNECTIONS})
    assert (result["rows"], result["token_sum"]) == (len(last), sum(last.values()))
    assert result["rate"] == pytest.approx(result["accepted"] / SECONDS)
    assert 0 < result["p50_ms"] <= result["p99_ms"]


async def test_a_request_with_several_keys_goes_on_in_the_walk() -> None:
    two = "PATCH / HTTP/1.1\r\nX: order-%(key)d order-%(key)d\r\n\r\n"
    result, seen = await load(b"HTTP/1.1 204 No Content\r\n\r\n", two, "")
    walked = [keys(request) for request in seen[0]]
    number = (walked[0][0] - WALK.first_key) % CONNECTIONS
    expected = [WALK.key(number, step, CONNECTIONS) for step in range(1, 5)]
    assert walked[0] + walked[1] == expected
    assert result["rows"] == WALK.rows
    assert result["rate"] == 0, "204 was not the expected status"
    assert result["accepted"] == sum(map(len, seen))


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "answer without the expected text"),
        (b"HTTP/1.1 200 OK\r\n\r\norder-1", "answer that is not understood"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\norder-1", "more than one answer"),
    ],
)
async def test_what_is_not_as_expected_is_a_fault(answer: bytes, fault: str) -> None:
    result, _ = await load(answer)
    assert result["faults"][fault] >= CONNECTIONS


async def test_a_refusal_is_counted_and_not_accepted() -> None:
    result, seen = await load(b"HTTP/1.1 409 Conflict\r\nContent-Length: 7\r\n\r\norder-1")
    assert result["statuses"] == {"409": sum(map(len, seen))}
    assert (result["accepted"], result["rows"], result["rate"]) == (0, 0, 0)
