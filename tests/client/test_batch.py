"""client.batch: lines in, verdicts out, whatever becomes of the requests between."""

import asyncio
import json
import math
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from tests.support.use_cases import patch_line, written

from fencepost import Client, FenceToken, OutcomeUnknown, RowNotFound, StaleToken, SyncClient, Unavailable
from fencepost.client import Retry, Verdict
from fencepost.client.batches import MOST_LINES, SECONDS
from fencepost.client.errors import BadRequest, Unauthenticated
from fencepost.testing.servers.processes import PATIENCE

MANY = 2 * MOST_LINES + 10
STOPPED = {"stopped": True, "lines": 3, "reason": "The gateway is stopping."}


def lines(first: int = 2000) -> Iterator[dict[str, Any]]:
    for each in range(MANY):
        yield patch_line("order-123", first + each, note=str(each))


async def test_verdicts_come_in_the_order_of_the_lines_and_a_refused_one_stops_nobody(client: Client) -> None:
    bad = patch_line("order-123", 1, note="stale"), {"method": "GET", "path": "orders"}
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
            yield patch_line("order-123", token, note="x")
            await came.wait()
            came.clear()
            token = (verdicts[-1].mark or 0) + 10

    async for verdict in client.batch(source()):
        verdicts.append(verdict)
        came.set()
    assert [verdict.mark for verdict in verdicts] == [1001, 1011, 1021]


async def test_lines_are_sent_while_an_iterable_waits_for_the_next_one(client: Client) -> None:
    came = threading.Event()

    def source() -> Iterator[dict[str, Any]]:
        yield patch_line("order-123", 1001, note="x")
        assert came.wait(PATIENCE)
        yield patch_line("order-123", 1002, note="x")
        yield from [patch_line("order-124", 1001, note="not sent")] * int("raises")

    verdicts = client.batch(source())
    assert (await anext(verdicts)).mark == 1001
    came.set()
    with pytest.raises(ValueError, match="raises"):
        [verdict async for verdict in verdicts]


async def test_what_is_not_one_line_is_refused_by_its_number(client: Client, gateway_url: str) -> None:
    refused: list[tuple[Any, type[Exception]]] = [
        *((b" \r\n", ValueError), (b'{"claim":\n"orders/1"}', ValueError), (None, TypeError), ("{}", TypeError)),
        *(({"body": object()}, TypeError), ({"body": math.nan}, ValueError)),
    ]
    for line, error in refused:
        with pytest.raises(error, match=r"^line 1: "):
            await anext(client.batch(iter([line])))
    line, error = refused[0]
    text = written(patch_line("order-123", 1001, note="x"))
    verdicts = client.batch([*[text] * MOST_LINES, line])
    assert [(await anext(verdicts)).number for _ in range(MOST_LINES)][-1] == MOST_LINES, "a text may have its end"
    with pytest.raises(error, match=f"^line {MOST_LINES + 1}: "):
        await anext(verdicts)
    long, said = written(patch_line("order-123", 1001, note="x" * 1000)), list[Verdict]()
    with SyncClient(gateway_url) as synchronous, pytest.raises(error, match=f"^line {MOST_LINES + 1}: "):
        said.extend(synchronous.batch([*[long] * MOST_LINES, line]))
    assert MOST_LINES // 2 < len(said) < MOST_LINES, "what was sent has its verdict"


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
        verdicts = [verdict async for verdict in client.batch([*lines()])]
    assert [verdict.status for verdict in verdicts] == [200] * MANY
    assert [verdict.replayed for verdict in verdicts] == [True] * MOST_LINES + [False] * (MANY - MOST_LINES)


async def test_a_text_without_a_key_is_not_called_spent_by_its_own_echo(gateway_url: str) -> None:
    for text, kind in (
        (patch_line("order-123", 1001, note="x"), OutcomeUnknown),
        (patch_line("order-123", 1002, "key"), type(None)),
    ):
        async with Client(gateway_url, transport=Losing()) as client:
            (verdict,) = [verdict async for verdict in client.batch([written(text)])]
        assert isinstance(verdict.error, kind), verdict


async def test_verdicts_are_given_before_the_error_of_a_later_try_is_raised() -> None:
    answers = iter([httpx.Response(200, json=said(1)), httpx.Response(401, json={"code": "FP037"})])

    def answer(_: httpx.Request) -> httpx.Response:
        found = next(answers)
        more = (
            b"" if found.status_code != 200 else b"\n" + json.dumps(said(2, 503, code="FP010", retryable=True)).encode()
        )
        return httpx.Response(found.status_code, content=found.content + more)

    async with Client("http://gateway", transport=httpx.MockTransport(answer)) as client:
        verdicts = client.batch([{"claim": "a/1"}, {"claim": "a/2"}])
        assert (await anext(verdicts)).status == 200
        with pytest.raises(Unauthenticated):
            await anext(verdicts)


