"""examples/producer on a real broker: a producer that knows nothing of Fencepost but docs/queue-messages.md."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from fencepost.queues.log import Message
from fencepost.queues.message import nonce_of, read_message
from fencepost.queues.partitioner import partition_of
from fencepost.queues.write_id import parse_write_id
from fencepost.testing.servers.kafka import Kafka
from fencepost.testing.servers.lock_services import MissingServerError

PRODUCER = Path(__file__).parents[2] / "examples" / "producer" / "producer.py"
TOPIC, PARTITIONS = "orders", 5
ORDERS = [f"order-{n}" for n in range(40)] + ["a/b", "50%", "x,y;z", "größe"]


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a broker with the topic; gives its address."""
    admin = pytest.importorskip("confluent_kafka.admin", reason="no confluent-kafka: pip install '.[kafka]'")
    try:
        kafka = Kafka(tmp_path_factory.mktemp("kafka"))
    except MissingServerError as missing:
        pytest.skip(str(missing))
    with kafka:
        client = admin.AdminClient({"bootstrap.servers": kafka.bootstrap})
        client.create_topics([admin.NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(60)
        yield kafka.bootstrap


@pytest.mark.long("tests with kafka")
def test_the_producer_of_the_example_writes_messages_that_are_read_and_in_the_right_partition(brokers: str) -> None:
    lines = "".join(json.dumps({"order_id": order, "amount": n}) + "\n" for n, order in enumerate(ORDERS))
    done = subprocess.run(
        [sys.executable, PRODUCER, brokers, TOPIC], input=lines, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    received = taken(brokers, len(ORDERS))
    printed = [line.rsplit(" ", 1) for line in done.stdout.splitlines()]
    ids = {name: parse_write_id(write_id) for name, write_id in printed}
    for message, partition in received:
        named = ids.pop(message.key.decode())
        assert (named.queue, named.position.partition, named.nonce) == (f"kafka:{TOPIC}", partition, nonce_of(message))
        assert partition == partition_of(message.key, PARTITIONS), message.key
    read = [read_message(message) for message, _ in received]
    assert {(write.method, write.named.table) for write in read} == {("PATCH", "orders")}
    assert not ids
    amounts = {write.named.key: json.loads(write.body or b"")["amount"] for write in read}
    assert amounts == {(order,): n for n, order in enumerate(ORDERS)}


def taken(brokers: str, count: int) -> list[tuple[Message, int]]:
    """Take so many messages, each with its partition."""
    import confluent_kafka  # noqa: PLC0415 - an extra, which `brokers` has looked for

    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": brokers, "group.id": "test", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    consumer.subscribe([TOPIC])
    found: list[tuple[Message, int]] = []
    while len(found) < count:
        (message,) = consumer.consume(1, timeout=60)
        assert message.error() is None
        key, value, partition, headers = message.key(), message.value(), message.partition(), message.headers()
        assert key is not None
        assert partition is not None
        found.append((Message(key, value, tuple(cast("list[tuple[str, bytes]]", headers))), partition))
    consumer.close()
    return found
