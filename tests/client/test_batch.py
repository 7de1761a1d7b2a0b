"""client.batch: lines in, verdicts out, whatever becomes of the requests between."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from tests.support.batches import patch

from fencepost import Client, FenceToken, StaleToken, SyncClient, Unavailable
from fencepost.client import Retry, Verdict
from fencepost.client.errors import BadRequest
from fencepost.client.rows.batches import MOST_LINES

MANY = 2 * MOST_LINES + 10


def lines(first: int = 2000) -> Iterator[dict[str, Any]]:
    for each in range(MANY):
        yield patch("order-123", first + each, note=str(each))


async def test_verdicts_come_in_the_order_of_the_lines_and_a_refused_one_stops_nobody(client: Client) -> None:
    bad = patch("order-123", 1, note="stale"), {"method": "GET", "path": "orders"}
    verdicts = [verdict async for verdict in client.batch([*lines(), *bad, *lines(9000)])]
    assert [verdict.number for verdict in verdicts] == list(range(1, 2 * MANY + 3))
    *first, stale, unread = verdicts[: MANY + 2]
    assert [verdict.mark for verdict in first + verdicts[MANY + 2 :]] == [
        line["token"] for line in (*lines(), *lines(9000))
    ]
    assert first[0].result() == {"order_id": "order-123"}
    assert isinstance(unread.error, BadRequest)
    with pytest.raises(StaleToken):
        stale.result()
    assert stale.members["number"] == MANY + 1


async def test_a_line_may_be_made_of_the_verdict_before_it(client: Client) -> None:
    verdicts: list[Verdict] = []
    came = asyncio.Event()

    async def source() -> AsyncIterator[dict[str, Any]]:
        token = 1001
        for _ in range(3):
            yield patch("order-123", token, note="x")
            await came.wait()
            came.clear()
            token = (verdicts[-1].mark or 0) + 10

    async for verdict in client.batch(source()):
        verdicts.append(verdict)
        came.set()
    assert [verdict.mark for verdict in verdicts] == [1001, 1011, 1021]


class Losing(httpx.AsyncBaseTransport):
    """Loses the first answer, once all of it has come."""

    def __init__(self) -> None:
        self.inner, self.bodies = httpx.AsyncHTTPTransport(), 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await self.inner.handle_async_request(request)
        self.bodies += 1
        if self.bodies == 1:
            await response.aread()
            await response.aclose()
            raise httpx.ReadError("lost")
        return response

    async def aclose(self) -> None:
        await self.inner.aclose()


async def test_lines_whose_answer_is_lost_are_done_once(gateway_url: str) -> None:
    async with Client(gateway_url, transport=Losing()) as client:
        verdicts = [verdict async for verdict in client.batch(lines())]
    assert [verdict.status for verdict in verdicts] == [200] * MANY
    assert [verdict.replayed for verdict in verdicts] == [True] * MOST_LINES + [False] * (MANY - MOST_LINES)


async def test_what_a_gateway_that_stops_has_not_read_is_sent_again() -> None:
    read: list[list[str]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        tokens = [json.loads(line)["token"] for line in request.content.splitlines()]
        read.append(tokens)
        taken = [3, 0, 100][min(len(read), 3) - 1]
        said: list[object] = [{"number": n, "status": 200, "body": t} for n, t in enumerate(tokens[:taken], 1)]
        if taken < len(tokens):
            said.append({"stopped": True, "lines": taken, "reason": "The gateway is stopping."})
        return httpx.Response(200, content=b"".join(json.dumps(line).encode() + b"\n" for line in said))

    async with Client("http://gateway", transport=httpx.MockTransport(answer)) as client:
        sealed = [{"claim": "orders/1", "token": FenceToken(each, f"{each}.k.p.s")} for each in range(5)]
        found = [(verdict.number, verdict.body) async for verdict in client.batch(sealed)]
    assert found == [(each + 1, f"{each}.k.p.s") for each in range(5)]
    assert [len(tokens) for tokens in read] == [5, 2, 2]
    async with Client(
        "http://gateway", transport=httpx.MockTransport(lambda _: httpx.Response(200)), retry=Retry(patience=0)
    ) as client:
        with pytest.raises(Unavailable):
            await anext(client.batch(lines()))


def test_the_synchronous_client_takes_lines_in_the_callers_thread(gateway_url: str) -> None:
    with SyncClient(gateway_url) as client:
        verdicts = list(client.batch(lines()))
    assert [(verdict.number, verdict.status) for verdict in verdicts] == [(each + 1, 200) for each in range(MANY)]
