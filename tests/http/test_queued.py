"""`Prefer: respond-async` over HTTP: what is queued, answered, retried and late."""

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
from starlette.types import Receive, Scope, Send
from tests.http.test_queued_roles import Stage, decider, stage
from tests.support.asking import LOGIN, OTHER, WEB, Api, Queued, another_log, code, queueing
from tests.support.gateways import serving_process
from tests.support.interleave import connection_to, holding
from tests.support.postgres import ReadyMade, database_away, failing, renamed
from tests.support.servers import command, until
from tests.support.shops import Shop, running_shop
from tests.support.use_cases import Events

from fencepost.server.consuming.applying import Ledger, QueueNow
from fencepost.server.consuming.deciding import Settled
from fencepost.server.fence.problem_types import STALE_TOKEN
from fencepost.server.fence.problems import Problem, bad_request
from fencepost.server.gateway.gateway import DEFAULT_QUEUE
from fencepost.server.gateway.idempotency import recorded_problem
from fencepost.server.http.guard import WATCH
from fencepost.server.ops.embedded import PostgresServer
from fencepost.server.ops.protect import protect, unprotect
from fencepost.server.postgres import sources
from fencepost.server.postgres.keyed import Recorded
from fencepost.server.postgres.queues import State, record
from fencepost.server.queues.log import DeadLetter, Position, Received, partition_of
from fencepost.server.queues.message import WriteMessage, parse_write_id, read_message
from fencepost.server.queues.registry import DEFAULT
from fencepost.testing.servers.processes import PATIENCE, eventually

# `Prefer: respond-async`: what is queued, what is answered, and what is refused before that.

ASYNC = "respond-async"


@pytest.fixture
async def queued(shop: Shop) -> AsyncIterator[Queued]:
    async with queueing(shop.dsn) as queued:
        yield queued


async def message(queued: Queued) -> WriteMessage:
    """Read the one message that was queued."""
    (only,) = await queued.messages()
    return read_message(only)


async def test_a_write_of_one_row_is_queued_and_answered_with_the_place_of_its_result(queued: Queued) -> None:
    for method, path, body, resource, value in (
        ("PATCH", "data/orders/a%2Fb?select=status", {"status": "paid"}, "orders/a%2Fb", b'{"status": "paid"}'),
        ("PUT", "data/numbered/007", {"label": "x"}, "numbered/7", b'{"label": "x"}'),
        ("PUT", "data/numbered/7", {"id": "07"}, "numbered/7", b'{"id": "07"}'),
        ("DELETE", "data/items/a%2Cb,+3", None, "items/a%2Cb,3", None),
        ("POST", "data/orders", {"order_id": "n", "note": "ü"}, "orders/n", b'{"order_id": "n", "note": "\\u00fc"}'),
        ("POST", "data/numbered", [{"id": "007"}], "numbered/7", b'{"id": "007"}'),
    ):
        await queued.empty()
        answer = await queued.api.ask(method, path, body, token=11, prefer=ASYNC)
        assert (answer.status_code, answer.headers["preference-applied"]) == (202, ASYNC), (method, path)
        assert answer.headers["cache-control"] == "no-store", (method, path)
        write = answer.json()
        assert (write["state"], write["answer"], write["reason"], write["dead_letter"]) == ("queued", None, None, False)
        assert answer.headers["location"] == f"/v1/writes/{write['id']}", (method, path)
        write_id, sent = parse_write_id(write["id"]), await message(queued)
        assert (write_id.queue, write_id.nonce) == ("postgres:default", sent.nonce), (method, path)
        assert (write_id.position.partition, write_id.position.offset) == (write["partition"], write["offset"])
        (there,) = await queued.log.waiting(write_id.position) or ()
        assert there.message.key == resource.encode(), (method, path)
        assert (sent.method, sent.resource, sent.body, sent.token) == (method, resource, value, 11), (method, path)
        assert sent.query == path.partition("?")[2].encode(), (method, path)


async def test_the_message_has_what_the_request_asked_for_and_not_what_it_asked_of_the_gateway(queued: Queued) -> None:
    await queued.api.ask(
        "PATCH",
        "data/orders/a?columns=status",
        {"status": "paid"},
        token=11,
        prefer='return=minimal, respond-async, wait=3, max-affected="1"',
        headers={
            "Accept": "application/vnd.pgrst.object+json",
            "Content-Type": "application/json; charset=utf-8",
            "Idempotency-Key": '"k 1"',
        },
    )
    sent = await message(queued)
    assert sent.prefer == b"return=minimal, max-affected=1"
    assert (sent.query, sent.accept) == (b"columns=status", b"application/vnd.pgrst.object+json")
    assert (sent.content_type, sent.idempotency_key) == (b"application/json; charset=utf-8", b'"k 1"')


