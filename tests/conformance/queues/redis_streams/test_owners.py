"""Who takes from a partition, and in which order the next one gets what was not done."""

import asyncio

import pytest
from tests.conformance.queues.redis_streams.conftest import QUEUE, Opened, message, numbers_taken
from tests.conformance.redis_bench import command

from fencepost.server.queues.log import Message
from fencepost.server.queues.redis import RedisLog

OWNER = f"{QUEUE}:0:owner"


async def test_the_next_owner_takes_what_was_not_done_before_what_is_new(log: RedisLog) -> None:
    for number in range(6):
        await log.append(message(number))
    first, second = log.consumer("a", lambda _: None), log.consumer("b", lambda _: None)
    taken = await first.take(5, 1)
    await first.done(taken[1::2])
    await first.close()
    await log.append(message(6))
    assert await numbers_taken(second, 5) == [0, 2, 4, 5, 6]
    await second.close()


async def test_an_owner_whose_key_expired_neither_reads_nor_deletes(port: int, log: RedisLog) -> None:
    lost: list[frozenset[int]] = []
    paused, other = log.consumer("a", lost.append), log.consumer("b", lambda _: None)
    await log.append(message(0))
    held = await paused.take(10, 1)
    await command(port, "DEL", OWNER)
    await command(port, "DEL", f"{QUEUE}:members")  # as when both expired while it was paused
    assert await numbers_taken(other, 1) == [0]
    await paused.done(held)
    assert await command(port, "XLEN", f"{QUEUE}:0") == 1, "it is for the new owner to say what is done"
    await log.append(message(1))
    assert await paused.take(10, 0) == []
    assert lost == [frozenset({0})]
    assert paused.partitions == frozenset()
    assert await numbers_taken(other, 1) == [1]
    for each in (paused, other):
        await each.close()


async def test_an_owner_whose_key_expired_and_who_gets_it_again_takes_again_what_it_had(
    port: int, log: RedisLog
) -> None:
    """As after Redis was away for longer than the TTL: the first that is asked of it is the partition."""
    alone = log.consumer("a", lambda _: None, claim_every=0)
    await log.append(message(0))
    held = await alone.take(10, 1)
    await command(port, "DEL", OWNER)
    await alone.done(held)
    assert await numbers_taken(alone, 1) == [0]
    await log.append(message(1))
    again = await alone.take(10, 1)
    await alone.done([*held, *again])
    assert await command(port, "XLEN", f"{QUEUE}:0") == 0
    await alone.close()


async def test_a_member_that_was_started_again_has_its_partitions_at_once(port: int, log: RedisLog) -> None:
    before, again = log.consumer("a", lambda _: None), log.consumer("a", lambda _: None)
    other = log.consumer("b", lambda _: None)
    await log.append(message(0))
    assert await numbers_taken(before, 1) == [0]
    assert await other.take(10, 0) == []
    assert await numbers_taken(again, 1) == [0]
    assert (await command(port, "GET", OWNER)).endswith(b":a")
    for each in (before, again, other):
        await each.close()


@pytest.mark.long("answers and owners of Redis that are waited for")
async def test_a_partition_that_is_too_many_is_given_up_once_all_of_it_is_done(url: str, log_at: Opened) -> None:
    log = log_at(url.replace("partitions=1", "partitions=2"))
    first, second = log.consumer("b", lambda _: None), log.consumer("a", lambda _: None)
    for number in range(20):
        await log.append(message(number))
    held = await first.take(100, 1)
    await second.take(0, 0)
    partition = held[0].position.partition
    await first.take(0, 1.1)  # it claims again, and finds that it has too many
    assert first.partitions == {partition}, "the idle one is given up"
    await second.take(0, 1.1)
    assert second.partitions == {1 - partition}
    third = log.consumer("0", lambda _: None)  # now two others come first, and b has no share
    await third.take(0, 0)
    await first.take(100, 1.1)
    assert first.partitions == {partition}, "what is in its hands is not done"
    await first.done(held)
    await first.take(100, 1.1)
    assert first.partitions == frozenset()
    for each in (first, second, third):
        await each.close()


@pytest.mark.long("answers and owners of Redis that are waited for")
async def test_members_that_come_and_go_share_all_partitions(url: str, log_at: Opened) -> None:
    log = log_at(url.replace("partitions=1", "partitions=8"))
    members = [log.consumer(f"m{number}", lambda _: None) for number in range(3)]

    async def all_take() -> list[int]:
        await asyncio.gather(*(each.take(10, 1.1) for each in members))
        return [len(each.partitions) for each in members]

    for _ in range(3):
        shares = await all_take()
    assert shares == [3, 3, 2]
    await members.pop(0).close()
    assert await all_take() == [4, 4]
    for each in members:
        await each.close()


async def test_each_partition_has_its_turn_where_messages_are_large(port: int, log_at: Opened) -> None:
    log = log_at(f"redis://127.0.0.1:{port}/orders?partitions=3")
    partitions: set[int] = set()
    for number in range(60):  # what is read at once of two partitions is what one `take` gives
        at = await log.append(Message(b"orders/%d" % number, b"x" * 1_100_000))
        partitions.add(at.partition)
    assert partitions == {0, 1, 2}
    taking = log.consumer("a", lambda _: None)
    came = [{each.position.partition for each in await taking.take(1000, 1)} for _ in range(3)]
    await taking.close()
    assert all(len(each) < 3 for each in came), "else nothing is shown"
    assert set().union(*came) == {0, 1, 2}
