"""Finds partitions that no member of the group has, so that the group is made to give out all of them anew.

With cooperative rebalances (KIP-429) a partition changes its member in two assignments: the first takes it from the
one, the second, for which the one that gave it up joins again, gives it to the other. A member that dies between the
two and comes back under its static name (KIP-345) gets its part of the first, and there is no second: the partition has
no member, and nothing is taken from it until another member joins or leaves. So each member looks at the group.
"""

import struct
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from fencepost.server.queues.kafka.errors import LOGGER, BrokerErrors, kafka_error, made, place
from fencepost.server.queues.kafka.url import KafkaSettings

_LOOKS_EVERY_S: Final = 5.0
_ANSWERS_WITHIN_S: Final = 5.0


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