async def test_what_cannot_be_done_is_answered_at_once_and_not_queued(queued: Queued) -> None:
    for method, path, body, token, expected, named in (
        ("PATCH", "data/nowhere/1", {}, 1, (404, "FP007"), "nowhere"),
        ("PATCH", "data/orders/a", {"colour": "red"}, 1, (400, "FP016"), "colour"),
        ("PATCH", "data/numbered/seven", {}, 1, (400, "22P02"), "seven"),
        ("PATCH", "data/orders/a", {"order_id": "b"}, 1, (400, "FP016"), "order_id contradicts the path's key a"),
        ("PUT", "data/numbered/7", {"id": "8"}, 1, (400, "FP016"), "id contradicts the path's key 7"),
        ("PUT", "data/numbered/7", {"id": "x"}, 1, (400, "22P02"), "x"),
        ("PATCH", "data/orders/a", {"status": "paid"}, None, (428, "FP003"), "orders"),
        ("PATCH", "data/orders/a", {"status": "paid"}, "x", (400, "FP004"), "X-Fence-Token"),
        ("POST", "data/orders", {"status": "paid"}, 1, (400, "FP016"), "order_id"),
        ("POST", "data/orders?columns=status", {"order_id": "a", "status": "new"}, 1, (400, "FP016"), "order_id"),
        ("POST", "data/made", {"label": "x"}, 1, (400, "FP016"), "id"),
        ("POST", "data/orders", [{"order_id": "a"}, {"order_id": "b"}], 1, (400, "FP016"), "one row"),
        ("PATCH", "data/orders?order_id=eq.a", {"status": "paid"}, 1, (400, "FP016"), "respond-async"),
        ("POST", "claims", {"resource": "orders/a"}, 1, (400, "FP016"), "respond-async"),
        ("POST", "leases", {"lock": "a"}, None, (400, "FP016"), "respond-async"),
    ):
        answer = await queued.api.ask(method, path, body, token=token, prefer=ASYNC)
        assert code(answer) == expected, answer.text
        assert named in answer.json()["detail"], (method, path)
        assert await queued.messages() == [], (method, path)


async def test_each_failure_of_a_log_is_a_problem_of_its_own(queued: Queued, shop: Shop) -> None:
    for fails, said, expected, hint in (
        ("RAISE 'no room' USING ERRCODE = '53100'", "PostgreSQL cannot take this now: no room", (503, "FP026"), None),
        ("PERFORM pg_terminate_backend(pg_backend_pid())", "connection", (503, "FP027"), "same Idempotency-Key"),
        ("RAISE 'too large' USING ERRCODE = '54000'", "does not take this message: too large", (502, "FP028"), None),
    ):
        async with failing(shop.dsn, "INSERT ON fencepost.queued", fails):
            answer = await queued.api.ask(
                "DELETE", "data/orders/a", token=1, prefer=ASYNC, headers={"Idempotency-Key": "k"}
            )
        problem = answer.json()
        assert code(answer) == expected
        assert (said in problem["detail"], problem["queue"]) == (True, "postgres:default"), problem
        assert problem["retryable"] == (expected[0] == 503) == ("retry-after" in answer.headers)
        assert hint is None or hint in problem["hint"]


async def test_a_queue_that_the_gateway_has_not_is_named(queued: Queued) -> None:
    queued.gateway.queues.clear()  # type: ignore[attr-defined]
    answer = await queued.api.ask("DELETE", "data/orders/a", token=1, prefer=ASYNC)
    assert (code(answer), "FENCEPOST_QUEUES" in answer.json()["hint"]) == ((502, "FP028"), True)


async def test_writes_are_queued_while_the_database_is_down(
    queued: Queued, shop: Shop, postgres: PostgresServer, database: str
) -> None:
    async with another_log(queued, database) as log, database_away(postgres, shop.dsn):
        for method, path, body in (
            ("PATCH", "data/orders/a", {"status": "paid"}),
            ("POST", "data/numbered", {"id": 7}),
            ("DELETE", "data/tickets/a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", None),
        ):
            assert (await queued.api.ask(method, path, body, token=1, prefer=ASYNC)).status_code == 202, path
        answer = await queued.api.ask("DELETE", "data/numbered/007", token=1, prefer=ASYNC)
        assert code(answer) == (503, "FP010"), "only PostgreSQL knows this key's name"
        assert sum((await log.state()).ends) == 3


# The page of a queued write: what became of it, asked for, waited for, streamed. The tests record the results.

PAID = '{"order_id":"a","status":"paid"}'
APPLIED = Recorded('{"verb":"patch","mark":7}', PAID)


@pytest.fixture
async def queued_shop(shop: Shop) -> AsyncIterator[Queued]:
    async with queueing(shop.dsn, max_wait=3600, max_watchers=2) as queued:
        yield queued


async def submitted(queued: Queued, key: str = "a") -> str:
    answer = await queued.api.ask("DELETE", f"data/orders/{key}", token=1, prefer="respond-async")
    assert answer.status_code == 202, answer.text
    write_id: str = answer.json()["id"]
    return write_id


async def decide(shop: Shop, write_id: str, answer: Recorded, state: State = "applied") -> None:
    """Record a result, as a consumer does."""
    async with connection_to(shop.dsn) as connection:
        await record(connection, write_id, write_id.encode(), state, answer)


async def says_nothing(_position: Position) -> None:
    """Say of no position what is there, as Kafka does."""


