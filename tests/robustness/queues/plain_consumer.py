"""A consumer as most would write it, for the control: each message is an UPDATE with a commit of its own, and its
offset is committed afterwards. There is no fence, and no record of what was applied.

`python -m tests.robustness.queues.plain_consumer BOOTSTRAP TOPIC DATABASE`
"""

import json
import sys

import psycopg
from confluent_kafka import Consumer, KafkaException


def main(bootstrap: str, topic: str, database: str) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap, "group.id": "plain", "session.timeout.ms": 3000,
            "heartbeat.interval.ms": 300, "auto.offset.reset": "earliest", "enable.auto.commit": False,
        }
    )  # fmt: skip
    consumer.subscribe([topic])
    connection = psycopg.connect(database, autocommit=True)
    while True:
        # Waits until so many are there: of few in hand it might have done all before it is stopped.
        for message in consumer.consume(100, 2):
            if message.error() is not None:
                continue
            key, value = message.key() or b"", json.loads(message.value() or b"")
            connection.execute("UPDATE orders SET tag = %s WHERE id = %s", (value["tag"], key.decode().split("/")[1]))
            try:
                consumer.commit(message=message, asynchronous=False)
            except KafkaException as error:
                print(error, flush=True)  # noqa: T201 - the process's log


if __name__ == "__main__":
    main(*sys.argv[1:])
