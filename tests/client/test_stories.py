"""The client on a real gateway: locks, writes, values, queued writes, batches, and the docs' examples."""

import asyncio
import json
import math
import re
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.client.transports import Counting
from tests.support.gateways import DemoGateway, in_process
from tests.support.interleave import Connect, connection_to
from tests.support.use_cases import patch_line, written

from fencepost import (
    Client,
    FenceToken,
    LockHeld,
    OutcomeUnknown,
    RowNotFound,
    StaleToken,
    StillQueued,
    SyncClient,
    Unavailable,
    WriteFailed,
)
from fencepost.client import ConstraintViolated, Retry, Verdict
from fencepost.client.batches import MOST_LINES, SECONDS
from fencepost.client.errors import BadRequest, Unauthenticated
from fencepost.server.ops.protect import protect
from fencepost.testing import Link, cut
from fencepost.testing.servers.processes import PATIENCE

# The client on a real gateway and a real PostgreSQL: locks, leases, writes.

ORDER = "orders/order-123"


async def test_every_kind_of_write_spends_tokens_by_itself(client: Client) -> None:
    async with client.lock(ORDER, tokens=1, ttl=30, wait=5, claim=True) as lease:
        assert lease.row is not None
        assert (lease.trusted, lease.row["status"]) == (True, "new")
        assert (await client.patch("orders", "order-123", {"status": "paid"}, lease=lease))["status"] == "paid"
        assert (await client.put("orders", "order-123", {"status": "shipped"}, lease=lease))["status"] == "shipped"
        made = await client.post("orders", {"order_id": "x,/ö", "status": "new"}, lease=lease)
        assert made["order_id"] == "x,/ö"
        two = await client.post("orders", [{"order_id": name, "status": "new"} for name in ("y", "z")], lease=lease)
        assert [row["order_id"] for row in two] == ["y", "z"]
        assert (await client.get("orders", "x,/ö", select="status")) == {"status": "new"}
        changed = await client.patch_where("orders", {"order_id": "in.(y,z)"}, {"status": "cancelled"}, lease=lease)
        assert {row["order_id"] for row in changed} == {"y", "z"}
        rows = [{"order_id": "z", "amount": 2}, {"order_id": "y", "amount": 1}]
        changed = await client.patch_rows("orders", rows, lease=lease)
        assert [(row["order_id"], row["amount"], row["status"]) for row in changed] == [
            ("z", 2, "cancelled"), ("y", 1, "cancelled"),
        ]  # fmt: skip
        with pytest.raises(RowNotFound):
            await client.patch_rows("orders", [*rows, {"order_id": "nobody", "amount": 3}], lease=lease)
        gone = await client.delete_where("orders", [("status", "eq.cancelled"), ("order_id", "eq.y")], lease=lease)
        assert [row["order_id"] for row in gone] == ["y"]
        await client.delete("orders", "x,/ö", lease=lease)
        with pytest.raises(RowNotFound):
            await client.get("orders", "x,/ö")
        assert await lease.claim("orders/x%2C%2F%C3%B6") is None
        row = await lease.claim("orders/z")
        assert row is not None
        assert row["status"] == "cancelled"
    found = await client.select("orders", {"status": "eq.cancelled"}, select="order_id", order="order_id.desc", limit=5)
    assert found == [{"order_id": "z"}]
    assert await client.select("orders", offset=100) == []


async def test_a_held_lock_names_who_has_it_and_a_wait_ends(client: Client) -> None:
    async with client.lock("job", owner="first", ttl=10):
        with pytest.raises(LockHeld) as held:
            await client.lock("job").__aenter__()
        error = held.value
        assert (error.lock, error.holder, error.code, error.status) == ("job", "first", "FP011", 423)
        assert error.held_since is not None
        assert error.held_until is not None
        assert timedelta(seconds=9) < error.held_until - error.held_since <= timedelta(seconds=10)
        assert error.retry_after is not None
        assert error.waiting == 0
        with pytest.raises(LockHeld):
            await client.lock("job", wait=0.05).__aenter__()
    async with client.lock("job") as lease:
        assert lease.lock == "job"


