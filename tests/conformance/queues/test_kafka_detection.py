"""A Kafka topic that is not what it was, seen from its consumer to the table: nothing is written before the difference
is found, the source is quarantined, and once it is raised all goes on under tokens of the new generation.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial

import asyncpg
import pytest
from confluent_kafka import Producer
from confluent_kafka.cimpl import NewPartitions
from tests.conformance.queues.consumed_topic import ConsumedTopic, consumed_topic
from tests.conformance.queues.kafka_bench import admin, delete_topic, make_topic, next_topic
from tests.support.consuming import write
from tests.support.interleave import Connect

from fencepost.server.queues.log import LogUnavailableError, partition_of
from fencepost.testing.servers.kafka import Broker, Kafka
from fencepost.testing.servers.postgres import Databases
from fencepost.testing.servers.processes import eventually

pytestmark = pytest.mark.long("tests with kafka")

UNCLEAN = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}


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
        client = admin(three_brokers)
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
    """Open the queue of a topic."""
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
    for topic in topics:
        await asyncio.to_thread(make_topic, three_brokers, topic, 1, UNCLEAN, [[first.node, second.node]])
    try:
        async with AsyncExitStack() as stack:
            running, away = [
                await stack.enter_async_context(in_its_own_database(three_brokers, topic, databases))
                for topic in topics
            ]
            await an_unclean_election(running, away, first, second)
    finally:
        for broker in (first, second):
            if not broker.server.running:
                await started(broker)


async def an_unclean_election(running: ConsumedTopic, away: ConsumedTopic, first: Broker, second: Broker) -> None:
    """Have the second broker lead, which lacks what was consumed while it was away."""
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
