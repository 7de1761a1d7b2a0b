"""Which row of a timeline an operation is in: one a process, with tracks where operations of one process overlap."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from fencepost.testing.torture.report.choice import natural
from fencepost.testing.torture.report.operation import Operation

MOST_OWN_ROWS: Final = 12
"""With more processes than this, those that were not there at the same time share rows."""


@dataclass(slots=True)
class TimelineRow:
    """A row of a timeline. `top` and `height` are in pixels, set by the layout."""

    processes: list[str]
    tracks: int = 1
    top: float = 0.0
    height: float = 0.0
    free_at: list[int] = field(default_factory=list)
    """When the last operation of each track ended."""

    def track(self, operation: Operation) -> int:
        """Give the first track that is free when the operation begins, and take it until the operation ends."""
        end = operation.invoked if operation.ended is None else operation.ended
        for track, free_at in enumerate(self.free_at):
            if free_at <= operation.invoked:
                self.free_at[track] = end
                return track
        self.free_at.append(end)
        self.tracks = len(self.free_at)
        return self.tracks - 1


def assign_rows(operations: Sequence[Operation], first: Collection[int] = ()) -> dict[str, TimelineRow]:
    """Give each process its row. On top are those of the operations with the ids `first`."""
    on_top = {operation.process for operation in operations if operation.id in first}
    processes = sorted({operation.process for operation in operations}, key=lambda p: (p not in on_top, natural(p)))
    if len(processes) <= MOST_OWN_ROWS:
        return {process: TimelineRow([process]) for process in processes}
    shared = _shared(_lifetimes(operations))
    return dict(sorted(shared.items(), key=lambda item: on_top.isdisjoint(item[1].processes)))


def _lifetimes(operations: Iterable[Operation]) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for operation in operations:
        end = operation.invoked if operation.ended is None else operation.ended
        start, last = found.get(operation.process, (operation.invoked, end))
        found[operation.process] = (min(start, operation.invoked), max(last, end))
    return found


def _shared(lifetimes: dict[str, tuple[int, int]]) -> dict[str, TimelineRow]:
    rows: list[tuple[int, TimelineRow]] = []
    assigned: dict[str, TimelineRow] = {}
    for process, (start, end) in sorted(lifetimes.items(), key=lambda item: (item[1], item[0])):
        i = next((i for i, (free_at, _) in enumerate(rows) if free_at < start), len(rows))
        if i == len(rows):
            rows.append((end, TimelineRow([])))
        row = rows[i][1]
        rows[i] = (end, row)
        row.processes.append(process)
        assigned[process] = row
    return assigned
