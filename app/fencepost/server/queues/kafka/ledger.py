"""What a member took from its partitions, and what of that is done: a partition's position is committed up to the
first message that is not.

Two threads use it: the event loop's, where messages are done, and the one that calls librdkafka.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple


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
