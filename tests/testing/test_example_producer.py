"""examples/producer on a real broker: producers that know nothing of Fencepost but docs/queue-messages.md."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest
from tests.support.asking import queueing
from tests.support.consuming import settings_of
from tests.support.interleave import Connect
from tests.support.servers import or_skipped

from fencepost.server.ops.protect import protect
from fencepost.server.parts import consumer_of, consuming
from fencepost.server.queues.log import Message, partition_of
from fencepost.server.queues.message import nonce_of, parse_write_id
from fencepost.testing.servers.kafka import Kafka, jars
from fencepost.testing.servers.processes import PATIENCE

PRODUCERS = Path(__file__).parents[2] / "examples" / "producer"
PARTITIONS = 5
ORDERS = [f"order-{n}" for n in range(40)] + ["a/b", "50%", "x,y;z", "größe"]


def in_python() -> list[str]:
    return [sys.executable, str(PRODUCERS / "producer.py")]


def in_java() -> list[str]:
    return ["java", "-Xshare:auto", "-cp", f"{jars()}/*", str(PRODUCERS / "Producer.java")]


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a broker; gives its address."""
    pytest.importorskip("confluent_kafka", reason="no confluent-kafka: pip install '.[kafka]'")
    with or_skipped():
        kafka = Kafka(tmp_path_factory.mktemp("kafka"))
    with kafka:
        yield kafka.bootstrap


@pytest.fixture
def topic(brokers: str, request: pytest.FixtureRequest) -> str:
    """Make a topic of the test's own."""
    admin = pytest.importorskip("confluent_kafka.admin")
    name = f"orders-{request.node.callspec.id}"
    client = admin.AdminClient({"bootstrap.servers": brokers})
    client.create_topics([admin.NewTopic(name, PARTITIONS)])[name].result(60)
    return name


def run(command: list[str], lines: str) -> str:
    """Give lines to a producer, and return what it prints."""
    done = subprocess.run(command, input=lines.encode(), capture_output=True, check=False, timeout=2 * PATIENCE)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


@pytest.mark.long("tests with kafka")
@pytest.mark.parametrize("command", [in_python, in_java])
async def test_what_the_producer_of_the_example_writes_is_in_the_right_partition_and_is_applied(
    brokers: str, topic: str, command: Callable[[], list[str]], database: str, connect: Connect
) -> None:
    lines = "".join(json.dumps({"order_id": order, "n": n}) + "\n" for n, order in enumerate(ORDERS, 1))
    output = await asyncio.to_thread(run, [*command(), brokers, topic], lines)
    received = taken(brokers, topic, len(ORDERS))
    printed = [line.rsplit(" ", 1) for line in output.splitlines()]
    ids = {name: parse_write_id(write_id) for name, write_id in printed}
    for message, partition in received:
        named = ids.pop(message.key.decode())
        assert (named.queue, named.position.partition, named.nonce) == (f"kafka:{topic}", partition, nonce_of(message))
        assert partition == partition_of(message.key, PARTITIONS), message.key
    assert not ids
    owner = await connect()
    await owner.execute("SET search_path = public; CREATE TABLE orders (order_id text PRIMARY KEY, n int)")
    await owner.execute("INSERT INTO orders SELECT unnest($1::text[]), 0", ORDERS)
    await protect(owner, "orders", queue=f"kafka:{topic}")
    settings = settings_of(database, queues=f"kafka://{brokers}/{topic}")
    async with queueing(database, queues=f"kafka://{brokers}/{topic}") as gateway:
        consumer = consumer_of(gateway.gateway, f"kafka:{topic}", settings, "a")
        async with consuming(gateway.gateway, {f"kafka:{topic}": consumer}, settings):
            for name, write_id in printed:
                page = (await gateway.api.ask("GET", f"writes/{write_id}?wait=30")).json()
                assert (page["state"], page["answer"]["status"]) == ("applied", 200), (name, page)
    rows = await owner.fetch("SELECT order_id, n FROM orders")
    assert {row["order_id"]: row["n"] for row in rows} == {order: n for n, order in enumerate(ORDERS, 1)}


def taken(brokers: str, topic: str, count: int) -> list[tuple[Message, int]]:
    """Take so many messages, each with its partition."""
    import confluent_kafka  # noqa: PLC0415 - an extra, which `brokers` has looked for

    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": brokers, "group.id": "test", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    consumer.subscribe([topic])
    found: list[tuple[Message, int]] = []
    while len(found) < count:
        (message,) = consumer.consume(1, timeout=2 * PATIENCE)
        assert message.error() is None
        key, value, partition, headers = message.key(), message.value(), message.partition(), message.headers()
        assert key is not None
        assert partition is not None
        found.append((Message(key, value, tuple(cast("list[tuple[str, bytes]]", headers))), partition))
    consumer.close()
    return found
