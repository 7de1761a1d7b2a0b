"""A Kafka topic that was deleted and made again with as many partitions, on a real broker, with a position of the old
one: a member may commit it when the new one is there.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from tests.conformance.queues.conftest import Join, message
from tests.conformance.queues.kafka_bench import KafkaBench, log_of

from fencepost.queues.kafka import consumer
from fencepost.queues.kafka.labels import Label
from fencepost.queues.kafka.url import read_url
from fencepost.queues.log import Log, LogUnavailableError
from fencepost.testing.servers.kafka import Kafka
from fencepost.testing.servers.waiting import PATIENCE, eventually

pytestmark = pytest.mark.long("tests with kafka")

WAITING = 3
"""How many messages wait in the new topic; in the old one, of which no number is known, one was decided."""


@pytest.fixture
async def log(one_broker: Kafka) -> AsyncIterator[Log]:
    bench = KafkaBench(one_broker)
    url = await bench.new_log(1)
    settings, log = read_url(url), log_of(url)
    await log.open()
    label = str(Label(0, (await log.state()).incarnation))
    await bench.make_again(url)
    for _ in range(WAITING):
        await log.append(message("orders/1"))
    member = Consumer(settings.of_group())
    committed = [TopicPartition(settings.topic, 0, 1, metadata=label)]
    await asyncio.to_thread(member.commit, offsets=committed, asynchronous=False)
    member.close()
    yield log
    await log.close()


async def test_what_waits_is_not_decided(log: Log) -> None:
    assert list(await log.decided()) == [0]


class Rebalanced(Consumer):
    """Its first commits are refused, as those of a member are while others join its group."""

    refused = 0

    def commit(self, *what: Any, **of_it: Any) -> Any:
        if self.refused < 10:
            self.refused += 1
            raise KafkaException(KafkaError(KafkaError.REBALANCE_IN_PROGRESS))
        return super().commit(*what, **of_it)


async def test_nothing_is_taken_from_where_the_old_one_was_read_to(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    """The member was to commit where it goes on, and could not at once."""
    monkeypatch.setattr(consumer, "Consumer", Rebalanced)
    member = join("a")

    async def all_came() -> bool:
        try:
            await member.take()
        except LogUnavailableError:
            return False
        return len(member.taken) == WAITING

    await eventually(all_came, within=2 * PATIENCE, what="all of the new topic")
    assert [each.position.offset for each in member.taken] == [*range(WAITING)]
