"""Idempotency-Key over real HTTP (R16), and keys combined with scopes."""

import asyncio
import itertools
import re
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import redis.asyncio
from tests.conformance.benches import redis_server
from tests.http.conftest import Start
from tests.support.asking import Api, code
from tests.support.interleave import Connection, blocks_another_session, connection_to, holding
from tests.support.postgres import ReadyMade
from tests.support.shops import Shop, running_shop

from fencepost.server.ops.protect import protect
from fencepost.testing.servers.gateway import run_command
from fencepost.testing.servers.processes import eventually, free_port

# Idempotency-Key over real HTTP (R16): what landed is answered again; nothing happens twice.

_tokens = itertools.count(100)


@pytest.fixture(scope="module")
def shop(databases: ReadyMade) -> Iterator[Shop]:
    with running_shop(databases, lock_timeout=3) as shop:
        yield shop


def under(key: str) -> dict[str, str]:
    return {"Idempotency-Key": f'"{key}"'}


def same_answer(first: httpx.Response, second: httpx.Response) -> None:
    """Check that the second is the first again: status, body, headers, but for the mark (docs/decisions/0032)."""
    differ = {"date", "x-request-id", "idempotent-replayed", "content-length", "x-fence-mark"}
    assert (first.status_code, without_mark(first)) == (second.status_code, without_mark(second))
    assert {k: v for k, v in first.headers.items() if k not in differ} == {
        k: v for k, v in second.headers.items() if k not in differ
    }
    assert "idempotent-replayed" not in first.headers
    assert second.headers["idempotent-replayed"] == "true"
    assert "x-fence-mark" not in second.headers


def without_mark(answer: httpx.Response) -> bytes:
    """Give the body; of a claim's without the mark, which only the token that made it is shown again."""
    return (
        re.sub(rb'"mark":(null|"[0-9]+")', b"", answer.content)
        if answer.url.path.endswith("/claims")
        else answer.content
    )


async def records(shop: Shop, key: str) -> int:
    found: int = (await shop.sql("SELECT count(*) FROM fencepost.idempotency WHERE key = $1", key))[0][0]
    return found


def filled(value: object, key: str) -> object:
    if isinstance(value, str):
        return value.replace("{key}", key)
    if isinstance(value, list):
        return [filled(each, key) for each in value]
    return {k: filled(v, key) for k, v in value.items()} if isinstance(value, dict) else value


async def test_every_write_replays_its_answer_also_under_the_next_holder(api: Api, shop: Shop) -> None:
    writes = {
        "patch": ("PATCH", "data/orders/{key}", {"status": "paid", "amount": 1.10}, None),
        "patch minimal": ("PATCH", "data/orders/{key}", {"status": "paid"}, "return=minimal"),
        "put new": ("PUT", "data/orders/{key}-new", {"status": "put"}, None),
        "put": ("PUT", "data/orders/{key}", {"status": "put"}, None),
        "delete": ("DELETE", "data/orders/{key}", None, None),
        "delete with row": ("DELETE", "data/orders/{key}", None, "return=representation"),
        "post": ("POST", "data/orders", {"order_id": "{key}-posted"}, None),
        "post many": ("POST", "data/orders", [{"order_id": "{key}-a"}, {"order_id": "{key}-b"}], None),
        "post of made keys": ("POST", "data/made", {"label": "{key}"}, None),
        "patch of an array": ("PATCH", "data/orders", [{"order_id": "{key}", "status": "x"}], "return=representation"),
        "patch by filter": ("PATCH", "data/orders?order_id=eq.{key}", {"status": "paid"}, "return=representation"),
        "delete by filter": ("DELETE", "data/orders?order_id=eq.{key}", None, None),
        "claim": ("POST", "claims", {"resource": "orders/{key}"}, None),
        "claim without a row": ("POST", "claims", {"resource": "orders/{key}-nobody"}, None),
    }
    for write, (method, path_of_row, body_of_row, prefer) in writes.items():
        row, key = await shop.order(mark=10), uuid.uuid4().hex
        path, body = path_of_row.replace("{key}", row), filled(body_of_row, row)
        first = await api.ask(method, path, body, token=20, prefer=prefer, headers=under(key))
        assert first.is_success, first.text
        before = await shop.sql("SELECT order_id, xmin::text, last_fence_token FROM public.orders ORDER BY 1")
        made = await shop.sql("SELECT count(*) FROM public.made")
        for token in (20, 15, 100):  # the same again; a stale holder; the lock's next holder
            bare = {"Idempotency-Key": key}
            again = await api.ask(method, path, body, token=token, prefer=prefer, headers=bare)
            same_answer(first, again)
        assert (
            await shop.sql("SELECT order_id, xmin::text, last_fence_token FROM public.orders ORDER BY 1") == before
        ), write
        assert await shop.sql("SELECT count(*) FROM public.made") == made, write
        assert await records(shop, key) == 1, write


