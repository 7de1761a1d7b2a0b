"""What a program does with the client: queued writes, pools of tokens, forks, elections, and the synchronous client."""

import asyncio
import inspect
import json
import pickle
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from textwrap import dedent
from typing import Any

import httpx
import pytest
from tests.client.transports import GRANT, Fate, Mock, ScriptedGateway, problem, scripted_lease
from tests.support.manual_clock import Hurried, ManualClock, settled

from fencepost.client import (
    BadRequest,
    Client,
    ConstraintViolated,
    FencepostError,
    Job,
    LeaseLost,
    NotFound,
    OutcomeUnknown,
    QueuedWrite,
    RowChanged,
    RowNotFound,
    RowsNotKept,
    StillQueued,
    Submit,
    SyncClient,
    SyncJob,
    SyncLease,
    SyncQueuedWrite,
    SyncSubmit,
    SyncTerm,
    Term,
    Unavailable,
    WriteFailed,
)
from fencepost.client.lease import Lease, OperationTurns, TokenPool
from fencepost.client.rows import SCOPE_HEADER
from fencepost.server.fence.problem_types import DATABASE_UNAVAILABLE
from fencepost.server.fence.problems import Problem
from fencepost.server.gateway.election import Election, Key, Leader, Subscription, Watches
from fencepost.server.locks.source import SourceUnavailableError
from fencepost.server.locks.source_leases import HoldWatch
from fencepost.server.postgres import sources
from fencepost.server.postgres.leases import LeaseId
from fencepost.server.postgres.pool import Quota
from fencepost.server.times import TIMES, Times, WatchTimes
from fencepost.testing.servers.processes import PATIENCE, eventually

# Writes that are queued, as the client asks for them and reads what became of them. The gateway is a mock.

ID = "kafka:orders.3.17.00c0ffee00c0ffee"
CUT = httpx.ReadError("cut")
Answering = Callable[[], httpx.Response]


def page(state: str, status: int = 200, body: object = None) -> Answering:
    answer = None if state == "queued" else {"status": status, "headers": {}, "body": body}
    members = {"id": ID, "queue": "kafka:orders", "partition": 3, "offset": 17, "state": state, "answer": answer}
    return lambda: httpx.Response(200, json=members)


def kept() -> httpx.Response:
    return httpx.Response(202, json=page("queued")().json(), headers={"Location": f"/v1/writes/{ID}"})


def refusal(status: int, code: str) -> Mapping[str, object]:
    return {"code": code, "detail": "As the test says.", "retryable": False, "status": status}


def client(*fates: Exception | Answering) -> tuple[Client, Mock]:
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
    away = problem(503, "FP010", retryable=True)
    clock, mock = ManualClock(), Mock(kept, *[away] * 1000)
    async with Client("http://mock", transport=mock, clock=clock) as c:
        waiting = asyncio.create_task((await c.submit.patch("orders", 1, {})).result(600))
        await clock.advance(599)
        assert not waiting.done()
        await clock.advance(2)
        with pytest.raises(StillQueued, match="600 s") as over:
            await waiting
    assert isinstance(over.value.__cause__, Unavailable)


async def test_a_write_may_name_the_mark_that_its_row_must_have() -> None:
    c, mock = client(*[lambda: httpx.Response(200, json={"n": 1})] * 2, problem(412, "FP049", retryable=False))
    async with c:
        await c.patch("orders", 1, {}, token=5, if_match=4)
        await c.put("orders", 1, {}, token=5, if_match="0")
        with pytest.raises(RowChanged):
            await c.delete("orders", 1, token=5, if_match='"4"')
        for wrong, error in (
            ("x", ValueError),
            (-1, ValueError),
            ("04", ValueError),
            (2**63, ValueError),
            (4.0, TypeError),
        ):
            with pytest.raises(error, match="if_match"):
                await c.patch("orders", 1, {}, token=5, if_match=wrong)  # type: ignore[arg-type]
    assert [request.headers["If-Match"] for request in mock.requests] == ['"4"', '"0"', '"4"']


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


# Tokens of a lease: each once, rising, minted in blocks; the order of its writes, and which are sent side by side.


