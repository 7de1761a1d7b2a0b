"""The servers of a queue's log, each of which can be killed."""

import asyncio
import itertools
import json
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from tests.conformance.queues.kafka_bench import make_topic, url_of
from tests.conformance.queues.kafka_secured import secured_broker
from tests.conformance.redis_bench import redis_server
from tests.support.servers import self_signed

from fencepost.testing.servers.kafka import Kafka
from fencepost.testing.servers.lock_services import DURABLE, redis
from fencepost.testing.servers.processes import PATIENCE, free_port
from fencepost.testing.servers.server import Server

PARTITIONS = 6
THREE = "kafka-three"
"""Kafka with three brokers, of which any two serve."""
KINDS = ("postgres", "kafka", "redis")
"""One of each log; postgres: the database itself is the log."""
OneKafka = Callable[[], Kafka]
"""Starts a Kafka with one broker, when it is called for the first time, for all tests that do not harm it."""
_topics = itertools.count(1)
SECURED = ("kafka-secured", "redis-secured")
"""Servers that take TLS only; Kafka's with a user and a password, too."""


@dataclass(frozen=True, slots=True)
class LogServers:
    """`queue`: the name of the queue; `url`: as FENCEPOST_QUEUES has it. `servers`: what can be killed, by name.
    `spare`: how many of them may be away while the others serve. `topic`: of Kafka.
    """

    queue: str
    url: str | None = None
    servers: dict[str, Server] = field(default_factory=dict)
    kafka: Kafka | None = None
    spare: int = 0
    topic: str = "orders"

    def places(self) -> dict[str, set[int]]:
        """Read at which offsets of Kafka's topic each tag stands; nothing of other logs, which have each once."""
        if self.kafka is None:
            return {}
        found: defaultdict[str, set[int]] = defaultdict(set)
        settings = {"group.id": "oracle", "enable.auto.commit": False, "enable.partition.eof": True}
        reader = Consumer({**settings, "bootstrap.servers": self.kafka.bootstrap})
        reader.assign([TopicPartition(self.topic, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
        left = set(range(PARTITIONS))
        while left:
            message = reader.poll(PATIENCE)
            assert message is not None, f"partitions {left} were not read to their ends"
            error, value, offset = message.error(), message.value(), message.offset()
            if error is None:
                assert value is not None
                assert offset is not None
                found[json.loads(value)["tag"]].add(offset)
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - that is its name
                left.discard(message.partition())
        reader.close()
        return found


async def log_servers(kind: str, directory: Path, stack: ExitStack, one_kafka: OneKafka | None) -> LogServers:
    """Run what a log of this kind needs; `stack` ends it. `one_kafka`: in place of a Kafka of its own."""
    if kind == "postgres":
        return LogServers("postgres:default")
    if kind == "redis":
        service = redis(directory / "redis")
        stack.callback(service.server.crash)
        service.server.start()
        await service.server.serves()
        url = f"{service.url.removesuffix('/0')}/orders?partitions={PARTITIONS}"
        return LogServers("redis:orders", url, {"redis": service.server})
    if kind == "redis-secured":
        certificate, port = self_signed(directory), free_port()
        pair = ("--tls-cert-file", str(certificate), "--tls-key-file", str(certificate.with_name("key.pem")))
        options = ("--tls-port", str(port), "--tls-auth-clients", "no", *pair)
        stack.enter_context(redis_server(directory / "redis", free_port(), *DURABLE, *options))
        return LogServers("redis:orders", f"rediss://127.0.0.1:{port}/orders?ca={certificate}")
    if kind == "kafka-secured":
        secured = stack.enter_context(secured_broker(directory))
        await asyncio.to_thread(secured.make_topic, "orders", PARTITIONS)
        return LogServers("kafka:orders", secured.url("orders", "SCRAM-SHA-512"))
    if kind == THREE or one_kafka is None:
        return await _kafka(stack.enter_context(Kafka(directory / "kafka", 3 if kind == THREE else 1)))
    return await _kafka(one_kafka())


async def _kafka(kafka: Kafka) -> LogServers:
    nodes, topic = len(kafka.brokers), f"orders-{next(_topics)}"
    everywhere = [[(first + next_) % nodes + 1 for next_ in range(nodes)] for first in range(PARTITIONS)]
    in_sync = nodes // 2 + 1
    config = {"min.insync.replicas": str(in_sync)}
    await asyncio.to_thread(make_topic, kafka, topic, PARTITIONS, config, everywhere)
    servers = {f"broker-{each.node}": each.server for each in kafka.brokers}
    return LogServers(f"kafka:{topic}", url_of(kafka, topic), servers, kafka, spare=nodes - in_sync, topic=topic)