async def test_a_refusal_is_not_stored(api: Api, shop: Shop) -> None:
    row, key = await shop.order(mark=10), uuid.uuid4().hex
    for token, body, expected in (
        (10, {"status": "paid"}, (409, "FP002")), (9, {"status": "paid"}, (409, "FP001")),
        (20, {"quantity": "many"}, (400, "22P02")), (20, {"status": "bad"}, (400, "23514")),
    ):  # fmt: skip
        assert code(await api.ask("PATCH", f"data/orders/{row}", body, token=token, headers=under(key))) == expected, (
            token
        )
    assert await records(shop, key) == 0
    assert await shop.mark(row) == 10, "a refused write leaves no mark, although it ran in a transaction"
    assert (await api.ask("PATCH", f"data/orders/{row}", {"status": "paid"}, token=20, headers=under(key))).is_success


async def test_a_key_of_another_request_is_422(api: Api, shop: Shop) -> None:
    for method, path_of_row, body_of_row in (
        ("PATCH", "data/orders/{key}", {"status": "other"}),
        ("PATCH", "data/orders/{key}?select=order_id", {"status": "paid"}),
        ("PUT", "data/orders/{key}", {"status": "paid"}), ("PATCH", "data/orders/other", {"status": "paid"}),
        ("PATCH", "data/leased/{key}", {"n": 1}), ("POST", "claims", {"resource": "orders/{key}"}),
    ):  # fmt: skip
        row, key = await shop.order(mark=10), uuid.uuid4().hex
        path, body = path_of_row.replace("{key}", row), filled(body_of_row, row)
        first = await api.ask("PATCH", f"data/orders/{row}", {"status": "paid"}, token=20, headers=under(key))
        assert first.is_success, first.text
        assert code(await api.ask(method, path, body, token=21, headers=under(key))) == (422, "FP014"), (method, path)
        assert await shop.mark(row) == 20, (method, path)


async def test_a_key_in_flight_is_409_at_once_and_answered_afterwards(api: Api, shop: Shop) -> None:
    row, key = await shop.order(mark=10), uuid.uuid4().hex
    body, headers = {"status": "paid"}, under(key)
    locked = "SELECT FROM public.orders WHERE order_id = $1 FOR UPDATE"
    async with holding(shop.dsn, locked, row) as holder, connection_to(shop.dsn) as observer:
        first = asyncio.create_task(api.ask("PATCH", f"data/orders/{row}", body, token=20, headers=headers))
        await blocks_another_session(holder, observer)
        second = await api.ask("PATCH", f"data/orders/{row}", body, token=20, headers=headers)
        assert code(second) == (409, "FP013")
        assert not first.done()
        await holder.execute("ROLLBACK")
    answer = await first
    assert answer.is_success
    same_answer(answer, await api.ask("PATCH", f"data/orders/{row}", body, token=20, headers=headers))


async def test_thirty_at_once_with_one_key_write_once(api: Api, shop: Shop) -> None:
    key = uuid.uuid4().hex

    async def post() -> httpx.Response:
        while True:
            answer = await api.ask("POST", "data/made", {"label": key}, token=next(_tokens), headers=under(key))
            if answer.status_code != 409:
                return answer

    answers = await asyncio.gather(*(post() for _ in range(30)))
    assert {answer.content for answer in answers} == {answers[0].content}
    assert sum("idempotent-replayed" not in answer.headers for answer in answers) == 1
    assert (await shop.sql("SELECT count(*) FROM public.made WHERE label = $1", key))[0][0] == 1