async def test_a_write_is_queued_until_it_is_decided(queued_shop: Queued, shop: Shop) -> None:
    write_id = await submitted(queued_shop)
    answer = await queued_shop.api.ask("GET", f"writes/{write_id}")
    assert (answer.status_code, answer.headers["retry-after"]) == (200, "1")
    assert answer.headers["cache-control"] == "no-store"
    before = answer.json()
    assert (before["state"], before["answer"]) == ("queued", None)
    await decide(shop, write_id, APPLIED)
    answer = await queued_shop.api.ask("GET", f"writes/{write_id}")
    assert "retry-after" not in answer.headers
    headers = {"cache-control": "no-store", "content-type": "application/json", "x-fence-mark": "7"}
    shown = {"status": 200, "headers": headers, "body": json.loads(PAID)}
    assert answer.json() == {**before, "state": "applied", "answer": shown}


async def test_what_was_not_applied_says_why(queued_shop: Queued, shop: Shop) -> None:
    cases: tuple[tuple[State, Problem, bool], ...] = (
        ("refused", Problem(STALE_TOKEN, "Token 1 is stale."), False),
        ("failed", bad_request("orders has no column colour."), True),
    )
    for state, problem, dead in cases:
        write_id = await submitted(queued_shop)
        await decide(shop, write_id, recorded_problem(problem), state)
        write = (await queued_shop.api.ask("GET", f"writes/{write_id}")).json()
        assert (write["state"], write["reason"], write["dead_letter"]) == (state, problem.detail, dead)
        assert (write["answer"]["status"], write["answer"]["body"]["code"]) == (problem.http_status, problem.name)
        assert write["answer"]["headers"]["content-type"] == "application/problem+json", state


async def test_an_id_that_never_was_is_404(queued_shop: Queued) -> None:
    write_id = await submitted(queued_shop)
    queue, partition, offset, nonce = write_id.split(".")
    for other, because in (
        (f"{queue}.{partition}.{int(offset) + 1}.{nonce}", "no write has had this place"),
        (f"{queue}.99.0.{nonce}", "8 partitions"),
        (f"kafka:orders.{partition}.{offset}.{nonce}", "no queue kafka:orders"),
        (f"{queue}.{partition}.{offset}.0123456789abcdef", "has another last part"),
    ):
        answer = await queued_shop.api.ask("GET", f"writes/{other}?wait=20")
        assert code(answer) == (404, "FP029"), other
        assert because in answer.json()["detail"]
    assert (await queued_shop.api.ask("GET", f"writes/{write_id}")).json()["state"] == "queued"
    await queued_shop.empty()
    answer = await queued_shop.api.ask("GET", f"writes/{write_id}")
    assert (code(answer), "forgotten" in answer.json()["detail"]) == ((404, "FP029"), True)


async def test_a_write_that_is_decided_between_the_questions_is_not_forgotten(
    queued_shop: Queued, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_id, waiting = await submitted(queued_shop), queued_shop.log.waiting

    async def decided(position: Position) -> Sequence[Received] | None:
        await decide(shop, write_id, APPLIED)
        await queued_shop.empty()
        return await waiting(position)

    monkeypatch.setattr(queued_shop.log, "waiting", decided)
    assert (await queued_shop.api.http.get(f"/v1/writes/{write_id}")).json()["state"] == "applied"


async def test_an_id_without_its_last_part_names_what_was_decided_last_at_its_position(
    queued_shop: Queued, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queued_shop.log, "waiting", says_nothing)
    write_id = await submitted(queued_shop)
    position = write_id.rpartition(".")[0]
    assert (await queued_shop.api.ask("GET", f"writes/{position}")).json()["state"] == "queued"
    await decide(shop, f"{position}0.0123456789abcdef", APPLIED)
    assert (await queued_shop.api.ask("GET", f"writes/{position}")).json()["state"] == "queued"
    await decide(shop, f"{position}.0123456789abcdef", APPLIED)
    assert (await queued_shop.api.ask("GET", f"writes/{position}")).json()["state"] == "applied"
    assert (await queued_shop.api.ask("GET", f"writes/{position}.0123456789abcdee")).json()["state"] == "queued"


async def test_what_cannot_be_read_is_refused_by_name(queued_shop: Queued) -> None:
    write_id = await submitted(queued_shop)
    for path, headers, expected, named in (
        ("garbage", {}, (400, "FP016"), "queue.partition.offset.nonce"),
        ("nats:orders.0.1.00", {}, (400, "FP016"), "no id of a write"),
        ("{id}?wait=soon", {}, (400, "FP016"), "wait"),
        ("{id}?wait=1&wait=2", {}, (400, "FP016"), "one parameter"),
        ("{id}?wait=1", {"Accept": "text/event-stream"}, (400, "FP016"), "a stream waits"),
        ("{id}", {"Accept": "text/csv"}, (406, "FP021"), "text/csv"),
    ):
        answer = await queued_shop.api.http.get(f"/v1/writes/{path.replace('{id}', write_id)}", headers=headers)
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
        await until(lambda: queued.gateway.results.count == len(asked), what="the requests waiting")
        yield asked
    finally:
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)


