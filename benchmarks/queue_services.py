"""What the benchmark of queues runs on: one Kafka broker, a table for each queue, and backlogs of messages.

The broker is the tests' own. As by Kafka's defaults it acknowledges what is in its page cache, without an fsync.
"""

import asyncio
import secrets
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from re import Match
from typing import Final

import asyncpg
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.processes import BenchmarkError, gateway, running
from benchmarks.walk import FIRST_KEY, OVER_ROWS, ROWS
from fencepost.server.ops.protect import protect
from fencepost.server.postgres import queues
from fencepost.server.queues.log import Message, partition_of
from fencepost.server.queues.message import WriteMessage, message_of
from fencepost.testing.servers.kafka import VERSION, Kafka

TOPIC: Final = "writes"
USUAL_TOPIC: Final = "usual"
"""For the usual consumer, which leaves it as it is: what is in TOPIC is a cell's own."""
PARTITIONS: Final = queues.PARTITIONS
"""Of the topic: as many as the log in PostgreSQL has."""
POSTGRES: Final = "postgres:default"
KAFKA: Final = f"kafka:{TOPIC}"
TABLES: Final = {POSTGRES: "queued_in_postgres", KAFKA: "queued_in_kafka"}
"""By queue, the table that takes all its writes by it."""
KAFKA_IS: Final = f"Kafka {VERSION}, one broker, {PARTITIONS} partitions"

_BROKER: Final = {"group.initial.rebalance.delay.ms": "3000"}
"""Kafka's own. The tests' broker has 0: the first of two members would begin with all partitions and the other have its
part some seconds later, when half of a backlog is gone."""
_HELD_AT_ONCE: Final = 500
"""Messages in a transaction: appending takes a lock of each key, and max_locks_per_transaction bounds these."""
_CREATE: Final = "CREATE TABLE {table} (order_id text PRIMARY KEY, status text NOT NULL)"
_FILL: Final = "INSERT INTO {table} SELECT 'order-' || n, 'new' FROM generate_series({first}, {last}) n"


@dataclass(frozen=True, slots=True)
class Services:
    """What runs. `directory`: where logs and temporary files go."""

    dsn: str
    bootstrap: str
    directory: Path

    def consuming(self, queue: str, workers: int) -> AbstractContextManager[Match[str]]:
        """Run `fencepost consume`."""
        command = [*(sys.executable, "-m", "fencepost", "consume", queue), "--member", "bench", *_workers(workers)]
        return running(command, self.directory / "consume.log", r"bench\S* consumes? ", **self._variables())

    def serving(self) -> AbstractContextManager[int]:
        """Run a gateway with one worker, which consumes the queue of the database itself; gives its port."""
        return gateway(self.dsn, self.directory, FENCEPOST_QUEUES=self._variables()["FENCEPOST_QUEUES"])

    def _variables(self) -> dict[str, str]:
        return {
            "FENCEPOST_DATABASE_URL": self.dsn,
            "FENCEPOST_QUEUES": f"kafka://{self.bootstrap}/{TOPIC}",
            "TMPDIR": str(self.directory),
        }


def _workers(count: int) -> tuple[str, str]:
    return "--workers", str(count)


@contextmanager
def services(directory: Path, dsn: str) -> Iterator[Services]:
    """Start the broker, and make topic and tables."""
    with Kafka(directory / "kafka", more=_BROKER, heap_mb=512) as kafka:
        for topic in (TOPIC, USUAL_TOPIC):
            _make_topic(kafka.bootstrap, topic)
        asyncio.run(_make_tables(dsn))
        yield Services(dsn, kafka.bootstrap, directory)


def _make_topic(bootstrap: str, topic: str) -> None:
    client = AdminClient({"bootstrap.servers": bootstrap})
    client.create_topics([NewTopic(topic, PARTITIONS, 1, config={"message.timestamp.type": "LogAppendTime"})])[
        topic
    ].result(30)


async def _make_tables(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        for queue, table in TABLES.items():
            await connection.execute(_CREATE.format(table=table))
            await connection.execute(_FILL.format(table=table, first=FIRST_KEY, last=FIRST_KEY + ROWS - 1))
            await protect(connection, table, queue=queue)
    finally:
        await connection.close()


def messages(table: str, count: int) -> list[Message]:
    """Make messages as a gateway makes them of PATCH: scattered over the rows of a table, each row in turn."""
    return [
        message_of(
            WriteMessage(
                f"{table}/order-{OVER_ROWS.key(0, step, 1)}",
                "PATCH",
                b'{"status": "paid"}',
                content_type=b"application/json",
                nonce=secrets.token_hex(8),
            )
        )
        for step in range(count)
    ]


async def append(to: Services, queue: str, backlog: Sequence[Message]) -> None:
    """Append messages to a queue, whose consumers do not run."""
    if queue == KAFKA:
        produce(to.bootstrap, TOPIC, backlog)
        return
    connection = await asyncpg.connect(to.dsn)
    try:
        for begin in range(0, len(backlog), _HELD_AT_ONCE):
            await queues.append(connection, [_row(each) for each in backlog[begin : begin + _HELD_AT_ONCE]])
    finally:
        await connection.close()


def _row(message: Message) -> queues.MessageRow:
    return queues.MessageRow(partition_of(message.key, PARTITIONS), message.key, message.headers, message.value)


def produce(bootstrap: str, topic: str, backlog: Sequence[Message]) -> None:
    """Append messages to a topic, as a plain producer does."""
    client = Producer(
        {
            "bootstrap.servers": bootstrap,
            "partitioner": "murmur2_random",
            "enable.idempotence": True,
            "linger.ms": 20,
            "queue.buffering.max.messages": len(backlog) + 1,
        }
    )
    for each in backlog:
        client.produce(topic, each.value, each.key, headers=list(each.headers))
    if left := client.flush(60):
        raise BenchmarkError(f"the broker did not take {left} messages in time")