async def test_several_locks_are_taken_together_and_claimed(client: Client) -> None:
    names = ["orders/order-124", "orders/order-123"]
    async with client.lock(names, claim=True) as lease:
        assert sorted(lease.locks) == sorted(names)
        assert lease.lock is None
        assert {claimed.resource for claimed in lease.claims} == set(names)
        with pytest.raises(LookupError, match="2 claims"):
            _ = lease.row
        with pytest.raises(LockHeld):
            await client.lock("orders/order-123").__aenter__()
    async with client.lock("a", claim="orders/order-125") as lease:
        assert lease.row is not None
        assert lease.row["order_id"] == "order-125"


async def test_a_claim_fences_the_older_holder_before_the_newer_one_has_written(client: Client) -> None:
    async with client.lock("a") as old, client.lock("b", claim=ORDER, owner="newer") as new:
        with pytest.raises(StaleToken) as stale:
            await client.patch("orders", "order-123", {"status": "paid"}, lease=old)
        error = stale.value
        assert error.resource == ORDER
        assert error.presented_token is not None
        assert error.current_token is not None
        assert error.presented_token < error.current_token
        assert not error.retryable
        await client.patch("orders", "order-123", {"status": "new"}, lease=new)


async def test_concurrent_writes_to_one_row_do_not_make_each_other_stale(client: Client) -> None:
    async with client.lock(ORDER, tokens=1) as lease:
        rows = await asyncio.gather(
            *(client.patch("orders", "order-123", {"amount": number}, lease=lease) for number in range(50)),
            *(client.patch("orders", "order-124", {"amount": number}, lease=lease) for number in range(50)),
            client.patch_where("orders", {"order_id": "like.order*"}, {"status": "shipped"}, lease=lease),
            client.claim("orders/order-123", lease=lease),
            lease.claim("orders/order-124"),
        )
    assert len(rows) == 103
    assert (await client.get("orders", "order-123"))["amount"] == 49


async def test_a_lock_is_entered_once_and_with_timings_that_make_sense(client: Client) -> None:
    lock = client.lock("x")
    async with lock:
        pass
    with pytest.raises(RuntimeError, match="entered once"):
        await lock.__aenter__()
    wrong: list[dict[str, Any]] = [{"ttl": 0}, {"margin": 25.0}, {"wait": float("nan")}, {"tokens": 0}, {"name": []}]
    for arguments in wrong:
        with pytest.raises(ValueError, match=next(iter(arguments)).replace("name", "lock")):
            client.lock(**{"name": "x", **arguments})


# The Python client with decimals=True: a row that was read is written back, and is what it was.


async def test_a_row_that_was_read_is_written_back_as_it_was(connect: Connect, database: str) -> None:
    owner = await connect()
    await owner.execute("CREATE TABLE public.v (id int PRIMARY KEY, n numeric, f float8, j jsonb, t json, i interval)")
    await owner.execute(
        """INSERT INTO public.v VALUES (1, 12345678901234567890.12345678901234567890, '-0', '{"a": [1.50, 1e400]}',
                                        '{"a":-0}', '1 day 2 seconds'), (2, 'NaN', 'NaN', '"1.5"', '-0.0', NULL)"""
    )
    await protect(owner, "v")
    seen = "SELECT (n, f, j, t, i)::text FROM public.v ORDER BY id"
    before = await owner.fetch(seen)
    async with in_process(database) as http:
        transport = httpx.ASGITransport(http._transport.app)  # type: ignore[attr-defined]  # noqa: SLF001 - the same gateway
        async with Client("http://localhost", transport=transport, decimals=True) as client:
            for key in (1, 2):
                await client.put("v", key, await client.get("v", key), token=10)
            after = await owner.fetch(seen)
            await client.patch("v", 2, {"i": timedelta(1, 2)}, token=20)
    assert (len(before), after) == (2, before)
    assert await owner.fetchval("SELECT i::text FROM public.v WHERE id = 2") == "1 day 00:00:02"


# Writes that the client queues, on a real gateway, which applies what its own queue postgres:default holds.

WITHIN = PATIENCE


