"""The register without tokens: the control. Whether one order of its writes and reads explains every answer.

By Gibbons and Korach (Testing shared memories, 1997), for registers whose writes all have different values. A cluster
is a write with the reads that saw its value. Between the earliest end in a cluster and its latest begin its value was
certainly there: if the earliest end comes first, this is a forward zone. Else all of its operations have a moment in
common, somewhere between its latest begin and its earliest end: a backward zone. The history is valid if and only if
every read began before its end could have seen its write, no two forward zones overlap, and no backward zone lies
within a forward one. That needs sorting and one pass, however many writes are under way at once.

A read that saw no row is taken to be of the time before the first write. Where rows are deleted it could be of any
delete; it is not judged then.
"""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field

from fencepost.testing.checker.calls import NEVER, Call
from fencepost.testing.history import NOT_READ, BadHistoryError


@dataclass(slots=True)
class Cluster:
    """A write and the reads that saw it; without a write: the time before the first one."""

    write: Call | None = None
    first_ended: Call | None = None
    last_begun: Call | None = None
    low: int = NEVER
    """The earliest end."""
    high: int = -1
    """The latest begin."""

    def add(self, call: Call) -> None:
        """Take the write, or a read of it."""
        if call.ended < self.low:
            self.low, self.first_ended = call.ended, call
        if call.invoke.time > self.high:
            self.high, self.last_begun = call.invoke.time, call

    @property
    def calls(self) -> list[Call]:
        """Give those calls that make the zone, and the write."""
        found = {id(call): call for call in (self.write, self.first_ended, self.last_begun) if call is not None}
        return list(found.values())


@dataclass(slots=True)
class Accesses:
    """The calls of one resource, by what they are."""

    written: dict[str, Call] = field(default_factory=dict)
    refused: dict[str, Call] = field(default_factory=dict)
    reads: list[tuple[Call, str | None]] = field(default_factory=list)
    deletes: list[Call] = field(default_factory=list)

    def add(self, call: Call) -> None:
        """Take one. Raises BadHistoryError when a value is written a second time."""
        value = call.invoke.value
        if call.invoke.op == "read":
            self.reads += [(call, saw) for saw in _saw(call)]
        elif call.invoke.op == "delete":
            self.deletes += [] if call.refused else [call]
        elif value is not None and call.refused:
            self.refused[value] = call
        elif value is not None:
            if value in self.written:
                raise _same_value(call)
            self.written[value] = call


def contradiction(calls: Iterable[Call]) -> list[Call]:
    """Give calls that no order explains; none when all are explained. The calls are of one resource, without tokens.

    Raises BadHistoryError when two writes have the same value.
    """
    found = Accesses()
    for call in calls:
        found.add(call)
    clusters = {value: _cluster(call) for value, call in found.written.items()}
    before = Cluster(low=-1)
    for read, saw in found.reads:
        if saw is None:
            if not found.deletes:
                before.add(read)
        elif saw not in clusters:
            return [read, *([found.refused[saw]] if saw in found.refused else [])]
        elif read.ended < found.written[saw].invoke.time:
            return [read, found.written[saw]]
        else:
            clusters[saw].add(read)
    deletes = (_cluster(call) for call in found.deletes if call.certain)
    return _overlap([each for each in (before, *clusters.values(), *deletes) if each.low != NEVER])


def _saw(call: Call) -> list[str | None]:
    """Give what a read saw; nothing when its answer is not known."""
    end = call.end
    return [end.value] if end is not None and end.event == "ok" and end.value is not NOT_READ else []


def _cluster(call: Call) -> Cluster:
    cluster = Cluster(write=call)
    cluster.add(call)
    return cluster


def _overlap(clusters: list[Cluster]) -> list[Call]:
    forward = sorted((each for each in clusters if each.low < each.high), key=lambda each: each.low)
    for earlier, later in itertools.pairwise(forward):
        if later.low < earlier.high:
            return [*earlier.calls, *later.calls]
    backward = sorted((each for each in clusters if each.low >= each.high), key=lambda each: each.high)
    at = 0
    for inner in backward:
        while at < len(forward) and forward[at].high <= inner.high:
            at += 1
        if at < len(forward) and forward[at].low < inner.high and inner.low < forward[at].high:
            return [*forward[at].calls, *inner.calls]
    return []


def _same_value(call: Call) -> BadHistoryError:
    return BadHistoryError(
        f"operation {call.id} writes {call.invoke.value!r} to {call.invoke.resource}, as another one does. Without"
        " tokens each write of a resource needs a value of its own, or it cannot be known which one a read saw"
    )
