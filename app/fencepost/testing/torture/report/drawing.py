"""A report's pictures as SVG: where everything is, timelines, and the overview of all operations."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from math import ceil, log2
from typing import Final, assert_never

from fencepost.testing.history import End, History, Invoke, Outcome
from fencepost.testing.torture.report.data import (
    COLUMNS,
    OUTCOMES,
    READS,
    Choice,
    DrawnHold,
    DrawnOperation,
    Excerpt,
    FaultSpan,
    Overview,
    OverviewRow,
    Picker,
    Scale,
    Survey,
    Tick,
    TimelineRow,
    assign_rows,
    concerns,
    find_holds,
    spread,
    ticks,
)

# HTML and SVG as text that is safe by construction: whatever is no `Markup` is escaped.

LONGEST = 120
"""How many characters of a text of the history are shown."""


class Markup(str):
    """Text of HTML or SVG whose parts are escaped."""

    __slots__ = ()


def visible(text: object, longest: int = LONGEST) -> str:
    r"""Show a text of the history in one line: what prints nothing, or turns the line's direction, as `\u202e`."""
    cut = str(text)[: longest + 1]
    shown = _written_out(cut)
    return shown if len(cut) <= longest and len(shown) <= 2 * longest else f"{shown[: longest - 1]}…"