async def test_what_a_gateway_that_stops_has_not_read_is_sent_again() -> None:
    read: list[list[str]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        tokens = [json.loads(line)["token"] for line in request.content.splitlines()]
        read.append(tokens)
        taken = [3, 0, 100][min(len(read), 3) - 1]
        said: list[object] = [{"number": n, "status": 200, "body": t} for n, t in enumerate(tokens[:taken], 1)]
        if taken < len(tokens):
            said.append(STOPPED)
        return httpx.Response(200, content=b"".join(json.dumps(line).encode() + b"\n" for line in said))

    async with Client("http://gateway", transport=httpx.MockTransport(answer)) as client:
        sealed = [{"claim": "orders/1", "token": FenceToken(each, f"{each}.k.p.s")} for each in range(5)]
        found = [(verdict.number, verdict.body) async for verdict in client.batch(sealed)]
    assert found == [(each + 1, f"{each}.k.p.s") for each in range(5)]
    assert [len(tokens) for tokens in read] == [5, 2, 2]


def said(number: int, status: int = 200, **members: object) -> dict[str, Any]:
    return {"number": number, "status": status, "body": members}


async def against(*answers: list[dict[str, Any]], patience: float) -> list[tuple[int, int, type[Any]]]:
    """Send two lines to a gateway that answers so, one answer after the other."""
    bodies = iter(answers)
    asked: list[bytes] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.content)
        return httpx.Response(200, content=b"".join(json.dumps(line).encode() + b"\n" for line in next(bodies)))

    retry = Retry(patience=patience)
    async with Client("http://gateway", transport=httpx.MockTransport(answer), retry=retry) as client:
        verdicts = [verdict async for verdict in client.batch([{"claim": "a/1"}, {"claim": "a/1"}])]
    assert len(asked) == len(answers)
    for again in asked[1:]:
        assert set(again.splitlines()) <= set(asked[0].splitlines())
    return [(verdict.number, verdict.status, type(verdict.error)) for verdict in verdicts]


async def test_lines_are_sent_again_whose_verdicts_say_so_before_any_later_line() -> None:
    busy, behind = said(1, 503, code="FP010", retryable=True), said(2, 503, code="FP047", retryable=True)
    done = (1, 200, type(None)), (2, 200, type(None))
    assert await against([busy, behind], [said(1), said(2)], patience=PATIENCE) == [*done]
    assert await against([busy, said(2)], [said(1)], patience=PATIENCE) == [*done]
    assert await against([busy, said(2)], patience=0) == [(1, 503, Unavailable), done[1]]
    with pytest.raises(Unavailable):
        await against([busy, behind], patience=0)


async def test_no_verdict_counts_while_an_earlier_request_works_on_the_lines() -> None:
    worked_on, behind = said(1, 409, code="FP013", retryable=True), said(2, 503, code="FP047", retryable=True)
    refused = said(1, 404, code="FP006"), said(2, 409, code="FP001")
    assert await against([worked_on, behind], [*refused], patience=PATIENCE) == [
        (1, 404, OutcomeUnknown), (2, 409, StaleToken),
    ], "the request that works on the first one may do it now"  # fmt: skip
    assert await against([], [said(1), STOPPED], [said(1, 404)], patience=PATIENCE) == [
        (1, 200, type(None)), (2, 404, OutcomeUnknown),
    ]  # fmt: skip
    assert await against([*refused], patience=PATIENCE) == [(1, 404, RowNotFound), (2, 409, StaleToken)]
    with pytest.raises(OutcomeUnknown):
        await against([worked_on, behind], patience=0)


@pytest.mark.parametrize("answer", [[said(2), said(1)], [said(1)], [said(1), said(2), said(3)], [said(1), {}], []])
async def test_a_verdict_of_another_line_is_no_answer(answer: list[dict[str, Any]]) -> None:
    with pytest.raises(OutcomeUnknown):
        await against(answer, patience=0)


async def test_a_gateway_that_stops_at_once_is_unavailable() -> None:
    with pytest.raises(Unavailable):
        await against([STOPPED], patience=0)


def test_the_synchronous_client_sends_lines_before_it_waits_again(gateway_url: str) -> None:
    verdicts: list[Verdict] = []

    def source() -> Iterator[dict[str, Any]]:
        assert not threading.Event().wait(2 * SECONDS)
        yield patch_line("order-123", 1001, note="x")
        assert len(verdicts) == 1
        yield patch_line("order-123", 1002, note="x")

    with SyncClient(gateway_url) as client:
        for verdict in client.batch(source()):
            verdicts.append(verdict)  # noqa: PERF402 - the source looks at them
    assert [verdict.mark for verdict in verdicts] == [1001, 1002]


def test_the_synchronous_client_takes_lines_in_the_callers_thread(gateway_url: str) -> None:
    with SyncClient(gateway_url) as client:
        verdicts = list(client.batch(lines()))
    assert [(verdict.number, verdict.status) for verdict in verdicts] == [(each + 1, 200) for each in range(MANY)]


async def test_lines_that_are_to_land_as_a_whole_do_or_the_first_refusal_is_raised(client: Client) -> None:
    whole = [patch_line(key, 2001, note="whole") for key in ("order-123", "order-124")]
    assert [verdict.mark for verdict in await client.batch_atomic(whole)] == [2001, 2001]
    with pytest.raises(StaleToken) as raised:
        await client.batch_atomic(
            [patch_line("order-124", 2002, note="undone"), patch_line("order-123", 1, note="stale")]
        )
    assert raised.value.problem is not None
    assert raised.value.problem.members["line"] == 2
    assert (await client.get("orders", "order-124", select="note")) == {"note": "whole"}
