"""The page of a queued write: what became of it, asked for, waited for, streamed. The tests record the results."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import asyncpg
import httpx
import pytest
from starlette.types import Receive, Scope, Send
from tests.support.asking import Queued, code, queueing
from tests.support.postgres import database_away, renamed
from tests.support.shops import Shop
from tests.support.use_cases import Events

from fencepost.server.fence.problem_types import STALE_TOKEN
from fencepost.server.fence.problems import Problem, bad_request
from fencepost.server.gateway.gathered import STATE_HEADER
from fencepost.server.http.answers import to_recorded
from fencepost.server.http.guard import WATCH
from fencepost.server.http.problems import problem_response
from fencepost.server.ops.embedded import PostgresServer
from fencepost.server.postgres.keyed import Recorded
from fencepost.server.postgres.queues import record
from fencepost.server.queues.log import Position, Received
from fencepost.testing.servers.processes import PATIENCE, eventually

PAID = b'{"order_id":"a","status":"paid"}'
APPLIED = Recorded(200, (("content-type", "application/json"), ("x-fence-mark", "7"), (STATE_HEADER, "applied")), PAID)


@pytest.fixture
async def queued(shop: Shop) -> AsyncIterator[Queued]:
    async with queueing(shop.dsn, max_wait=3600, max_watchers=2) as queued:
        yield queued


async def submitted(queued: Queued, key: str = "a") -> str:
    """Queue a write, and return its id."""
    answer = await queued.api.ask("DELETE", f"data/orders/{key}", token=1, prefer="respond-async")
    assert answer.status_code == 202, answer.text
    write_id: str = answer.json()["id"]
    return write_id


async def decide(shop: Shop, write_id: str, answer: Recorded) -> None:
    """Record a result, as a consumer does."""
    connection = await asyncpg.connect(shop.dsn)
    await record(connection, write_id, write_id.encode(), answer)
    await connection.close()


async def says_nothing(_position: Position) -> None:
    """Say of no position what is there, as Kafka does."""


def of_problem(state: str, problem: Problem) -> Recorded:
    kept = to_recorded(problem_response(problem))
    return Recorded(kept.status, (*kept.headers, (STATE_HEADER, state)), kept.body)


async def test_a_write_is_queued_until_it_is_decided(queued: Queued, shop: Shop) -> None:
    write_id = await submitted(queued)
    answer = await queued.api.ask("GET", f"writes/{write_id}")
    assert (answer.status_code, answer.headers["retry-after"], answer.headers["cache-control"]) == (
        200,
        "1",
        "no-store",
    )
    before = answer.json()
    assert (before["state"], before["answer"]) == ("queued", None)
    await decide(shop, write_id, APPLIED)
    answer = await queued.api.ask("GET", f"writes/{write_id}")
    assert "retry-after" not in answer.headers
    headers = {"content-type": "application/json", "x-fence-mark": "7"}
    shown = {"status": 200, "headers": headers, "body": json.loads(PAID)}
    assert answer.json() == {**before, "state": "applied", "answer": shown}


async def test_what_was_not_applied_says_why(queued: Queued, shop: Shop) -> None:
    for state, problem, dead in (
        ("refused", Problem(STALE_TOKEN, "Token 1 is stale."), False),
        ("failed", bad_request("orders has no column colour."), True),
    ):
        write_id = await submitted(queued)
        await decide(shop, write_id, of_problem(state, problem))
        write = (await queued.api.ask("GET", f"writes/{write_id}")).json()
        assert (write["state"], write["reason"], write["dead_letter"]) == (state, problem.detail, dead)
        assert (write["answer"]["status"], write["answer"]["body"]["code"]) == (problem.http_status, problem.name)
        assert write["answer"]["headers"]["content-type"] == "application/problem+json", state


async def test_an_id_that_never_was_is_404(queued: Queued) -> None:
    write_id = await submitted(queued)
    queue, partition, offset, nonce = write_id.split(".")
    for other, because in (
        (f"{queue}.{partition}.{int(offset) + 1}.{nonce}", "no write has had this place"),
        (f"{queue}.99.0.{nonce}", "8 partitions"),
        (f"kafka:orders.{partition}.{offset}.{nonce}", "no queue kafka:orders"),
        (f"{queue}.{partition}.{offset}.0123456789abcdef", "has another last part"),
    ):
        answer = await queued.api.ask("GET", f"writes/{other}?wait=20")
        assert code(answer) == (404, "FP029"), other
        assert because in answer.json()["detail"]
    assert (await queued.api.ask("GET", f"writes/{write_id}")).json()["state"] == "queued"
    await queued.empty()
    answer = await queued.api.ask("GET", f"writes/{write_id}")
    assert (code(answer), "forgotten" in answer.json()["detail"]) == ((404, "FP029"), True)


async def test_a_write_that_is_decided_between_the_questions_is_not_forgotten(
    queued: Queued, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_id, waiting = await submitted(queued), queued.log.waiting

    async def decided(position: Position) -> Sequence[Received] | None:
        await decide(shop, write_id, APPLIED)
        await queued.empty()
        return await waiting(position)

    monkeypatch.setattr(queued.log, "waiting", decided)
    assert (await queued.api.http.get(f"/v1/writes/{write_id}")).json()["state"] == "applied"


async def test_an_id_without_its_last_part_names_what_was_decided_last_at_its_position(
    queued: Queued, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queued.log, "waiting", says_nothing)
    write_id = await submitted(queued)
    position = write_id.rpartition(".")[0]
    assert (await queued.api.ask("GET", f"writes/{position}")).json()["state"] == "queued"
    await decide(shop, f"{position}0.0123456789abcdef", APPLIED)
    assert (await queued.api.ask("GET", f"writes/{position}")).json()["state"] == "queued"
    await decide(shop, f"{position}.0123456789abcdef", APPLIED)
    assert (await queued.api.ask("GET", f"writes/{position}")).json()["state"] == "applied"
    assert (await queued.api.ask("GET", f"writes/{position}.0123456789abcdee")).json()["state"] == "queued"


async def test_what_cannot_be_read_is_refused_by_name(queued: Queued) -> None:
    write_id = await submitted(queued)
    for path, headers, expected, named in (
        ("garbage", {}, (400, "FP016"), "queue.partition.offset.nonce"),
        ("nats:orders.0.1.00", {}, (400, "FP016"), "no id of a write"),
        ("{id}?wait=soon", {}, (400, "FP016"), "wait"),
        ("{id}?wait=1&wait=2", {}, (400, "FP016"), "one parameter"),
        ("{id}?wait=1", {"Accept": "text/event-stream"}, (400, "FP016"), "a stream waits"),
        ("{id}", {"Accept": "text/csv"}, (406, "FP021"), "text/csv"),
    ):
        answer = await queued.api.http.get(f"/v1/writes/{path.replace('{id}', write_id)}", headers=headers)
        assert code(answer) == expected, (path, headers)
        assert named in answer.json()["detail"], (path, headers)


@asynccontextmanager
async def waiting(
    queued: Queued, *write_ids: str, seconds: str = "30"
) -> AsyncIterator[list[asyncio.Task[httpx.Response]]]:
    """Ask for these, and go on once all of them wait."""
    asked = [
        asyncio.create_task(queued.api.http.get(f"/v1/writes/{write_id}", params={"wait": seconds}))
        for write_id in write_ids
    ]
    try:
        await eventually(lambda: _reached(queued, len(asked)), what="the requests waiting")
        yield asked
    finally:
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)


async def _reached(queued: Queued, number: int) -> bool:
    return queued.gateway.results.count == number


async def _nothing_lent(queued: Queued) -> bool:
    there, idle = queued.gateway.database.sizes()
    return there == idle


async def test_who_waits_is_answered_when_it_is_decided_and_not_before(queued: Queued, shop: Shop) -> None:
    first, second = await submitted(queued), await submitted(queued, "b")
    async with waiting(queued, first, second) as (one, other):
        await eventually(lambda: _nothing_lent(queued), what="no connection being held by those who wait")
        full = await queued.api.http.get(f"/v1/writes/{first}?wait=20")
        assert code(full) == (503, "FP010")
        assert "2 already (FENCEPOST_MAX_WATCHERS)" in full.json()["detail"]
        await decide(shop, first, APPLIED)
        assert (await one).json()["state"] == "applied"
        assert not other.done()
        await decide(shop, second, APPLIED)
        assert (await other).json()["state"] == "applied"
    assert queued.gateway.results.count == 0


async def test_a_request_that_waits_is_answered_queued_when_its_time_is_over(queued: Queued) -> None:
    write_id, began = await submitted(queued), time.monotonic()
    answer = await queued.api.http.get(f"/v1/writes/{write_id}?wait=0.3")
    assert (answer.json()["state"], answer.headers["retry-after"]) == ("queued", "1")
    assert time.monotonic() - began >= 0.3


async def test_a_request_that_waits_is_503_when_the_gateway_stops(queued: Queued) -> None:
    write_id = await submitted(queued)
    async with waiting(queued, write_id) as (one,):
        queued.gateway.results.stop()
        assert code(await one) == (503, "FP010")
    answer = await queued.api.http.get(f"/v1/writes/{write_id}?wait=20")
    assert code(answer) == (503, "FP010"), "nobody begins to wait any more"


async def test_a_request_that_waits_is_503_when_the_database_goes_away(
    queued: Queued, shop: Shop, postgres: PostgresServer
) -> None:
    write_id = await submitted(queued)
    async with waiting(queued, write_id) as (one,), database_away(postgres, shop.dsn):
        answer = await one
        assert (code(answer), "retry-after" in answer.headers) == ((503, "FP010"), True)
        assert code(await queued.api.http.get(f"/v1/writes/{write_id}")) == (503, "FP010")


async def test_without_a_result_the_log_has_to_be_there_to_know(queued: Queued, shop: Shop) -> None:
    write_id, decided = await submitted(queued), await submitted(queued, "b")
    await decide(shop, decided, APPLIED)
    async with renamed(shop.dsn, "TABLE fencepost.queued"):
        answer = await queued.api.ask("GET", f"writes/{write_id}")
        assert (code(answer), "PostgreSQL refused: " in answer.json()["detail"]) == ((503, "FP026"), True)
        assert (await queued.api.ask("GET", f"writes/{decided}")).json()["state"] == "applied"


async def test_a_stream_shows_the_state_and_ends_when_the_write_is_decided(queued: Queued, shop: Shop) -> None:
    write_id = await submitted(queued)
    streaming = {"Accept": "text/event-stream"}
    head = await queued.api.http.head(f"/v1/writes/{write_id}", headers=streaming)
    assert (head.status_code, queued.gateway.results.count) == (200, 0), "its head begins none"
    stream = asyncio.create_task(queued.api.http.get(f"/v1/writes/{write_id}", headers=streaming))
    await eventually(lambda: _reached(queued, 1), what="the stream waiting")
    await decide(shop, write_id, APPLIED)
    answer = await stream
    assert answer.headers["content-type"].partition(";")[0] == "text/event-stream"
    events = Events(answer)
    first, last = await events.next(), await events.next()
    assert (first.kind, first.id, first.data["state"]) == ("queued", "queued", "queued")
    assert (last.kind, last.id, last.data["answer"]["body"]) == ("applied", "applied", json.loads(PAID))
    await events.ended()
    again = await queued.api.http.get(f"/v1/writes/{write_id}", headers=streaming)
    assert (await Events(again).next()).kind == "applied", "one that is decided already"
    known = await queued.api.http.get(f"/v1/writes/{write_id}", headers={**streaming, "Last-Event-ID": "applied"})
    assert (known.status_code, known.content) == (204, b""), "EventSource stops connecting"
    unknown = await queued.api.http.get(f"/v1/writes/{write_id}", headers={**streaming, "Last-Event-ID": "queued"})
    assert (await Events(unknown).next()).kind == "applied"


async def test_who_hangs_up_does_not_wait_any_more(queued: Queued) -> None:
    write_id, gone = await submitted(queued), asyncio.get_running_loop().create_future()
    gateway = queued.api.http._transport.app  # type: ignore[attr-defined]  # noqa: SLF001

    async def watched(scope: Scope, receive: Receive, send: Send) -> None:
        """Say what the server's protocol says of its connection."""
        await gateway({**scope, WATCH: lambda: gone}, receive, send)

    transport = httpx.ASGITransport(watched)
    async with asyncio.timeout(PATIENCE), httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        asked = asyncio.create_task(client.get(f"/v1/writes/{write_id}?wait=3600"))
        await eventually(lambda: _reached(queued, 1), what="the request waiting")
        gone.set_result(None)
        assert (await asked).json()["state"] == "queued"
    assert queued.gateway.results.count == 0
