"""Kafka for the conformance suite: one broker, topics of one replica."""

import asyncio
import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.support.servers import or_skipped

from fencepost.server.queues.kafka import from_url
from fencepost.server.queues.log import Log
from fencepost.testing.servers.kafka import Kafka
from fencepost.testing.servers.processes import PATIENCE, wait_until

SESSION_S = 10
_QUERY = f"session.timeout.ms={SESSION_S}000&heartbeat.interval.ms=300&delivery.timeout.ms=5000"
"""Short times, so that a test of a dead member takes seconds: but a session outlasts a handover by who closes."""
_numbers = itertools.count(1)


def next_topic() -> str:
    """Give a name that no other test has."""
    return f"orders-{next(_numbers)}"


def url_of(cluster: Kafka, topic: str) -> str:
    """Give a topic's URL."""
    return f"kafka://{cluster.bootstrap}/{topic}?{_QUERY}"


def log_of(url: str) -> Log:
    """Make the log of a URL."""
    return from_url(url)


def admin(cluster: Kafka) -> AdminClient:
    """Connect as an operator would."""
    return AdminClient({"bootstrap.servers": cluster.bootstrap})


def make_topic(
    cluster: Kafka,
    topic: str,
    partitions: int,
    config: dict[str, str] | None = None,
    assignment: list[list[int]] | None = None,
) -> None:
    """Make a topic, and return once all of its partitions have a leader. `assignment`: nodes by partition, else one."""
    client = admin(cluster)
    replicas = {"replication_factor": 1} if assignment is None else {"replica_assignment": assignment}
    times = {"message.timestamp.type": "LogAppendTime"}
    new = NewTopic(topic, partitions, config=times | (config or {}), **replicas)
    client.create_topics([new])[topic].result(30)
    wait_until(lambda: _led(client, topic, partitions), what=f"leaders of {topic}")


def _led(client: AdminClient, topic: str, partitions: int) -> bool:
    found = client.list_topics(topic, timeout=10).topics[topic].partitions
    return len(found) == partitions and all(each.leader >= 0 for each in found.values())


def delete_topic(cluster: Kafka, topic: str) -> None:
    """Delete a topic, and return once it is gone."""
    client = admin(cluster)
    client.delete_topics([topic])[topic].result(30)
    wait_until(lambda: topic not in client.list_topics(timeout=10).topics, what=f"{topic} gone")


class KafkaBench:
    """One broker."""

    name = "kafka"
    handed_over_within_s = SESSION_S + 5.0

    def __init__(self, cluster: Kafka) -> None:
        self.cluster = cluster

    async def new_log(self, partitions: int) -> str:
        topic = next_topic()
        await asyncio.to_thread(make_topic, self.cluster, topic, partitions)
        return url_of(self.cluster, topic)

    async def make_again(self, url: str) -> None:
        topic = urlsplit(url).path.removeprefix("/")
        found = await asyncio.to_thread(admin(self.cluster).list_topics, topic, 10)
        await asyncio.to_thread(delete_topic, self.cluster, topic)
        await asyncio.to_thread(make_topic, self.cluster, topic, len(found.topics[topic].partitions))

    async def crash(self) -> None:
        for broker in self.cluster.brokers:
            await asyncio.to_thread(broker.server.crash)

    async def restart(self) -> None:
        for broker in self.cluster.brokers:
            broker.server.start()
        await self._answers()

    async def pause(self) -> None:
        for broker in self.cluster.brokers:
            broker.server.pause()

    async def resume(self) -> None:
        for broker in self.cluster.brokers:
            broker.server.resume()
        await self._answers()

    async def _answers(self) -> None:
        for broker in self.cluster.brokers:
            await broker.server.serves()
        await asyncio.to_thread(wait_until, self._all_are_led, within=2 * PATIENCE, what="leaders of all partitions")

    def _all_are_led(self) -> bool:
        try:
            topics = admin(self.cluster).list_topics(timeout=5).topics.values()
        except KafkaException:
            return False
        return all(each.leader >= 0 for topic in topics for each in topic.partitions.values())


@contextmanager
def brokers(
    directory: Path, nodes: int, more: Mapping[str, str] | None = None, listener: str = "PLAINTEXT"
) -> Iterator[Kafka]:
    """Run so many brokers, with these properties more; skips where Kafka is not there."""
    with or_skipped():
        cluster = Kafka(directory, nodes, more, listener)
    with cluster:
        yield cluster


@contextmanager
def running(directory: Path) -> Iterator[KafkaBench]:
    """Run a broker of our own."""
    with brokers(directory, 1) as cluster:
        yield KafkaBench(cluster)
