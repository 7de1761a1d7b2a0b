"""The figures of `python -m benchmarks.queues`, put together: as JSON, and as the tables in docs/queues.md.

`python -m benchmarks.queue_report` writes the committed figures into that page; a test compares the two. While none are
kept, the page says by which command they come there.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.cells import patch_name
from benchmarks.cpu import PARTS
from benchmarks.processes import REPOSITORY
from benchmarks.queue_services import KAFKA, POSTGRES
from benchmarks.report import RESULTS, summary
from benchmarks.source_report import QUIET
from benchmarks.usual_consumer import COMMITS

LATEST: Final = RESULTS / "queues.json"
KEPT: Final = RESULTS / "queues-2-cores.json"
"""Committed: what the page shows."""
PAGE: Final = REPOSITORY / "docs" / "queues.md"
BEGIN: Final = "<!-- python -m benchmarks.queue_report writes the lines from here -->\n"
END: Final = "<!-- to here -->\n"
NOTHING_KEPT: Final = (
    "No figures are kept yet: they are measured by `python -m benchmarks.queues --output"
    " benchmarks/results/queues-2-cores.json`.\n"
)
WORKERS: Final = (1, 2)
BY_PATCH: Final = 1.0
"""Wanted: as many applied writes as the synchronous PATCH has."""
BY_USUAL: Final = 5.0
"""Wanted: as many times the usual consumer's, which commits each message and its offset."""

Report = dict[str, Any]
Measured = Mapping[str, Sequence[Mapping[str, float]]]
"""By cell, the figures of each round."""


def drain_name(queue: str, workers: int) -> str:
    """Name the cell of a backlog."""
    return f"{queue}, {workers} w."


def usual_name(commit: str) -> str:
    """Name a cell of the usual consumer."""
    return f"usual consumer, offset: {commit}"


def latency_name(queue: str) -> str:
    """Name the cell of a queue's latency."""
    return f"latency, {queue}"


@dataclass(frozen=True, slots=True)
class Ratio:
    """The rate of one cell by that of another in the same round. `wanted`: at least so much; None: it is only shown."""

    of: str
    by: str
    wanted: float | None

    @property
    def name(self) -> str:
        """Name it."""
        return f"{self.of} by {self.by}"


RATIOS: Final = (
    *(
        Ratio(drain_name(queue, workers), patch_name(64, workers), BY_PATCH)
        for queue in (POSTGRES, KAFKA)
        for workers in WORKERS
    ),
    *(
        Ratio(drain_name(KAFKA, workers), usual_name(commit), BY_USUAL if commit == COMMITS[0] else None)
        for commit in COMMITS
        for workers in WORKERS
    ),
)


def report(about: Mapping[str, Any], measured: Measured) -> Report:
    """Put a run together."""
    return {
        **about,
        "cells": {
            name: {figure: summary([each[figure] for each in rounds], 3) for figure in rounds[0]}
            for name, rounds in measured.items()
        },
        "ratios": {
            each.name: {**_compared(each, measured), "wanted": each.wanted}
            for each in RATIOS
            if each.of in measured and each.by in measured
        },
    }


def _compared(ratio: Ratio, measured: Measured) -> dict[str, float]:
    pairs = zip(measured[ratio.of], measured[ratio.by], strict=True)
    return summary([ours["rate"] / theirs["rate"] for ours, theirs in pairs], 3)


def write(made: Report, path: Path) -> None:
    """Write the report as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n")


def noise(made: Report) -> str:
    """Return whether the machine was ours alone."""
    share = max(each["busy_before"]["highest"] for each in made["cells"].values())
    verdict = "quiet" if share <= QUIET else "not quiet, so take every figure as a rough one"
    return f"before the cells others, and the idle broker, used up to {share:.0%} of the cores: {verdict}"


def markdown(made: Report) -> str:
    """Write the tables for the page, with what they were measured on."""
    machine = made["machine"]
    return "\n".join(
        [
            "| applied | writes/s | of one partition, from its first to its last: slowest to fastest |",
            "| --- | --- | --- |",
            *_rates(made),
            "",
            "| µs on a core, a write | gateway or consumers | PostgreSQL | broker | all |",
            "| --- | --- | --- | --- | --- |",
            *_costs(made),
            "",
            "| ratio, in the same round | median | lowest to highest | wanted |",
            "| --- | --- | --- | --- |",
            *_ratios(made),
            "",
            "| ms | request to 202, p50 / p99 | 202 to applied, p50 / p99 |",
            "| --- | --- | --- |",
            *_latencies(made),
            "",
            f"Medians of {made['rounds']} rounds on {machine['cores']} cores ({machine['cpu']}), which load, gateway,"
            f" consumers, PostgreSQL {made['postgresql']['server_version']} and {made['kafka']} share; an fdatasync"
            f" takes {machine['fdatasync_us']:g} µs there. Backlogs of {made['backlog']:,} messages, each of another"
            f" row than those before it; latency at {made['writes_per_second_for_latency']} writes a second."
            f" {noise(made).capitalize()}. Revision {machine['revision']}.",
            "",
        ]
    )


def _rates(made: Report) -> Iterator[str]:
    for name, each in made["cells"].items():
        if "rate" not in each:
            continue
        partition = ""
        if "slowest_partition_rate" in each:
            slowest, fastest = each["slowest_partition_rate"]["median"], each["fastest_partition_rate"]["median"]
            partition = f"{slowest:,.0f} to {fastest:,.0f}"
        yield f"| {name} | {each['rate']['median']:,.0f} | {partition} |"


def _costs(made: Report) -> Iterator[str]:
    for name, each in made["cells"].items():
        if f"{PARTS[0]}_us" in each:
            parts = [each[f"{part}_us"]["median"] for part in PARTS]
            yield f"| {name} | {' | '.join(f'{part:.0f}' for part in (*parts, sum(parts)))} |"


def _ratios(made: Report) -> Iterator[str]:
    for name, each in made["ratios"].items():
        wanted = "" if each["wanted"] is None else f"≥ {each['wanted']:g}"
        spread = f"{each['lowest']:.2f} to {each['highest']:.2f}"
        yield f"| {name} | {each['median']:.2f} | {spread} | {wanted} |"


def _latencies(made: Report) -> Iterator[str]:
    for name, each in made["cells"].items():
        if "applied_p50_ms" in each:
            accepted, applied = (
                f"{each[f'{which}_p50_ms']['median']:.1f} / {each[f'{which}_p99_ms']['median']:.1f}"
                for which in ("accepted", "applied")
            )
            yield f"| {name.partition(', ')[2]} | {accepted} | {applied} |"


def kept() -> str:
    """Write what the page shows: the figures that are kept, or how they come there."""
    return markdown(json.loads(KEPT.read_text("utf-8"))) if KEPT.exists() else NOTHING_KEPT


def inserted(page: str, table: str) -> str:
    """Put the tables into a page, between its two marks. ValueError when they are not there."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN.strip()} … {END.strip()}")
    return f"{before}{begin}{table}{end}{after}"


def main() -> None:
    """Write the committed figures into the page."""
    PAGE.write_text(inserted(PAGE.read_text("utf-8"), kept()), "utf-8")


if __name__ == "__main__":
    main()
