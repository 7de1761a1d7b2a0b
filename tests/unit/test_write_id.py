"""Ids of writes that go through a log: made, read from their end, and unambiguous."""

import pytest

from fencepost.queues.log import MOST_OFFSET, Message, Position, Received
from fencepost.queues.write_id import MalformedWriteIdError, WriteId, hash_of, parse_write_id

NONCE = "0123456789abcdef"


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (WriteId("postgres:default", Position(3, 17), NONCE), f"postgres:default.3.17.{NONCE}"),
        (WriteId("kafka:orders", Position(0, 0)), "kafka:orders.0.0"),
        (WriteId("kafka:orders.v2.1", Position(4, 5), NONCE), f"kafka:orders.v2.1.4.5.{NONCE}"),
        (WriteId("kafka:orders.1.2", Position(3, 4)), "kafka:orders.1.2.3.4"),
    ],
)
def test_an_id_is_read_as_it_was_made(made: WriteId, text: str) -> None:
    assert str(made) == text
    assert parse_write_id(text) == made


def test_sixteen_digits_at_the_end_are_a_nonce_and_no_offset() -> None:
    digits = "1234567890123456"
    assert parse_write_id(f"kafka:a.1.2.{digits}") == WriteId("kafka:a", Position(1, 2), digits)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "postgres:default.01.2",
        "postgres:default.1.-2",
        f"postgres:default.1.2.{NONCE.upper()}",
        f"postgres:default.1.{MOST_OFFSET + 1}",
        "nats:default.1.2",
        "postgres:default.1.2\n",
        "postgres:default.١.2",  # noqa: RUF001 - digits of another script are no digits here
    ],
)
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(MalformedWriteIdError, match="is no id of a write"):
        parse_write_id(text)


def received(
    at: float = 1.0, key: bytes = b"t/a", value: bytes | None = b"{}", *headers: tuple[str, bytes]
) -> Received:
    return Received(Position(1, 2), Message(key, value, headers), at)


def test_the_hash_of_a_message_is_a_last_part_and_the_same_each_time() -> None:
    assert hash_of("kafka:a", received()) == hash_of("kafka:a", received())
    assert parse_write_id(f"kafka:a.1.2.{hash_of('kafka:a', received())}").nonce == hash_of("kafka:a", received())


@pytest.mark.parametrize(
    "other",
    [
        received(1.0, b"t/b"),
        received(1.0, b"t/a{", b"}"),
        received(1.0, b"t/a", b"{}", ("method", b"PUT")),
    ],
)
def test_another_message_has_another_hash(other: Received) -> None:
    assert hash_of("kafka:a", other) != hash_of("kafka:a", received())
