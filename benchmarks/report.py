"""Medians with their spread, ratios, the table, the file."""

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from benchmarks.cells import Cell
from benchmarks.cpu import DATABASE, LOAD, PYTHON
from benchmarks.drivers import Measurement
from benchmarks.ratios import NOT_HERE, OTHERS, WANTED, Ratio, compare

RESULTS: Final = Path(__file__).parent / "results"
LATEST: Final = RESULTS / "latest.json"
PART: Final = RESULTS / "part.json"
"""Of a run with --only, so that it does not replace a whole one."""
KEPT: Final = RESULTS / "2-cores.json"
"""Committed: what README shows."""

_QUIET: Final = 0.1
"""Share of the cores that others may use without spoiling a run."""

_PARTS: Final = {PYTHON: "server µs", DATABASE: "database µs", LOAD: "load µs"}
"""Whose CPU time is shown, by row or request. That of a peer that keeps its own data is not measured."""

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
    results = {name: [one.result for one in rounds] for name, rounds in measured.items()}
    compared = {ratio.name: (ratio, compare(ratio, results)) for ratio in (*WANTED, *OTHERS)}
    return {
        **about,
        "cells": [_cell(cell, measured[cell.name]) for cell in cells],
        "ratios": {name: _ratio(ratio, values) for name, (ratio, values) in compared.items() if values},
        "ratios_wanted_and_not_measured": {
            **{name: ratio.wanted for name, (ratio, values) in compared.items() if ratio.wanted and not values},
            **NOT_HERE,
        },
        "faults": [f"{name}: {fault}" for name, rounds in measured.items() for one in rounds for fault in one.faults],
    }


def _ratio(ratio: Ratio, values: Sequence[float]) -> dict[str, Any]:
    made = summary(values, 3)
    wanted = {"wanted": ratio.wanted, "at_most": ratio.at_most, "reached": ratio.reached(made["median"])}
    return {**made, **(wanted if ratio.wanted is not None else {})}


def _cell(cell: Cell, rounds: Rounds) -> dict[str, Any]:
    results = [one.result for one in rounds]
    return {
        **asdict(cell),
        "rate": summary([result["rate"] for result in results], 0),
        "p50_ms": summary([result["p50_ms"] for result in results], 3),
        "p99_ms": summary([result["p99_ms"] for result in results], 3),
        **{
            f"{part}_us": summary([one.cpu[f"{part}_us"] for one in rounds], 1)
            for part in _PARTS
            if any(one.cpu.get(f"{part}_us") for one in rounds)
        },
        "rounds": [{**one.result, **one.cpu, "busy_before": round(one.busy_before, 2)} for one in rounds],
    }


def write(made: Report, path: Path) -> None:
    """Write the report as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n")


def _noise(made: Report) -> str:
    """Return whether the machine was ours alone."""
    busy = [one["busy_before"] for cell in made["cells"] for one in cell["rounds"]]
    verdict = "quiet" if max(busy) <= _QUIET else "NOT QUIET, take every figure as a rough one"
    return f"Before the cells others used {statistics.mean(busy):.0%} of the cores, at most {max(busy):.0%}: {verdict}."


def _heading(made: Report) -> Iterator[str]:
    machine, settings = made["machine"], made["postgresql"]
    yield (
        f"{machine['cores']} cores ({machine['cpu']}), {machine['memory_gib']} GiB, Python {machine['python']},"
        f" PostgreSQL {settings['server_version']}, fsync={settings['fsync']}"
        f" synchronous_commit={settings['synchronous_commit']} ({machine['filesystem']});"
        f" revision {machine['revision']}"
    )
    yield (
        f"fdatasync takes {machine['fdatasync_us']:g} µs here ({machine['fdatasync_measured_with']}): where it takes"
        " longer, commits cost more. Load generator, server and PostgreSQL share the cores."
    )
    yield _noise(made)


def _rates(made: Report) -> Iterator[str]:
    heading = f"median of {made['rounds']} round(s) of {made['seconds']} s"
    cpu = " ".join(f"{name:>11}" for name in _PARTS.values())
    yield f"{heading:42}{'per second':>10} {'(lowest to highest)':>20} {'p50 ms':>8} {'p99 ms':>8} {cpu}"
    for cell in made["cells"]:
        rate = cell["rate"]
        spread = f"({rate['lowest']:,.0f} to {rate['highest']:,.0f})"
        latency = f"{cell['p50_ms']['median']:8.2f} {cell['p99_ms']['median']:8.2f}"
        rows = "  rows; latency of requests" if cell["rows_per_request"] > 1 else ""
        cpu = " ".join(f"{cell[f'{part}_us']['median'] if f'{part}_us' in cell else '-':>11}" for part in _PARTS)
        yield f"{cell['name']:42}{rate['median']:10,.0f} {spread:>20} {latency} {cpu}{rows}"


def _ratios(made: Report) -> Iterator[str]:
    for name, ratio in made["ratios"].items():
        spread = f"({ratio['lowest']:.2f} to {ratio['highest']:.2f})"
        line = f"{name:42}{ratio['median']:10.2f} {spread:>20}"
        if "wanted" in ratio:
            line += f"  wanted {'≤' if ratio['at_most'] else '≥'} {ratio['wanted']:g}"
            line += ": reached" if ratio["reached"] else ": NOT REACHED"
        yield line
    not_measured = {} if made["only"] else made["ratios_wanted_and_not_measured"]
    for name, wanted in not_measured.items():
        yield f"{name:42}{'-':>10} {'':20}  wanted {wanted:g}: not measured in this run"


def table(made: Report) -> str:
    """Write the report for people."""
    verdict = "every count agrees with what was stored" if not made["faults"] else "NOT AS IT MUST BE:"
    left_out = [f"not measured: {name} ({why})" for name, why in made["left_out"].items()]
    lines = [*_heading(made), "", *_rates(made), "", *_ratios(made), "", verdict, *made["faults"], *left_out]
    return "\n".join(["", *lines])
