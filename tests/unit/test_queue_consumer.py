"""The consumer of a queue over a log in memory (a mock): order, bounds, pauses."""

import asyncio

import pytest
from tests.support.consuming import MockedConsumer, message, running, until

from fencepost.server.consuming.applying import Decided, Later, QueueNow, Result
from fencepost.server.consuming.consumer import ConsumerLimits, KeyQueues
from fencepost.server.postgres.errors import UnavailableError
from fencepost.server.queues.log import LogChangedError, LogUnavailableError, Position, Received
from fencepost.server.times import ConsumingTimes


async def test_messages_of_a_resource_are_decided_one_after_the_other_and_others_meanwhile() -> None:
    mocked = MockedConsumer()
    mocked.applying.held[b"t/a"] = asyncio.Event()
    await mocked.append("t/a", "t/a", "t/b", "t/b")
    async with running(mocked):
        await mocked.all_done(2)
        assert mocked.done == [2, 3]
        assert mocked.applying.begun == [0, 2, 3], "the second of a waits for the first"
        mocked.applying.held[b"t/a"].set()
        await mocked.all_done(4)
    assert mocked.done == [2, 3, 0, 1]
    assert mocked.log.consumers[0].closed
    assert sum(each.applied for each in mocked.ledger.noted) == 4
    last = {each.partition: each for each in mocked.ledger.noted}
    assert max(each.decided for each in last.values()) == 4
    assert all(each.oldest is None for each in last.values())


async def test_no_more_are_in_hand_than_the_limit_and_those_that_are_held_keep_their_room() -> None:
    mocked = MockedConsumer(limits=ConsumerLimits(messages=4))
    mocked.applying.held[b"t/a"] = asyncio.Event()
    await mocked.append(*["t/a"] * 10)
    async with running(mocked):
        await until("the room is used up", lambda: mocked.log.asked.count(0) > 1)
        assert len(mocked.log.consumers[0].taken) == 4
        mocked.applying.held[b"t/a"].set()
        await mocked.all_done(10)
    assert mocked.done == list(range(10))


async def test_no_more_is_taken_while_many_bytes_are_in_hand() -> None:
    mocked = MockedConsumer(limits=ConsumerLimits(messages=1000, bytes=100_000), times=ConsumingTimes(alive_every=0.01))
    mocked.applying.held[b"t/a"] = asyncio.Event()
    for _ in range(20):
        await mocked.log.append(message("t/a", b"x" * 10_000))
    async with running(mocked):
        await until("the room is used up", lambda: mocked.log.asked.count(0) > 1)
        for _ in range(30):
            await mocked.log.append(message("t/a", b"x" * 10_000))
        asked = mocked.log.asked.count(0)
        await until("it asks again", lambda: mocked.log.asked.count(0) > asked)
        assert len(mocked.log.consumers[0].taken) == 20
        mocked.applying.held[b"t/a"].set()
        await mocked.all_done(50)


async def test_the_log_is_looked_at_after_messages_were_taken_and_before_one_is_written() -> None:
    mocked = MockedConsumer()
    async with running(mocked):
        await until("the first look", lambda: mocked.ledger.checks == 1)
        mocked.ledger.quarantined = "it was made again"
        await mocked.append("t/a")
        await until("paused", lambda: mocked.consumer.paused_because == "it was made again")
        assert mocked.applying.begun == []
        mocked.ledger.quarantined, mocked.ledger.known_generation = None, 2
        await mocked.all_done(1)
    assert mocked.reports.events == ["paused: it was made again", "resumed"]


async def test_a_generation_that_was_raised_has_all_taken_anew() -> None:
    """What is in hand may be of the log before: its offsets make no tokens of the new generation."""
    seen: list[tuple[int, int]] = []

    def come_to(received: Received, standing: QueueNow) -> Result:
        seen.append((received.position.offset, standing.generation))
        return Decided("applied")

    mocked = MockedConsumer(come_to)
    async with running(mocked):
        await until("the first look", lambda: mocked.ledger.checks == 1)
        mocked.ledger.failing = UnavailableError("away")
        await mocked.append("t/a", "t/b")
        await until("paused", lambda: mocked.consumer.paused_because is not None)
        mocked.log.messages = mocked.log.messages[1:]  # what the new log has
        mocked.ledger.known_generation, mocked.ledger.failing = 2, None
        await mocked.all_done(1)
    assert seen == [(1, 2)]
    assert len(mocked.log.consumers) == 2


async def test_an_outage_pauses_all_and_is_over_by_itself_and_the_member_stays_one() -> None:
    away = True

    def come_to(_received: Received, _standing: QueueNow) -> Result:
        return Later("the database is away", everything=True) if away else Decided("applied")

    mocked = MockedConsumer(come_to, times=ConsumingTimes(alive_every=0.01))
    await mocked.append("t/a", "t/b", "t/a")
    async with running(mocked):
        await until("paused", lambda: mocked.consumer.paused_because == "the database is away")
        before = len(mocked.log.asked)
        await until("the member is heard of", lambda: len(mocked.log.asked) > before + 2)
        assert set(mocked.log.asked[before:]) == {0}
        away = False
        await mocked.all_done(3)
        assert mocked.consumer.paused_because is None
    assert sorted(mocked.done) == [0, 1, 2]


