"""Reads the topic of the dead letters, from its beginning to its end, and keeps in memory the ids and where they are.

It may be large: how far it was read is kept when a call fails, and the next one goes on from there. A call fails when
nothing comes for some seconds, however long all of it takes.

Its calls of librdkafka wait: they are for a thread.
"""

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as KafkaMessage

from fencepost.server.queues.kafka.errors import NO_TOPIC, made, place
from fencepost.server.queues.kafka.messages import place_of
from fencepost.server.queues.kafka.url import KafkaSettings
from fencepost.server.queues.log import LogUnavailableError
from fencepost.server.queues.write_id import MalformedWriteIdError, parse_write_id

SILENT_S: Final = 10.0
"""A read fails after so many seconds without a record."""
_ANSWERS_WITHIN_S: Final = 5.0
_LOOKS_EVERY_S: Final = 0.2
_AT_ONCE: Final = 1000


class DeadTopic:
    """The ids that are there, oldest first, each with the partition and offset of its letter."""

    def __init__(self, settings: KafkaSettings, silent_s: float = SILENT_S) -> None:
        self._settings, self._silent_s = settings, silent_s
        self._client: Consumer | None = None
        self._stopped = threading.Event()
        self.places: dict[str, tuple[int, int]] = {}
        self.counts: Counter[int] = Counter()
        """How many are there, by the partition of their messages; -1: of keys that are no ids of writes."""
        self.read_to: dict[int, int] = {}
        """By partition, the offset below which all was read."""

    def catch_up(self) -> None:
        """Read to the end. Raises KafkaException, LogUnavailableError."""
        ends = self._ends(self._made())
        if any(self.read_to.get(each, 0) > end for each, end in ends.items()):  # the topic was made again
            self.places, self.counts, self.read_to = {}, Counter(), {}
        behind = {each: end for each, end in ends.items() if self.read_to.get(each, 0) < end}
        for record in self._records({each: self.read_to.get(each, 0) for each in behind}, behind):
            self._note(record)
        self.read_to.update(behind)

    def _note(self, record: KafkaMessage) -> None:
        key, where = (record.key() or b"").decode(errors="replace"), place_of(record)
        before = len(self.places)
        if record.value() is None:
            self.places.pop(key, None)
        else:
            self.places[key] = (where.partition, where.offset)
        self.counts[_partition_of(key)] += len(self.places) - before
        self.read_to[where.partition] = where.offset + 1

    def _made(self) -> Consumer:
        if self._client is None:
            self._client = made(self._settings, Consumer, self._settings.of_reader())
        return self._client

    def _ends(self, client: Consumer) -> dict[int, int]:
        """Ask where the topic's partitions end; none where it is not there."""
        topic = self._settings.dead_topic
        found = client.list_topics(topic, timeout=_ANSWERS_WITHIN_S).topics[topic]
        if found.error is not None:
            if found.error.code() in NO_TOPIC:
                return {}
            raise KafkaException(found.error)
        return {
            each: client.get_watermark_offsets(TopicPartition(topic, each), timeout=_ANSWERS_WITHIN_S, cached=False)[1]
            for each in found.partitions
        }

    def _records(self, begins: dict[int, int], ends: dict[int, int]) -> Iterator[KafkaMessage]:
        """Read these partitions from where they begin to before their ends, record by record."""
        if not begins:
            return
        client, topic = self._made(), self._settings.dead_topic
        client.assign([TopicPartition(topic, each, begin) for each, begin in begins.items()])
        open_, heard = set(begins), self.now()
        try:
            while open_:
                self._may_go_on(heard)
                first = client.poll(_LOOKS_EVERY_S)
                for record in () if first is None else (first, *client.consume(_AT_ONCE, 0)):
                    partition, offset, error = record.partition(), record.offset() or 0, record.error()
                    if partition is None or partition not in open_:
                        continue
                    if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's own
                        raise KafkaException(error)
                    heard = self.now()
                    if error is None and offset < ends[partition]:
                        yield record
                    if error is not None or offset + 1 >= ends[partition]:
                        open_.discard(partition)
        finally:
            client.unassign()

    def now(self) -> float:
        """Give the time by which silence is measured; seconds."""
        return time.monotonic()

    def _may_go_on(self, heard: float) -> None:
        """Raise LogUnavailableError where no record came since `heard`, for too long."""
        if self._stopped.is_set():
            raise LogUnavailableError(f"{place(self._settings)} is not open")
        if self.now() - heard > self._silent_s:
            raise LogUnavailableError(
                f"{place(self._settings)}: nothing came of {self._settings.dead_topic} for {self._silent_s:g} s, and it"
                " is not read to its end"
            )

    def read(self, ids: Sequence[str]) -> list[KafkaMessage]:
        """Read the records of these ids, in their order. Raises KafkaException, LogUnavailableError."""
        wanted = [self.places[each] for each in ids]
        begins: dict[int, int] = {}
        ends: dict[int, int] = {}
        for partition, offset in wanted:
            begins[partition] = min(offset, begins.get(partition, offset))
            ends[partition] = max(offset + 1, ends.get(partition, 0))
        chosen = set(wanted)
        found = ((place_of(each), each) for each in self._records(begins, ends))
        records = {here: each for where, each in found if (here := (where.partition, where.offset)) in chosen}
        return [records[where] for where in wanted if where in records]

    def stop(self) -> None:
        """Have a read that runs in another thread end with LogUnavailableError."""
        self._stopped.set()

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


def _partition_of(letter_id: str) -> int:
    try:
        return parse_write_id(letter_id).position.partition
    except MalformedWriteIdError:
        return -1
