"""Writes that are queued, as the client asks for them and reads what became of them. The gateway is a mock."""

import asyncio
import json
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import pytest
from tests.client.counting import Mock, problem
from tests.support.manual_clock import Hurried, ManualClock

from fencepost.client import (
    Client,
    ConstraintViolated,
    NotFound,
    OutcomeUnknown,
    RowNotFound,
    RowsNotKept,
    StillQueued,
    SyncQueuedWrite,
    Unavailable,
    WriteFailed,
)

ID = "kafka:orders.3.17.00c0ffee00c0ffee"
CUT = httpx.ReadError("cut")
AWAY = problem(503, "FP010", retryable=True)
Fate = Callable[[], httpx.Response]


def page(state: str, status: int = 200, body: object = None) -> Fate:
    answer = None if state == "queued" else {"status": status, "headers": {}, "body": body}
    members = {"id": ID, "queue": "kafka:orders", "partition": 3, "offset": 17, "state": state, "answer": answer}
    return lambda: httpx.Response(200, json=members)


def kept() -> httpx.Response:
    return httpx.Response(202, json=page("queued")().json(), headers={"Location": f"/v1/writes/{ID}"})


def refusal(status: int, code: str) -> Mapping[str, object]:
    return {"code": code, "detail": "As the test says.", "retryable": False, "status": status}


def client(*fates: Exception | Fate) -> tuple[Client, Mock]:
    mock = Mock(*fates)
    return Client("http://mock", transport=mock, clock=Hurried()), mock


async def test_a_submission_asks_for_the_write_to_be_queued_and_its_rows_to_be_kept() -> None:
    c, mock = client(kept)
    async with c:
        queued = await c.submit.patch("orders", "order/1", {"status": "paid"}, idempotency_key="k")
    (request,) = mock.requests
    assert (queued.id, request.method, request.url.raw_path) == (ID, "PATCH", b"/v1/data/orders/order%2F1")
    assert request.headers["Prefer"] == "respond-async, return=representation"
    assert request.headers["Idempotency-Key"] == '"k"'
    assert "X-Fence-Token" not in request.headers
    assert json.loads(request.content) == {"status": "paid"}
    assert repr(queued) == f"<QueuedWrite {ID}>"
    no_loop: Any = None
    assert repr(SyncQueuedWrite(queued, no_loop)) == f"<SyncQueuedWrite {ID}>"


async def test_a_submission_without_any_answer_names_the_key_to_repeat_it_with() -> None:
    c, mock = client(CUT)
    async with c:
        with pytest.raises(OutcomeUnknown) as unknown:
            await c.submit.delete("orders", 1)
    assert mock.requests[-1].headers["Idempotency-Key"] == f'"{unknown.value.idempotency_key}"'


async def test_a_repetition_that_is_answered_at_once_is_a_write_that_is_done() -> None:
    c, _ = client(lambda: httpx.Response(200, json={"order_id": "1"}))
    async with c:
        queued = await c.submit.patch("orders", 1, {}, idempotency_key="k")
        assert (queued.id, await queued.state(), await queued.result(0)) == (None, "applied", {"order_id": "1"})


async def test_a_result_waits_through_answers_that_it_is_still_queued() -> None:
    c, mock = client(kept, page("queued"), CUT, page("queued"), page("applied", 200, {"n": 1}))
    async with c:
        assert await (await c.submit.patch("orders", 1, {"n": 1})).result() == {"n": 1}
    asked = mock.requests[-1]
    assert (asked.method, asked.url.path, asked.url.params["wait"]) == ("GET", f"/v1/writes/{ID}", "20")
    assert asked.extensions["timeout"]["read"] > 20


async def test_a_gateway_that_lets_nobody_wait_is_not_asked_without_a_pause() -> None:
    clock = Hurried()
    mock = Mock(kept, *[page("queued")] * 5, page("applied", 200, {}))
    async with Client("http://mock", transport=mock, clock=clock) as c:
        await (await c.submit.patch("orders", 1, {})).result()
    assert len(clock.slept) == 5
    assert min(clock.slept) > 0


async def test_a_wait_ends_when_its_time_is_over_though_the_gateway_is_silent() -> None:
    clock = ManualClock()

    class Silent(Mock):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            if request.method == "GET":
                assert request.url.params["wait"] == "3"
                await clock.sleep(3600)
            return kept()

    async with Client("http://mock", transport=Silent(kept), clock=clock) as c:
        queued = await c.submit.patch("orders", 1, {})
        waiting = asyncio.create_task(queued.result(2.5))
        await clock.advance(2.4)
        assert not waiting.done()
        await clock.advance(0.2)
        with pytest.raises(StillQueued, match=r"2\.5 s"):
            await waiting


async def test_a_wait_that_is_over_in_an_outage_names_it() -> None:
    clock, mock = ManualClock(), Mock(kept, *[AWAY] * 1000)
    async with Client("http://mock", transport=mock, clock=clock) as c:
        waiting = asyncio.create_task((await c.submit.patch("orders", 1, {})).result(600))
        await clock.advance(599)
        assert not waiting.done()
        await clock.advance(2)
        with pytest.raises(StillQueued, match="600 s") as over:
            await waiting
    assert isinstance(over.value.__cause__, Unavailable)


async def test_a_dead_letter_names_the_error_that_it_would_have_been_at_once() -> None:
    c, _ = client(kept, page("failed", 409, refusal(409, "23505")))
    async with c:
        with pytest.raises(WriteFailed, match=rf"{ID} failed, and is a dead letter: As the test says") as failed:
            await (await c.submit.patch("orders", 1, {})).result()
    again = pickle.loads(pickle.dumps(failed.value))
    for error in (failed.value, again):
        assert isinstance(error.reason, ConstraintViolated)
        assert (error.code, error.status, error.write_id) == ("23505", 409, ID)


async def test_another_process_asks_for_a_write_by_its_id() -> None:
    c, mock = client(page("failed", 404, refusal(404, "FP006")))
    async with c:
        assert await c.submit.queued(ID).state() == "failed"
        with pytest.raises(WriteFailed) as failed:
            await c.submit.queued(ID).result()
    assert isinstance(failed.value.reason, RowNotFound)
    assert "wait" not in mock.requests[0].url.params
    c, _ = client(problem(404, "FP006", retryable=False))
    async with c:
        with pytest.raises(NotFound):
            await c.submit.queued(ID).result()


async def test_a_queued_write_takes_one_token_at_most() -> None:
    c, mock = client(kept)
    async with c:
        with pytest.raises(TypeError, match="one of lease= and token=, or neither"):
            await c.submit.patch("orders", 1, {}, token=3, lease=object())  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="a token is from 1"):
            await c.submit.patch("orders", 1, {}, token=0)
    assert not mock.requests


async def test_a_row_that_was_not_kept_is_an_error_of_its_own() -> None:
    def replayed() -> httpx.Response:
        return httpx.Response(204, headers={"Preference-Applied": "return=minimal", "Idempotent-Replayed": "true"})

    c, mock = client(kept, page("applied", 204), page("applied", 204), CUT, replayed)
    async with c:
        queued = await c.submit.patch("orders", "1", {"status": "paid"})
        with pytest.raises(RowsNotKept):
            await queued.result()
        assert await c.submit.queued(ID).result() is None
        with pytest.raises(RowsNotKept):
            await c.patch("orders", "1", {"status": "paid"}, token=34)
    assert len(mock.requests) == 5
