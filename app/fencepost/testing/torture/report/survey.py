"""The first reading of a history: what there is, in counts."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from fencepost.testing.history import End, Event, Fault, Healed, History, Invoke, Note, Outcome

LOCK: Final = "lock/"
MOST_SUBJECTS: Final = 100_000
"""Resources that are counted each by itself; those that come later are counted together."""
MOST_FAULTS: Final = 5_000
"""Faults whose times are kept; all are counted."""
MOST_NOTES: Final = 100


@dataclass(slots=True)
class ResourceTally:
    """The operations on one resource."""

    operations: int = 0
    refused: int = 0
    unknown: int = 0
    first_trouble: int | None = None
    """The id of the first operation that was refused or has no answer."""

    def add(self, other: "ResourceTally") -> None:
        """Count what the other has counted."""
        self.operations += other.operations
        self.refused += other.refused
        self.unknown += other.unknown
        self.first_trouble = other.first_trouble if self.first_trouble is None else self.first_trouble


@dataclass(slots=True)
class FaultSpan:
    """A fault from its beginning until it was undone; `healed` None: until the end of the history."""

    id: int
    kind: str
    target: str
    start: int
    healed: int | None = None
    of_process: bool = False
    """Whether the target is a process that has operations in the history."""


@dataclass(slots=True)
class Survey:
    """The counts of a history."""

    operations: int = 0
    by_op: Counter[tuple[str, Outcome]] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    faults_by_kind: Counter[str] = field(default_factory=Counter)
    faults: list[FaultSpan] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    notes_left_out: int = 0
    tallies: dict[str, ResourceTally] = field(default_factory=dict)
    homes: dict[str, str] = field(default_factory=dict)
    """Which timeline a lock is in: that of the resource which its name ends with, or one of its own."""
    others: ResourceTally = field(default_factory=ResourceTally)
    """What came after `MOST_SUBJECTS` resources, together."""
    start: int | None = None
    end: int | None = None

    @property
    def by_outcome(self) -> Counter[Outcome]:
        """Operations by what they came to."""
        counts: Counter[Outcome] = Counter()
        for (_, outcome), count in self.by_op.items():
            counts[outcome] += count
        return counts

    @property
    def span(self) -> tuple[int, int]:
        """The first and the last moment, in nanoseconds; different ones."""
        start, end = self.start or 0, self.end or 0
        return start, max(end, start + 1)

    def tally(self, resource: str) -> ResourceTally:
        found = self.tallies.get(resource)
        if found is None:
            if len(self.tallies) >= MOST_SUBJECTS:
                return self.others
            found = self.tallies[resource] = ResourceTally()
        return found

    def subject(self, resource: str) -> str:
        """Give the name of the timeline that a resource or lock belongs to."""
        return self.homes.get(resource, resource)

    def house_locks(self) -> None:
        """Put `lock/orders/7`, or `lock/shop/orders/7`, into the timeline of `orders/7`, if there is that resource."""
        for lock in [resource for resource in self.tallies if resource.startswith(LOCK)]:
            parts = lock.split("/")[1:]
            endings = ["/".join(parts[n:]) for n in range(len(parts))]
            self.homes[lock] = next((name for name in endings if name in self.tallies), endings[0])
            self.tallies.setdefault(self.homes[lock], ResourceTally()).add(self.tallies.pop(lock))


def concerns(target: str, process: str) -> bool:
    """Whether a fault of `target` is one of this process: `w1` is the whole of which `w1.3` is a part."""
    return process == target or process.startswith(f"{target}.")


def survey(history: History, wanted: frozenset[str]) -> Survey:
    """Read the history once. `wanted`: resources that are counted each by itself, however many there are."""
    reading = _Reading(wanted)
    for event in history:
        reading.take(event)
    return reading.finished()


class _Reading:
    def __init__(self, wanted: frozenset[str]) -> None:
        self._survey = Survey(tallies={resource: ResourceTally() for resource in sorted(wanted)})
        self._open: dict[int, Invoke] = {}
        self._open_faults: dict[int, FaultSpan] = {}
        self._processes: set[str] = set()

    def take(self, event: Event) -> None:
        seen = self._survey
        if seen.start is None:
            seen.start = event.time
        seen.end = event.time
        if isinstance(event, Invoke):
            self._open[event.id] = event
            self._processes.update((event.process, event.process.rpartition(".")[0]))
            seen.operations += 1
            seen.tally(event.resource).operations += 1
        elif isinstance(event, End):
            self._ended(self._open.pop(event.id), event.event, event.reason)
        elif isinstance(event, Fault):
            self._fault(event)
        elif isinstance(event, Healed):
            if (span := self._open_faults.pop(event.id, None)) is not None:
                span.healed = event.time
        elif len(seen.notes) < MOST_NOTES:
            seen.notes.append(event)
        else:
            seen.notes_left_out += 1

    def finished(self) -> Survey:
        for begin in self._open.values():
            self._ended(begin, "unknown", None)
        for span in self._survey.faults:
            span.of_process = span.target in self._processes
        self._survey.house_locks()
        return self._survey

    def _ended(self, begin: Invoke, outcome: Outcome, reason: str | None) -> None:
        seen = self._survey
        seen.by_op[begin.op, outcome] += 1
        if outcome == "ok":
            return
        tally = seen.tally(begin.resource)
        if outcome == "refused":
            seen.reasons[reason or "other"] += 1
            tally.refused += 1
        else:
            tally.unknown += 1
        tally.first_trouble = begin.id if tally.first_trouble is None else tally.first_trouble

    def _fault(self, event: Fault) -> None:
        seen = self._survey
        seen.faults_by_kind[event.kind] += 1
        if len(seen.faults) < MOST_FAULTS:
            span = FaultSpan(event.id, event.kind, event.target, event.time)
            seen.faults.append(span)
            self._open_faults[event.id] = span
