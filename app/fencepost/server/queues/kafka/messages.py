"""Kafka's records as messages of a log."""

from confluent_kafka import Message as KafkaMessage

from fencepost.server.queues.log import Message, Position, Received


def message_from(record: KafkaMessage) -> Message:
    """Read key, value and headers of a record. A header without a value has an empty one."""
    found = record.headers() or []
    pairs = found.items() if isinstance(found, dict) else found
    return Message(record.key() or b"", record.value(), tuple([(name, _bytes(value)) for name, value in pairs]))


def received_from(record: KafkaMessage, at: Position, leader_epoch: int | None, turn: int) -> Received:
    """Read a record that a member took in one of its turns with the partition."""
    _, at_ms = record.timestamp()
    return Received(at, message_from(record), at_ms / 1000, leader_epoch, turn)


def place_of(record: KafkaMessage) -> Position:
    """Give the place of a record that came from a partition: librdkafka's types allow for none."""
    partition, offset = record.partition(), record.offset()
    if partition is None or offset is None:
        raise ValueError("a record without a place")
    return Position(partition, offset)


def _bytes(value: str | bytes | None) -> bytes:
    return value.encode() if isinstance(value, str) else value or b""
