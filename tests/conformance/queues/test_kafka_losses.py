"""What becomes of a Kafka topic, on three real brokers: deleted messages, another topic, more partitions, elections.
And what becomes of its consumers that die or leave.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.cimpl import NewPartitions
from tests.conformance.queues.conftest import Member, MemberProcess, message
from tests.conformance.queues.kafka_bench import KafkaBench, admin, make_topic, next_topic, url_of

from fencepost.server.queues.kafka import KafkaLog, from_url, static_name
from fencepost.server.queues.log import LogChangedError, LogUnavailableError
from fencepost.testing.servers.kafka import Kafka
from fencepost.testing.servers.processes import PATIENCE, eventually

pytestmark = pytest.mark.long("tests with kafka")

KEY = "orders/order-1"


@pytest.fixture
def cluster(three_brokers: Kafka) -> Kafka:
    return three_brokers


@pytest.fixture
def bench(three_brokers: Kafka) -> KafkaBench:
    return KafkaBench(three_brokers)


@pytest.fixture
def topic() -> str:
    return next_topic()


@pytest.fixture
def url(cluster: Kafka, topic: str) -> str:
    return url_of(cluster, topic)


@pytest.fixture
async def log(url: str) -> AsyncIterator[KafkaLog]:
    opened = from_url(url)
    await opened.open()
    yield opened
    await opened.close()


def joined(log: KafkaLog, generation: int, name: str = "a") -> Member:
    lost: list[frozenset[int]] = []
    member = Member(log.consumer(name, lost.append), lost)
    member.consumer.begin(generation)
    return member


async def changed(member: Member) -> str:
    """Take until the log is found to be another, and say what was said."""

    async def raised() -> str | None:
        try:
            assert await member.take() == [], "nothing may be taken before the loss is found"
        except LogUnavailableError:
            return None
        except LogChangedError as error:
            return str(error)
        return None

    return await eventually(raised, within=2 * PATIENCE, what="a LogChangedError")


async def values_after(log: KafkaLog, generation: int, count: int) -> list[bytes | None]:
    """Take as a member that begins in this generation, and decide it."""
    member = joined(log, generation)
    try:
        received = await member.take_until(count)
        await member.consumer.done(received)
        return [each.message.value for each in received]
    finally:
        await member.close()


async def append(log: KafkaLog, value: str) -> int:
    async def appended() -> int | None:
        try:
            return (await log.append(message(KEY, value))).offset + 1
        except LogUnavailableError:
            return None

    return await eventually(appended, within=2 * PATIENCE, what="an acknowledgement") - 1


async def come_back(cluster: Kafka) -> None:
    for broker in cluster.brokers:
        if not broker.server.running:
            broker.server.start()
            await broker.server.serves()


async def test_messages_that_were_deleted_before_they_were_decided(cluster: Kafka, topic: str, log: KafkaLog) -> None:
    await asyncio.to_thread(make_topic, cluster, topic, 1)
    for number in range(6):
        await append(log, str(number))
    assert await values_after(log, 1, 2) == [b"0", b"1"]
    client = admin(cluster)
    (before,) = await log.oldest()
    there = TopicPartition(topic, 0, 4)
    await asyncio.to_thread(client.delete_records([there])[there].result, 30)
    (after,) = await log.oldest()
    assert (before or 0) < (after or 0), "the age is that of a message that is there"
    member = joined(log, 1)
    assert "messages 2 to 3 were deleted before they were decided" in await changed(member)
    await member.close()
    assert await values_after(log, 2, 2) == [b"4", b"5"]


async def added(cluster: Kafka, topic: str, log: KafkaLog) -> None:
    """Give the topic three partitions."""
    client = admin(cluster)
    await asyncio.to_thread(lambda: client.create_partitions([NewPartitions(topic, 3)])[topic].result(30))

    async def more() -> bool:
        return (await log.state()).partitions == 3

    await eventually(more, what="three partitions")


async def test_a_member_that_was_dead_when_partitions_were_added_gets_them_in_the_raised_generation(
    cluster: Kafka, topic: str, log: KafkaLog, member_process: Callable[[str], Awaitable[MemberProcess]]
) -> None:
    """The group gives a static member that comes back what it had, without a new assignment."""
    await asyncio.to_thread(make_topic, cluster, topic, 1)
    before = await log.state()
    killed = await member_process("a")
    assert await killed.says() == {"partitions": [0]}
    os.kill(killed.pid, signal.SIGKILL)
    await killed.process.wait()
    await added(cluster, topic, log)
    assert (await log.state()).incarnation == before.incarnation
    member = joined(log, 2)
    await member.has(3)
    await member.close()


DIES_WHEN_IT_GIVES_UP = """
import os, signal, sys
from confluent_kafka import Consumer
from fencepost.server.queues.kafka_settings import read_url
consumer = Consumer(read_url(sys.argv[1]).of_consumer(sys.argv[2]))
def has(consumer, partitions):
    consumer.incremental_assign(partitions)
    print(len(partitions), flush=True)
