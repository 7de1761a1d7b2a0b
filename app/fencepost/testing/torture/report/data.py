"""What a report shows of a history: which operations and timelines are chosen, all counted, and who held what."""

import re
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, log2, log10
from statistics import median
from typing import Final

from fencepost.testing.checker import Violation
from fencepost.testing.history import End, Event, FaultEvent, Healed, History, Invoke, Note, Outcome

READS: Final = frozenset({"read", "read_set"})


@dataclass(slots=True)
class DrawnOperation:
    """What a process asked for, and what it came to."""

    begin: Invoke
    end: End | None = None

    @property
    def id(self) -> int:
        return self.begin.id

    @property
    def process(self) -> str:
        return self.begin.process

    @property
    def op(self) -> str:
        return self.begin.op

    @property
    def invoked(self) -> int:
        """When it was asked for, in nanoseconds."""
        return self.begin.time

    @property
    def ended(self) -> int | None:
        """When its answer came; None when the history has no end of it."""
        return None if self.end is None else self.end.time

    @property
    def outcome(self) -> Outcome:
        """What is known of it. An operation without an end may have happened or not."""
        return "unknown" if self.end is None else self.end.event

    @property
    def token(self) -> int | None:
        """The token under which it was asked for, or the one that an `acquire` got."""
        if self.op == "acquire" and self.end is not None and self.end.token is not None:
            return self.end.token
        return self.begin.token


# Where a moment is on the page.
#
# Operations take milliseconds, pauses between them seconds. A linear axis shows either the one or the other, so the
# axis stretches where much happens: the space between two neighbouring events grows with the logarithm of the time
# between them. The ticks are true times.

NARROWEST: Final = 22.0
"""Units between two neighbouring events, at least: so much that their marks do not cover each other."""
DOUBLING: Final = 12.0
"""Units that each doubling of the time between them adds."""
WIDEST: Final = 150.0
MARGIN: Final = 45.0
"""Units before the first moment and after the last: half a label."""
TICK_UNITS: Final = 30.0
"""Units between two ticks when zoomed in; further out every second, fourth, … has a label."""
_MOST_DECIMALS: Final = 6
_NANO: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Scale:
    """A line through knots: `times` (nanoseconds) and `xs` (units), both rising."""

    times: tuple[int, ...]
    xs: tuple[float, ...]

    @property
    def width(self) -> float:
        """Units of the whole axis, with the margin on both sides."""
        return self.xs[-1] + self.xs[0]

    def x(self, time: int) -> float:
        """Where a moment is; moments outside are at the edge."""
        if time <= self.times[0]:
            return self.xs[0]
        if time >= self.times[-1]:
            return self.xs[-1]
        i = bisect_right(self.times, time)
        share = (time - self.times[i - 1]) / (self.times[i] - self.times[i - 1])
        return self.xs[i - 1] + share * (self.xs[i] - self.xs[i - 1])

    def time(self, x: float) -> int:
        i = min(max(bisect_right(self.xs, x), 1), len(self.xs) - 1)
        share = (x - self.xs[i - 1]) / (self.xs[i] - self.xs[i - 1])
        return round(self.times[i - 1] + share * (self.times[i] - self.times[i - 1]))


def spread(moments: Iterable[int], at_least: float, room: Mapping[int, float] | None = None) -> Scale:
    """Make the scale of these moments, `at_least` units wide. `room`: units that are needed after a moment."""
    times = sorted(set(moments))
    if len(times) == 1:
        times.append(times[0] + 1)
    gaps = [later - sooner for sooner, later in pairwise(times)]
    unit = median(gaps)
    widths = [min(NARROWEST + DOUBLING * log2(1 + gap / unit), WIDEST) for gap in gaps]
    widths = [max(width, (room or {}).get(sooner, 0.0)) for width, sooner in zip(widths, times, strict=False)]
    stretch = max(1.0, (at_least - 2 * MARGIN) / sum(widths))
    xs = [MARGIN]
    for width in widths:
        xs.append(xs[-1] + width * stretch)
    return Scale(tuple(times), tuple(xs))


@dataclass(frozen=True, slots=True)
class Tick:
    """A labelled moment of the axis. `level` 0 is shown at every zoom, higher ones only when there is room."""

    x: float
    label: str
    level: int


def ticks(scale: Scale, origin: int) -> list[Tick]:
    """Give the axis its ticks: the true time, in seconds since `origin`, at places of equal distance."""
    start, end = scale.xs[0], scale.xs[-1]
    count = max(int((end - start) / TICK_UNITS), 1)
    places = [start + (end - start) * i / count for i in range(count + 1)]
    times = [scale.time(x) - origin for x in places]
    decimals = _decimals(times)
    return [
        Tick(x, f"{time * _NANO:,.{decimals}f} s", _level(i))
        for i, (x, time) in enumerate(zip(places, times, strict=True))
    ]