class Mint:
    """A mock: mints from 100 upwards, and remembers how much it was asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.next = 100

    async def __call__(self, count: int) -> Sequence[int]:
        self.asked.append(count)
        await asyncio.sleep(0)
        first, self.next = self.next, self.next + count
        return range(first, first + count)


async def test_blocks_double_up_to_256() -> None:
    mint = Mint()
    pool = TokenPool([1, 2], mint)
    tokens = [await pool.take() for _ in range(1000)]
    assert tokens[:4] == [1, 2, 100, 101]
    assert tokens == sorted(set(tokens))
    assert mint.asked == [8, 16, 32, 64, 128, 256, 256, 256]


async def test_a_hundred_takers_mint_one_at_a_time_and_share_nothing() -> None:
    mint = Mint()
    pool = TokenPool([1], mint)
    tokens = await asyncio.gather(*(pool.take() for _ in range(100)))
    assert list(tokens) == sorted(set(tokens)), "in the order of asking"
    assert mint.asked == [8, 16, 32, 64]


async def test_a_mint_that_fails_is_tried_by_the_next_taker() -> None:
    good = Mint()

    async def mint(count: int) -> Sequence[int]:
        if not good.asked:
            good.asked.append(0)
            raise FencepostError("lost")
        return await good(count)

    pool = TokenPool([], mint)
    with pytest.raises(FencepostError, match="lost"):
        await pool.take()
    assert await pool.take() == 100


async def test_a_gateway_that_draws_fewer_at_once_is_asked_for_fewer() -> None:
    good = Mint()

    async def mint(count: int) -> Sequence[int]:
        if count > 5:
            raise BadRequest("count: at most 5")
        return await good(count)

    pool = TokenPool([], mint)
    tokens = [await pool.take() for _ in range(20)]
    assert tokens == list(range(100, 120))
    assert good.asked == [4] * 5


async def test_a_token_that_does_not_rise_is_never_handed_out() -> None:
    async def mint(count: int) -> Sequence[int]:
        return [7] * count

    pool = TokenPool([7], mint)
    assert await pool.take() == 7
    with pytest.raises(FencepostError, match="token 7 after token 7"):
        await pool.take()


async def test_a_mint_that_is_refused_ends_the_lease() -> None:
    clock = ManualClock()
    gateway = ScriptedGateway(clock, ttl=30.0)
    lease = scripted_lease(gateway)
    assert await lease.next_token() == 100
    gateway.held = False
    with pytest.raises(LeaseLost) as raised:
        await lease.next_token()
    assert raised.value.code == "FP012"
    assert not lease.trusted
    assert (await lease.lost).reason == "gone"


async def test_a_token_is_drawn_when_the_turn_has_come_and_not_before() -> None:
    lease = scripted_lease(ScriptedGateway(ManualClock(), ttl=30.0), tokens=(100, 101, 102))

    async def operate() -> int:
        async with lease.operation("orders/1") as token:
            return token

    async with lease.operation("orders/1") as first:
        second = asyncio.create_task(operate())
        await settled()
        between = await lease.next_token()
    assert [first, between, await second] == [100, 101, 102]


async def test_a_token_is_not_handed_out_when_trust_ends_while_waiting_for_the_turn() -> None:
    clock = ManualClock()
    lease = scripted_lease(ScriptedGateway(clock, ttl=30.0), tokens=(100, 101))

    async def operate() -> int:
        async with lease.operation("orders/1") as token:
            return token

    async with lease.operation("orders/1"):
        second = asyncio.create_task(operate())
        await clock.advance(40.0)
    with pytest.raises(LeaseLost):
        await second


class Order:
    """Records which turns have begun, and lets a test end them."""

    def __init__(self) -> None:
        self.turns = OperationTurns()
        self.begun: list[str] = []
        self.ends: dict[str, asyncio.Event] = {}

    def enter(self, name: str, resource: str | None) -> asyncio.Task[None]:
        self.ends[name] = asyncio.Event()

        async def turn() -> None:
            async with self.turns.turn(resource):
                self.begun.append(name)
                await self.ends[name].wait()

        return asyncio.create_task(turn())

    async def end(self, name: str) -> list[str]:
        self.ends[name].set()
        await settled()
        return self.begun


async def test_writes_to_one_row_go_one_after_the_other_and_to_others_side_by_side() -> None:
    order = Order()
    tasks = [order.enter("a1", "a"), order.enter("a2", "a"), order.enter("b1", "b")]
    await settled()
    assert order.begun == ["a1", "b1"]
    assert await order.end("a1") == ["a1", "b1", "a2"]
    await order.end("a2")
    await order.end("b1")
    await asyncio.gather(*tasks)


async def test_a_write_of_unknown_rows_excludes_all_others_and_is_not_overtaken() -> None:
    order = Order()
    tasks = [order.enter("a", "a"), order.enter("all", None), order.enter("b", "b")]
    await settled()
    assert order.begun == ["a"]
    assert await order.end("a") == ["a", "all"]
    assert await order.end("all") == ["a", "all", "b"]
    await order.end("b")
    await asyncio.gather(*tasks)


async def test_a_turn_that_is_given_up_lets_no_other_overtake_the_one_before() -> None:
    order = Order()
    first, second, third = order.enter("a1", "a"), order.enter("a2", "a"), order.enter("a3", "a")
    await settled()
    second.cancel()
    await settled()
    assert order.begun == ["a1"]
    assert await order.end("a1") == ["a1", "a3"]
    await order.end("a3")
    await asyncio.gather(first, second, third, return_exceptions=True)


async def test_a_token_that_comes_after_the_end_of_trust_is_not_handed_out() -> None:
    clock = ManualClock()
    gateway = ScriptedGateway(clock, ttl=30.0, script=[Fate(back=29.0)])
    lease = scripted_lease(gateway, tokens=())

    async def operate() -> None:
        async with lease.operation("orders/1"):
            raise AssertionError("a token was handed out without trust")

    operating = asyncio.create_task(operate())
    await clock.advance(29.0)
    with pytest.raises(LeaseLost):
        await operating


class Held(httpx.AsyncBaseTransport):
    """Grants a lease, mints, and holds each answer to a write until `answer`; those of items have a scope."""

    def __init__(self) -> None:
        self.minted = 1
        self.sent: list[str] = []
        self._answers: list[asyncio.Event] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if path == "/v1/leases":
            return httpx.Response(201, json=GRANT)
        if path.endswith("/tokens"):
            self.minted += 100
            return httpx.Response(200, json={"tokens": [str(self.minted + n) for n in range(8)]})
        if request.method != "PATCH":
            return httpx.Response(204)
        self.sent.append(path.removeprefix("/v1/data/"))
        self._answers.append(may_answer := asyncio.Event())
        await may_answer.wait()
        return httpx.Response(200, json={}, headers={SCOPE_HEADER: "account/1"} if "items" in path else {})

    async def answer(self) -> list[str]:
        """Answer all that were sent; returns what has been sent since the last time, in its order."""
        await settled()
        for each in self._answers:
            each.set()
        sent, self.sent, self._answers = self.sent, [], []
        return sent


async def rounds(client: Client, lease: Lease, held: Held, *rows: tuple[str, str]) -> list[list[str]]:
    """Write these rows at once; returns which were sent together."""
    writes = [asyncio.create_task(client.patch(table, key, {"n": 1}, lease=lease)) for table, key in rows]
    together = []
    while not all(write.done() for write in writes):
        together.append(await held.answer())
        await settled()
    await asyncio.gather(*writes)
    return together


async def test_writes_to_several_rows_are_sent_side_by_side_once_an_answer_has_shown_that_there_is_no_scope() -> None:
    held = Held()
    async with Client("http://mock", transport=held, clock=ManualClock()) as client, client.lock("a") as lease:
        rows = (("orders", "1"), ("orders", "2"), ("orders", "3"))
        assert await rounds(client, lease, held, *rows) == [["orders/1"], ["orders/2"], ["orders/3"]]
        assert await rounds(client, lease, held, *rows) == [["orders/1", "orders/2", "orders/3"]]


async def test_writes_to_a_table_with_a_scope_wait_for_all_others_each_time() -> None:
    held = Held()
    async with Client("http://mock", transport=held, clock=ManualClock()) as client, client.lock("a") as lease:
        await rounds(client, lease, held, ("orders", "1"), ("items", "1"))
        rows = (("orders", "1"), ("items", "1"), ("items", "2"), ("orders", "2"), ("orders", "3"))
        together = [["orders/1"], ["items/1"], ["items/2"], ["orders/2", "orders/3"]]
        assert await rounds(client, lease, held, *rows) == together


# A client belongs to one process and one event loop: elsewhere it says so, at once.


def test_a_forked_process_is_told_to_open_a_client_of_its_own() -> None:
    forked = dedent("""
        import os, sys
        from fencepost import SyncClient
        with SyncClient("http://127.0.0.1:9", timeout=1, retry=None) as client:
            child = os.fork()
            if child == 0:
                try:
                    client.select("orders")
                except RuntimeError as error:
                    print(error)
                client.close()
                sys.stdout.flush()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            print("parent")
    """)
    ran = subprocess.run([sys.executable, "-c", forked], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ran.returncode == 0, ran.stderr
    said, parent = ran.stdout.splitlines()
    assert "from which this one was forked" in said
    assert parent == "parent", "its own client is closed as ever"


def test_a_forked_process_is_told_that_the_client_of_an_event_loop_belongs_to_another() -> None:
    async_forked = dedent("""
        import asyncio, os
        from fencepost import Client
        async def main():
            client = Client("http://127.0.0.1:9", timeout=1, retry=None)
            try:
                await client.select("orders")
            except Exception:
                pass
            child = os.fork()
            if child == 0:
                for asked in (client.select("orders"), client.lock("a").__aenter__()):
                    try:
                        await asked
                    except RuntimeError as error:
                        print(error, flush=True)
                os._exit(0)
            os.waitpid(child, 0)
            await client.aclose()
        asyncio.run(main())
    """)
    ran = subprocess.run(
        [sys.executable, "-c", async_forked], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert ran.stdout.count("or before a fork") == 2, ran.stdout + ran.stderr


def test_a_client_in_a_second_event_loop_says_that_it_belongs_to_the_first() -> None:
    client = Client("http://x", transport=httpx.MockTransport(lambda _: httpx.Response(200, json=[])))

    async def ask() -> object:
        return await client.select("orders")

    assert asyncio.run(ask()) == []
    for _ in range(2):
        with pytest.raises(RuntimeError, match="this Client was used in another event loop"):
            asyncio.run(ask())


def test_a_key_log_that_cannot_be_opened_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSLKEYLOGFILE", "/none/there")
    with pytest.raises(ValueError, match=r"TLS cannot be used: .*/none/there.* \(SSLKEYLOGFILE\)"):
        Client("https://x")
    command = [sys.executable, "-m", "fencepost", "mint", "--help"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    said = "Error: SSLKEYLOGFILE: /none/there cannot be opened: No such file or directory\n"
    assert (ran.returncode, ran.stderr) == (1, said)


# When the keeper of holds looks whether leases are over, on a clock that the test moves; and how it ends.


class Stage:
    """A keeper between a service that only notes what is released, and a database that knows when leases are over."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = ManualClock()
        self.over_at: dict[int, float] = {}
        self.released: list[str] = []
        self.ended: list[int] = []
        self.looks: list[float] = []
        self.troubles: list[str] = []
        self.hanging: set[str] = set()
        monkeypatch.setattr(sources, "due_in", self._over)
        monkeypatch.setattr(sources, "end", self._end)
        self.keeper = HoldWatch(
            self,  # type: ignore[arg-type]
            self._ask,
            self.troubles.append,
            Times(clock=self.clock),
        )

    def hold(self, lease_id: int, seconds: float) -> None:
        self.over_at[lease_id] = self.clock.now() + seconds
        self.keeper.keep(lease_id, f"lock-{lease_id}", "", round(seconds * 1000))

    async def release(self, lock: str, _handle: str) -> None:
        if lock in self.hanging:
            await asyncio.get_running_loop().create_future()
        self.released.append(lock)

    async def _ask(self, statement: Callable[[Any], Awaitable[Any]]) -> Any:
        return await statement(None)

    async def _over(self, _connection: None, leases: list[int]) -> dict[int, int]:
        self.looks.append(self.clock.now())
        return {each: max(round((self.over_at[each] - self.clock.now()) * 1000), 0) for each in leases}

    async def _end(self, _connection: None, lease_id: int, *, by: str | None) -> None:
        assert by is None
        self.ended.append(lease_id)


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(monkeypatch)


