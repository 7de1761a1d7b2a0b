"""Where a moment is on the page.

Operations take milliseconds, pauses between them seconds. A linear axis shows either the one or the other, so the axis
stretches where much happens: the space between two neighbouring events grows with the logarithm of the time between
them. The ticks are true times.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, log2, log10
from statistics import median
from typing import Final

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
        """Give the moment at a place."""
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
