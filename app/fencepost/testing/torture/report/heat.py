"""The overview as SVG: each row has three lines, of accepted, refused and unknown operations, darker where more are."""

from collections.abc import Iterable, Mapping, Sequence
from math import ceil, log2
from typing import Final

from fencepost.testing.torture.report.markup import Markup, element, join, visible
from fencepost.testing.torture.report.overview import COLUMNS, OUTCOMES, Overview, OverviewRow
from fencepost.testing.torture.report.survey import FaultSpan
from fencepost.testing.torture.report.wording import duration

CELL: Final = 4
"""Units of a column."""
LINE: Final = 5
HEIGHT: Final = 20
LEVELS: Final = 5
TOP: Final = 24
FAULTS: Final = 12
MOST_FAULTS: Final = 1_000
_NAME_WIDTH: Final = 230
_NAME: Final = 30
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
    names_drawn = element("svg", *names, class_="names wide", width=f"{_NAME_WIDTH}", height=f"{height}")
    return element("div", names_drawn, element("div", picture, class_="window"), class_="timeline overview")


def _tops(overview: Overview) -> Iterable[tuple[int, OverviewRow]]:
    return ((TOP + FAULTS + i * HEIGHT, row) for i, row in enumerate(overview.rows))


def _name(row: OverviewRow, top: int, links: Mapping[str, str]) -> Markup:
    text = element(
        "text",
        visible(row.label if len(row.label) <= _NAME else f"…{row.label[1 - _NAME :]}"),
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
