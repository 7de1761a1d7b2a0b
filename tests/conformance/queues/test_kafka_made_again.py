"""A Kafka topic that was deleted and made again with as many partitions, on a real broker, with a position of the old
one: a member may commit it when the new one is there.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from tests.conformance.queues.conftest import Join, message
from tests.conformance.queues.kafka_bench import KafkaBench, admin, log_of

from fencepost.server.queues import kafka
from fencepost.server.queues.kafka_settings import Label, read_url
from fencepost.server.queues.log import Log, LogUnavailableError
from fencepost.testing.servers.kafka import Kafka
from fencepost.testing.servers.processes import PATIENCE, eventually

pytestmark = pytest.mark.long("tests with kafka")

WAITING = 3
"""How many messages wait in the new topic; in the old one, of which no number is known, one was decided."""


@pytest.fixture
async def url(one_broker: Kafka) -> str:
    return await KafkaBench(one_broker).new_log(1)


@pytest.fixture
async def log(one_broker: Kafka, url: str) -> AsyncIterator[Log]:
    settings, log = read_url(url), log_of(url)
    await log.open()
    label = str(Label(0, (await log.state()).incarnation))
    await KafkaBench(one_broker).make_again(url)
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


class Interrupted(Consumer):
    """Is given its partition, and then fails to be given it anew."""

    calls = 0

    def incremental_assign(self, *partitions: Any) -> None:
        self.calls += 1
        if self.calls == 2:
            raise KafkaException(KafkaError(KafkaError.INVALID_REQUEST))
        super().incremental_assign(*partitions)


@pytest.mark.parametrize("client", [Rebalanced, Interrupted])
async def test_a_member_begins_where_the_new_one_does(
    join: Join, client: type[Consumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes nothing before, whatever keeps it from saying where it goes on, and from going on there."""
    monkeypatch.setattr(kafka, "Consumer", client)
    member = join("a")

    async def all_came() -> bool:
        try:
            await member.take()
        except LogUnavailableError:
            return False
        return len(member.taken) == WAITING

    await eventually(all_came, within=2 * PATIENCE, what="all of the new topic")
    assert [each.position.offset for each in member.taken] == [*range(WAITING)]


async def test_a_member_leaves_whose_partition_is_not_assigned_any_more(
    one_broker: Kafka, url: str, join: Join
) -> None:
    member = join("a")
    await member.has(1)
    client: Consumer = member.consumer._client  # type: ignore[attr-defined]  # noqa: SLF001
    client.incremental_unassign(client.assignment())
    await member.close()
    group, asked = read_url(url).group, admin(one_broker)
    described = await asyncio.to_thread(asked.describe_consumer_groups([group])[group].result, 30)
    assert described.members == []
