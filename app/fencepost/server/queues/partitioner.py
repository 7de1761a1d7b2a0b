"""Which partition a key belongs to: murmur2, as Kafka's Java client has it, for every kind of log.

All writes of a resource must be in one partition, since only there they are in order; so every producer has to choose
alike. librdkafka's own default is another one: its producers set `partitioner=murmur2_random`.
"""

from struct import Struct
from typing import Final

_SEED: Final = 0x9747B28C
_FACTOR: Final = 0x5BD1E995
_SHIFT: Final = 24
_32_BITS: Final = 0xFFFFFFFF
_WORDS: Final = Struct("<I")


def murmur2(key: bytes) -> int:
    """Hash a key to 32 bits."""
    length = len(key)
    hashed = _SEED ^ length
    whole = length - length % 4
    for (word,) in _WORDS.iter_unpack(key[:whole]):
        # Integers of Python have no width: only what is shifted right, or returned, must be cut to 32 bits.
        scattered = word * _FACTOR & _32_BITS
        hashed = (hashed * _FACTOR ^ (scattered ^ scattered >> _SHIFT) * _FACTOR) & _32_BITS
    if length > whole:
        hashed = (hashed ^ int.from_bytes(key[whole:], "little")) * _FACTOR & _32_BITS
    hashed = (hashed ^ hashed >> 13) * _FACTOR & _32_BITS
    return hashed ^ hashed >> 15


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of a key, 0 to partitions - 1."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