async def test_a_key_that_is_none_is_400(api: Api, shop: Shop) -> None:
    row = await shop.order(mark=10)
    for sent in (("",), ("a b",), ("ä",), ("x" * 256,), ('"a',), ('"' + "x" * 256 + '"',), ("a", "a")):
        keys = [(b"Idempotency-Key", each.encode("latin-1")) for each in sent]
        headers = [*keys, (b"X-Fence-Token", b"20")]
        answer = await api.http.patch(f"/v1/data/orders/{row}", json={"status": "paid"}, headers=headers)
        assert code(answer) == (400, "FP016"), sent
    assert await shop.mark(row) == 10


async def test_a_table_may_require_a_key(api: Api, shop: Shop) -> None:
    async with connection_to(shop.dsn) as connection:
        try:
            await protect(connection, "numbered", requires_key=True)
            await eventually(lambda: _is_refused(api), what="the gateway having heard of it")
            for method, path, body in (
                ("PATCH", "data/numbered/1", {"label": "x"}), ("PUT", "data/numbered/1", {"label": "x"}),
                ("DELETE", "data/numbered/1", None), ("POST", "data/numbered", {"id": 1}),
                ("PATCH", "data/numbered?id=eq.1", {"label": "x"}), ("DELETE", "data/numbered?id=eq.1", None),
                ("POST", "claims", {"resource": "numbered/1"}),
            ):  # fmt: skip
                answer = await api.ask(method, path, body, token=20)
                assert code(answer) == (400, "FP016"), (method, path)
                assert "Idempotency-Key" in answer.json()["detail"], (method, path)
            keyed = await api.ask("PUT", "data/numbered/1", {"label": "x"}, token=20, headers=under(uuid.uuid4().hex))
            assert keyed.status_code == 201
            await protect(connection, "numbered")
            required = await connection.fetchval("SELECT requires_key FROM fencepost.protected WHERE name = 'numbered'")
            assert required, "protecting again keeps what is not named"
        finally:
            await protect(connection, "numbered", requires_key=False)


async def _is_refused(api: Api) -> bool:
    return (await api.ask("DELETE", "data/numbered/9999", token=20)).status_code == 400


# The worker of docs/combining.md, as it stands: a lock that drops, a queue that orders, a fence with the last word.

PAGE = (Path(__file__).parents[2] / "docs" / "combining.md").read_text("utf-8")
(WORKER,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(PROTECT,) = re.findall(r"`fencepost (protect [^`]+)`", PAGE)
LOG = """
CREATE TABLE effects (status text);
CREATE FUNCTION log_effect() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS
$$ BEGIN INSERT INTO effects VALUES (new.status); RETURN NULL; END $$;
CREATE TRIGGER log_effect AFTER UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION log_effect();
"""


@dataclass(frozen=True)
class Running:
    """Where the worker's servers are."""

    database: Connection
    redis: redis.asyncio.Redis
    script: str

    async def work(self) -> None:
        """Run the worker to its end."""
        done = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", self.script], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    async def appended(self) -> int:
        """Count the messages that were ever in the queue, once all of them are decided."""
        none = "SELECT NOT EXISTS (SELECT FROM fencepost.queued)"
        await eventually(lambda: self.database.fetchval(none), what="an empty queue")
        count: int = await self.database.fetchval("SELECT sum(e) FROM fencepost.queue_state(), unnest(ends) AS e")
        return count

    async def effects(self) -> list[str]:
        return [row["status"] for row in await self.database.fetch("SELECT status FROM effects")]


@pytest.fixture
async def running(demo_database: str, start_gateway: Start, tmp_path: Path) -> AsyncIterator[Running]:
    await asyncio.to_thread(run_command, demo_database, *PROTECT.split())
    port = free_port()
    with redis_server(tmp_path / "redis", port):
        gateway = await start_gateway(demo_database)
        script = WORKER.replace("http://127.0.0.1:8080", gateway).replace("6379", str(port))
        async with connection_to(demo_database) as connection, redis.asyncio.Redis(port=port) as client:
            await connection.execute(LOG)
            yield Running(connection, client, script)


@pytest.mark.long("pages that run with Redis")
async def test_the_lock_saves_messages_and_what_it_forgets_has_no_second_effect(running: Running) -> None:
    await running.work()
    assert (await running.appended(), await running.effects()) == (2, ["paid", "shipped"])
    await running.work()
    assert await running.appended() == 2, "the marks in Redis say that all is done"
    await running.redis.flushall()
    await running.work()
    assert await running.appended() == 4, "Redis has forgotten"
    assert await running.effects() == ["paid", "shipped"], "the fence has not"
