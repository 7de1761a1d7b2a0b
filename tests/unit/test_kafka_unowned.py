"""What a member of a Kafka group was given, as bytes."""

import pytest

from fencepost.queues.kafka.unowned import assigned

TWO = b"\0\3\0\0\0\2\0\6orders\0\0\0\2\0\0\0\0\0\0\0\5\0\3b\xc3\xa9\0\0\0\1\0\0\1\0\xff\xff\xff\xff"


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        (TWO, [("orders", 0), ("orders", 5), ("bé", 256)]),
        (b"\0\3\0\0\0\0\xff\xff\xff\xff", []),
        (b"", []),
    ],
)
def test_an_assignment_is_topics_and_their_partitions(assignment: bytes, expected: list[tuple[str, int]]) -> None:
    assert list(assigned(assignment)) == expected
