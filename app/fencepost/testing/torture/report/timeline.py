"""A timeline as SVG.

The page zooms in time only, by the viewBox. Marks and texts must not become wider with it: each stands in an element of
class `k`, which the style sheet scales by the inverse (report.js sets it). A label says where it is and how wide
(`data-…`); report.js shows as many as have room.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from fencepost.testing.torture.report.layout import (
    AXIS,
    BAND,
    STRIP,
    Bar,
    Gap,
    Layout,
    Mark,
    Shade,
    first_view,
    of_violation,
)
from fencepost.testing.torture.report.markup import Markup, element, join, visible
from fencepost.testing.torture.report.operation import READS, Operation
from fencepost.testing.torture.report.rows import TimelineRow
from fencepost.testing.torture.report.scale import Tick, ticks
from fencepost.testing.torture.report.wording import duration, label, sentence

CHARACTER: Final = 5.9
"""Pixels of a character of a label, about."""
HUES: Final = 6
HALO: Final = 14
"""Pixels from the middle of a mark to where arrows begin and end."""
_NAME_WIDTH: Final = 148
_NAME: Final = 19
_SHAPES: Final = {"acquire": "acquire", "release": "release", "claim": "claim"}
# What keeps its label when there is no room for all: the lower, the sooner.
_FIRST, _TROUBLE, _PLAIN = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Shown:
    """A violation in this timeline: its letter, the checker's words, its operations."""

    letter: str
    words: str
    ids: tuple[int, ...]


def draw(layout: Layout, title: str, violations: Sequence[Shown], origin: int, name: str) -> Markup:
    """Draw a timeline. `name` is what its ids begin with; `origin` is the moment that the ticks count from."""
    x, width = first_view(layout, violations[0].letter) if violations else (0.0, layout.scale.width)
    view = f"{x:.0f} 0 {width:.0f} {layout.height:.0f}"
    shared = {row.top for row in layout.rows if len(row.processes) > 1}
    parts = [
        element("title", title, id=f"{name}-title"),
        element("desc", _described(layout), id=f"{name}-desc"),
        *(_row(row, layout.scale.width) for row in layout.rows),
        *(_tick(tick, layout.height) for tick in ticks(layout.scale, origin)),
        *(_shade(shade) for shade in layout.shades),
        *(_bar(bar, number, shared=bar.top in shared) for number, bar in enumerate(layout.bars)),
        *(_gap(gap, layout.height) for gap in layout.gaps),
        *(_interval(mark, layout.scale.width) for mark in layout.marks),
        *(_violation(shown, layout, first_view(layout, shown.letter)) for shown in violations),
        *(_mark(mark, origin) for mark in layout.marks),
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
        "svg", *names, class_="names", width=f"{_NAME_WIDTH}", height=f"{layout.height:.0f}", aria_hidden="true"
    )


def _row_name(row: TimelineRow) -> Markup:
    more = f" +{len(row.processes) - 1}" if len(row.processes) > 1 else ""
    full = ", ".join(visible(process) for process in row.processes[:20])
    text = visible(row.processes[0], _NAME - len(more)) + more
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


def _shade(shade: Shade) -> Markup:
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


def _bar(bar: Bar, number: int, *, shared: bool) -> Markup:
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


def _interval(mark: Mark, width: float) -> Markup:
    outcome = mark.operation.outcome
    drawn = element("line", x1=mark.x, x2=max(mark.end, mark.x + 0.5), y1=mark.y, y2=mark.y, class_=f"span {outcome}")
    if outcome != "unknown":
        return drawn
    # A little lower than the later operations of the same process.
    return join([drawn, element("path", d=f"M{mark.end:.1f} {mark.y:.0f}v8H{width:.0f}", class_="open")])


def _mark(mark: Mark, origin: int) -> Markup:
    operation = mark.operation
    outcome = operation.outcome
    shape = _shape(operation)
    symbol = element("use", href=f"#m-{shape}", class_="k")
    title = element("title", sentence(operation, origin))
    placed = element("g", title, symbol, class_=f"m {shape}", transform=f"translate({mark.end:.1f} {mark.y:.0f})")
    first = _FIRST if mark.badges else _PLAIN if outcome == "ok" else _TROUBLE
    return join([placed, *_mark_labels(mark, first)])


def _shape(operation: Operation) -> str:
    """Name the symbol of report.html: what was done if it was accepted, else the outcome."""
    if operation.outcome != "ok":
        return operation.outcome
    return "read" if operation.op in READS else _SHAPES.get(operation.op, "write")


def _mark_labels(mark: Mark, first: int) -> Iterable[Markup]:
    outcome = mark.operation.outcome
    words = label(mark.operation)
    lines = [(words, 20.0, "what")]
    if mark.operation.token is not None:
        lines.append((str(mark.operation.token), 31.0, "number"))
    for text, down, kind in lines:
        y = mark.y + down
        written = element("text", text, y=y, class_=f"{kind} {outcome}{' bad' if mark.badges else ''}")
        yield _label(written, mark.end, None, text, f"{kind}{y:.0f}", first)


def _violation(shown: Shown, layout: Layout, view: tuple[float, float]) -> Markup:
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


def _halo(mark: Mark, badge: str) -> Markup:
    circle = element("circle", r=12, class_="halo")
    number = element("text", badge, x=12, y=-9, class_="badge")
    scaled = element("g", circle, number, class_="k")
    return element("g", scaled, transform=f"translate({mark.end:.1f} {mark.y:.0f})")


def _arrow(before: Mark, after: Mark) -> Markup:
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
