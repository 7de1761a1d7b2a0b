"""Keys get the partition that Kafka's Java client gives them."""

import pytest

from fencepost.server.queues.log import murmur2, partition_of


@pytest.mark.parametrize(
    ("key", "hashed"),
    [  # org.apache.kafka.common.utils.UtilsTest
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_it_is_the_hash_of_kafkas_own_tests(key: bytes, hashed: int) -> None:
    assert murmur2(key) == hashed % 2**32


def test_the_sign_is_cut_off_before_the_remainder() -> None:
    assert partition_of(b"21", 7) == (-973932308 & 0x7FFFFFFF) % 7
