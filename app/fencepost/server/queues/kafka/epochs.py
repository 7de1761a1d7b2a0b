"""Reads which leader wrote the messages at given offsets, and when. Its calls of librdkafka wait: for a thread.

All messages of one leader epoch were written by one leader, and epochs never fall within a log. So a log that has a
higher epoch before a committed position than the position has is another one from there on.
"""

import time
from types import TracebackType
from typing import Final, NamedTuple, Self

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, KafkaException, Message, TopicPartition

from fencepost.server.queues.kafka.errors import made, place
from fencepost.server.queues.kafka.url import KafkaSettings
from fencepost.server.queues.log import LogUnavailableError

_READS_WITHIN_S: Final = 5.0


class Written(NamedTuple):
    """The message at an offset, or the next one there is; `leader_epoch` -1 where the broker does not say it."""

    offset: int
    leader_epoch: int
    at: float | None
    """When it was appended, in seconds since the epoch; None: it does not say."""


class Epochs:
    """A consumer that reads single messages; a context manager."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._client = made(settings, Consumer, settings.of_reader())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._client.close()

    def at(self, offsets: dict[int, int]) -> dict[int, Written | None]:
        """Read the message at an offset of each of these partitions; None where the log ends before. Raises
        KafkaException, LogUnavailableError.
        """
        topic, until = self._settings.topic, time.monotonic() + _READS_WITHIN_S
        self._client.assign([TopicPartition(topic, partition, offset) for partition, offset in offsets.items()])
        found: dict[int, Written | None] = {}
        while len(found) < len(offsets):
            if time.monotonic() > until:
                raise LogUnavailableError(
                    f"{place(self._settings)}: committed positions could not be looked at in time"
                )
            record = self._client.poll(0.2)
            if record is None or record.partition() is None or record.partition() in found:
                continue
            partition, offset, error = record.partition() or 0, record.offset() or 0, record.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's own
                raise KafkaException(error)
            # A position beyond the end is none: the reader begins at the start then.
            beyond = error is not None or offset < offsets[partition]
            found[partition] = None if beyond else _written(record, offset)
        self._client.unassign()
        return found

    def first_after(self, partition: int, epoch: int, low: int, high: int) -> int:
        """Find the first offset from `low` to `high` that a later leader than `epoch` wrote; `high` where none is."""
        while low < high:
            middle = (low + high) // 2
            written = self.at({partition: middle})[partition]
            if written is None or written.leader_epoch > epoch:
                high = middle
            else:
                low = written.offset + 1
        return low


def _written(record: Message, offset: int) -> Written:
    epoch, (kind, at_ms) = record.leader_epoch(), record.timestamp()
    return Written(offset, -1 if epoch is None else epoch, None if kind == TIMESTAMP_NOT_AVAILABLE else at_ms / 1000)
