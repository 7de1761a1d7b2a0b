"""How far a member's partitions are decided, what it has of each, and partitions that nobody has."""

import re
import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from fencepost.server.queues.kafka_settings import (
    LOGGER,
    BrokerErrors,
    Epochs,
    KafkaSettings,
    Label,
    TopicId,
    is_fatal,
    kafka_error,
    label_of,
    made,
    place,
    unavailable,
)
from fencepost.server.queues.log import LogChangedError

# What a member took from its partitions, and what of that is done: a partition's position is committed up to the
# first message that is not.
#
# Two threads use it: the event loop's, where messages are done, and the one that calls librdkafka.


class Finished(NamedTuple):
    """All of a partition below `offset` is done; `leader_epoch` is that of the message before it."""

    partition: int
    offset: int
    leader_epoch: int


@dataclass(slots=True)
class _Partition:
    turn: int
    open: OrderedDict[int, int] = field(default_factory=OrderedDict)
    """Offset and leader epoch of what was taken, in order, from the first that is not done."""
    done: set[int] = field(default_factory=set)
    next: int | None = None
    finished: Finished | None = None


class MemberLedger:
    """The partitions that a member has. Each time that it gets one is a turn of its own: what it took in an earlier
    turn may have been taken by another since.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._partitions: dict[int, _Partition] = {}
        self._turns = 0

    @property
    def partitions(self) -> frozenset[int]:
        with self._lock:
            return frozenset(self._partitions)

    def gained(self, partitions: Iterable[int]) -> None:
        with self._lock:
            for partition in partitions:
                self._turns += 1
                self._partitions[partition] = _Partition(self._turns)

    def lost(self, partitions: Iterable[int]) -> frozenset[int]:
        """End the turns with these, and return those that the member had."""
        with self._lock:
            return frozenset(each for each in partitions if self._partitions.pop(each, None) is not None)

    def taken(self, partition: int, offset: int, leader_epoch: int) -> int | None:
        """Note a message, and return the turn in which it was taken; None when the partition is not the member's."""
        with self._lock:
            found = self._partitions.get(partition)
            if found is None:
                return None
            found.open[offset] = leader_epoch
            found.next = offset + 1
            return found.turn

    def current(self, partition: int, turn: object) -> bool:
        """Whether the member has had the partition without a break since this turn."""
        with self._lock:
            found = self._partitions.get(partition)
            return found is not None and found.turn == turn

    def next(self, partition: int) -> int | None:
        """Give the offset after the last that was taken in this turn; None when none was."""
        with self._lock:
            found = self._partitions.get(partition)
            return None if found is None else found.next

    def done(self, partition: int, offset: int, turn: object) -> None:
        """Note that a message is done; in silence when its turn is over."""
        with self._lock:
            found = self._partitions.get(partition)
            if found is None or found.turn != turn or offset not in found.open:
                return
            found.done.add(offset)
            while found.open and (first := next(iter(found.open))) in found.done:
                found.finished = Finished(partition, first + 1, found.open.pop(first))
                found.done.discard(first)

    def finished(self, partitions: Iterable[int] | None = None) -> list[Finished]:
        """Return what became finished since the last time, of all partitions or of these."""
        with self._lock:
            chosen = self._partitions if partitions is None else {*partitions} & self._partitions.keys()
            found = []
            for partition in chosen:
                each = self._partitions[partition]
                if each.finished is not None:
                    found.append(each.finished)
                    each.finished = None
            return found


# Looks into positions that the log does not have: none committed yet, deleted before they were decided, or lost.
#
# A log that lost what it had acknowledged (an unclean election, brokers restored from an old copy) goes on with other
# messages at the same offsets. When the leader changes librdkafka asks whether the log still has what was read last,
# by its offset and leader epoch (KIP-320). It does not ask so for a committed position: that is looked at here, before
# a partition that was gained is taken from.
#
# Each position is committed with a `Label`: the generation of the source and the id of the topic. What was lost under a
# position of the present generation is a LogChangedError. Under one of an earlier generation the source was raised
# meanwhile, and the member goes on where the log begins to be another. A loss is labelled before it is said: a member
# that ends before the source is quarantined leaves the loss to be found again.

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
        self._gained.update(partitions)

    def astray(self, partition: int, error: KafkaError) -> None:
        """Note what librdkafka said of a partition's position. It may say so after the partition was lost."""
        if partition in self._ledger.partitions:
            self._astray[partition] = error

    def lost(self, partitions: frozenset[int]) -> None:
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


