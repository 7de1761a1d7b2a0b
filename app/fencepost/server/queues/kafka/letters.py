"""Dead letters as records of `<topic>.dead`: the key is the id of the write, the value is the message's.

A letter keeps the headers of its message. Headers that begin with `fencepost-dead-` say the rest. A letter that the
topic does not take, because it is too large, leaves out the value of its message, then the headers too: the message is
still in the log, at the place that the letter names.
"""

from typing import Final

from confluent_kafka import Message as KafkaMessage

from fencepost.server.queues.kafka.messages import message_from
from fencepost.server.queues.kafka.url import KafkaSettings
from fencepost.server.queues.log import DeadLetter, Headers, Message, Position

_REASON: Final = "fencepost-dead-reason"
_PARTITION: Final = "fencepost-dead-partition"
_OFFSET: Final = "fencepost-dead-offset"
_KEY: Final = "fencepost-dead-key"
_AT: Final = "fencepost-dead-at"
_NO_VALUE: Final = "fencepost-dead-no-value"
"""There when the message had no value: a record without one would remove the letter."""
_LEFT_OUT: Final = "fencepost-dead-left-out"
"""There when the letter does not have all of its message: what it left out."""
_OURS: Final = frozenset({_REASON, _PARTITION, _OFFSET, _KEY, _AT, _NO_VALUE, _LEFT_OUT})

EVERYTHING: Final = ""
VALUE: Final = "value"
VALUE_AND_HEADERS: Final = "value and headers"
LEAVES_OUT: Final = (EVERYTHING, VALUE, VALUE_AND_HEADERS)
"""What a letter leaves out of its message, from nothing on; each is smaller than the one before."""
_MOST_REASON: Final = 16_384
_MOST_KEY: Final = 16_384
"""Bytes of a reason, and of a key where the headers are left out. A reason may quote a value, and another program's
message may have any key.
"""
MORE_THAN_ITS_MESSAGE: Final = 65_536
"""A letter is larger than its message by less than so many bytes."""


def record_of(letter: DeadLetter, settings: KafkaSettings, left_out: str) -> Message:
    """Make the record of a letter, without this of its message."""
    message, where = letter.message, letter.position
    reason, key = letter.reason, message.key
    if left_out:
        reason = (
            f"{_cut(reason, _MOST_REASON // 2)} (the letter was too large for {settings.dead_topic}, and has no"
            f" {left_out.replace(' and ', ' and no ')} of the message, which is at offset {where.offset} of partition"
            f" {where.partition} of {settings.topic})"
        )
    if left_out == VALUE_AND_HEADERS:
        key = key[:_MOST_KEY]
    headers: Headers = (
        *(() if left_out == VALUE_AND_HEADERS else message.headers),
        (_REASON, _cut(reason, _MOST_REASON).encode()),
        (_PARTITION, b"%d" % where.partition),
        (_OFFSET, b"%d" % where.offset),
        (_KEY, key),
        (_AT, repr(letter.at).encode()),
        *(((_NO_VALUE, b"1"),) if message.value is None or left_out else ()),
        *(((_LEFT_OUT, left_out.encode()),) if left_out else ()),
    )
    return Message(letter.id.encode(), b"" if message.value is None or left_out else message.value, headers)


def letter_from(record: KafkaMessage) -> DeadLetter:
    """Read a letter. What another program wrote there has the reason that it is none of Fencepost's."""
    stored = message_from(record)
    ours = {name: value for name, value in stored.headers if name in _OURS}
    headers: Headers = tuple((name, value) for name, value in stored.headers if name not in _OURS)
    id_ = stored.key.decode(errors="replace")
    try:
        where = Position(int(ours[_PARTITION]), int(ours[_OFFSET]))
        at, reason, key = float(ours[_AT]), ours[_REASON].decode(errors="replace"), ours[_KEY]
    except (KeyError, ValueError):
        where = Position(record.partition() or 0, record.offset() or 0)
        return DeadLetter(id_, "not written by Fencepost", where, stored, record.timestamp()[1] / 1000)
    message = Message(key, None if _NO_VALUE in ours else stored.value, headers)
    return DeadLetter(id_, reason, where, message, at, ours.get(_LEFT_OUT, b"").decode(errors="replace"))


def _cut(text: str, most: int) -> str:
    """Cut a text to so many bytes of UTF-8."""
    return text.encode(errors="replace")[:most].decode(errors="ignore")