async def test_who_waits_is_answered_when_it_is_decided_and_not_before(queued_shop: Queued, shop: Shop) -> None:
    first, second = await submitted(queued_shop), await submitted(queued_shop, "b")
    async with waiting(queued_shop, first, second) as (one, other):
        sizes = queued_shop.gateway.database.sizes
        await until(lambda: sizes()[0] == sizes()[1], what="no connection being held by those who wait")
        full = await queued_shop.api.http.get(f"/v1/writes/{first}?wait=20")
        assert code(full) == (503, "FP010")
        assert "2 already (FENCEPOST_MAX_WATCHERS)" in full.json()["detail"]
        await decide(shop, first, APPLIED)
        assert (await one).json()["state"] == "applied"
        assert not other.done()
        await decide(shop, second, APPLIED)
        assert (await other).json()["state"] == "applied"
    assert queued_shop.gateway.results.count == 0


async def test_a_request_that_waits_is_answered_queued_when_its_time_is_over(queued_shop: Queued) -> None:
    write_id, began = await submitted(queued_shop), time.monotonic()
    answer = await queued_shop.api.http.get(f"/v1/writes/{write_id}?wait=0.3")
    assert (answer.json()["state"], answer.headers["retry-after"]) == ("queued", "1")
    assert time.monotonic() - began >= 0.3


async def test_a_request_that_waits_is_503_when_the_gateway_stops(queued_shop: Queued) -> None:
    write_id = await submitted(queued_shop)
    async with waiting(queued_shop, write_id) as (one,):
        queued_shop.gateway.results.stop()
        assert code(await one) == (503, "FP010")
    answer = await queued_shop.api.http.get(f"/v1/writes/{write_id}?wait=20")
    assert code(answer) == (503, "FP010"), "nobody begins to wait any more"


async def test_a_request_that_waits_is_503_when_the_database_goes_away(
    queued_shop: Queued, shop: Shop, postgres: PostgresServer
) -> None:
    write_id = await submitted(queued_shop)
    async with waiting(queued_shop, write_id) as (one,), database_away(postgres, shop.dsn):
        answer = await one
        assert (code(answer), "retry-after" in answer.headers) == ((503, "FP010"), True)
        assert code(await queued_shop.api.http.get(f"/v1/writes/{write_id}")) == (503, "FP010")


async def test_without_a_result_the_log_has_to_be_there_to_know(queued_shop: Queued, shop: Shop) -> None:
    write_id, decided = await submitted(queued_shop), await submitted(queued_shop, "b")
    await decide(shop, decided, APPLIED)
    async with renamed(shop.dsn, "TABLE fencepost.queued"):
        answer = await queued_shop.api.ask("GET", f"writes/{write_id}")
        assert (code(answer), "PostgreSQL refused: " in answer.json()["detail"]) == ((503, "FP026"), True)
        assert (await queued_shop.api.ask("GET", f"writes/{decided}")).json()["state"] == "applied"


async def test_a_stream_shows_the_state_and_ends_when_the_write_is_decided(queued_shop: Queued, shop: Shop) -> None:
    write_id = await submitted(queued_shop)
    streaming = {"Accept": "text/event-stream"}
    head = await queued_shop.api.http.head(f"/v1/writes/{write_id}", headers=streaming)
    assert (head.status_code, queued_shop.gateway.results.count) == (200, 0), "its head begins none"
    stream = asyncio.create_task(queued_shop.api.http.get(f"/v1/writes/{write_id}", headers=streaming))
    await until(lambda: queued_shop.gateway.results.count == 1, what="the stream waiting")
    await decide(shop, write_id, APPLIED)
    answer = await stream
    assert answer.headers["content-type"].partition(";")[0] == "text/event-stream"
    events = Events(answer)
    first, last = await events.next(), await events.next()
    assert (first.kind, first.id, first.data["state"]) == ("queued", "queued", "queued")
    assert (last.kind, last.id, last.data["answer"]["body"]) == ("applied", "applied", json.loads(PAID))
    await events.ended()
    again = await queued_shop.api.http.get(f"/v1/writes/{write_id}", headers=streaming)
    assert (await Events(again).next()).kind == "applied", "one that is decided already"
    known = await queued_shop.api.http.get(f"/v1/writes/{write_id}", headers={**streaming, "Last-Event-ID": "applied"})
    assert (known.status_code, known.content) == (204, b""), "EventSource stops connecting"
    unknown = await queued_shop.api.http.get(f"/v1/writes/{write_id}", headers={**streaming, "Last-Event-ID": "queued"})
    assert (await Events(unknown).next()).kind == "applied"


async def test_who_hangs_up_does_not_wait_any_more(queued_shop: Queued) -> None:
    write_id, gone = await submitted(queued_shop), asyncio.get_running_loop().create_future()
    gateway = queued_shop.api.http._transport.app  # type: ignore[attr-defined]  # noqa: SLF001

    async def watched(scope: Scope, receive: Receive, send: Send) -> None:
        """Say what the server's protocol says of its connection."""
        await gateway({**scope, WATCH: lambda: gone}, receive, send)

    transport = httpx.ASGITransport(watched)
    async with asyncio.timeout(PATIENCE), httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        asked = asyncio.create_task(client.get(f"/v1/writes/{write_id}?wait=3600"))
        await until(lambda: queued_shop.gateway.results.count == 1, what="the request waiting")
        gone.set_result(None)
        assert (await asked).json()["state"] == "queued"
    assert queued_shop.gateway.results.count == 0


