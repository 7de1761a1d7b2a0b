"""Where everything of one timeline is: numbers only, no SVG.

x is in units of the scale, which the page zooms; y and heights are in pixels, which stay.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fencepost.testing.torture.report.excerpt import Excerpt
from fencepost.testing.torture.report.holds import Hold, find_holds
from fencepost.testing.torture.report.operation import Operation
from fencepost.testing.torture.report.rows import TimelineRow, assign_rows
from fencepost.testing.torture.report.scale import Scale, spread
from fencepost.testing.torture.report.survey import FaultSpan, concerns

AXIS: Final = 26.0
BAND: Final = 20.0
"""Height of a track of faults."""
MOST_BANDS: Final = 4
STRIP: Final = 18.0
"""Height of the strip that carries a hold's tokens."""
TRACK: Final = 48.0
MARK_DOWN: Final = 15.0
"""From the top of a track to the middle of its marks."""
GAP: Final = 6.0
NARROWEST_PAGE: Final = 1000.0
ROOM_OF_LEFT_OUT: Final = 150.0
MARGIN: Final = 0.35
"""What is shown on either side of a violation at first, as a share of its width."""
FIRST_VIEW: Final = 620.0
READABLE: Final = 1400.0
"""A timeline that is not wider is shown whole at first."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A hold: held from `x` to `end`, and until `last` the process may not have known that it was over."""

    hold: Hold
    x: float
    end: float
    last: float
    top: float
    height: float