async def test_a_short_lease_is_ended_on_time_beside_a_long_one(stage: Stage) -> None:
    stage.hold(1, 3600)
    await stage.clock.advance(2 * TIMES.sources.look_at_least_every + 1)
    looked = len(stage.looks)
    stage.hold(2, 0.5)
    await settled()
    assert len(stage.looks) == looked, "a grant costs no look"
    await stage.clock.advance(0.49)
    assert stage.released == []
    await stage.clock.advance(0.01)
    assert (stage.released, stage.ended) == (["lock-2"], [2])
    await stage.keeper.close(1)


async def test_a_renewal_that_shortens_a_lease_is_heeded(stage: Stage) -> None:
    stage.hold(1, 3600)
    await stage.clock.advance(TIMES.sources.look_at_least_every + 1)
    stage.over_at[1] = stage.clock.now() + 0.2
    stage.keeper.due(1, 200)
    await stage.clock.advance(0.2)
    assert stage.released == ["lock-1"]
    stage.keeper.due(1, 200)
    await settled()
    assert len(stage.looks) == 2, "nothing is held any more"


async def test_a_lease_that_was_renewed_elsewhere_is_not_ended(stage: Stage) -> None:
    stage.hold(1, 1)
    stage.over_at[1] += 10
    await stage.clock.advance(2)
    assert stage.released == []
    await stage.clock.advance(9)
    assert stage.released == ["lock-1"]