# Messages of callers that come when their record is forgotten.

__all__ = ["stage"]


@pytest.mark.parametrize("then", ["nothing changes", "the source is raised", "records are kept for longer"])
async def test_a_copy_whose_record_is_forgotten_has_no_second_effect(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    queue, dead = stage.queue, stage.queue.log.dead
    message = stage.signed("stamps/s", "PATCH", {"n": 7}, hours=40)
    await queue.append(message)
    await stage.consume()
    assert await pruned(stage) == 1
    row = "SELECT n, xmin::text FROM stamps WHERE id = 's'"
    before = await stage.rows(row)
    if then == "the source is raised":
        await sources.raise_source(queue.owner, DEFAULT, "for a test")
    if then == "records are kept for longer":
        queue.settings = queue.settings.model_copy(update={"idempotency_retention": 50 * HOUR})
    await queue.append(message)
    await stage.consume()
    assert (await stage.rows(row), len(await dead.list(9))) == (before, 1)
    monkeypatch.setenv("FENCEPOST_SEAL_KEYS_FILE", stage.keys)
    monkeypatch.setenv("FENCEPOST_IDEMPOTENCY_RETENTION", "999999")
    retried = await command("dead", "retry", "--no-wait", DEFAULT, "--all", database=stage.dsn)
    assert (retried.exit_code, len(await dead.list(9))) == (1, 1), retried.output


async def test_a_message_that_a_paused_consumer_had_taken_is_no_dead_letter(stage: Stage) -> None:
    queue, ledger = stage.queue, Ledger(stage.queue.gateway.database, DEFAULT)
    message = stage.signed("stamps/s", "PATCH", {"n": 7}, hours=40)
    await queue.append(message)
    (taken,) = await queue.log.waiting(Position(partition_of(message.key, 8), 0)) or ()
    await stage.consume()
    assert await pruned(stage) == 1
    settled = await decider(stage).decide(taken, QueueNow(await ledger.generation(), 8))
    assert (settled, await queue.log.dead.list(9)) == (Settled("applied", before=True), [])


async def test_a_retry_of_which_nothing_was_done_does_not_take_the_writes_effect(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FENCEPOST_SEAL_KEYS_FILE", stage.keys)
    dead, message = stage.queue.log.dead, stage.signed("stamps/s", "PATCH", {"n": 7})
    elsewhere = Position((partition_of(message.key, 8) + 1) % 8, 5)
    await decider(stage).decide(Received(elsewhere, message, 0.0), QueueNow(1, 8))
    (copy,) = await dead.list(9)
    await dead.put(replace(copy, id=f"{DEFAULT}.7.9.{'0' * 16}"))  # made up
    await stage.queue.append(message)
    ids = [each.id for each in await dead.list(9)]
    refused = await command("dead", "retry", "--no-wait", DEFAULT, *ids, database=stage.dsn)
    assert (refused.exit_code, "nothing was done" in refused.output) == (1, True), refused.output
    await stage.consume()
    assert await stage.rows("SELECT n FROM stamps WHERE id = 's'") == [(7,)]


async def test_a_letter_whose_caller_was_taken_away_is_refused(stage: Stage) -> None:
    dead = stage.queue.log.dead
    await stage.queue.owner.execute(f"REVOKE UPDATE ON stamps FROM {WEB}; GRANT SELECT, UPDATE ON stamps TO {LOGIN}")
    await stage.queue.append(stage.signed("stamps/s", "PATCH", {"n": 7}))
    await stage.consume()
    (letter,) = await dead.list(9)
    await dead.drop(letter.id)
    await dead.put(
        replace(letter, message=replace(letter.message, value=b'{"n": 8}', headers=letter.message.headers[1:]))
    )
    refused = await command("dead", "retry", "--no-wait", DEFAULT, letter.id, database=stage.dsn)
    assert (refused.exit_code, "was that of a caller" in refused.output) == (1, True), refused.output


# `fencepost dead retry` of writes of callers with a role: which letters are believed, and for how long.

HOUR = 3600.0


async def pruned(stage: Stage) -> int:
    """Have records be as old as messages that were signed 40 hours ago, and forget those that nobody needs."""
    queue, ledger = stage.queue, Ledger(stage.queue.gateway.database, DEFAULT)
    await queue.owner.execute("UPDATE fencepost.idempotency SET created_at = now() - interval '39 hours'")
    generation, decided = await ledger.generation(), await queue.log.decided()
    await ledger.note_committed(decided, generation)
    for minutes in (6, 4, 2):
        at = await ledger.now() - minutes * 60
        await ledger.note_look(at, decided, await queue.log.state(), generation)
    count: int = await queue.owner.fetchval("SELECT fencepost.prune_idempotency(86400, 1000)")
    return count


@pytest.mark.parametrize("waited", ["in the log", "as letters"])
async def test_letters_are_retried_however_long_they_waited_and_made_up_ones_are_not(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, waited: str
) -> None:
    monkeypatch.setenv("FENCEPOST_SEAL_KEYS_FILE", stage.keys)
    queue, owner, dead = stage.queue, stage.queue.owner, stage.queue.log.dead
    queue.settings = queue.settings.model_copy(update={"stop_resources": True})
    await owner.execute(f"REVOKE INSERT ON stamps FROM {WEB}")
    applied = stage.signed("stamps/s", "PATCH", {"n": 1}, hours=40)
    await queue.append(
        applied,
        stage.signed("stamps/a", "PUT", {"n": 1}, hours=40),
        stage.signed("stamps/a", "PATCH", {"n": 2}, hours=40),  # stopped
        stage.signed("stamps/b", "PUT", {"n": 3}, hours=40),
    )
    await stage.consume()
    if waited == "as letters":
        assert await pruned(stage) == 1, "they may be retried for as long as they are there"
    letters = {(each.message.key, each.reason[:5]): each for each in await dead.list(9)}
    assert sorted(letters) == [(b"stamps/a", "42501"), (b"stamps/a", "FP030"), (b"stamps/b", "42501")]
    other = letters[b"stamps/b", "42501"]
    await dead.drop(other.id)
    await dead.put(replace(other, message=letters[b"stamps/a", "42501"].message))
    await dead.put(DeadLetter(f"{DEFAULT}.0.9.{'0' * 16}", "42501", Position(0, 9), applied, other.at))
    await owner.execute(f"GRANT INSERT ON stamps TO {WEB}")
    retried = await command("dead", "retry", "--no-wait", DEFAULT, "--all", database=stage.dsn)
    assert (retried.exit_code, retried.output.count("there is no record of a write that failed")) == (1, 2)
    assert "2 of the letters cannot be retried" in retried.output
    await stage.consume()
    assert await stage.rows("SELECT id, n, who FROM stamps WHERE id IN ('a', 'b')") == [("a", 2, WEB)]
    assert len(await dead.list(9)) == 2
    await dead.put(first := letters[b"stamps/a", "42501"])
    again = await command("dead", "retry", "--no-wait", DEFAULT, first.id, database=stage.dsn)
    assert (again.exit_code, "was retried as" in again.output, "nothing was done" in again.output) == (1, True, True)
    await pruned(stage)
    kept = await stage.rows("SELECT key FROM fencepost.idempotency WHERE caller = 'queue'")
    assert kept == [(other.id,)], "the others are retried"


@pytest.mark.parametrize("first", ["the copy", "the write"])
async def test_a_copy_in_another_partition_that_is_retried_and_the_write_are_one(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    monkeypatch.setenv("FENCEPOST_SEAL_KEYS_FILE", stage.keys)
    message = stage.signed("stamps/s", "PATCH", {"n": 7}, role=OTHER)
    elsewhere = Position((partition_of(message.key, 8) + 1) % 8, 5)
    await decider(stage).decide(Received(elsewhere, message, 0.0), QueueNow(1, 8))
    await stage.queue.append(message)
    if first == "the write":
        await stage.consume()
    (letter,) = await stage.queue.log.dead.list(9)
    retried = await command("dead", "retry", "--no-wait", DEFAULT, letter.id, database=stage.dsn)
    assert (retried.exit_code, "copy of a write" in retried.output) == (int(first != "the copy"), first != "the copy")
    await stage.consume()
    assert await stage.queue.states() == {"failed": 1, "applied": 1}
    if first == "the copy":
        again = Received(elsewhere, message, stage.queue.gateway.seals.now())
        await decider(stage).decide(again, QueueNow(1, 8))
        assert await stage.queue.log.dead.list(9) == [], "it comes again, and was retried"


# A table that was protected with a queue takes all its writes there, and nothing else.

SQL = """
CREATE TABLE IF NOT EXISTS public.coded (code varchar(3) PRIMARY KEY, n integer);
CREATE TABLE IF NOT EXISTS public.priced (price numeric(5, 2) PRIMARY KEY, n integer);
CREATE TABLE IF NOT EXISTS public.padded (code char(3) PRIMARY KEY, n integer);
CREATE TABLE IF NOT EXISTS public.parcels (parcel_id text PRIMARY KEY, status text NOT NULL DEFAULT 'new')"""


@pytest.fixture
async def submitted_gateway(shop: Shop) -> AsyncIterator[Queued]:
    async with connection_to(shop.dsn) as connection:
        await connection.execute(SQL)
        for table in ("parcels", "coded", "priced", "padded"):
            await protect(connection, table, queue=DEFAULT_QUEUE)
    async with queueing(shop.dsn) as queued:
        yield queued


@pytest.mark.parametrize("asked", [None, "respond-async"])
async def test_every_write_of_one_row_is_queued_without_a_token(submitted_gateway: Queued, asked: str | None) -> None:
    for method, path, body in (
        ("PATCH", "data/parcels/p-1", {"status": "sent"}), ("PUT", "data/parcels/p-1", {}),
        ("DELETE", "data/parcels/p-1", None), ("POST", "data/parcels", {"parcel_id": "p-1"}),
        ("POST", "data/parcels", [{"parcel_id": "p-1"}]),
    ):  # fmt: skip
        answer = await submitted_gateway.api.ask(method, path, body, prefer=asked)
        assert (answer.status_code, answer.headers.get("preference-applied")) == (202, asked), (method, path, body)
        assert answer.json()["queue"] == DEFAULT_QUEUE, (method, path, body)
        message = read_message((await submitted_gateway.messages())[-1])
        assert (message.method, message.resource, message.token) == (method, "parcels/p-1", None), (method, path, body)


async def test_what_cannot_be_queued_is_refused_by_name(submitted_gateway: Queued) -> None:
    for method, path, body, token, named in (
        ("PATCH", "data/parcels/p-1", {"status": "sent"}, 7, "X-Fence-Token"),
        ("POST", "data/parcels", [{"parcel_id": "p-1"}, {"parcel_id": "p-2"}], None, "several rows"),
        ("PATCH", "data/parcels?status=eq.new", {"status": "sent"}, None, "several rows"),
        ("PATCH", "data/parcels", [{"parcel_id": "p-1", "status": "sent"}], None, "several rows"),
        ("POST", "claims", {"resource": "parcels/p-1"}, 7, "a claim"),
    ):
        answer = await submitted_gateway.api.ask(method, path, body, token=token)
        assert code(answer) == (400, "FP016"), (method, path)
        problem = answer.json()
        assert (named in problem["detail"], DEFAULT_QUEUE in problem["detail"]) == (True, True), (method, path)
        assert "X-Fence-Token" in problem["hint"], (method, path)
        assert await submitted_gateway.messages() == [], (method, path)


async def test_a_lease_cannot_claim_a_row_of_it(submitted_gateway: Queued) -> None:
    answer = await submitted_gateway.api.ask("POST", "leases", {"lock": "p", "claim": ["parcels/p-1"]})
    assert code(answer) == (409, "FP008")
    assert "lease" in answer.json()["hint"]


async def test_a_gateway_that_does_not_know_yet_that_the_table_got_a_queue_or_lost_it_looks_before_it_refuses(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its picture the write lacks a token."""
    name = "late_parcels"
    connection = await asyncpg.connect(shop.dsn)
    await connection.execute(f"CREATE TABLE public.{name} (parcel_id text PRIMARY KEY, status text)")
    await protect(connection, name)
    async with queueing(shop.dsn) as queued:
        before = queued.gateway.catalog.current
        lacking = await queued.api.ask("PATCH", f"data/{name}/p-1", {"status": "sent"})
        assert code(lacking) == (428, "FP003")
        await protect(connection, name, queue=DEFAULT_QUEUE)

        async def noticed() -> bool:
            return queued.gateway.catalog.current is not before

        await eventually(noticed, what="the gateway to notice that the table has a queue")
        monkeypatch.setattr(queued.gateway.catalog, "current", before)  # as if it had not been
        answer = await queued.api.ask("PATCH", f"data/{name}/p-1", {"status": "sent"})
        assert answer.status_code == 202, answer.text
        before = queued.gateway.catalog.current
        await unprotect(connection, name)
        await protect(connection, name)
        await eventually(noticed, what="the gateway to notice that the table has no queue any more")
        for method, token in (("POST", 5), ("PATCH", 6)):  # one row, and several
            monkeypatch.setattr(queued.gateway.catalog, "current", before)
            answer = await queued.api.ask(method, f"data/{name}", [{"parcel_id": "p-1", "status": "sent"}], token=token)
            assert answer.status_code in {201, 204}, answer.text
    await unprotect(connection, name)
    await connection.execute(f"DROP TABLE {name}")
    await connection.close()


async def test_a_posted_row_is_queued_under_the_name_that_it_has_when_it_is_stored(submitted_gateway: Queued) -> None:
    """Else its writes would be in two partitions, in no order."""
    expected: list[str] = []
    for body, table, name in (
        ({"code": "abc"}, "coded", "coded/abc"), ({"code": "abc "}, "coded", None),
        ({"price": "1.50"}, "priced", "priced/1.5"), ({"price": 1.234}, "priced", None),
        ({"code": "abc  "}, "padded", "padded/abc"),
    ):  # fmt: skip
        answer = await submitted_gateway.api.ask("POST", f"data/{table}", body)
        if name is None:
            assert code(answer) == (400, "FP016"), (body, table, name)
            assert "would be changed when stored" in answer.json()["detail"], (body, table, name)
        else:
            assert answer.status_code == 202, answer.text
            expected.append(name)
    assert sorted(read_message(each).resource for each in await submitted_gateway.messages()) == sorted(expected)


# Writes that are queued in PostgreSQL's own log and applied by the gateway that took them: as a client sees it.


@pytest.fixture(scope="module")
def applying_shop(databases: ReadyMade) -> Iterator[Shop]:
    """Give a shop whose gateway applies what is queued."""
    with running_shop(databases) as shop:
        yield shop


@pytest.fixture
async def applied_api(applying_shop: Shop) -> AsyncIterator[Api]:
    async with Api.open(applying_shop.url) as api:
        yield api


async def submit(api: Api, method: str, path: str, body: object = None, **asked: Any) -> str:
    answer = await api.ask(method, f"data/{path}", body, prefer=asked.pop("prefer", "respond-async"), **asked)
    assert answer.status_code == 202, answer.text
    return answer.headers["location"]


async def decided(api: Api, page: str) -> dict[str, Any]:
    write: dict[str, Any] = (await api.http.get(page, params={"wait": 30})).json()
    assert write["state"] != "queued", write
    return write


async def test_the_result_is_what_the_same_write_is_answered_at_once(applied_api: Api, applying_shop: Shop) -> None:
    of_each_request = frozenset({"date", "server", "x-request-id", "x-content-type-options", "content-length"})
    for method, body, prefer in (
        ("PATCH", {"note": "new"}, None), ("PATCH", {"note": "new"}, "return=minimal"), ("DELETE", None, None),
        ("DELETE", None, "return=representation"), ("PATCH", {"status": "bad"}, None),
    ):  # fmt: skip
        one, other = await applying_shop.order(mark=10), await applying_shop.order(mark=10)
        at_once = await applied_api.ask(method, f"data/orders/{one}?select=note", body, token=11, prefer=prefer)
        both = ", ".join(filter(None, ("respond-async", prefer)))
        write = await decided(
            applied_api, await submit(applied_api, method, f"orders/{other}?select=note", body, token=11, prefer=both)
        )
        assert write["state"] == ("applied" if at_once.is_success else "failed"), (method, body)
        later = write["answer"]
        assert later["status"] == at_once.status_code, (method, body)
        assert later["body"] == (at_once.json() if at_once.content else None), (method, body)
        sent = {name: value for name, value in at_once.headers.items() if name not in of_each_request}
        assert {name: value for name, value in later["headers"].items() if name not in of_each_request} == sent
        assert await applying_shop.mark(one) == await applying_shop.mark(other), (method, body)


async def test_a_key_that_is_submitted_twice_has_one_effect_and_both_have_its_result(
    applied_api: Api, applying_shop: Shop
) -> None:
    key = await applying_shop.order(mark=10)
    once = {"Idempotency-Key": f"k-{key}"}
    pages = [
        await submit(applied_api, "PATCH", f"orders/{key}", {"note": "new"}, token=token, headers=once)
        for token in (11, 12)
    ]
    assert pages[0] != pages[1]
    first, second = [await decided(applied_api, page) for page in pages]
    assert (first["state"], second["state"]) == ("applied", "applied")
    assert first["answer"]["body"] == second["answer"]["body"]
    assert second["answer"]["headers"]["idempotent-replayed"] == "true"
    assert await applying_shop.mark(key) == 11
    another = await submit(applied_api, "PATCH", f"orders/{key}", {"note": "another"}, token=14, headers=once)
    write = await decided(applied_api, another)
    assert (write["state"], write["answer"]["body"]["code"], write["dead_letter"]) == ("failed", "FP014", True)
    at_once = await applied_api.ask("PATCH", f"data/orders/{key}", {"note": "new"}, token=13, headers=once)
    assert at_once.headers["idempotent-replayed"] == "true", "over HTTP too"


async def test_a_stream_says_queued_at_once_and_applied_when_it_is(applied_api: Api, applying_shop: Shop) -> None:
    key = await applying_shop.order(mark=10)
    async with holding(applying_shop.dsn, "SELECT FROM orders WHERE order_id = $1 FOR UPDATE", key):
        page = await submit(applied_api, "PATCH", f"orders/{key}", {"note": "new"}, token=11)
        stream = applied_api.http.stream("GET", page, headers={"Accept": "text/event-stream"})
        response = await stream.__aenter__()
        events = Events(response)
        assert (await events.next()).kind == "queued"
        assert (await applied_api.http.get(page, params={"wait": "0.1"})).json()["state"] == "queued"
    last = await events.next()
    assert (last.kind, last.data["answer"]["body"]["note"]) == ("applied", "new")
    await events.ended()
    await stream.__aexit__(None, None, None)


@pytest.mark.long("holders, leaders and gateways that are paused or killed")
async def test_a_gateway_that_stops_answers_requests_that_wait(short_dir: Path) -> None:
    """Given an hour to finish what is in flight, it takes none of it."""
    given = ("--shutdown-timeout", "3600", "--no-consume-here")
    async with serving_process(short_dir, *given) as gateway, Api.open(gateway.url) as api:
        page = await submit(api, "PATCH", "orders/order-123", {"note": "new"}, token=34)
        sent = asyncio.Event()

        async def trace(step: str, _: object) -> None:
            if step == "http11.send_request_body.complete":
                sent.set()

        waits = asyncio.create_task(api.http.get(page, params={"wait": 300}, extensions={"trace": trace}))
        await sent.wait()  # connections are taken in their order: it is there when the stream begins
        async with api.http.stream("GET", page, headers={"Accept": "text/event-stream"}) as response:
            events = Events(response)
            assert (await events.next()).kind == "queued"
            gateway.process.send_signal(signal.SIGTERM)
            await events.ended()
        assert code(await waits) == (503, "FP010")
        assert await gateway.ended() == 0
