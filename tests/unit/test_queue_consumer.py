"""Parts of the consumer of a queue that need no log. What it does with one: tests/integration/test_consumer.py."""

import asyncio

import orjson

from fencepost.server.consuming.applying import of_problem, reason_of
from fencepost.server.consuming.consumer import Backoff, InHand, KeyQueues, size_of
from fencepost.server.consuming.deciding import noted_reason
from fencepost.server.fence.problems import bad_request
from fencepost.server.gateway.results import state_of
from fencepost.server.postgres.keyed import Recorded
from fencepost.server.queues.log import Message, Position, Received
from fencepost.server.times import ConsumingTimes


def received(partition: int, offset: int, value: bytes = b"") -> Received:
    return Received(Position(partition, offset), Message(b"t/a", value), 1.0)


def test_no_more_is_taken_while_many_bytes_are_in_hand() -> None:
    hand, large, small = InHand(1000, 100_000), [received(0, n, b"x" * 10_000) for n in range(8)], [received(0, 9)]
    hand.add(small)
    assert hand.room() == 999
    hand.add(large)
    assert hand.bytes == sum(map(size_of, large + small)) > 75_000
    assert hand.room() == 0, "until a quarter of the bytes is free"
    hand.remove(large[:1])
    assert hand.room() == 1000 - 8


async def test_what_a_key_has_in_another_partition_than_the_lost_one_goes_on() -> None:
    begun: list[Position] = []
    go_on = asyncio.Event()

    async def decide(received: Received) -> None:
        begun.append(received.position)
        await go_on.wait()

    lanes = KeyQueues(decide)
    here, astray, there = (received(partition, offset) for partition, offset in ((0, 1), (1, 1), (0, 2)))
    for each in (here, astray, there):
        lanes.add(each)
    await asyncio.sleep(0)
    assert lanes.leave_out(frozenset({0})) == [there]
    go_on.set()
    await lanes.end(10)
    assert begun == [here.position, astray.position]


def test_pauses_grow_up_to_the_longest_and_begin_anew_after_a_success() -> None:
    backoff = Backoff(ConsumingTimes(pause=0.5, longest_pause=3.0))
    assert [backoff.next() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    backoff.reset()
    assert backoff.next() == 0.5


def test_a_reason_that_is_noted_is_not_long_and_has_no_character_that_no_text_in_postgresql_has() -> None:
    assert noted_reason("\0" + "x" * 5000) == "x" * 499


def test_a_kept_problem_has_its_state_and_its_reason() -> None:
    answer = of_problem("failed", bad_request("there is no column x")).answer
    assert answer is not None
    assert (answer.status, state_of(answer)) == (400, "failed")
    assert orjson.loads(answer.body)["detail"] == "there is no column x"
    assert reason_of(answer) == "FP016: there is no column x"
    assert reason_of(Recorded(500, (), b"oops")) == "status 500"
    assert reason_of(Recorded(500, (), b"[]")) == "status 500"
