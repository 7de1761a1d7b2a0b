"""How far a consumer has got with each partition, and what became of its messages since that was last noted."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from fencepost.server.gateway.results import State
from fencepost.server.postgres.queues.progress import Blocked, PartitionProgress
from fencepost.server.queues.log import Received

_REASON: Final = 500
"""Characters of a reason that are noted."""


def noted_reason(reason: str) -> str:
    """Give what is noted of a reason: a server's text may be long, and have a NUL, which no text in PostgreSQL has."""
    return reason[:_REASON].replace("\0", "")


@dataclass(frozen=True, slots=True)
class _Blocked:
    resource: str
    because: str
    since: float


@dataclass(slots=True)
class _Partition:
    begun: dict[int, float] = field(default_factory=dict)
    """Offsets that were taken and are not decided, and when they were appended."""
    beyond: int = 0
    """The offset after the highest one that was taken."""
    applied: int = 0
    refused: int = 0
    failed: int = 0
    redelivered: int = 0
    blocked: dict[int, _Blocked] = field(default_factory=dict)
    """By offset, what is tried in vain."""
    changed: bool = False


class Progress:
    """Of one consumer."""

    def __init__(self) -> None:
        self.generation: int | None = None
        """That of the offsets; None before the log was looked at."""
        self._partitions: dict[int, _Partition] = {}

    def taken(self, received: Iterable[Received]) -> None:
        for each in received:
            partition = self._partitions.setdefault(each.position.partition, _Partition())
            partition.begun[each.position.offset] = each.at
            partition.beyond = max(partition.beyond, each.position.offset + 1)
            partition.changed = True

    def blocked(self, received: Received, reason: str, since: float) -> None:
        """This is tried in vain since then, by the clock that `collect` is given."""
        partition = self._partitions.setdefault(received.position.partition, _Partition())
        resource = received.message.key.decode("utf-8", "replace").replace("\0", "")
        found = _Blocked(resource, noted_reason(reason), since)
        if partition.blocked.get(received.position.offset) != found:
            partition.blocked[received.position.offset] = found
            partition.changed = True

    def decided(self, received: Received, state: State, *, before: bool) -> None:
        """This came to that; `before`: it had been decided before it was taken this time."""
        partition = self._partitions.setdefault(received.position.partition, _Partition())
        if before:
            partition.redelivered += 1
        elif state == "applied":
            partition.applied += 1
        elif state == "refused":
            partition.refused += 1
        else:
            partition.failed += 1
        partition.changed = True

    def done(self, received: Iterable[Received]) -> None:
        for each in received:
            partition = self._partitions.get(each.position.partition)
            if partition is not None:
                partition.begun.pop(each.position.offset, None)
                partition.blocked.pop(each.position.offset, None)
                partition.changed = True

    def left(self, received: Iterable[Received]) -> None:
        """These were given back undecided."""
        self.done(received)

    def lost(self, partitions: Iterable[int]) -> None:
        """These are another member's: what was counted is still noted, and where they are is not."""
        for number in partitions:
            if (partition := self._partitions.get(number)) is not None:
                partition.begun.clear()
                partition.blocked.clear()
                partition.beyond = 0

    def collect(self, now: float) -> list[PartitionProgress]:
        """Give what is to be noted, and begin anew."""
        collected = []
        for number, each in self._partitions.items():
            if not each.changed:
                continue
            decided = min(each.begun, default=each.beyond)
            oldest = min(each.begun.values(), default=None) or None  # 0: its log does not know
            longest = min(each.blocked.values(), key=lambda one: one.since, default=None)
            blocked = Blocked(longest.resource, longest.because, now - longest.since) if longest is not None else None
            counts = (each.applied, each.refused, each.failed, each.redelivered)
            collected.append(PartitionProgress(number, decided, oldest, *counts, blocked))
            each.applied = each.refused = each.failed = each.redelivered = 0
            each.changed = False
        return collected

    def put_back(self, collected: Iterable[PartitionProgress]) -> None:
        """This could not be noted: it is noted next time."""
        for each in collected:
            partition = self._partitions.setdefault(each.partition, _Partition())
            partition.applied += each.applied
            partition.refused += each.refused
            partition.failed += each.failed
            partition.redelivered += each.redelivered
            partition.changed = True
