"""Looks into positions that the log does not have: none committed yet, deleted before they were decided, or lost.

A log that lost what it had acknowledged (an unclean election, brokers restored from an old copy) goes on with other
messages at the same offsets. When the leader changes librdkafka asks whether the log still has what was read last, by
its offset and leader epoch (KIP-320). It does not ask so for a committed position: that is looked at here, before a
partition that was gained is taken from.

Each position is committed with a label (labels.py): the generation of the source and the id of the topic. What was lost
under a position of the present generation is a LogChangedError. Under one of an earlier generation the source was
raised meanwhile, and the member goes on where the log begins to be another. A loss is labelled before it is said: a
member that ends before the source is quarantined leaves the loss to be found again.
"""

import re
from collections.abc import Iterable
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from fencepost.server.queues.kafka.epochs import Epochs
from fencepost.server.queues.kafka.errors import LOGGER, is_fatal, kafka_error, place, unavailable
from fencepost.server.queues.kafka.labels import Label, TopicId, label_of
from fencepost.server.queues.kafka.ledger import Finished, MemberLedger
from fencepost.server.queues.kafka.url import KafkaSettings
from fencepost.server.queues.log import LogChangedError

_ANSWERS_WITHIN_S: Final = 5.0
_DIVERGED_AT: Final = re.compile(r"truncation.*end offset is (\d+)")


