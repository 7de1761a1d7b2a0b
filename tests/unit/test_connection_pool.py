"""Who gets which connection: the pool's rules, on connections that are made up, opened when the test lets it."""

import asyncio
from typing import Any

import asyncpg
import pytest

from fencepost.server.postgres.pool import ClosedError, Pool


class Made:
    """A connection that nothing is connected to."""

    def __init__(self) -> None:
        self.closed = self.in_transaction = self.acting = self.code_ran = False
        self.close_fails_with: Exception | None = None

    def is_closed(self) -> bool:
        return self.closed

    def is_in_transaction(self) -> bool:
        return self.in_transaction

    async def close(self, timeout: float) -> None:  # noqa: ARG002, ASYNC109 - asyncpg's signature
        if self.close_fails_with is not None:
            raise self.close_fails_with
        self.closed = True

    def terminate(self) -> None:
        self.closed = True


class Bench:
    """A pool whose connects wait until they are answered."""

    def __init__(self, size: int) -> None:
        self.connects: list[asyncio.Future[Made]] = []
        self.reports: list[str] = []
        made: Any = self._connect
        self.pool = Pool(made, size, self.reports.append)

    async def _connect(self) -> Made:
        connect: asyncio.Future[Made] = asyncio.get_running_loop().create_future()
        self.connects.append(connect)
        return await connect

    def asked(self) -> "asyncio.Task[Any]":
        return asyncio.create_task(self.pool.lend())

    async def lent(self) -> Any:
        """Lend one that is opened for it."""
        asked = self.asked()
        await settled()
        self.connects.pop().set_result(Made())
        return await asked


async def settled() -> None:
    """Let everything run that can."""
    for _ in range(20):
        await asyncio.sleep(0)


FULL = asyncpg.TooManyConnectionsError("sorry, too many clients already")


async def test_the_one_that_came_back_last_is_lent_first() -> None:
    bench = Bench(2)
    one, two = await bench.lent(), await bench.lent()
    bench.pool.give_back(one)
    bench.pool.give_back(two)
    assert await bench.pool.lend() is two
    assert (bench.pool.size, bench.pool.idle) == (2, 1)


async def test_with_all_lent_callers_are_served_in_the_order_in_which_they_came() -> None:
    bench = Bench(1)
    one = await bench.lent()
    first, second = bench.asked(), bench.asked()
    await settled()
    bench.pool.give_back(one)
    assert await first is one
    assert not second.done()
    bench.pool.give_back(one)
    assert await second is one
    assert bench.connects == []


async def test_a_connect_that_hangs_keeps_no_caller_from_one_that_comes_back() -> None:
    bench = Bench(2)
    one = await bench.lent()
    waiting = bench.asked()
    await settled()
    assert len(bench.connects) == 1
    bench.pool.give_back(one)
    assert await waiting is one
    bench.connects[0].set_result(Made())
    await settled()
    assert (bench.pool.size, bench.pool.idle) == (2, 1)


async def test_having_no_more_connections_fails_no_caller_while_one_is_open() -> None:
    bench = Bench(3)
    one = await bench.lent()
    waiting = [bench.asked() for _ in range(2)]
    await settled()
    for connect in bench.connects:
        connect.set_exception(FULL)
    await settled()
    later = bench.asked()
    await settled()
    assert len(bench.connects) == 2, "it was asked again at once"
    for each in (*waiting, later):
        bench.pool.give_back(one)
        assert await each is one
    assert len(bench.reports) == 1
    assert "sorry, too many clients already" in bench.reports[0]


async def test_with_none_open_having_no_more_connections_is_an_answer_for_each() -> None:
    bench = Bench(1)
    waiting = [bench.asked(), bench.asked()]
    for number, each in enumerate(waiting):
        await settled()
        assert len(bench.connects) == number + 1
        bench.connects[-1].set_exception(FULL)
        with pytest.raises(asyncpg.TooManyConnectionsError):
            await each


async def test_when_the_last_open_one_is_closed_another_is_opened_at_once() -> None:
    bench = Bench(2)
    one = await bench.lent()
    waiting = bench.asked()
    await settled()
    bench.connects.pop().set_exception(FULL)
    await settled()
    bench.pool.give_back(one, spoilt=True)
    await settled()
    bench.connects.pop().set_result(two := Made())
    assert await waiting is two


@pytest.mark.parametrize("harm", ["spoilt", "closed", "in_transaction", "expired"])
async def test_what_may_not_be_lent_again_is_closed(harm: str) -> None:
    bench = Bench(1)
    one = await bench.lent()
    if harm == "expired":
        bench.pool.expire()
    elif harm != "spoilt":
        setattr(one, harm, True)
    bench.pool.give_back(one, spoilt=harm == "spoilt")
    await settled()
    assert one.closed
    assert await bench.lent() is not one


async def test_one_that_was_being_opened_while_all_expired_is_not_lent_twice() -> None:
    bench = Bench(1)
    asked = bench.asked()
    await settled()
    bench.pool.expire()
    bench.connects.pop().set_result(one := Made())
    bench.pool.give_back(await asked)
    await settled()
    assert one.closed


@pytest.mark.parametrize("error", [asyncpg.InternalClientError("out of order"), TimeoutError()])
async def test_giving_back_raises_nothing_and_reports_what_went_wrong(error: Exception) -> None:
    bench = Bench(1)
    one = await bench.lent()
    one.close_fails_with = error
    bench.pool.give_back(one, spoilt=True)
    await settled()
    assert one.closed
    assert bench.reports[0].endswith(str(error) or "TimeoutError")


@pytest.mark.parametrize("leaves", ["before", "as another is served", "as its connection comes"])
async def test_a_caller_that_leaves_delays_no_other_and_loses_no_connection(leaves: str) -> None:
    bench = Bench(1)
    one = await bench.lent()
    leaving, staying = bench.asked(), bench.asked()
    await settled()
    if leaves == "as its connection comes":
        bench.pool.give_back(one)
    leaving.cancel()
    if leaves == "before":
        await settled()
    if leaves != "as its connection comes":
        bench.pool.give_back(one)
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert await staying is one


async def test_closing_waits_for_what_is_lent_and_refuses_the_line() -> None:
    bench = Bench(1)
    one = await bench.lent()
    waiting = bench.asked()
    await settled()
    closing = asyncio.create_task(bench.pool.close())
    with pytest.raises(ClosedError):
        await waiting
    with pytest.raises(ClosedError):
        await bench.pool.lend()
    await settled()
    assert not closing.done()
    bench.pool.give_back(one)
    await closing
    assert one.closed


async def test_closing_waits_no_longer_once_it_is_to_end() -> None:
    bench = Bench(2)
    lent, idle = await bench.lent(), await bench.lent()
    bench.pool.give_back(idle)
    bench.pool.end()
    assert lent.closed, "its statement goes on"
    with pytest.raises(ClosedError):
        await bench.pool.lend()
    closing = asyncio.create_task(bench.pool.close())
    await settled()
    assert idle.closed
    assert not closing.done()
    bench.pool.give_back(lent)
    await closing
