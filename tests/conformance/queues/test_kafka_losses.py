"""What becomes of a Kafka topic, on three real brokers: deleted messages, another topic, more partitions, elections.
And what becomes of its consumers that die or leave.
"""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from textwrap import dedent

import asyncpg
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.cimpl import NewPartitions
from tests.conformance.queues.benches import (
    ConsumedTopic,
    KafkaBench,
    consumed_topic,
    delete_topic,
    kafka_admin,
    make_topic,
    next_topic,
    topic_url,
)
from tests.conformance.queues.conftest import Member, MemberProcess, message
from tests.support.consuming import write
from tests.support.interleave import Connect

from fencepost.server.queues.kafka import KafkaLog, from_url, static_name
from fencepost.server.queues.log import LogChangedError, LogUnavailableError, partition_of
from fencepost.testing.servers.kafka import Broker, Kafka
from fencepost.testing.servers.postgres import Databases
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
    return topic_url(cluster, topic)


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


async def test_messages_that_were_deleted_before_they_were_decided(cluster: Kafka, topic: str, log: KafkaLog) -> None:
    await asyncio.to_thread(make_topic, cluster, topic, 1)
    for number in range(6):
        await append(log, str(number))
    assert await values_after(log, 1, 2) == [b"0", b"1"]
    client = kafka_admin(cluster)
    (before,) = await log.oldest()
    there = TopicPartition(topic, 0, 4)
    await asyncio.to_thread(client.delete_records([there])[there].result, 30)
    (after,) = await log.oldest()
    assert (before or 0) < (after or 0), "the age is that of a message that is there"
    member = joined(log, 1)
    assert "messages 2 to 3 were deleted before they were decided" in await changed(member)
    await member.close()
    assert await values_after(log, 2, 2) == [b"4", b"5"]


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
    # Give the topic three partitions.
    client = kafka_admin(cluster)
    await asyncio.to_thread(lambda: client.create_partitions([NewPartitions(topic, 3)])[topic].result(30))

    async def more() -> bool:
        return (await log.state()).partitions == 3

    await eventually(more, what="three partitions")
    assert (await log.state()).incarnation == before.incarnation
    member = joined(log, 2)
    await member.has(3)
    await member.close()


async def test_partitions_that_a_member_gave_up_as_it_died_are_given_out_although_it_is_back(
    cluster: Kafka, topic: str, url: str, log: KafkaLog
) -> None:
    """What it gave up was to go to `b` with the next assignment, which never came: `a` was given its rest again."""
    await asyncio.to_thread(make_topic, cluster, topic, 2)
    dies_when_it_gives_up = dedent("""
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
    """)
    command = [sys.executable, "-c", dies_when_it_gives_up, url, static_name("a", 1), topic]
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
    group, client = f"fencepost.{topic}", kafka_admin(cluster)
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
        for broker in cluster.brokers:
            if not broker.server.running:
                broker.server.start()
                await broker.server.serves()


# A Kafka topic that is not what it was, seen from its consumer to the table: nothing is written before the difference
# is found, the source is quarantined, and once it is raised all goes on under tokens of the new generation.


@pytest.fixture
async def opened(database: str, connect: Connect) -> Callable[[Kafka, str], AbstractAsyncContextManager[ConsumedTopic]]:
    """Give a function that opens the queue of a topic, on a table of its own."""
    owner = await connect()
    return lambda cluster, topic: consumed_topic(cluster, topic, owner, database)


Opened = Callable[[Kafka, str], AbstractAsyncContextManager[ConsumedTopic]]


def effects(key: str, *numbers: int, generation: int = 0) -> list[tuple[str, int, int]]:
    return [(key, number, generation) for number in numbers]


async def is_gone(queue: ConsumedTopic) -> bool:
    """Whether the broker that is asked says how to make the topic: it may know of it for a moment after its end."""
    try:
        await queue.log.state()
    except LogUnavailableError as error:
        return re.search(r"kafka-topics.sh .*--create --topic", str(error)) is not None
    return False


async def test_a_topic_that_is_made_again_under_its_consumer(three_brokers: Kafka, opened: Opened) -> None:
    topic = next_topic()
    await asyncio.to_thread(make_topic, three_brokers, topic, 1)
    async with opened(three_brokers, topic) as queue, queue.consumed():
        await queue.append("k0", 1, 2, 3)
        await queue.has(*(before := effects("k0", 1, 2, 3)))
        await asyncio.to_thread(delete_topic, three_brokers, topic)
        await eventually(partial(is_gone, queue), what="the end of the topic at each broker")
        await asyncio.to_thread(make_topic, three_brokers, topic, 1)
        (first, _) = await queue.append("k1", 7, 8)
        assert first.offset == 0
        assert await queue.quarantined()
        assert await queue.effects() == before
        await queue.is_raised()
        await queue.append("k0", 4)
        await queue.has(*before, *effects("k1", 7, 8, generation=1), *effects("k0", 4, generation=1))


