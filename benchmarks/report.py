"""Medians with their spread, ratios, the table, the file."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from benchmarks.cells import RATIOS, Cell
from benchmarks.drivers import Measurement

RESULTS: Final = Path(__file__).parent / "results"
LATEST: Final = RESULTS / "latest.json"

_QUIET: Final = 0.1
"""Share of the cores that others may use without spoiling a run."""

Rounds = Sequence[Measurement]
Report = dict[str, Any]


def summary(values: Sequence[float], digits: int) -> dict[str, float]:
    """Median, lowest and highest."""
    return {
        "median": round(statistics.median(values), digits),
        "lowest": round(min(values), digits),
        "highest": round(max(values), digits),
    }


def report(about: dict[str, Any], cells: Sequence[Cell], measured: dict[str, list[Measurement]]) -> Report:
    """Put a run together. `measured` has each cell's rounds by its name."""
    return {
        **about,
        "cells": [_cell(cell, measured[cell.name]) for cell in cells],
        "ratios": {
            ratio.name: summary(_by_round(measured[ratio.of], measured[ratio.to]), 3)
            for ratio in RATIOS
            if ratio.of in measured and ratio.to in measured
        },
        "faults": [f"{name}: {fault}" for name, rounds in measured.items() for one in rounds for fault in one.faults],
    }


def _cell(cell: Cell, rounds: Rounds) -> dict[str, Any]:
    results = [one.result for one in rounds]
    return {
        **asdict(cell),
        "rate": summary([result["rate"] for result in results], 0),
        "p50_ms": summary([result["p50_ms"] for result in results], 3),
        "p99_ms": summary([result["p99_ms"] for result in results], 3),
        "rounds": [{**one.result, "busy_before": round(one.busy_before, 2)} for one in rounds],
    }


def _by_round(of: Rounds, to: Rounds) -> list[float]:
    return [a.result["rate"] / b.result["rate"] for a, b in zip(of, to, strict=True) if b.result["rate"]] or [0.0]


def write(made: Report, path: Path) -> None:
    """Write the report as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n")


def _noise(made: Report) -> str:
    """Say whether the machine was ours alone."""
    busy = [one["busy_before"] for cell in made["cells"] for one in cell["rounds"]]
    verdict = "quiet" if max(busy) <= _QUIET else "NOT QUIET, take every figure as a rough one"
    return f"Before the cells others used {statistics.mean(busy):.0%} of the cores, at most {max(busy):.0%}: {verdict}."


def table(made: Report) -> str:
    """Write the report for people."""
    machine, settings = made["machine"], made["postgresql"]
    heading = f"median of {made['rounds']} round(s) of {made['seconds']} s"
    lines = [
        f"{machine['cores']} cores ({machine['cpu']}), {machine['memory_gib']} GiB, Python {machine['python']},"
        f" PostgreSQL {settings['server_version']}, fsync={settings['fsync']} ({machine['filesystem']});"
        f" revision {machine['revision']}",
        f"fdatasync takes {machine['fdatasync_us']:g} µs here ({machine['fdatasync_measured_with']}): where it takes"
        " longer, commits cost more. Load generator, server and PostgreSQL share the cores.",
        _noise(made),
        "",
        f"{heading:34}{'per second':>10} {'(lowest to highest)':>20} {'p50 ms':>8} {'p99 ms':>8}",
    ]
    for cell in made["cells"]:
        rate = cell["rate"]
        spread = f"({rate['lowest']:,.0f} to {rate['highest']:,.0f})"
        latency = f"{cell['p50_ms']['median']:8.2f} {cell['p99_ms']['median']:8.2f}"
        lines.append(f"{cell['name']:34}{rate['median']:10,.0f} {spread:>20} {latency}")
    lines.append("")
    for name, ratio in made["ratios"].items():
        spread = f"({ratio['lowest']:.2f} to {ratio['highest']:.2f})"
        lines.append(f"{name:34}{ratio['median']:10.2f} {spread:>20}")
    verdict = "every count agrees with the database" if not made["faults"] else "NOT AS IT MUST BE:"
    return "\n".join(["", *lines, "", verdict, *made["faults"]])
