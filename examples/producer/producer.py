"""Queues writes of orders by Kafka alone: python producer.py BROKERS TOPIC < orders.jsonl

Each line is a JSON object with order_id and the columns to change. Prints the id of each write.
"""

import json
import secrets
import sys
from functools import partial

from confluent_kafka import KafkaError, Message, Producer


def kept(nonce: str, error: KafkaError | None, message: Message) -> None:
    if error is not None:
        sys.exit(f"{message.key()!r} was not kept: {error}")
    print(message.key().decode(), f"kafka:{topic}.{message.partition()}.{message.offset()}.{nonce}")


def encoded(value: str) -> str:
    """As Fencepost writes values in the names of resources: these four characters percent-encoded, % first."""
    return value.replace("%", "%25").replace("/", "%2F").replace(",", "%2C").replace(";", "%3B")


brokers, topic = sys.argv[1:]
# murmur2_random: librdkafka's default chooses other partitions than Fencepost, which refuses those messages.
# enable.idempotence: messages keep their order when a broker's answer is lost; it sets acks=all.
producer = Producer({"bootstrap.servers": brokers, "partitioner": "murmur2_random", "enable.idempotence": True})
for line in sys.stdin:
    order = json.loads(line)
    key = f"orders/{encoded(order.pop('order_id'))}"
    # write-nonce: should the producer append the message twice after all, the second one has no effect.
    nonce = secrets.token_hex(8)
    headers = {"method": "PATCH", "write-nonce": nonce}
    producer.produce(topic, json.dumps(order), key, headers=headers, on_delivery=partial(kept, nonce))
    producer.poll(0)
producer.flush()
