"""`Prefer: respond-async`: what is queued, what is answered, and what is refused before that."""

from collections.abc import AsyncIterator

import pytest
from tests.support.asking import Queued, another_log, code, queueing
from tests.support.postgres import database_away, failing
from tests.support.shops import Shop

from fencepost.server.ops.embedded import PostgresServer
from fencepost.server.queues.message import WriteMessage, parse_write_id, read_message

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