async def test_partitions_that_are_added_under_a_consumer(three_brokers: Kafka, opened: Opened) -> None:
    """A write that was appended by the old number is a dead letter if its key has moved; a retry puts it where it
    belongs.
    """
    topic = next_topic()
    keys = {partition_of(f"orders/k{number}".encode(), 3): f"k{number}" for number in range(20)}
    stays, moves = keys[0], keys[2]
    await asyncio.to_thread(make_topic, three_brokers, topic, 1)
    async with opened(three_brokers, topic) as queue, queue.consumed():
        await queue.append(stays, 1, 2)
        await queue.has(*(before := effects(stays, 1, 2)))
        client = kafka_admin(three_brokers)
        await asyncio.to_thread(lambda: client.create_partitions([NewPartitions(topic, 3)])[topic].result(30))
        await append_to_the_first(three_brokers, topic, stays, moves)
        assert "3 partitions now, and had 1" in await queue.quarantined()
        assert await queue.effects() == before
        await queue.is_raised()
        (letter,) = await queue.letters(1)
        assert letter.message.key == f"orders/{moves}".encode()
        assert "partition: it is in 0, and its key belongs to 2" in letter.reason
        await queue.has(*before, *effects(stays, 9, generation=1))
        retried = await queue.run("dead", "retry", queue.name, letter.id)
        assert retried.exit_code == 0, retried.output
        await queue.has(*before, *effects(stays, 9, generation=1), *effects(moves, 9, generation=1))


async def append_to_the_first(cluster: Kafka, topic: str, *keys: str) -> None:
    """Append a write of each of these rows to partition 0, as a gateway that does not know of the others yet."""
    message = write("orders/any", body={"n": 9})
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for key in keys:
        headers: list[tuple[str, str | bytes | None]] = [*message.headers]
        producer.produce(topic, message.value, f"orders/{key}", partition=0, headers=headers)
    assert await asyncio.to_thread(producer.flush, 30) == 0


TWO_REPLICAS = "2 replicas: a write that was acknowledged is lost with these brokers"


@pytest.mark.parametrize(
    ("replicas", "in_sync", "said"),
    [
        (2, "1", [TWO_REPLICAS, "with the others behind, one broker alone acknowledges writes"]),
        (2, "2", [TWO_REPLICAS, "is 2, as many as its replicas: no write is taken while one broker is away"]),
        (3, "2", []),
    ],
)
async def test_advice_is_on_the_replicas_of_a_topic(
    three_brokers: Kafka, opened: Opened, replicas: int, in_sync: str, said: list[str]
) -> None:
    topic, nodes = next_topic(), [each.node for each in three_brokers.brokers][:replicas]
    settings = {"min.insync.replicas": in_sync, "retention.ms": "-1"}
    await asyncio.to_thread(make_topic, three_brokers, topic, 1, settings, [nodes])
    async with opened(three_brokers, topic) as queue:
        advice = await queue.log.advice()
    assert len(advice) == len(said), advice
    for words, sentence in zip(said, advice, strict=True):
        assert words in sentence


@asynccontextmanager
async def in_its_own_database(cluster: Kafka, topic: str, databases: Databases) -> AsyncIterator[ConsumedTopic]:
    database = databases.make()
    owner = await asyncpg.connect(database)
    try:
        async with consumed_topic(cluster, topic, owner, database) as queue:
            yield queue
    finally:
        await owner.close()
        databases.drop(database)


async def test_an_unclean_election(three_brokers: Kafka, databases: Databases) -> None:
    """One of two consumers runs, the other is away meanwhile."""
    topics, (first, second, _) = (next_topic(), next_topic()), three_brokers.brokers
    unclean = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
    for topic in topics:
        await asyncio.to_thread(make_topic, three_brokers, topic, 1, unclean, [[first.node, second.node]])
    try:
        async with AsyncExitStack() as stack:
            running, away = [
                await stack.enter_async_context(in_its_own_database(three_brokers, topic, databases))
                for topic in topics
            ]
            # Have the second broker lead, which lacks what was consumed while it was away.
            before = effects("k0", 1, 2, 3, 4, 5)
            async with running.consumed():
                async with away.consumed():
                    for queue in (running, away):
                        await queue.append("k0", 1, 2)
                    await asyncio.to_thread(second.server.crash)
                    for queue in (running, away):
                        await queue.append("k0", 3, 4, 5)
                    for queue in (running, away):
                        await queue.has(*before)
                await lose_what_the_second_does_not_have(first, second)
                await judge_a_loss(running, before)
            async with away.consumed():
                await judge_a_loss(away, before)
    finally:
        for broker in (first, second):
            if not broker.server.running:
                await started(broker)


async def lose_what_the_second_does_not_have(first: Broker, second: Broker) -> None:
    """Have the replica that is behind be the leader."""
    await asyncio.to_thread(first.server.crash)
    await started(second)


async def judge_a_loss(queue: ConsumedTopic, before: list[tuple[str, int, int]]) -> None:
    """Writes come at places that others had before. They are in a row of their own, which would take their tokens."""
    (place, _) = await queue.append("k2", 7, 8)
    assert place.offset < 5, "nothing was lost"
    assert await queue.quarantined()
    assert await queue.effects() == before
    await queue.is_raised()
    await queue.append("k0", 6)
    await queue.has(*before, *effects("k2", 7, 8, generation=1), *effects("k0", 6, generation=1))


async def started(broker: Broker) -> None:
    broker.server.start()
    await broker.server.serves()
