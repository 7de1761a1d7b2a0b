"""A Kafka topic that was deleted and made again with as many partitions, on a real broker."""

import asyncio

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.conformance.queues.conftest import message
from tests.conformance.queues.kafka_bench import KafkaBench, log_of

from fencepost.queues.kafka.labels import Label
from fencepost.queues.kafka.url import read_url
from fencepost.testing.servers.kafka import Kafka

pytestmark = pytest.mark.long("tests with kafka")


async def test_what_waits_is_not_decided(one_broker: Kafka) -> None:
    """A member may commit what it decided of the old topic when the new one is there."""
    bench = KafkaBench(one_broker)
    url = await bench.new_log(1)
    settings, log = read_url(url), log_of(url)
    await log.open()
    label = str(Label(1, (await log.state()).incarnation))
    await bench.make_again(url)
    await log.append(message("orders/1"))
    member = Consumer(settings.of_group())
    committed = [TopicPartition(settings.topic, 0, 1, metadata=label)]
    await asyncio.to_thread(member.commit, offsets=committed, asynchronous=False)
    assert list(await log.decided()) == [0]
    member.close()
    await log.close()
