"""Writes that are queued in PostgreSQL's own log and applied by the gateway that took them: as a client sees it."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from tests.support.asking import Api, code
from tests.support.gateways import serving_process
from tests.support.postgres import ReadyMade
from tests.support.shops import Shop, running_shop
from tests.support.use_cases import Events

OF_EACH_REQUEST = frozenset({"date", "server", "x-request-id", "x-content-type-options", "content-length"})


@pytest.fixture(scope="module")
def shop(databases: ReadyMade) -> Iterator[Shop]:
    """Give a shop whose gateway applies what is queued."""
    with running_shop(databases) as shop:
        yield shop


async def submit(api: Api, method: str, path: str, body: object = None, **asked: Any) -> str:
    """Queue a write, and return the path of its page."""
    answer = await api.ask(method, f"data/{path}", body, prefer=asked.pop("prefer", "respond-async"), **asked)
    assert answer.status_code == 202, answer.text
    return answer.headers["location"]


async def decided(api: Api, page: str) -> dict[str, Any]:
    """Wait until a write is decided."""
    write: dict[str, Any] = (await api.http.get(page, params={"wait": 30})).json()
    assert write["state"] != "queued", write
    return write


async def test_the_result_is_what_the_same_write_is_answered_at_once(api: Api, shop: Shop) -> None:
    for method, body, prefer in (
        ("PATCH", {"note": "new"}, None),
        ("PATCH", {"note": "new"}, "return=minimal"),
        ("DELETE", None, None),
        ("DELETE", None, "return=representation"),
        ("PATCH", {"status": "bad"}, None),
    ):
        one, other = await shop.order(mark=10), await shop.order(mark=10)
        at_once = await api.ask(method, f"data/orders/{one}?select=note", body, token=11, prefer=prefer)
        both = ", ".join(filter(None, ("respond-async", prefer)))
        write = await decided(
            api, await submit(api, method, f"orders/{other}?select=note", body, token=11, prefer=both)
        )
        assert write["state"] == ("applied" if at_once.is_success else "failed"), (method, body)
        later = write["answer"]
        assert later["status"] == at_once.status_code, (method, body)
        assert later["body"] == (at_once.json() if at_once.content else None), (method, body)
        sent = {name: value for name, value in at_once.headers.items() if name not in OF_EACH_REQUEST}
        assert {name: value for name, value in later["headers"].items() if name not in OF_EACH_REQUEST} == sent
        assert await shop.mark(one) == await shop.mark(other), (method, body)


async def test_a_key_that_is_submitted_twice_has_one_effect_and_both_have_its_result(api: Api, shop: Shop) -> None:
    key = await shop.order(mark=10)
    once = {"Idempotency-Key": f"k-{key}"}
    pages = [
        await submit(api, "PATCH", f"orders/{key}", {"note": "new"}, token=token, headers=once) for token in (11, 12)
    ]
    assert pages[0] != pages[1]
    first, second = [await decided(api, page) for page in pages]
    assert (first["state"], second["state"]) == ("applied", "applied")
    assert first["answer"]["body"] == second["answer"]["body"]
    assert second["answer"]["headers"]["idempotent-replayed"] == "true"
    assert await shop.mark(key) == 11
    another = await submit(api, "PATCH", f"orders/{key}", {"note": "another"}, token=14, headers=once)
    write = await decided(api, another)
    assert (write["state"], write["answer"]["body"]["code"], write["dead_letter"]) == ("failed", "FP014", True)
    at_once = await api.ask("PATCH", f"data/orders/{key}", {"note": "new"}, token=13, headers=once)
    assert at_once.headers["idempotent-replayed"] == "true", "over HTTP too"


@asynccontextmanager
async def held(shop: Shop, statement: str, *arguments: object) -> AsyncIterator[None]:
    """Hold a row in a transaction of somebody else."""
    connection = await asyncpg.connect(shop.dsn)
    try:
        async with connection.transaction():
            assert await connection.fetchval(statement, *arguments) == 1
            yield
    finally:
        await connection.close()


async def test_a_stream_says_queued_at_once_and_applied_when_it_is(api: Api, shop: Shop) -> None:
    key = await shop.order(mark=10)
    async with held(shop, "SELECT 1 FROM orders WHERE order_id = $1 FOR UPDATE", key):
        page = await submit(api, "PATCH", f"orders/{key}", {"note": "new"}, token=11)
        stream = api.http.stream("GET", page, headers={"Accept": "text/event-stream"})
        response = await stream.__aenter__()
        events = Events(response)
        assert (await events.next()).kind == "queued"
        assert (await api.http.get(page, params={"wait": "0.1"})).json()["state"] == "queued"
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