async def test_a_queued_write_returns_what_the_same_call_returns_at_once(client: Client) -> None:
    made = await client.submit.post("orders", {"order_id": "q", "status": "new"}, token=10)
    changed = await client.submit.patch("orders", "q", {"status": "paid"}, token=11)
    put = await client.submit.put("orders", "q", {"status": "shipped"}, token=12)
    gone = await client.submit.delete("orders", "q", token=13)
    results = [await queued.result(WITHIN) for queued in (made, changed, put)]
    assert [row["status"] for row in results] == ["new", "paid", "shipped"]
    await gone.result(WITHIN)
    assert [await queued.state() for queued in (made, changed, put, gone)] == ["applied"] * 4
    with pytest.raises(RowNotFound):
        await client.get("orders", "q")


async def test_a_refusal_of_the_fence_is_a_stale_token_and_the_rest_is_a_dead_letter(client: Client) -> None:
    await client.claim(ORDER, token=50)
    stale = await client.submit.patch("orders", "order-123", {"status": "paid"}, token=49)
    with pytest.raises(StaleToken) as refused:
        await stale.result(WITHIN)
    assert (refused.value.current_token, await stale.state()) == (50, "refused")
    constrained = await client.submit.patch("orders", "order-123", {"status": "no such status"}, token=51)
    with pytest.raises(WriteFailed) as failed:
        await constrained.result(WITHIN)
    assert isinstance(failed.value.reason, ConstraintViolated)
    assert (failed.value.write_id, await constrained.state()) == (constrained.id, "failed")
    nobody = await client.submit.patch("orders", "nobody", {"status": "paid"}, token=52)
    with pytest.raises(WriteFailed) as failed:
        await nobody.result(WITHIN)
    assert isinstance(failed.value.reason, RowNotFound)


async def test_a_result_that_is_not_there_in_time_may_be_asked_for_again(client: Client, shared: DemoGateway) -> None:
    async with connection_to(shared.dsn) as holder, holder.transaction():
        await holder.execute("SELECT 1 FROM orders WHERE order_id = 'order-123' FOR UPDATE")
        queued = await client.submit.patch("orders", "order-123", {"status": "paid"}, token=70)
        assert await queued.state() == "queued"
        with pytest.raises(StillQueued):
            await queued.result(timeout=0.3)
    assert (await queued.result(WITHIN))["status"] == "paid"


async def test_a_submission_whose_answer_is_lost_is_repeated_and_done_once(
    link: Link, counting: Counting, shared: DemoGateway
) -> None:
    async with Client(link.url, transport=counting) as c:
        with cut(link, matching="PATCH /"):
            queued = await c.submit.patch("orders", "order-123", {"status": "paid"}, token=80)
        assert (await queued.result(WITHIN))["status"] == "paid"
    assert counting.count("PATCH") > 1
    async with connection_to(shared.dsn) as connection:
        done = "SELECT count(*) FROM fencepost.idempotency WHERE caller = ''"
        assert await connection.fetchval(done) == 1


def test_the_synchronous_client_queues_and_waits(gateway_url: str) -> None:
    with SyncClient(gateway_url) as c:
        queued = c.submit.patch("orders", "order-123", {"status": "paid"}, token=100)
        assert queued.result(timeout=WITHIN)["status"] == "paid"
        assert queued.state() == "applied"
        assert queued.id is not None
        assert c.submit.queued(queued.id).result(WITHIN)["status"] == "paid"


# client.batch: lines in, verdicts out, whatever becomes of the requests between.

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


# The examples of docs/client.md and docs/elections.md run as they stand.


@pytest.mark.parametrize("number", range(8))
async def test_an_example_runs(gateway_url: str, number: int) -> None:
    docs = Path(__file__).parents[2] / "docs"
    pages = "".join((docs / page).read_text("utf-8") for page in ("client.md", "elections.md"))
    examples = re.findall(r"```python\n(.*?)```", pages, re.DOTALL)
    assert len(examples) == 8
    code = examples[number].replace("http://127.0.0.1:8080", gateway_url)
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout in ("", "done\n")
