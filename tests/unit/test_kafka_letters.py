"""How large the record of a dead letter is, beside its message."""

import pytest

from fencepost.queues.kafka.letters import LEAVES_OUT, MORE_THAN_ITS_MESSAGE, record_of
from fencepost.queues.kafka.url import read_url
from fencepost.queues.log import DeadLetter, Message, Position

SETTINGS = read_url("kafka://h:9092/orders")
FRAMING = 32
"""Bytes that the lengths of a record and of one header take, at most."""


def size(message: Message) -> int:
    headers = sum(len(name) + len(value) + FRAMING for name, value in message.headers)
    return len(message.key) + len(message.value or b"") + headers + FRAMING


@pytest.mark.parametrize("reason", ["short", "a" * 10**6, "ü" * 10**6, "\ud800" * 10**5])
@pytest.mark.parametrize("key", [b"orders/k0", b"k" * 10**6])
def test_a_letter_is_not_much_larger_than_its_message(reason: str, key: bytes) -> None:
    message = Message(key, b"x" * 10**6, (("method", b"PATCH"), ("trace", b"y" * 10**6)))
    letter = DeadLetter("kafka:orders.1.2." + "0" * 32, reason, Position(1, 2), message, 1.7e9)
    sizes = [size(record_of(letter, SETTINGS, left_out)) for left_out in LEAVES_OUT]
    assert size(message) < sizes[0] < size(message) + MORE_THAN_ITS_MESSAGE
    assert sizes[0] > sizes[1] > sizes[2]
    assert sizes[2] < MORE_THAN_ITS_MESSAGE


def test_a_letter_says_what_it_leaves_out_and_where_that_is() -> None:
    letter = DeadLetter("id", "a reason", Position(1, 2), Message(b"orders/k0", b"x"), 1.7e9)
    headers = dict(record_of(letter, SETTINGS, "value").headers)
    assert headers["fencepost-dead-left-out"] == b"value"
    assert headers["fencepost-dead-reason"] == (
        b"a reason (the letter was too large for orders.dead, and has no value of the message, which is at offset 2 of"
        b" partition 1 of orders)"
    )
    whole = dict(record_of(letter, SETTINGS, "").headers)
    assert "fencepost-dead-left-out" not in whole
    assert whole["fencepost-dead-reason"] == b"a reason"