async def test_a_lease_that_was_ended_elsewhere_is_seen_by_the_next_look(stage: Stage) -> None:
    stage.hold(1, 3600)
    stage.over_at[1] = 0
    await stage.clock.advance(TIMES.sources.look_at_least_every - 0.01)
    assert stage.released == []
    await stage.clock.advance(0.01)
    assert stage.released == ["lock-1"]


async def test_the_end_releases_all_at_once_and_names_those_that_it_could_not(stage: Stage) -> None:
    for lease_id in range(1, 21):
        stage.hold(lease_id, 3600)
    stage.hanging = {"lock-7", "lock-3"}
    await stage.keeper.close(0.05)
    assert len(stage.released) == 18
    assert [trouble.partition("its locks")[2] for trouble in stage.troubles] == [
        ", which stay held until its session has ended: lock-3, lock-7"
    ]


async def test_a_service_that_refuses_a_release_is_named_as_well(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(_lock: str, _handle: str) -> None:
        raise SourceUnavailableError("it hangs")

    stage.hold(1, 3600)
    monkeypatch.setattr(stage, "release", refuse)
    await stage.keeper.close(1)
    assert "lock-1" in stage.troubles[0]


# Watching elections: who shares a poller, who gets which change, and what ends it.

E: Key = ("builtin", "e")
DATABASE_AWAY = Problem(DATABASE_UNAVAILABLE, "away")


def led(term: int, *, remaining_ms: int = 1000) -> Election:
    return Election("e", "builtin", Leader("a", LeaseId("builtin", term), "then", "later", remaining_ms))


class Polls:
    """What is asked who leads: each look takes the next answer, for all that it asks about; it waits for one."""

    def __init__(self) -> None:
        self.answers: asyncio.Queue[Election | Problem | Exception] = asyncio.Queue()
        self.asked: list[set[Key]] = []

    async def look(self, asked: Sequence[Key]) -> Mapping[Key, Election | Problem]:
        self.asked.append(set(asked))
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return dict.fromkeys(asked, answer)


def quota_of(most: int = 100, of_one: int = 100) -> Quota:
    return Quota(most, of_one, "FENCEPOST_MAX_WATCHERS")


def watches_of(quota: Quota | None = None, **times: float) -> Watches:
    """Look all the time, unless `times` say otherwise."""
    return Watches(quota or quota_of(), Times(watches=WatchTimes(**{"elections_every": 0, **times})))


@pytest.fixture
def polls() -> Polls:
    return Polls()


async def soon(what: Awaitable[object]) -> object:
    return await asyncio.wait_for(what, PATIENCE)


async def test_all_elections_that_are_watched_are_asked_about_by_one_question(polls: Polls) -> None:
    watches = watches_of()
    async with AsyncExitStack() as stack:
        subscriptions = [await stack.enter_async_context(watches.subscribe(E, polls.look)) for _ in range(50)]
        others = [await stack.enter_async_context(watches.subscribe(("etcd", str(n)), polls.look)) for n in range(20)]
        assert (watches.count, watches.watched) == (70, 21)
        for term in (1, 2):
            polls.answers.put_nowait(led(term))
            found = await asyncio.gather(*(soon(each.next()) for each in (*subscriptions, *others)))
            assert found == [led(term)] * 70
            assert polls.asked[term - 1] == {E, *(("etcd", str(n)) for n in range(20))}
        assert len(polls.asked) <= 3
    assert (watches.count, watches.watched) == (0, 0)


async def test_who_begins_to_watch_another_one_does_not_wait_for_the_next_look(polls: Polls) -> None:
    watches = watches_of(elections_every=3600)
    async with watches.subscribe(E, polls.look) as one:
        polls.answers.put_nowait(led(1))
        assert await soon(one.next()) == led(1)
        async with watches.subscribe(("builtin", "other"), polls.look) as other:
            polls.answers.put_nowait(led(2))
            assert await soon(other.next()) == led(2)
        assert await one.next(0) is None
    assert polls.asked == [{E}, {("builtin", "other")}]


async def test_only_another_leader_is_news_and_who_comes_late_gets_the_latest(polls: Polls) -> None:
    watches = watches_of()
    async with watches.subscribe(E, polls.look) as one:
        polls.answers.put_nowait(led(1))
        assert await soon(one.next()) == led(1)
        renewed = led(1, remaining_ms=5)
        polls.answers.put_nowait(renewed)
        polls.answers.put_nowait(renewed)
        assert await one.next(0) is None

        async def taken() -> bool:
            return polls.answers.empty()

        await eventually(taken, what="both answers taken")
        assert await one.next(0) is None
        async with watches.subscribe(E, polls.look) as late:
            assert await soon(late.next()) == renewed
        for election in (led(2), Election("e", "builtin")):
            polls.answers.put_nowait(election)
            assert await soon(one.next()) == election


async def ended_by_problem(polls: Polls, _watches: Watches) -> None:
    polls.answers.put_nowait(DATABASE_AWAY)


async def ended_by_stop(_polls: Polls, watches: Watches) -> None:
    watches.stop()


@pytest.mark.parametrize("end", [ended_by_problem, ended_by_stop])
async def test_when_the_leader_cannot_be_known_any_more_every_subscription_ends(
    polls: Polls, end: Callable[[Polls, Watches], Awaitable[None]]
) -> None:
    watches = watches_of()
    async with watches.subscribe(E, polls.look) as one, watches.subscribe(E, polls.look) as other:
        polls.answers.put_nowait(led(1))
        for each in (one, other):
            assert await soon(each.next()) == led(1)
        waiting = [asyncio.create_task(each.next()) for each in (one, other)]
        await end(polls, watches)
        for task in waiting:
            assert isinstance(await soon(task), Problem)


async def test_after_a_problem_the_next_subscriber_asks_anew(polls: Polls) -> None:
    watches = watches_of()
    async with watches.subscribe(E, polls.look) as one:
        polls.answers.put_nowait(DATABASE_AWAY)
        assert await soon(one.next()) == DATABASE_AWAY
        async with watches.subscribe(E, polls.look) as next_one:
            polls.answers.put_nowait(led(3))
            assert await soon(next_one.next()) == led(3)
    assert watches.watched == 0


async def test_a_look_that_fails_fails_all_who_watch(polls: Polls) -> None:
    async with watches_of().subscribe(E, polls.look) as one:
        polls.answers.put_nowait(ZeroDivisionError())
        with pytest.raises(ZeroDivisionError):
            await soon(one.next())


async def test_a_look_that_takes_too_long_is_a_problem(polls: Polls) -> None:
    async with watches_of(look_within=0).subscribe(E, polls.look) as one:
        assert isinstance(await soon(one.next()), Problem)


async def test_too_many_and_too_late_are_refused(polls: Polls) -> None:
    watches = watches_of(quota_of(1))
    async with watches.subscribe(E, polls.look), watches.subscribe(E, polls.look) as refused:
        assert isinstance(await refused.next(), Problem)
        assert watches.count == 1
    async with watches.subscribe(E, polls.look) as one:
        assert isinstance(one, Subscription)
        watches.stop()
    async with watches.subscribe(E, polls.look) as late:
        assert isinstance(await late.next(), Problem)
    assert watches.count == 0


# The synchronous client's calls are those of the asynchronous one, under the same signatures and docstrings.

OTHERWISE = {"aclose", "batch", "leaders", "lost", "operation"}
"""They are close and wait_lost, or do more than passing a call on."""
INTERNAL = {"end", "on_loss", "renew", "send", "trust", "write"}
"""Methods of a lease that only the client itself calls."""
WITHOUT = "cancel_on_loss"
"""A parameter that no synchronous call has: a thread cannot be cancelled."""

MIRRORED = [
    (Client, SyncClient),
    (Lease, SyncLease),
    (Term, SyncTerm),
    (Submit, SyncSubmit),
    (QueuedWrite, SyncQueuedWrite),
    (Job, SyncJob),
]
mirrored = pytest.mark.parametrize(("of", "by"), MIRRORED)


def public(of: type) -> set[str]:
    names = {*dir(of), *inspect.get_annotations(of)} - INTERNAL
    return {name for name in names if not name.startswith("_")}


def calls(of: type, by: type) -> Iterator[tuple[str, Callable[..., object], Callable[..., object]]]:
    for name in ({"__init__"} if of is Client else set()) | public(of) - OTHERWISE:
        if inspect.isfunction(function := getattr(of, name, None)):
            yield name, function, getattr(by, name)


def of_threads(docstring: str | None) -> str:
    lines = [line for line in (docstring or "").split("\n") if not line.startswith(f"{WITHOUT}:")]
    return "\n".join(lines).replace("`async ", "`").replace("`await ", "`").replace("an `with`", "a `with`")


@mirrored
def test_every_public_name_has_its_counterpart(of: type, by: type) -> None:
    assert {name for name in public(of) if not hasattr(by, name)} <= {"aclose", "lost"}


@mirrored
def test_a_call_says_takes_and_passes_on_the_same(of: type, by: type) -> None:
    for name, function, passing in calls(of, by):
        parameters = {key: (p.kind, p.default) for key, p in inspect.signature(function).parameters.items()}
        parameters.pop(WITHOUT, None)
        found = inspect.signature(passing).parameters
        assert {key: (p.kind, p.default) for key, p in found.items()} == parameters, name
        assert of_threads(inspect.getdoc(function)) == (inspect.getdoc(passing) or ""), name
        owner = next(each for each in by.__mro__ if name in vars(each))
        assert (passing.__module__, passing.__qualname__) == (owner.__module__, f"{owner.__qualname__}.{name}")
        wrapped = getattr(passing, "__wrapped__", None)
        if wrapped is not None:  # by `passed`
            assert wrapped is function, name
            continue
        body = inspect.getsource(passing).partition('"""')[2].rpartition('"""')[2] or inspect.getsource(passing)
        assert {key for key in parameters if key not in body} <= {"self"}, name


@mirrored
def test_an_attribute_says_the_same(of: type, by: type) -> None:
    for name, found in inspect.getmembers(of, lambda member: isinstance(member, property)):
        if name in public(of) - OTHERWISE:
            assert inspect.getdoc(getattr(by, name)) == inspect.getdoc(found), name
