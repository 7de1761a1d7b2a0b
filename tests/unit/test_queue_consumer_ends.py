"""The consumer of a queue over a log in memory (a mock): its end, and faults."""

import asyncio

import pytest
from tests.support.consuming import MockedConsumer, running, until

from fencepost.server.consuming.applying import Decided, Later, QueueNow, Result
from fencepost.server.consuming.consumer import ConsumerLimits
from fencepost.server.postgres.errors import UnavailableError
from fencepost.server.queues.log import Received
from fencepost.server.times import ConsumingTimes
from fencepost.testing.servers.processes import PATIENCE


async def test_the_end_decides_what_has_begun_and_leaves_the_rest_to_others() -> None:
    mocked = MockedConsumer()
    mocked.applying.held[b"t/a"] = asyncio.Event()
    await mocked.append("t/a", "t/a")
    task = asyncio.create_task(mocked.consumer.run())
    await until("the first has begun", lambda: mocked.applying.begun == [0])
    mocked.consumer.stop()
    await asyncio.sleep(0)
    assert not task.done()
    mocked.applying.held[b"t/a"].set()
    await asyncio.wait_for(task, PATIENCE)
    assert mocked.done == [0]
    assert mocked.applying.begun == [0]
    assert mocked.log.consumers[0].closed


async def test_the_end_does_not_wait_for_ever() -> None:
    mocked = MockedConsumer(limits=ConsumerLimits(drain=0.05))
    mocked.applying.held[b"t/a"] = asyncio.Event()
    await mocked.append("t/a")
    task = asyncio.create_task(mocked.consumer.run())
    await until("it has begun", lambda: mocked.applying.begun == [0])
    mocked.consumer.stop()
    await asyncio.wait_for(task, PATIENCE)
    assert mocked.done == []


async def test_the_end_comes_while_the_database_is_away() -> None:
    mocked = MockedConsumer(lambda _r, _s: Later("away", everything=True))
    await mocked.append("t/a", "t/b")
    task = asyncio.create_task(mocked.consumer.run())
    await until("paused", lambda: mocked.consumer.paused_because == "away")
    mocked.ledger.failing = UnavailableError("away")
    mocked.consumer.stop()
    await asyncio.wait_for(task, PATIENCE)
    assert mocked.done == []


async def test_a_raise_while_a_message_is_written_ends_the_session_at_once() -> None:
    def come_to(_received: Received, standing: QueueNow) -> Result:
        return Later("raised meanwhile", everything=True) if standing.generation == 1 else Decided("applied")

    mocked = MockedConsumer(come_to, ConsumerLimits(drain=3600.0))
    running = asyncio.create_task(mocked.consumer.run())
    await until("a look", lambda: mocked.ledger.checks == 1)
    mocked.applying.held[b"t/a"] = asyncio.Event()
    await mocked.append("t/a")
    await until("a write has begun", lambda: mocked.applying.begun == [0])
    mocked.ledger.known_generation = 2
    await mocked.append("t/b")
    await until("a look that finds the raise", lambda: mocked.ledger.checks >= 2)
    mocked.applying.held.pop(b"t/a").set()
    await mocked.all_done(2)
    mocked.consumer.stop()
    await running


async def test_a_fault_where_what_is_done_is_said_is_reported_and_it_is_said_again() -> None:
    mocked = MockedConsumer()
    mocked.log.failing["done"] = RuntimeError("a fault")
    await mocked.append("t/a", "t/b")
    async with running(mocked):
        await until("the fault is reported", lambda: bool(mocked.reports.faults))
        del mocked.log.failing["done"]
        await mocked.all_done(2)
    assert [str(each) for each in mocked.reports.faults][:1] == ["a fault"]


async def test_a_fault_where_the_consumer_reports_is_reported_and_it_goes_on() -> None:
    mocked = MockedConsumer(times=ConsumingTimes(committed_every=0.01))
    mocked.log.failing["decided"] = RuntimeError("a fault")
    async with running(mocked):
        await until("the fault is reported", lambda: bool(mocked.reports.faults))
        del mocked.log.failing["decided"]
        await until("what is committed is noted", lambda: bool(mocked.ledger.noted_committed))


async def test_a_session_that_ends_by_a_fault_leaves_its_place_to_the_next_one() -> None:
    mocked = MockedConsumer()
    mocked.log.failing["done"] = RuntimeError("a fault")
    await mocked.append("t/a")
    running_on = asyncio.create_task(mocked.consumer.run())
    await until("the fault is reported", lambda: bool(mocked.reports.faults))
    mocked.consumer.stop()
    with pytest.raises(RuntimeError, match="a fault"):
        await running_on
    assert [each.closed for each in mocked.log.consumers] == [True]


async def test_a_consumer_that_can_never_decide_a_message_leaves_it_and_all_else_to_others_and_says_so() -> None:
    def come_to(received: Received, _standing: QueueNow) -> Result:
        return Later("no keys", by_others=True) if received.message.key == b"t/b" else Decided("applied")

    mocked = MockedConsumer(come_to, times=ConsumingTimes(note_every=0.01))
    await mocked.append("t/a")
    async with running(mocked):
        await mocked.all_done(1)
        await mocked.append("t/b", "t/b", "t/c")
        await until("the reason is noted for others", lambda: "no keys" in mocked.ledger.noted_pauses)
        assert mocked.consumer.paused_because == "no keys"
        assert [each.closed for each in mocked.log.consumers] == [True]
        assert (mocked.consumer.partitions, mocked.applying.begun.count(1)) == (frozenset(), 1)
    assert mocked.reports.events.count("paused: no keys") == 1
    assert 1 not in mocked.done