async def test_a_pause_that_a_former_process_of_the_member_has_noted_is_over() -> None:
    mocked = MockedConsumer(times=ConsumingTimes(note_every=0.01))
    async with running(mocked):
        await until("the note", lambda: mocked.ledger.noted_pauses == [None])
        await mocked.append("t/a")
        await mocked.all_done(1)
        mocked.log.failing["take"] = LogUnavailableError("\0" + "x" * 5000)
        await until("one of its own", lambda: len(mocked.ledger.noted_pauses) > 1)
    assert mocked.ledger.noted_pauses[:2] == [None, "x" * 499], "that it goes on is said once; a reason is not long"


async def test_what_one_message_waits_for_keeps_no_other_waiting() -> None:
    tries = 0

    def come_to(received: Received, _standing: QueueNow) -> Result:
        nonlocal tries
        if received.message.key == b"t/a" and tries < 3:
            tries += 1
            return Later("its row is locked")
        return Decided("applied")

    mocked = MockedConsumer(come_to)
    await mocked.append("t/a", "t/a", "t/b")
    async with running(mocked):
        await mocked.all_done(3)
    assert mocked.done == [2, 0, 1]
    assert mocked.reports.events == []


@pytest.mark.parametrize("method", ["take", "state", "done"])
async def test_a_log_that_is_away_is_asked_again(method: str) -> None:
    mocked = MockedConsumer()
    mocked.log.failing[method] = LogUnavailableError("the broker is away")
    await mocked.append("t/a")
    async with running(mocked):
        await until(
            "it was tried", lambda: bool(mocked.log.asked) and (method != "done" or bool(mocked.applying.ended))
        )
        assert mocked.done == []
        del mocked.log.failing[method]
        await mocked.all_done(1)
    assert mocked.applying.begun == [0], "it is written once"


async def test_a_log_that_says_it_lost_messages_is_quarantined() -> None:
    mocked = MockedConsumer(times=ConsumingTimes(pause=0.001, longest_pause=0.1))
    async with running(mocked):
        await until("the first look", lambda: mocked.ledger.checks == 1)
        mocked.log.failing["take"] = LogChangedError("partition 0 was cut off")
        await until("quarantined", lambda: mocked.ledger.quarantined == "partition 0 was cut off")
        await until("looks for a raise, at growing distances", lambda: mocked.ledger.checks >= 8)
        del mocked.log.failing["take"]
        await mocked.append("t/a")
        mocked.ledger.quarantined, mocked.ledger.known_generation = None, 2
        await mocked.all_done(1)


async def test_what_has_not_begun_of_a_lost_partition_is_left_out() -> None:
    mocked = MockedConsumer()
    mocked.applying.held[b"t/a"] = asyncio.Event()
    await mocked.append("t/a", "t/a", "t/a")
    async with running(mocked):
        await until("the first has begun", lambda: mocked.applying.begun == [0])
        consumer = mocked.log.consumers[0]
        consumer.lost(frozenset(range(2)))
        mocked.applying.held[b"t/a"].set()
        await mocked.all_done(1)
        await asyncio.sleep(0)
        assert mocked.applying.begun == [0]
    assert mocked.done == [0]


async def test_what_a_key_has_in_another_partition_than_the_lost_one_goes_on() -> None:
    begun: list[Position] = []
    go_on = asyncio.Event()

    async def decide(received: Received) -> None:
        begun.append(received.position)
        await go_on.wait()

    lanes = KeyQueues(decide)
    here, astray, there = (
        Received(Position(partition, offset), message("t/a"), 1.0) for partition, offset in ((0, 1), (1, 1), (0, 2))
    )
    for each in (here, astray, there):
        lanes.add(each)
    await asyncio.sleep(0)
    assert lanes.leave_out(frozenset({0})) == [there]
    go_on.set()
    await lanes.end(10)
    assert begun == [here.position, astray.position]


async def test_a_message_that_is_tried_in_vain_is_reported_once_and_noted_until_it_is_decided() -> None:
    locked = [True]
    mocked = MockedConsumer(
        lambda each, _: Later("its row is locked") if locked and each.position.offset == 0 else Decided("applied"),
        times=ConsumingTimes(blocked_after=0.0, note_every=0.01, pause=0.01),
    )
    await mocked.append("t/a", "t/a", "t/b")

    def blocked_noted() -> list[str | None]:
        return [each.blocked.resource if each.blocked else None for each in mocked.ledger.noted]

    async with running(mocked):
        await until("the blocked resource is noted", lambda: "t/a" in blocked_noted())
        await until("it is tried again", lambda: mocked.applying.begun.count(0) > 3)
        assert mocked.reports.events == ["blocked: 0: its row is locked"]
        blocked = next(each.blocked for each in mocked.ledger.noted if each.blocked)
        assert (blocked.because, blocked.seconds >= 0.0) == ("its row is locked", True)
        locked.clear()
        await mocked.all_done(3)
    assert blocked_noted()[-1] is None