# Finds partitions that no member of the group has, so that the group is made to give out all of them anew.
#
# With cooperative rebalances (KIP-429) a partition changes its member in two assignments: the first takes it from the
# one, the second, for which the one that gave it up joins again, gives it to the other. A member that dies between the
# two and comes back under its static name (KIP-345) gets its part of the first, and there is no second: the partition
# has no member, and nothing is taken from it until another member joins or leaves. So each member looks at the group.

_LOOKS_EVERY_S: Final = 5.0


class Unowned:
    """Looks at the group of a topic, for the member `name`. It is asked by the member's thread, and looks in one of its
    own: all brokers are asked, and one that is away makes it wait.
    """

    def __init__(self, settings: KafkaSettings, brokers: BrokerErrors, name: str) -> None:
        self._settings, self._name = settings, name
        self._client = made(settings, AdminClient, settings.of_admin(), error_cb=brokers.note)
        self._next = time.monotonic() + _LOOKS_EVERY_S
        self._before: frozenset[int] = frozenset()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"kafka-{settings.topic}-group")
        self._looking: Future[frozenset[int]] | None = None

    def found(self) -> frozenset[int]:
        """Give the partitions that had no member at two looks, one after the other, where it is for this member to act.

        At one look they may be on their way from one member to another. To act is for one member: the first by name.
        """
        if self._looking is None:
            if time.monotonic() >= self._next:
                self._looking = self._thread.submit(self._look)
            return frozenset()
        if not self._looking.done():
            return frozenset()
        looking, self._looking, self._next = self._looking, None, time.monotonic() + _LOOKS_EVERY_S
        try:
            now = looking.result()
        except KafkaException as error:  # that brokers are away the consumer says
            LOGGER.info("%s: the group could not be looked at: %s", place(self._settings), kafka_error(error).str())
            now = frozenset()
        twice, self._before = now & self._before, now
        if twice:
            LOGGER.warning("%s: no member has partitions %s: all join anew", place(self._settings), sorted(twice))
        return twice

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _look(self) -> frozenset[int]:
        # Deprecated for describe_consumer_groups. Where the coordinator has just moved, or begun, that one ends the
        # whole process by a failed assertion of librdkafka's (its issue 4605, seen here).
        topic = self._settings.topic
        groups = self._client.list_groups(self._settings.group, timeout=_ANSWERS_WITHIN_S)
        stable = (group for group in groups if group.error is None and group.state == "Stable")
        members: list[Any] = [each for group in stable for each in group.members]  # librdkafka's types say None
        # The id of a static member is its name and a UUID.
        if not members or not min(each.id for each in members).startswith(f"{self._name}-"):
            return frozenset()
        partitions = self._client.list_topics(topic, timeout=_ANSWERS_WITHIN_S).topics[topic].partitions
        owned = {partition for each in members for name, partition in assigned(each.assignment) if name == topic}
        return frozenset(partitions) - owned


def assigned(assignment: bytes) -> Iterator[tuple[str, int]]:
    """Read what a member was given: topics and partitions, in the form of Kafka's ConsumerProtocolAssignment. A member
    that has none yet has no bytes.
    """
    if not assignment:
        return
    topics, at = struct.unpack_from(">hi", assignment)[1], struct.calcsize(">hi")
    for _ in range(topics):
        (length,) = struct.unpack_from(">h", assignment, at)
        topic = assignment[at + 2 : at + 2 + length].decode()
        (count,) = struct.unpack_from(">i", assignment, at := at + 2 + length)
        for partition in struct.unpack_from(f">{count}i", assignment, at + 4):
            yield topic, partition
        at += 4 + 4 * count