def _written_out(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def element(name: str, *children: str, **attributes: str | float | None) -> Markup:
    """Write an element. `class_` is the attribute class, `data_x` is data-x; an attribute that is None is left out.

    Children are escaped unless they are `Markup`.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{written}>{join(children)}</{name}>")


def void(name: str, **attributes: str | float | None) -> Markup:
    """Write an element of HTML that has no end tag, as `meta`."""
    return Markup(element(name, **attributes).removesuffix(f"</{name}>"))


def join(parts: Iterable[str]) -> Markup:
    """Put parts one after the other; those that are no `Markup` are escaped."""
    return Markup("".join(part if isinstance(part, Markup) else escape(_written_out(part)) for part in parts))


def _value(value: str | float) -> str:
    if isinstance(value, str):
        return escape(_written_out(value))
    return f"{value:.1f}".removesuffix(".0")


SHORT: Final = 16
"""Characters of a value at a mark."""
LONG: Final = 60
_NANO: Final = 1e-9
_MICROSECOND: Final = 1e-6
_MILLISECOND: Final = 1e-3


def label(operation: DrawnOperation) -> str:
    """Give the words at the mark: `write b`, `read b`, `refused: stale`."""
    end = operation.end
    if operation.outcome == "refused" and end is not None:
        return f"{operation.op}: {end.reason or 'refused'}"
    value = _seen(end) if end is not None and end.event == "ok" else None
    value = operation.begin.value if value is None else value
    asked = operation.op if value is None else f"{operation.op} {visible(value, SHORT)}"
    return f"{asked}?" if operation.outcome == "unknown" else asked


def sentence(operation: DrawnOperation, origin: int) -> str:
    """Say in one sentence what was asked, when, and what it came to. Times are seconds since `origin`."""
    begin = operation.begin
    asked = [f"{visible(begin.process, LONG)}: {begin.op}"]
    if begin.value is not None:
        asked.append(visible(begin.value, LONG))
    if begin.token is not None:
        asked.append(f"under token {begin.token}")
    if begin.key is not None:
        asked.append(f"with key {visible(begin.key, LONG)}")
    return f"{' '.join(asked)}, at {seconds(begin.time - origin)}; {answer(operation)}"


def answer(operation: DrawnOperation) -> str:
    """Say what an operation came to, and after how long."""
    end = operation.end
    if end is None:
        return "no answer: it may have happened or not"
    after = f"after {duration(end.time - operation.invoked)}"
    outcome: Outcome = end.event
    if outcome == "ok":
        return f"{_accepted(end)} {after}"
    if outcome == "refused":
        mark = "" if end.mark is None else f", the mark is {end.mark}"
        return f"refused as {end.reason or 'other'} {after}{mark}"
    if outcome == "unknown":
        why = "" if end.why is None else f" ({visible(end.why, LONG)})"
        return f"unknown {after}{why}: it may have happened or not"
    assert_never(outcome)


def _accepted(end: End) -> str:
    parts = ["answered from the record" if end.replayed else "ok"]
    if (seen := _seen(end)) is not None:
        parts.append(f"saw {visible(seen, LONG)}")
    if end.token is not None:
        parts.append(f"token {end.token}")
    return ", ".join(parts)


def _seen(end: End) -> str | None:
    if end.values is not None:
        return "{" + ", ".join(end.values[:LONG]) + "}"
    if isinstance(end.value, str):
        return end.value
    return "no row" if end.value is None else None


def seconds(nanoseconds: int) -> str:
    """Write a moment: `12.345678 s`."""
    return f"{nanoseconds * _NANO:,.6f} s"


def duration(nanoseconds: int) -> str:
    """Write a duration in the unit that suits it: `3.2 ms`."""
    value = nanoseconds * _NANO
    if value >= 60:  # noqa: PLR2004 - seconds of a minute
        minutes, rest = divmod(round(value), 60)
        return f"{minutes:,} min {rest} s"
    for unit, name in ((1.0, "s"), (_MILLISECOND, "ms"), (_MICROSECOND, "µs")):
        if value >= unit:
            return f"{value / unit:.3g} {name}"
    return f"{nanoseconds} ns"


def look(history: History, survey: Survey, choice: Choice) -> tuple[list[Excerpt], Overview]:
    """Read the history once more: pick the operations that are drawn, and count all of them into the overview."""
    overview = Overview(survey, choice)
    pickers = {drawn.subject: Picker(drawn) for drawn in choice.drawn}
    opened: dict[int, DrawnOperation] = {}
    for event in history:
        if isinstance(event, Invoke):
            operation = opened[event.id] = DrawnOperation(event)
            if (picker := pickers.get(survey.subject(event.resource))) is not None:
                picker.take(operation)
        elif isinstance(event, End):
            operation = opened.pop(event.id)
            operation.end = event
            overview.count(survey.subject(operation.begin.resource), event.event, event.time)
    for operation in opened.values():
        overview.count(survey.subject(operation.begin.resource), "unknown", operation.invoked)
    return [picker.finish() for picker in pickers.values()], overview


# Where everything of one timeline is: numbers only, no SVG.
#
# x is in units of the scale, which the page zooms; y and heights are in pixels, which stay.

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

    hold: DrawnHold
    x: float
    end: float
    last: float
    top: float
    height: float


@dataclass(frozen=True, slots=True)
class TimeMark:
    """An operation: from `x` to `end`, its mark at `end`. Open ones go on to the right edge."""

    operation: DrawnOperation
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
    marks: tuple[TimeMark, ...]
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


def _span(operations: Sequence[DrawnOperation]) -> tuple[int, int]:
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


def _bar(hold: DrawnHold, scale: Scale, row: TimelineRow) -> Bar:
    last = max(hold.last, hold.end) if hold.passed_on else hold.end
    return Bar(hold, scale.x(hold.start), scale.x(hold.end), scale.x(last), row.top, row.height)


def _mark(operation: DrawnOperation, scale: Scale, row: TimelineRow, track: int, badges: tuple[str, ...]) -> TimeMark:
    x = scale.x(operation.invoked)
    end = x if operation.ended is None else scale.x(operation.ended)
    return TimeMark(operation, x, end, row.top + STRIP + track * TRACK + MARK_DOWN, badges)


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


# A timeline as SVG.
#
# The page zooms in time only, by the viewBox. Marks and texts must not become wider with it: each stands in an element
# of class `k`, which the style sheet scales by the inverse (report.js sets it). A label says where it is and how wide
# (`data-…`); report.js shows as many as have room.

CHARACTER: Final = 5.9
"""Pixels of a character of a label, about."""
HUES: Final = 6
HALO: Final = 14
"""Pixels from the middle of a mark to where arrows begin and end."""
_TIMELINE_NAME_WIDTH: Final = 148
_TIMELINE_NAME_LENGTH: Final = 19
_SHAPES: Final = {"acquire": "acquire", "release": "release", "claim": "claim"}
# What keeps its label when there is no room for all: the lower, the sooner.
_FIRST, _TROUBLE, _PLAIN = 0, 1, 2


@dataclass(frozen=True, slots=True)
class ShownTimelines:
    """A violation in this timeline: its letter, the checker's words, its operations."""

    letter: str
    words: str
    ids: tuple[int, ...]


def draw(layout: Layout, title: str, violations: Sequence[ShownTimelines], origin: int, name: str) -> Markup:
    """Draw a timeline. `name` is what its ids begin with; `origin` is the moment that the ticks count from."""
    x, width = first_view(layout, violations[0].letter) if violations else (0.0, layout.scale.width)
    view = f"{x:.0f} 0 {width:.0f} {layout.height:.0f}"
    shared = {row.top for row in layout.rows if len(row.processes) > 1}
    parts = [
        element("title", title, id=f"{name}-title"),
        element("desc", _described(layout), id=f"{name}-desc"),
        *(_row(row, layout.scale.width) for row in layout.rows),
        *(_tick(tick, layout.height) for tick in ticks(layout.scale, origin)),
        *(_draw_shade(shade) for shade in layout.shades),
        *(_draw_bar(bar, number, shared=bar.top in shared) for number, bar in enumerate(layout.bars)),
        *(_gap(gap, layout.height) for gap in layout.gaps),
        *(_interval(mark, layout.scale.width) for mark in layout.marks),
        *(_violation(shown, layout, first_view(layout, shown.letter)) for shown in violations),
        *(_draw_mark(mark, origin) for mark in layout.marks),
    ]
    drawing = element(
        "svg",
        *parts,
        id=name,
        class_="chart",
        viewBox=view,
        data_all=f"{layout.scale.width:.0f}",
        width=f"{width:.0f}",
        height=f"{layout.height:.0f}",
        preserveAspectRatio="none",
        tabindex="0",
        role="group",
        aria_roledescription="timeline",
        aria_labelledby=f"{name}-title",
        aria_describedby=f"{name}-desc keys-hint",
    )
    return element("div", _names(layout), element("div", drawing, class_="window"), class_="timeline")


def _described(layout: Layout) -> str:
    return (
        f"{len(layout.rows)} rows, one a process; {len(layout.marks)} operations, {len(layout.bars)} holds,"
        f" {len(layout.shades)} faults. Times are seconds since the history began."
    )


def _names(layout: Layout) -> Markup:
    names = [_row_name(row) for row in layout.rows]
    if layout.bands:
        names.append(element("text", "faults", x=8, y=AXIS + 14, class_="soft"))
    return element(
        "svg",
        *names,
        class_="names",
        width=f"{_TIMELINE_NAME_WIDTH}",
        height=f"{layout.height:.0f}",
        aria_hidden="true",
    )


def _row_name(row: TimelineRow) -> Markup:
    more = f" +{len(row.processes) - 1}" if len(row.processes) > 1 else ""
    full = ", ".join(visible(process) for process in row.processes[:20])
    text = visible(row.processes[0], _TIMELINE_NAME_LENGTH - len(more)) + more
    return element("text", text, element("title", full), x=8, y=row.top + STRIP + 20)


def _row(row: TimelineRow, width: float) -> Markup:
    return element("rect", x=0, y=row.top, width=width, height=row.height, class_="row")


def _tick(tick: Tick, height: float) -> Markup:
    text = element("text", tick.label, y=16, class_="tick")
    line = element("line", x1=tick.x, x2=tick.x, y1=22, y2=height, class_=f"grid g{tick.level}")
    return join([line, _label(text, tick.x, None, tick.label, "axis", tick.level)])


def _label(text: Markup, x: float, end: float | None, words: str, track: str, first: int) -> Markup:
    """Place a label: at a point, or in a span, in which it keeps to what is visible."""
    return element(
        "g",
        element("g", text, class_="k"),
        class_="t",
        transform=f"translate({x:.1f} 0)",
        data_x=x,
        data_end=end,
        data_w=f"{len(words) * CHARACTER + 4:.0f}",
        data_track=track,
        data_first=first,
    )


def _draw_shade(shade: Shade) -> Markup:
    width = max(shade.end - shade.x, 1.0)
    kind = visible(f"{shade.fault.kind} {shade.fault.target}", 40)
    healed = shade.fault.healed
    lasted = "until the end" if healed is None else f"for {duration(healed - shade.fault.start)}"
    shaded = [element("rect", x=shade.x, y=top, width=width, height=h, class_="shade") for top, h in shade.spans]
    band = element(
        "rect",
        element("title", f"{kind}, {lasted}"),
        x=shade.x,
        y=shade.band,
        width=width,
        height=BAND - 3,
        class_="fault",
    )
    text = element("text", kind, x=4, y=shade.band + 13, class_="fault-name")
    return join([*shaded, band, _label(text, shade.x, shade.end, kind, f"f{shade.band:.0f}", _FIRST)])


def _draw_bar(bar: Bar, number: int, *, shared: bool) -> Markup:
    hue = f"h{number % HUES}"
    hold = bar.hold
    tokens = visible(hold.tokens) or "held"
    words = f"{visible(hold.process)} holds, {'token ' + tokens if hold.tokens else 'no token'}"
    parts = [_bar_rect(bar, f"hold {hue}", bar.x, bar.end, f"{words}, for {duration(hold.end - hold.start)}")]
    if bar.last > bar.end:
        later = "it is over, but the process still acts as the holder: it may not know"
        parts.append(_bar_rect(bar, f"over {hue}", bar.end, bar.last, f"{words}; {later}"))
    strip = element("rect", x=bar.x, y=bar.top, width=max(bar.end - bar.x, 1.0), height=STRIP, class_=f"strip {hue}")
    written = f"{visible(hold.process)}: {tokens}" if shared else tokens
    text = element("text", written, x=5, y=bar.top + 13, class_="token")
    return join([*parts, strip, _label(text, bar.x, bar.end, written, f"b{bar.top:.0f}", _FIRST)])


def _bar_rect(bar: Bar, kind: str, x: float, end: float, words: str) -> Markup:
    title = element("title", words)
    return element("rect", title, x=x, y=bar.top, width=max(end - x, 1.0), height=bar.height, class_=kind)


def _gap(gap: Gap, height: float) -> Markup:
    words = f"{gap.operations:,} not drawn"
    rect = element("rect", x=gap.x, y=AXIS, width=max(gap.end - gap.x, 1.0), height=height - AXIS, class_="gap")
    middle = (gap.x + gap.end) / 2
    text = element("text", words, y=height - 6, class_="gap-words")
    return join([rect, _label(text, middle, None, words, "gaps", _FIRST)])


def _interval(mark: TimeMark, width: float) -> Markup:
    outcome = mark.operation.outcome
    drawn = element("line", x1=mark.x, x2=max(mark.end, mark.x + 0.5), y1=mark.y, y2=mark.y, class_=f"span {outcome}")
    if outcome != "unknown":
        return drawn
    # A little lower than the later operations of the same process.
    return join([drawn, element("path", d=f"M{mark.end:.1f} {mark.y:.0f}v8H{width:.0f}", class_="open")])


def _draw_mark(mark: TimeMark, origin: int) -> Markup:
    operation = mark.operation
    outcome = operation.outcome
    shape = _shape(operation)
    symbol = element("use", href=f"#m-{shape}", class_="k")
    title = element("title", sentence(operation, origin))
    placed = element("g", title, symbol, class_=f"m {shape}", transform=f"translate({mark.end:.1f} {mark.y:.0f})")
    first = _FIRST if mark.badges else _PLAIN if outcome == "ok" else _TROUBLE
    return join([placed, *_mark_labels(mark, first)])


def _shape(operation: DrawnOperation) -> str:
    """Name the symbol of report.html: what was done if it was accepted, else the outcome."""
    if operation.outcome != "ok":
        return operation.outcome
    return "read" if operation.op in READS else _SHAPES.get(operation.op, "write")


def _mark_labels(mark: TimeMark, first: int) -> Iterable[Markup]:
    outcome = mark.operation.outcome
    words = label(mark.operation)
    lines = [(words, 20.0, "what")]
    if mark.operation.token is not None:
        lines.append((str(mark.operation.token), 31.0, "number"))
    for text, down, kind in lines:
        y = mark.y + down
        written = element("text", text, y=y, class_=f"{kind} {outcome}{' bad' if mark.badges else ''}")
        yield _label(written, mark.end, None, text, f"{kind}{y:.0f}", first)


def _violation(shown: ShownTimelines, layout: Layout, view: tuple[float, float]) -> Markup:
    """Draw the halos around the operations of a violation, and arrows from each to the next."""
    order = {identity: i for i, identity in enumerate(shown.ids)}
    own = sorted((m for m in layout.marks if m.operation.id in order), key=lambda m: order[m.operation.id])
    arrows = [_arrow(a, b) for a, b in pairwise(own)]
    halos = [_halo(mark, next(b for b in mark.badges if of_violation(b, shown.letter))) for mark in own]
    return element(
        "g",
        *arrows,
        *halos,
        class_="violation",
        tabindex="0",
        role="img",
        aria_label=f"Violation {shown.letter}: {visible(shown.words, 600)}",
        data_x=f"{view[0]:.0f}",
        data_width=f"{view[1]:.0f}",
    )


def _halo(mark: TimeMark, badge: str) -> Markup:
    circle = element("circle", r=12, class_="halo")
    number = element("text", badge, x=12, y=-9, class_="badge")
    scaled = element("g", circle, number, class_="k")
    return element("g", scaled, transform=f"translate({mark.end:.1f} {mark.y:.0f})")


def _arrow(before: TimeMark, after: TimeMark) -> Markup:
    ends = {"data_x1": before.end, "data_y1": before.y, "data_x2": after.end, "data_y2": after.y}
    head = element("path", d="M0 0l-6 -11h12z" if before.y == after.y else "M0 0l-11 -6v12z", class_="head")
    x, y = (0, -HALO) if before.y == after.y else (-HALO, 0)
    placed = element("g", element("g", head, transform=f"translate({x} {y})"), class_="k")
    return join(
        [
            element("path", d=arrow_path((before.end, before.y), (after.end, after.y)), class_="arrow", **ends),
            element("g", placed, transform=f"translate({after.end:.1f} {after.y:.0f})"),
        ]
    )


def arrow_path(start: tuple[float, float], end: tuple[float, float], unit: float = 1.0) -> str:
    """Give the curve from halo to halo: into the left side, or into the top of a mark in the same row.

    `unit`: units of x that are a pixel. report.js does the same at each zoom.
    """
    (x1, y1), (x2, y2) = start, end
    if y1 == y2:
        up, side = y1 - 52, 24 * unit
        return (
            f"M{x1:.1f} {y1 - HALO:.0f}C{x1 + side:.1f} {up:.0f} {x2 - side:.1f} {up:.0f} {x2:.1f} {y2 - HALO - 7:.0f}"
        )
    x1, x2 = x1 + HALO * unit, x2 - (HALO + 7) * unit
    bend = max(60 * unit, (x2 - x1) / 2)
    return f"M{x1:.1f} {y1:.0f}C{x1 + bend:.1f} {y1:.0f} {x2 - bend:.1f} {y2:.0f} {x2:.1f} {y2:.0f}"


# The overview as SVG: each row has three lines, of accepted, refused and unknown operations, darker where more are.

CELL: Final = 4
"""Units of a column."""
LINE: Final = 5
HEIGHT: Final = 20
LEVELS: Final = 5
TOP: Final = 24
FAULTS: Final = 12
MOST_FAULTS: Final = 1_000
_OVERVIEW_NAME_WIDTH: Final = 230
_OVERVIEW_NAME_LENGTH: Final = 30
_TICKS: Final = 6


def draw_overview(
    overview: Overview, faults: Sequence[FaultSpan], violated_at: Mapping[str, Sequence[int]], links: Mapping[str, str]
) -> Markup:
    """Draw all of the history. By resource: moments of violations (`violated_at`), ids of timelines (`links`)."""
    width, height = COLUMNS * CELL, TOP + FAULTS + HEIGHT * len(overview.rows)
    parts = [
        element("title", "All operations of the history", id="overview-title"),
        *_axis(overview, width),
        *(_fault(overview, fault, height) for fault in faults[:MOST_FAULTS]),
        *_cells(overview),
        *(_violations(overview, row, top, violated_at) for top, row in _tops(overview)),
    ]
    names = [_name(row, top, links) for top, row in _tops(overview)]
    picture = element(
        "svg",
        *parts,
        class_="heat",
        viewBox=f"0 0 {width} {height}",
        height=f"{height}",
        width=f"{width}",
        preserveAspectRatio="none",
        role="img",
        aria_labelledby="overview-title",
    )
    names_drawn = element("svg", *names, class_="names wide", width=f"{_OVERVIEW_NAME_WIDTH}", height=f"{height}")
    return element("div", names_drawn, element("div", picture, class_="window"), class_="timeline overview")


def _tops(overview: Overview) -> Iterable[tuple[int, OverviewRow]]:
    return ((TOP + FAULTS + i * HEIGHT, row) for i, row in enumerate(overview.rows))


def _name(row: OverviewRow, top: int, links: Mapping[str, str]) -> Markup:
    text = element(
        "text",
        visible(row.label if len(row.label) <= _OVERVIEW_NAME_LENGTH else f"…{row.label[1 - _OVERVIEW_NAME_LENGTH :]}"),
        element("title", visible(row.label)),
        x=8,
        y=top + 14,
        class_="violated" if row.violated else None,
    )
    target = links.get(row.label)
    return text if target is None else element("a", text, href=f"#{target}")


def _axis(overview: Overview, width: int) -> Iterable[Markup]:
    start, end = overview.span
    for i in range(_TICKS):
        x = width * i / _TICKS
        text = element("text", duration((end - start) * i // _TICKS) if i else "0", y=14, class_="tick first")
        yield element("g", element("g", text, class_="k"), transform=f"translate({x:.0f} 0)")


def _fault(overview: Overview, fault: FaultSpan, height: int) -> Markup:
    start, end = overview.span
    scale = COLUMNS * CELL / (end - start)
    healed = end if fault.healed is None else fault.healed
    x, width = (fault.start - start) * scale, max((healed - fault.start) * scale, 1.0)
    title = element("title", visible(f"{fault.kind} {fault.target}, for {duration(healed - fault.start)}"))
    shade = element("rect", x=x, y=TOP + FAULTS, width=width, height=height - TOP - FAULTS, class_="shade")
    return join([element("rect", title, x=x, y=TOP, width=width, height=FAULTS - 3, class_="fault"), shade])


def _cells(overview: Overview) -> Iterable[Markup]:
    """One path for each outcome and level: thousands of rectangles would be megabytes."""
    for line, outcome in enumerate(OUTCOMES):
        busiest = overview.busiest(outcome)
        paths: dict[int, list[str]] = {}
        for top, row in _tops(overview):
            _runs(row.cells[outcome], busiest, top + 2 + line * LINE, paths)
        for level, runs in sorted(paths.items()):
            yield element("path", d="".join(runs), class_=f"cell {outcome} l{level}")


def _runs(cells: Sequence[int], busiest: int, y: int, paths: dict[int, list[str]]) -> None:
    start = 0
    levels = [level(count, busiest) for count in cells]
    for i in range(1, len(levels) + 1):
        if i < len(levels) and levels[i] == levels[start]:
            continue
        if levels[start]:
            width = (i - start) * CELL
            paths.setdefault(levels[start], []).append(f"M{start * CELL} {y}h{width}v{LINE - 1}h-{width}z")
        start = i


def level(count: int, busiest: int) -> int:
    """How dark a cell is, by its logarithm: 0 for none, 1 for one operation, `LEVELS` for the busiest."""
    if count == 0:
        return 0
    return min(1 + ceil((LEVELS - 1) * log2(count) / max(log2(busiest), 1)), LEVELS)


def _violations(overview: Overview, row: OverviewRow, top: int, violated_at: Mapping[str, Sequence[int]]) -> Markup:
    if not row.violated:
        return Markup()
    columns = sorted({overview.column(moment) for moment in violated_at.get(row.label, ())})
    places = [min(max((column + 0.5) * CELL, 2.0 * CELL), (COLUMNS - 2.0) * CELL) for column in columns]
    mark = element("path", element("title", "violation"), d="M0 -8l7 8l-7 8l-7 -8z", class_="k head")
    return join(element("g", mark, transform=f"translate({x:.0f} {top + HEIGHT / 2:.0f})") for x in places)
