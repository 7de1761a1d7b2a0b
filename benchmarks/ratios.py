"""Which figures are compared with which, and the target of each ratio, set before it was measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from benchmarks import cells
from benchmarks.cells import Cell
from benchmarks.load import Result

Figure = Literal["rate", "p50_ms", "p99_ms"]


@dataclass(frozen=True, slots=True)
class Ratio:
    """One figure by another, taken within a round. At least `wanted`, or, with `at_most`, no more than it."""

    name: str
    of: Cell
    to: Cell
    wanted: float | None = None
    at_most: bool = False
    figures: tuple[Figure, Figure] = ("rate", "rate")

    def by_round(self, of: Sequence[Result], to: Sequence[Result]) -> list[float]:
        """Return it for every round in which there is something to divide by."""
        first, second = self.figures
        return [a[first] / b[second] for a, b in zip(of, to, strict=True) if b[second]]

    def reached(self, median: float) -> bool | None:
        """Return whether it is as wanted; None where nothing was wanted."""
        if self.wanted is None:
            return None
        return median <= self.wanted if self.at_most else median >= self.wanted


WANTED: Final = (
    Ratio("patch / bare UPDATE", cells.PATCH, cells.BARE, 0.6),
    Ratio("patch / usual handler", cells.PATCH, cells.USUAL, 4),
    Ratio("patch / pREST", cells.PATCH, cells.PREST, 2),
    Ratio(f"rows by arrays of {cells.ARRAY} / bare INSERT", cells.POST_ARRAY, cells.BARE_INSERT, 1.5),
    Ratio("lines of batches / bare UPDATE, 1 conn.", cells.BATCH, cells.BARE_ALONE, 3),
    Ratio("stale / accepted patch", cells.STALE, cells.PATCH, 1),
    Ratio("p99 / median, 64 conn.", cells.PATCH, cells.PATCH, 3, at_most=True, figures=("p99_ms", "p50_ms")),
    Ratio("patch with scope and key / patch", cells.PATCH_ALL, cells.PATCH, 0.7),
    Ratio("with authentication / without", cells.PATCH_TOKEN, cells.PATCH, 0.9),
    Ratio("bounds on connections / none, HTTP", cells.PATCH, cells.NO_GUARD, 0.95),
    Ratio("get / SELECT, pgbench", cells.GET, cells.SELECT, 0.35),
    Ratio("get / usual handler's get", cells.GET, cells.USUAL_GET, 1.5),
    Ratio("get / pREST's get", cells.GET, cells.PREST_GET, 2),
)

OTHERS: Final = (
    Ratio("triggers / bare UPDATE, pgbench", cells.TRIGGERS, cells.BARE),
    Ratio("key / triggers alone, pgbench", cells.KEY, cells.TRIGGERS),
    Ratio("scope / triggers alone, pgbench", cells.SCOPE, cells.TRIGGERS),
    Ratio("all layers / none, pgbench", cells.ALL_LAYERS, cells.BARE),
    Ratio("key / triggers alone, HTTP", cells.PATCH_KEY, cells.PATCH),
    Ratio("scope / triggers alone, HTTP", cells.PATCH_SCOPE, cells.PATCH),
    Ratio("patch / UPDATE with triggers", cells.PATCH, cells.TRIGGERS),
    Ratio("patch by 2 workers / by 1", cells.PATCH, next(c for c in cells.CELLS if c.name == cells.patch_name(64, 1))),
    Ratio("updated_at trigger / patch", cells.PATCH_STAMPED, cells.PATCH, 0.8),
    Ratio("own trigger / patch", cells.PATCH_TRIGGERED, cells.PATCH, 0.5),
    Ratio("row security, 1 caller / patch", cells.PATCH_RULED, cells.PATCH, 0.7),
    Ratio("row security, 64 callers / patch", cells.PATCH_RULED_MANY, cells.PATCH, 0.45),
    Ratio("claim / patch", cells.CLAIM, cells.PATCH, 0.8),
    Ratio("lines of batches / bare UPDATE", cells.BATCH, cells.BARE),
    Ratio("lines of batches / patch", cells.BATCH, cells.PATCH),
    Ratio("rows patched by arrays / patch", cells.PATCH_ARRAY, cells.PATCH),
    Ratio("patch / Redis, redis-py", cells.PATCH, cells.REDIS),
    Ratio("patch / Redis, redis-benchmark", cells.PATCH, cells.REDIS_TOOL),
    Ratio("patch / etcd, httpx", cells.PATCH, cells.ETCD),
    Ratio("patch / etcd, its benchmark", cells.PATCH, cells.ETCD_TOOL),
    Ratio("patch / ZooKeeper, kazoo", cells.PATCH, cells.ZOOKEEPER),
)

NOT_HERE: Final = {"10⁷ rows / 10³ rows": 0.9}
"""Wanted too, and measured elsewhere."""


def compare(ratio: Ratio, measured: Mapping[str, Sequence[Result]]) -> list[float]:
    """Return a ratio by round; empty where a cell of it was not measured."""
    of, to = measured.get(ratio.of.name, []), measured.get(ratio.to.name, [])
    return ratio.by_round(of, to) if of and to else []
