"""Cancellation: of bodies whose lease is lost, of waiters, and of everything at any moment."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack

import anyio
import pytest
from tests.support.manual_clock import ManualClock

from fencepost import Client, LeaseLost
from fencepost.testing import Link, partitioned
from fencepost.testing.servers.processes import PATIENCE, eventually


async def lock_is_free(client: Client, name: str) -> None:
    """Return when no client holds the lock or waits for it."""

    async def idle() -> bool:
        return await client.locks(name) == []

    await eventually(idle, what=f"{name} being free")


pytestmark = pytest.mark.long("calls that are cancelled at any moment")

ORDER = "orders/order-123"


async def test_cancel_on_loss_cancels_the_body_and_raises_lease_lost(link: Link, faults: ExitStack) -> None:
    clock = ManualClock()
    async with Client(link.url, clock=clock) as c, AsyncExitStack() as time:
        task = asyncio.current_task()
        assert task is not None

        async def work() -> None:
            async with c.lock("job", ttl=60, cancel_on_loss=True):
                faults.enter_context(partitioned(link))
                await time.enter_async_context(clock.running())
                await asyncio.get_running_loop().create_future()

        with pytest.raises(LeaseLost) as lost:
            await work()
        assert lost.value.reason == "expired"
        assert isinstance(lost.value.__cause__, asyncio.CancelledError)
        assert task.cancelling() == 0


async def test_of_two_nested_leases_the_outer_one_raises_when_both_are_lost(link: Link, faults: ExitStack) -> None:
    clock = ManualClock()
    async with Client(link.url, clock=clock) as c, AsyncExitStack() as time:

        async def work() -> None:
            async with (
                c.lock("outer", ttl=60, cancel_on_loss=True),
                c.lock("inner", ttl=60, cancel_on_loss=True) as inner,
            ):
                faults.enter_context(partitioned(link))
                await time.enter_async_context(clock.running())
                try:
                    await asyncio.get_running_loop().create_future()
                finally:
                    await inner.lost

        with pytest.raises(LeaseLost, match="outer"):
            await work()
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0


async def test_cancelled_again_while_it_releases_the_release_goes_on(gateway_url: str) -> None:
    async with Client(gateway_url) as direct:
        for turns in range(8):
            async with Client(gateway_url) as c:
                task = await working(c)
                task.cancel()
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert await direct.locks() == [], turns


async def working(c: Client) -> "asyncio.Task[None]":
    """Begin to work under a lease, for ever."""
    entered = asyncio.Event()

    async def work() -> None:
        async with c.lock("job", cancel_on_loss=True):
            entered.set()
            await asyncio.get_running_loop().create_future()

    task = asyncio.create_task(work())
    await entered.wait()
    return task


async def test_cancelled_when_the_grant_is_on_its_way_gives_the_lock_back(gateway_url: str, link: Link) -> None:
    async with Client(link.url) as c, Client(gateway_url) as direct:

        async def held() -> bool:
            return any(state.held for state in await direct.locks("job"))

        with partitioned(link, direction="to-client"):
            acquiring = asyncio.create_task(c.lock("job", ttl=60).__aenter__())
            await eventually(held)
            acquiring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await acquiring
        assert await direct.locks("job") == []


async def test_cancelled_at_any_moment_an_acquire_leaves_nothing_behind(gateway_url: str) -> None:
    """So many turns of the event loop after its beginning: connecting, sending, waiting, answered."""
    cancelled = 0
    async with Client(gateway_url) as direct:
        for turns in range(0, 100, 2):
            async with Client(gateway_url) as c:
                lock = c.lock(f"job-{turns}", ttl=60)
                acquiring = asyncio.create_task(lock.__aenter__())
                for _ in range(turns):
                    await asyncio.sleep(0)
                acquiring.cancel()
                try:
                    await acquiring
                except asyncio.CancelledError:
                    cancelled += 1
                else:
                    await lock.__aexit__(None, None, None)
            await lock_is_free(direct, f"job-{turns}")
    assert cancelled > 10


async def test_a_cancel_scope_of_anyio_is_obeyed_at_any_moment(gateway_url: str) -> None:
    """Its cancellation is delivered again and again, to every await: the clean-up must not depend on awaiting."""
    async with Client(gateway_url) as direct, direct.lock("job"):
        for turns in range(0, 90, 5):
            async with Client(gateway_url) as c:
                with anyio.CancelScope() as scope:
                    canceller = asyncio.create_task(_after(turns, scope.cancel))
                    async with asyncio.timeout(PATIENCE), c.lock("job", wait=None):
                        raise AssertionError("the lock was held")
                await canceller
                assert scope.cancelled_caught

            async def queue_is_empty() -> bool:
                return not (await direct.locks("job"))[0].waiters

            await eventually(queue_is_empty, what=f"an empty queue, cancelled after {turns} turns")


async def _after(turns: int, act: Callable[[], None]) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)
    act()