consumer.subscribe([sys.argv[3]], on_assign=has, on_revoke=lambda *_: os.kill(os.getpid(), signal.SIGKILL))
while True:
    consumer.poll(0.1)
"""


async def test_partitions_that_a_member_gave_up_as_it_died_are_given_out_although_it_is_back(
    cluster: Kafka, topic: str, url: str, log: KafkaLog
) -> None:
    """What it gave up was to go to `b` with the next assignment, which never came: `a` was given its rest again."""
    await asyncio.to_thread(make_topic, cluster, topic, 2)
    command = [sys.executable, "-c", DIES_WHEN_IT_GIVES_UP, url, static_name("a", 1), topic]
    first = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert first.stdout is not None
    assert await first.stdout.readline() == b"2\n"
    second = joined(log, 1, "b")
    dies = asyncio.create_task(first.wait())
    while not dies.done():
        await second.take()
    assert not second.consumer.partitions
    back = joined(log, 1)
    members = (back, second)

    async def all_are_taken_from() -> bool:
        for each in members:
            await each.take()
        return {0, 1} == {*back.consumer.partitions, *second.consumer.partitions}

    await eventually(all_are_taken_from, within=2 * PATIENCE, what="both partitions have a member")
    for each in members:
        await each.close()


async def test_a_member_leaves_once_its_last_position_is_committed(
    bench: KafkaBench, cluster: Kafka, topic: str, log: KafkaLog
) -> None:
    await asyncio.to_thread(make_topic, cluster, topic, 1)
    await append(log, "one")
    member = joined(log, 1)
    await member.consumer.done(await member.take_until(1))
    await bench.pause()
    closing = asyncio.create_task(member.close())
    _, waiting = await asyncio.wait([closing], timeout=1)
    assert waiting, "its position cannot be committed yet"
    for broker in cluster.brokers:
        broker.server.resume()
    await closing
    group, client = f"fencepost.{topic}", admin(cluster)
    described = await asyncio.to_thread(client.describe_consumer_groups([group])[group].result, 30)
    assert described.members == []
    assert list(await log.decided()) == [1]


async def test_leader_epochs_rise_with_each_election(cluster: Kafka, topic: str, log: KafkaLog) -> None:
    await asyncio.to_thread(make_topic, cluster, topic, 1, assignment=[[1, 2]])
    await append(log, "one")
    (before,) = (await log.state()).leader_epochs
    assert before is not None
    await asyncio.to_thread(cluster.brokers[0].server.crash)
    try:
        assert await append(log, "two") == 1

        async def higher() -> bool:
            (after,) = (await log.state()).leader_epochs
            return after is not None and after > before

        await eventually(higher, what="a higher leader epoch")
        assert (await log.state()).ends == (2,)
    finally:
        await come_back(cluster)