class Positions:
    """The partitions of one member whose positions are to be looked into. Used by the member's thread only."""

    def __init__(self, settings: KafkaSettings, client: Consumer, ledger: MemberLedger) -> None:
        self._settings, self._client, self._ledger = settings, client, ledger
        self._astray: dict[int, KafkaError | None] = {}
        self._gained: set[int] = set()
        self._topic_id = TopicId(settings)

    @property
    def pending(self) -> bool:
        """Whether something is to be looked at."""
        return bool(self._gained or self._astray)

    @property
    def unseen(self) -> frozenset[int]:
        """Partitions from which nothing may be taken yet. They were paused when they were gained, and stay so until
        their positions are right.
        """
        return frozenset(self._gained | self._astray.keys())

    def labelled(self, finished: Finished, generation: int) -> TopicPartition:
        label = Label(generation, self._topic_id.last)
        where = (self._settings.topic, finished.partition, finished.offset)
        return TopicPartition(*where, metadata=str(label), leader_epoch=finished.leader_epoch)

    def gained(self, partitions: Iterable[int]) -> None:
        """Note partitions whose committed positions are to be looked at."""
        self._gained.update(partitions)

    def astray(self, partition: int, error: KafkaError) -> None:
        """Note what librdkafka said of a partition's position. It may say so after the partition was lost."""
        if partition in self._ledger.partitions:
            self._astray[partition] = error

    def lost(self, partitions: frozenset[int]) -> None:
        """Forget partitions that the member no longer has."""
        for partition in partitions:
            self._astray.pop(partition, None)
            self._gained.discard(partition)

    def find(self, generation: int) -> LogChangedError | None:
        """Let each of them go on from where it is right, or return what the log lost. All of them are noted first, so
        that one raise lets all go on. Raises LogUnavailableError: it is looked into again at the next call;
        KafkaException: this client is of no use any more.
        """
        first: LogChangedError | None = None
        try:
            if self._gained:
                self._look(generation)
            for partition, error in list(self._astray.items()):
                changed = self._find(partition, error, generation)
                if changed is None:
                    del self._astray[partition]
                elif first is None:
                    first = changed
        except KafkaException as failed:
            if is_fatal(kafka_error(failed)):
                raise
            raise unavailable(self._settings, failed) from None
        return first

    def _look(self, generation: int) -> None:
        """See whether what was committed was so by the log that is there; the others are astray."""
        topic, partitions, topic_id = self._settings.topic, sorted(self._gained), self._topic_id.ask()
        asked = [TopicPartition(topic, each) for each in partitions]
        committed = {each.partition: each for each in self._client.committed(asked, timeout=_ANSWERS_WITHIN_S)}
        labels = {each: label_of(at) for each, at in committed.items() if at.offset >= 0}
        others = {each for each, label in labels.items() if label is not None and label.topic_id != topic_id}
        self._astray.update(dict.fromkeys(others | self._overwritten(committed, others)))
        others = {each for each, label in labels.items() if label != Label(generation, topic_id)}
        self._relabel([committed[each] for each in others - self._astray.keys()], generation)
        self._gained.clear()

    def _relabel(self, committed: list[TopicPartition], generation: int) -> None:
        """Commit positions of an earlier generation, which are right, as those of this one."""
        right = []
        for at in committed:
            low, high = self._client.get_watermark_offsets(
                TopicPartition(at.topic, at.partition), timeout=_ANSWERS_WITHIN_S, cached=False
            )
            if low <= at.offset <= high:
                right.append(self.labelled(Finished(at.partition, at.offset, _epoch(at)), generation))
            else:
                self._astray[at.partition] = None
        if right:
            self._client.commit(offsets=right, asynchronous=False)

    def _overwritten(self, committed: dict[int, TopicPartition], others: set[int]) -> set[int]:
        """Find the partitions of this topic that have other messages now before what was committed."""
        known = {
            each: epoch
            for each, at in committed.items()
            if each not in others and at.offset > 0 and (epoch := _epoch(at)) >= 0
        }
        if not known:
            return set()
        with Epochs(self._settings) as epochs:
            written = epochs.at({each: committed[each].offset - 1 for each in known})
        return {
            each
            for each, found in written.items()
            if found is None or (found.offset < committed[each].offset and found.leader_epoch > known[each])
        }

    def _find(self, partition: int, error: KafkaError | None, generation: int) -> LogChangedError | None:
        here = TopicPartition(self._settings.topic, partition)
        low, high = self._client.get_watermark_offsets(here, timeout=_ANSWERS_WITHIN_S, cached=False)
        committed = self._client.committed([here], timeout=_ANSWERS_WITHIN_S)[0]
        label, taken_to = label_of(committed), self._ledger.next(partition)
        expected = committed.offset if taken_to is None else taken_to
        if expected < 0:
            LOGGER.info("%s: nothing is committed of partition %d: from %d on", place(self._settings), partition, low)
            self._move(partition, low)
            return None
        if label is not None and label.topic_id != self._topic_id.last:
            begin, loss = self._made_again(expected, low)
        else:
            begin, loss = self._judged(error, expected, low, high, committed)
        if loss is None:
            self._move(partition, expected)
            return None
        if taken_to is not None or label is None or label.generation >= generation:
            self._note(committed, low, label, generation)
            return LogChangedError(f"{place(self._settings)}, partition {partition}: {loss}")
        LOGGER.warning("%s: partition %d goes on from %d: %s", place(self._settings), partition, begin, loss)
        self._client.commit(offsets=[self.labelled(Finished(partition, begin, -1), generation)], asynchronous=False)
        self._move(partition, begin)
        return None

    def _note(self, committed: TopicPartition, low: int, label: Label | None, generation: int) -> None:
        """Label the committed position, which stays what it is, with the generation in which the loss was found."""
        noted = Label(generation, self._topic_id.last if label is None else label.topic_id)
        where = (committed.topic, committed.partition, low if committed.offset < 0 else committed.offset)
        at = TopicPartition(*where, metadata=str(noted), leader_epoch=_epoch(committed))
        self._client.commit(offsets=[at], asynchronous=False)

    @staticmethod
    def _made_again(expected: int, low: int) -> tuple[int, str | None]:
        return low, f"it was deleted and made again: it had been read up to {expected} before, and goes on from {low}"

    def _judged(
        self, error: KafkaError | None, expected: int, low: int, high: int, committed: TopicPartition
    ) -> tuple[int, str | None]:
        """Say where to go on, and what the log lost; None when it lost nothing. `error` None: its epochs say so."""
        if expected < low:
            return low, (
                f"messages {expected} to {low - 1} were deleted before they were decided: by its retention, or by hand"
            )
        diverged = None if error is None else _DIVERGED_AT.search(error.str())
        if error is not None and diverged is None and expected <= high:
            return expected, None
        if diverged is not None:
            begin = int(diverged[1])
        elif (epoch := _epoch(committed)) >= 0:
            with Epochs(self._settings) as epochs:
                begin = epochs.first_after(committed.partition, epoch, low, min(expected, high))
        else:
            begin = high
        if begin >= expected:  # said of a position before the one that it has now
            return expected, None
        return max(low, min(begin, high)), (
            f"it lost messages that it had acknowledged: it was read up to {expected}, and goes on from {begin} with"
            " others: an unclean election, or brokers that were restored from a copy"
        )

    def _move(self, partition: int, offset: int) -> None:
        """Take from there. librdkafka seeks in no partition whose position was refused: it is assigned anew. It may
        have been unassigned already, by a call that was interrupted between the two, or by the end of its topic.
        """
        there = TopicPartition(self._settings.topic, partition, offset)
        unassign(self._client, [there])
        self._client.incremental_assign([there])


def unassign(client: Consumer, partitions: Iterable[TopicPartition]) -> None:
    """Unassign those of these partitions that are assigned: librdkafka refuses all where one is not. The call is made
    also where none is: librdkafka may wait for it, and confluent-kafka would make it, with all of them, for a callback
    that did not.
    """
    assigned = {each.partition for each in client.assignment()}
    client.incremental_unassign([each for each in partitions if each.partition in assigned])


def _epoch(position: TopicPartition) -> int:
    """Give the leader epoch of a committed position; -1 where it has none."""
    epoch: int | None = position.leader_epoch
    return -1 if epoch is None else epoch