@dataclass(frozen=True, slots=True)
class Mark:
    """An operation: from `x` to `end`, its mark at `end`. Open ones go on to the right edge."""

    operation: Operation
    x: float
    end: float
    y: float
    badges: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Shade:
    """A fault: a label in its band, and a shade over the rows that it is about."""

    fault: FaultSpan
    x: float
    end: float
    band: float
    spans: tuple[tuple[float, float], ...]
    """Top and height of what it shades."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A place where operations are left out."""

    x: float
    end: float
    operations: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Everything of a timeline."""

    scale: Scale
    rows: tuple[TimelineRow, ...]
    bars: tuple[Bar, ...]
    marks: tuple[Mark, ...]
    shades: tuple[Shade, ...]
    gaps: tuple[Gap, ...]
    bands: int
    height: float
    faults_elsewhere: int
    """Faults in this time that are about processes which have no row here, or found no room."""


def lay_out(excerpt: Excerpt, faults: Iterable[FaultSpan], badges: Mapping[int, tuple[str, ...]]) -> Layout:
    """Lay out a timeline of at least one operation. `badges`: what violations call their operations, by id."""
    row_of = assign_rows(excerpt.operations, badges.keys())
    rows = tuple({id(row): row for row in row_of.values()}.values())
    tracks = {operation.id: row_of[operation.process].track(operation) for operation in excerpt.operations}
    banded, elsewhere = _banded(faults, _span(excerpt.operations), row_of)
    bands = max((band for _, band in banded), default=-1) + 1
    scale = _scale(excerpt, [fault for fault, _ in banded])
    height = _stack(rows, AXIS + bands * BAND + GAP)
    holds = find_holds(excerpt.operations, scale.times[-1])
    return Layout(
        scale,
        rows,
        tuple(_bar(hold, scale, row_of[hold.process]) for hold in holds),
        tuple(_mark(o, scale, row_of[o.process], tracks[o.id], badges.get(o.id, ())) for o in excerpt.operations),
        tuple(_shade(fault, band, scale, rows) for fault, band in banded),
        tuple(_gaps(excerpt, scale)),
        bands,
        height,
        elsewhere,
    )


def first_view(layout: Layout, violation: str) -> tuple[float, float]:
    """Give the place and width that show the operations of one violation, with what is around them."""
    own = [mark for mark in layout.marks if any(of_violation(each, violation) for each in mark.badges)]
    if not own or layout.scale.width <= READABLE:
        return 0.0, layout.scale.width
    start, end = min(mark.x for mark in own), max(mark.end for mark in own)
    width = min(max((end - start) * (1 + 2 * MARGIN), FIRST_VIEW), layout.scale.width)
    x = min(max((start + end - width) / 2, 0.0), layout.scale.width - width)
    return x, width


def of_violation(badge: str, violation: str) -> bool:
    """Whether a badge, as `B2`, is of this violation, `B`."""
    return badge.rstrip("0123456789") == violation


def _span(operations: Sequence[Operation]) -> tuple[int, int]:
    ends = [operation.invoked if operation.ended is None else operation.ended for operation in operations]
    return operations[0].invoked, max(ends)


def _scale(excerpt: Excerpt, faults: Iterable[FaultSpan]) -> Scale:
    first, last = _span(excerpt.operations)
    moments = {operation.invoked for operation in excerpt.operations} | {first, last}
    moments.update(operation.ended for operation in excerpt.operations if operation.ended is not None)
    for fault in faults:
        moments.update(time for time in (fault.start, fault.healed) if time is not None and first < time < last)
    room = {gap.after: ROOM_OF_LEFT_OUT for gap in excerpt.left_out if gap.after is not None}
    return spread(moments, NARROWEST_PAGE, room)


def _banded(
    faults: Iterable[FaultSpan], span: tuple[int, int], row_of: Mapping[str, TimelineRow]
) -> tuple[list[tuple[FaultSpan, int]], int]:
    """Give the faults in this time, each with its track; and how many have none.

    Those have none that are about processes without a row here, and those that find all tracks taken.
    """
    start, end = span
    free_at = [start] * MOST_BANDS
    banded: list[tuple[FaultSpan, int]] = []
    left = 0
    for fault in faults:
        healed = end if fault.healed is None else fault.healed
        if fault.start > end or healed < start:
            continue
        band = next((i for i, free in enumerate(free_at) if free <= max(fault.start, start)), None)
        if band is None or (fault.of_process and not any(concerns(fault.target, process) for process in row_of)):
            left += 1
            continue
        free_at[band] = healed
        banded.append((fault, band))
    return banded, left


def _stack(rows: Iterable[TimelineRow], top: float) -> float:
    """Put the rows below each other, and give the height of all."""
    for row in rows:
        row.top, row.height = top, STRIP + row.tracks * TRACK
        top += row.height + GAP
    return top


def _bar(hold: Hold, scale: Scale, row: TimelineRow) -> Bar:
    last = max(hold.last, hold.end) if hold.passed_on else hold.end
    return Bar(hold, scale.x(hold.start), scale.x(hold.end), scale.x(last), row.top, row.height)


def _mark(operation: Operation, scale: Scale, row: TimelineRow, track: int, badges: tuple[str, ...]) -> Mark:
    x = scale.x(operation.invoked)
    end = x if operation.ended is None else scale.x(operation.ended)
    return Mark(operation, x, end, row.top + STRIP + track * TRACK + MARK_DOWN, badges)


def _shade(fault: FaultSpan, band: int, scale: Scale, rows: Sequence[TimelineRow]) -> Shade:
    own = [row for row in rows if any(concerns(fault.target, process) for process in row.processes)]
    spans = [(row.top, row.height) for row in own]
    if not own:
        spans = [(rows[0].top, rows[-1].top + rows[-1].height - rows[0].top)]
    end = scale.width if fault.healed is None else scale.x(fault.healed)
    return Shade(fault, scale.x(fault.start), end, AXIS + band * BAND, tuple(spans))


def _gaps(excerpt: Excerpt, scale: Scale) -> Iterable[Gap]:
    for gap in excerpt.left_out:
        if gap.after is None or gap.after >= excerpt.operations[-1].invoked:
            continue  # at an edge of the timeline: its caption says so
        x = scale.x(gap.after)
        later = next((time for time in scale.times if time > gap.after), scale.times[-1])
        yield Gap(x, scale.x(later), gap.operations)