def _level(i: int) -> int:
    """Give every sixteenth tick level 0, of the others every eighth level 1, and so on."""
    return next(level for level, step in enumerate((16, 8, 4, 2, 1)) if i % step == 0)


def _decimals(times: list[int]) -> int:
    """So many that neighbouring ticks differ, where that is possible."""
    gaps = [later - sooner for sooner, later in pairwise(times) if later > sooner]
    finest = median(gaps) if gaps else 1
    return min(max(ceil(-log10(finest * _NANO)), 0), _MOST_DECIMALS)


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
    """Read the history once, and count. `wanted`: resources that are counted each by itself, however many there are."""
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
        elif isinstance(event, FaultEvent):
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

    def _fault(self, event: FaultEvent) -> None:
        seen = self._survey
        seen.faults_by_kind[event.kind] += 1
        if len(seen.faults) < MOST_FAULTS:
            span = FaultSpan(event.id, event.kind, event.target, event.time)
            seen.faults.append(span)
            self._open_faults[event.id] = span


# What of a history is drawn: a page has to stay small whatever the history's size.

MOST_TIMELINES: Final = 30
MOST_VIOLATED: Final = 20
"""Of these, so many at most because of violations."""
SAMPLE: Final = 10
"""So many others, when there are more than fit."""
MOST_OPERATIONS: Final = 3_000
"""Over all timelines: an operation is about 700 bytes of the page."""
FEWEST_EACH: Final = 60
MOST_EACH: Final = 600
MOST_ANCHORS: Final = 40
"""Operations of violations that one timeline marks."""
_DIGITS: Final = re.compile(r"(\d+)")


@dataclass(frozen=True, slots=True)
class Drawn:
    """A resource that gets a timeline."""

    subject: str
    anchors: frozenset[int]
    """Ids of operations that are shown in any case, with those around them."""
    around: int | None
    """How many operations before and after each anchor; None: all there are."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The timelines, in their order, and how the sample was chosen."""

    drawn: tuple[Drawn, ...]
    violated: int
    """How many of them, from the first, have violations."""
    complete: bool
    """Whether every resource has a timeline."""


