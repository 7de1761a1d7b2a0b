"""The consumer of a queue over a log in memory (a mock): its end, and faults."""

import asyncio

import pytest
from tests.support.consumer_house import House, running, until

from fencepost.consuming.applying import Standing
from fencepost.consuming.outcome import Decided, Later, Result
from fencepost.consuming.session import ConsumerLimits
from fencepost.queues.log import Received
from fencepost.storage.errors import UnavailableError
from fencepost.testing.servers.waiting import PATIENCE
from fencepost.times import ConsumingTimes


async def test_the_end_decides_what_has_begun_and_leaves_the_rest_to_others() -> None:
    house = House()
    house.applying.held[b"t/a"] = asyncio.Event()
    await house.append("t/a", "t/a")
    task = asyncio.create_task(house.consumer.run())
    await until("the first has begun", lambda: house.applying.begun == [0])
    house.consumer.stop()
    await asyncio.sleep(0)
    assert not task.done()
    house.applying.held[b"t/a"].set()
    await asyncio.wait_for(task, PATIENCE)
    assert house.done == [0]
    assert house.applying.begun == [0]
    assert house.log.consumers[0].closed


async def test_the_end_does_not_wait_for_ever() -> None:
    house = House(limits=ConsumerLimits(drain=0.05))
    house.applying.held[b"t/a"] = asyncio.Event()
    await house.append("t/a")
    task = asyncio.create_task(house.consumer.run())
    await until("it has begun", lambda: house.applying.begun == [0])
    house.consumer.stop()
    await asyncio.wait_for(task, PATIENCE)
    assert house.done == []


async def test_the_end_comes_while_the_database_is_away() -> None:
    house = House(lambda _r, _s: Later("away", everything=True))
    await house.append("t/a", "t/b")
    task = asyncio.create_task(house.consumer.run())
    await until("paused", lambda: house.consumer.paused_because == "away")
    house.ledger.failing = UnavailableError("away")
    house.consumer.stop()
    await asyncio.wait_for(task, PATIENCE)
    assert house.done == []


async def test_a_raise_while_a_message_is_written_ends_the_session_at_once() -> None:
    def come_to(_received: Received, standing: Standing) -> Result:
        return Later("raised meanwhile", everything=True) if standing.generation == 1 else Decided("applied")

    house = House(come_to, ConsumerLimits(drain=3600.0))
    running = asyncio.create_task(house.consumer.run())
    await until("a look", lambda: house.ledger.checks == 1)
    house.applying.held[b"t/a"] = asyncio.Event()
    await house.append("t/a")
    await until("a write has begun", lambda: house.applying.begun == [0])
    house.ledger.known_generation = 2
    await house.append("t/b")
    await until("a look that finds the raise", lambda: house.ledger.checks >= 2)
    house.applying.held.pop(b"t/a").set()
    await house.all_done(2)
    house.consumer.stop()
    await running


async def test_a_fault_where_what_is_done_is_said_is_reported_and_it_is_said_again() -> None:
    house = House()
    house.log.failing["done"] = RuntimeError("a fault")
    await house.append("t/a", "t/b")
    async with running(house):
        await until("the fault is reported", lambda: bool(house.reports.faults))
        del house.log.failing["done"]
        await house.all_done(2)
    assert [str(each) for each in house.reports.faults][:1] == ["a fault"]


async def test_a_fault_where_the_consumer_reports_is_reported_and_it_goes_on() -> None:
    house = House(times=ConsumingTimes(committed_every=0.01))
    house.log.failing["decided"] = RuntimeError("a fault")
    async with running(house):
        await until("the fault is reported", lambda: bool(house.reports.faults))
        del house.log.failing["decided"]
        await until("what is committed is noted", lambda: bool(house.ledger.noted_committed))


async def test_a_session_that_ends_by_a_fault_leaves_its_place_to_the_next_one() -> None:
    house = House()
    house.log.failing["done"] = RuntimeError("a fault")
    await house.append("t/a")
    running_on = asyncio.create_task(house.consumer.run())
    await until("the fault is reported", lambda: bool(house.reports.faults))
    house.consumer.stop()
    with pytest.raises(RuntimeError, match="a fault"):
        await running_on
    assert [each.closed for each in house.log.consumers] == [True]
