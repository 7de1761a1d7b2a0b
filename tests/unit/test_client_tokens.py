"""Tokens of a lease: each once, rising, minted in blocks; the order of its writes, and which are sent side by side."""

import asyncio
from collections.abc import Sequence

import httpx
import pytest
from tests.client.counting import GRANT
from tests.client.scripted import Fate, ScriptedGateway, scripted_lease
from tests.support.manual_clock import ManualClock, settled

from fencepost.client import BadRequest, Client, FencepostError, LeaseLost
from fencepost.client.lease import Lease, OperationTurns, TokenPool
from fencepost.client.rows import SCOPE_HEADER


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