def choose(survey: Survey, violations: Sequence[Violation]) -> Choice:
    """Choose the resources with violations first, then those with the most refused and unknown operations."""
    anchors: dict[str, list[int]] = {}
    for violation in violations:
        ids = anchors.setdefault(survey.subject(violation.resource), [])
        ids.extend(operation_ids(violation))
    violated = list(anchors)[:MOST_VIOLATED]
    others = [name for name in survey.tallies if name not in anchors]
    fits = len(violated) + len(others) <= MOST_TIMELINES
    if not fits:
        others = sorted(others, key=lambda name: _interest(survey.tallies[name], name))[:SAMPLE]
    chosen = [*violated, *sorted(others, key=natural)]
    most = min(max(MOST_OPERATIONS // max(len(chosen), 1), FEWEST_EACH), MOST_EACH)
    return Choice(
        tuple(_drawn(name, anchors.get(name, []), survey.tallies[name], most) for name in chosen),
        len(violated),
        fits and len(violated) == len(anchors) and not survey.others.operations,
    )


def operation_ids(violation: Violation) -> list[int]:
    """Give the ids of the operations that a violation is made of, in their order."""
    return list(dict.fromkeys(event.id for event in violation.events if isinstance(event, Invoke | End)))


def natural(name: str) -> tuple[tuple[int, int | str], ...]:
    """Sort by this, and `orders/9` comes before `orders/10`."""
    return tuple((0, int(part)) if part.isdecimal() else (1, part) for part in _DIGITS.split(name) if part)


def _interest(tally: ResourceTally, name: str) -> tuple[int, int, tuple[tuple[int, int | str], ...]]:
    return (-(tally.refused + tally.unknown), -tally.operations, natural(name))


def _drawn(name: str, ids: list[int], tally: ResourceTally, most: int) -> Drawn:
    if tally.operations <= most:
        return Drawn(name, frozenset(ids), None)
    if not ids and tally.first_trouble is not None:
        ids = [tally.first_trouble]
    anchors = frozenset(ids[:MOST_ANCHORS])
    return Drawn(name, anchors, max(most // (2 * max(len(anchors), 1)), 2))


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Operations that are not drawn: how many, and the time of the drawn one before them (None: there is none)."""

    after: int | None
    operations: int


@dataclass(slots=True)
class Excerpt:
    """Operations in the order in which they began, and where some were left out."""

    drawn: Drawn
    operations: list[DrawnOperation] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)

    @property
    def not_drawn(self) -> int:
        return sum(gap.operations for gap in self.left_out)


class Picker:
    """Picks the operations of one resource while the history goes by: those around anchors. What it holds meanwhile is
    bounded: the last few before the next anchor.
    """

    def __init__(self, drawn: Drawn) -> None:
        self.excerpt = Excerpt(drawn)
        self._recent: deque[DrawnOperation] = deque()
        self._dropped = 0
        # Without an anchor the excerpt is the beginning.
        self._still = 0 if drawn.anchors or drawn.around is None else 2 * drawn.around

    def take(self, operation: DrawnOperation) -> None:
        around = self.excerpt.drawn.around
        if around is None:
            self.excerpt.operations.append(operation)
        elif operation.id in self.excerpt.drawn.anchors:
            self._keep_recent()
            self.excerpt.operations.append(operation)
            self._still = max(self._still, around)
        elif self._still > 0:
            self._still -= 1
            self.excerpt.operations.append(operation)
        else:
            self._remember(operation, around)

    def finish(self) -> Excerpt:
        self._dropped += len(self._recent)
        self._recent.clear()
        self._note_dropped()
        return self.excerpt

    def _remember(self, operation: DrawnOperation, around: int) -> None:
        self._recent.append(operation)
        if len(self._recent) > around:
            self._recent.popleft()
            self._dropped += 1

    def _keep_recent(self) -> None:
        self._note_dropped()
        self.excerpt.operations.extend(self._recent)
        self._recent.clear()

    def _note_dropped(self) -> None:
        if self._dropped:
            kept = self.excerpt.operations
            self.excerpt.left_out.append(LeftOut(kept[-1].invoked if kept else None, self._dropped))
            self._dropped = 0


COLUMNS: Final = 240
MOST_ROWS: Final = 40
"""Rows of resources without violations."""
OUTCOMES: Final[tuple[Outcome, ...]] = ("ok", "refused", "unknown")


@dataclass(slots=True)
class OverviewRow:
    """One or more resources: its counts by outcome and column."""

    label: str
    resources: int
    violated: bool
    cells: dict[Outcome, list[int]] = field(default_factory=lambda: {outcome: [0] * COLUMNS for outcome in OUTCOMES})


class Overview:
    """Counts all operations: a row is a resource (or some hundreds of them), a column a share of the time."""

    def __init__(self, survey: Survey, choice: Choice) -> None:
        self.span = survey.span
        violated = [drawn.subject for drawn in choice.drawn[: choice.violated]]
        rest = sorted(set(survey.tallies).difference(violated), key=natural)
        blocks = [[name] for name in rest] if len(rest) <= MOST_ROWS else _blocks(rest)
        self.rows = [OverviewRow(name, 1, violated=True) for name in violated]
        self.rows += [OverviewRow(_label(block), len(block), violated=False) for block in blocks]
        self._row_of = {name: row for row, name in enumerate(violated)}
        self._row_of |= {name: len(violated) + i for i, block in enumerate(blocks) for name in block}
        if survey.others.operations:
            self.rows.append(OverviewRow("further resources, counted together", 0, violated=False))

    def column(self, time: int) -> int:
        start, end = self.span
        return min((time - start) * COLUMNS // (end - start), COLUMNS - 1)

    def count(self, subject: str, outcome: Outcome, time: int) -> None:
        row = self._row_of.get(subject, len(self.rows) - 1)
        self.rows[row].cells[outcome][self.column(time)] += 1

    def busiest(self, outcome: Outcome) -> int:
        """Give the largest count of a cell; at least 1."""
        return max((max(row.cells[outcome]) for row in self.rows), default=1) or 1


def _blocks(names: Sequence[str]) -> list[Sequence[str]]:
    size = -(-len(names) // MOST_ROWS)
    return [names[i : i + size] for i in range(0, len(names), size)]


def _label(block: Sequence[str]) -> str:
    return block[0] if len(block) == 1 else f"{block[0]} … {block[-1]} ({len(block):,})"


MOST_OWN_ROWS: Final = 12
"""With more processes than this, those that were not there at the same time share rows."""


@dataclass(slots=True)
class TimelineRow:
    """A row of a timeline: one a process, with tracks where operations of one process overlap. `top` and `height` are
    in pixels, set by the layout.
    """

    processes: list[str]
    tracks: int = 1
    top: float = 0.0
    height: float = 0.0
    free_at: list[int] = field(default_factory=list)
    """When the last operation of each track ended."""

    def track(self, operation: DrawnOperation) -> int:
        """Give the first track that is free when the operation begins, and take it until the operation ends."""
        end = operation.invoked if operation.ended is None else operation.ended
        for track, free_at in enumerate(self.free_at):
            if free_at <= operation.invoked:
                self.free_at[track] = end
                return track
        self.free_at.append(end)
        self.tracks = len(self.free_at)
        return self.tracks - 1


def assign_rows(operations: Sequence[DrawnOperation], first: Collection[int] = ()) -> dict[str, TimelineRow]:
    """Give each process its row. On top are those of the operations with the ids `first`."""
    on_top = {operation.process for operation in operations if operation.id in first}
    processes = sorted({operation.process for operation in operations}, key=lambda p: (p not in on_top, natural(p)))
    if len(processes) <= MOST_OWN_ROWS:
        return {process: TimelineRow([process]) for process in processes}
    shared = _shared(_lifetimes(operations))
    return dict(sorted(shared.items(), key=lambda item: on_top.isdisjoint(item[1].processes)))


def _lifetimes(operations: Iterable[DrawnOperation]) -> dict[str, tuple[int, int]]:
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


@dataclass(slots=True)
class DrawnHold:
    """A span in which a process was the newest holder, in nanoseconds.

    It begins with an `acquire`, or else with the first accepted token that is above all before. It ends with the
    `release`, with the next holder's begin, or when its lease expires; `last` is the last moment at which the process
    still acted as the holder after that.
    """

    process: str
    start: int
    end: int
    last: int
    first_token: int | None
    last_token: int | None
    passed_on: bool = False
    """Whether it ended without a release: the process may not know."""
    expires: int | None = None

    @property
    def tokens(self) -> str:
        """The tokens that it was seen with: `34`, `34-36`, or empty."""
        if self.first_token is None:
            return ""
        return str(self.first_token) if self.last_token == self.first_token else f"{self.first_token}-{self.last_token}"


class _Holders:
    """Goes through the operations in the order of their ends, and keeps who holds."""

    def __init__(self, last_moment: int) -> None:
        self.holds: list[DrawnHold] = []
        self._last_moment = last_moment
        self._current: DrawnHold | None = None
        self._latest: dict[str, DrawnHold] = {}
        self._highest = -1

    def saw(self, operation: DrawnOperation, moment: int) -> None:
        own = self._current is not None and self._current.process == operation.process
        if operation.op == "acquire":
            if operation.outcome == "ok":
                self._begin(operation, moment)
        elif operation.op == "release":
            self._release(operation, moment)
        elif operation.outcome == "ok" and operation.token is not None and operation.token > self._highest:
            if own:
                self._extend(operation.token)
            else:
                self._begin(operation, moment)
        if (latest := self._latest.get(operation.process)) is not None:
            latest.last = max(latest.last, moment)

    def _begin(self, operation: DrawnOperation, moment: int) -> None:
        self.close(moment)
        token, expires = operation.token, None if operation.end is None else operation.end.expires
        self._current = DrawnHold(operation.process, moment, self._last_moment, moment, token, token, expires=expires)
        self._latest[operation.process] = self._current
        self.holds.append(self._current)
        if token is not None:
            self._highest = max(self._highest, token)

    def _extend(self, token: int) -> None:
        self._highest = token
        if self._current is not None:
            self._current.last_token = token
            self._current.first_token = token if self._current.first_token is None else self._current.first_token

    def _release(self, operation: DrawnOperation, moment: int) -> None:
        if operation.outcome == "refused":
            return
        hold = self._latest.pop(operation.process, None)
        if hold is None:
            return
        hold.last = moment
        if hold is self._current:
            hold.end = moment
            self._current = None

    def close(self, moment: int) -> None:
        hold, self._current = self._current, None
        if hold is None:
            return
        hold.end = moment
        hold.passed_on = moment < self._last_moment
        if hold.expires is not None and hold.start <= hold.expires < moment:
            hold.end, hold.passed_on = hold.expires, True


def find_holds(operations: Iterable[DrawnOperation], last_moment: int) -> list[DrawnHold]:
    """Give the holds that these operations of one resource show. One that nothing ends lasts until `last_moment`."""
    holders = _Holders(last_moment)
    ended = [(o.ended if o.ended is not None else o.invoked, o.invoked, o.id, o) for o in operations]
    for moment, _, _, operation in sorted(ended, key=lambda e: e[:3]):
        holders.saw(operation, moment)
    holders.close(last_moment)
    return holders.holds
