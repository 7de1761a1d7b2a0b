"""The long run of docs/proof.md: every workload on every token source, with faults; a row for each part.

    .venv/bin/python -m tools.long_run --minutes 25 --jobs 2 --to /tmp/long-run     run parts that have no row yet
    .venv/bin/python -m tools.long_run --to /tmp/long-run --write                   write docs/proof.json and the tables

`--only WORKLOAD` runs the parts of one workload. Rows that are written take the places of those of the same parts; of
other parts the figures stay, and the page tells the day of each.

A part is one `fencepost torture`. Its row is a file in the directory `--to`, so a run that was ended goes on where it
was. No part begins after `--minutes`. The history of a part is kept if it shows what it should not: a violation with
fences, or a control that has lost nothing. Exit code 1 if there was one.
"""

import argparse
import functools
import json
import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from fencepost.server.ops.parent_death import die_with_parent
from fencepost.testing.checker import Verdict
from fencepost.testing.history import End, Event, FaultEvent, Invoke, read
from fencepost.testing.torture import BadInputError, Config, RunFailedError, run
from fencepost.testing.torture.config import HISTORY, SOURCES
from fencepost.testing.torture.workloads import WORKLOADS

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs/proof.md"
FIGURES: Final = ROOT / "docs/proof.json"
BEGIN: Final = "<!-- the long run: written by tools/long_run.py -->"
END: Final = "<!-- end of the long run -->"
_COLUMNS: Final = (
    *("workload", "source", "seed", "operations", "accepted", "refused", "unknown", "faults", "violations", "lost"),
)
_MINUTES: Final = 0.4
_OF_A_CONTROL: Final = 1.0
"""Minutes: on a slow source few leases end too early in less."""
_WITHOUT_STANDBY: Final = "all,-failover"
_WITHOUT_RESTARTS: Final = "all,-failover,-restart-fast,-restart-immediate,-kill-gateway"
_ORDER: Final = ("blocks", "unfenced-set", "mutex", "fenced-set", "idempotent", "register", "client", "client-set")
_FIRST_OF_CLIENTS: Final = 60
"""The first seed of the Python client's parts."""


@dataclass(frozen=True, slots=True)
class Part:
    """One run of torture."""

    seed: int
    workload: str
    source: str
    minutes: float = _MINUTES
    faults: str = _WITHOUT_STANDBY

    @property
    def name(self) -> str:
        """Names its files."""
        return f"{self.seed:03}-{self.workload}-{self.source}"

    @property
    def command(self) -> str:
        """What does it again."""
        chosen = f"--workload {self.workload} --source {self.source} --seed {self.seed} --minutes {self.minutes:g}"
        return f"fencepost torture {chosen} --faults {self.faults}"


def parts() -> list[Part]:
    """List all parts, in the order in which they are run: what gives the most operations, and what has to be, first."""
    pairs = [
        *(("builtin", workload) for workload in ("register", "idempotent", "blocks")),
        *((source, workload) for workload in ("fenced-set", "unfenced-set", "mutex") for source in SOURCES),
        *((source, "blocks") for source in SOURCES),
        *((source, "register") for source in SOURCES if source != "builtin"),
    ]
    first = [Part(seed, workload, source, 1.0, "all") for seed, (source, workload) in enumerate(pairs[:3], 1)]
    rest = [
        Part(seed, workload, source, _OF_A_CONTROL if WORKLOADS[workload].loses else _MINUTES)
        for seed, (source, workload) in enumerate(pairs[3:], 4)
    ]
    many = [Part(seed, "blocks", "builtin", 3.0, _WITHOUT_RESTARTS) for seed in (50, 51)]
    pairs_of_clients = [(source, workload) for workload in ("client", "client-set") for source in SOURCES]
    clients = [
        Part(seed, workload, source) for seed, (source, workload) in enumerate(pairs_of_clients, _FIRST_OF_CLIENTS)
    ]
    everything = first + rest + many + clients
    return sorted(everything, key=lambda part: (_ORDER.index(part.workload), part not in many, part.seed))


def play(part: Part, to: Path) -> dict[str, Any]:
    """Run one part and write its row. In the main thread of a process. Raises RunFailedError, BadInputError."""
    out = to / part.name
    began = time.monotonic()
    verdict = run(
        Config(out, part.seed, part.workload, part.source, part.minutes, faults=part.faults, operations=400_000)
    )
    row = row_of(part, verdict, read(out / HISTORY)) | {"seconds": round(time.monotonic() - began)}
    if is_as_promised(row):
        shutil.rmtree(out)
    fresh = to / f"{part.name}.new"
    fresh.write_text(json.dumps(row))
    fresh.rename(to / f"{part.name}.json")
    return row


def row_of(part: Part, verdict: Verdict, events: Iterable[Event]) -> dict[str, Any]:
    """Give what a part came to."""
    kinds: Counter[str] = Counter()
    lost = _lost(_counting(events, kinds))
    return asdict(part) | {
        "operations": verdict.operations,
        "accepted": verdict.accepted,
        "refused": verdict.refused,
        "unknown": verdict.unknown,
        "faults": dict(sorted(kinds.items())),
        "violations": len(verdict.violations),
        "lost": lost,
        "control": WORKLOADS[part.workload].loses,
        "command": part.command,
        "date": time.strftime("%Y-%m-%d"),
    }


def is_as_promised(row: dict[str, Any]) -> bool:
    """Whether a fenced part has no violation, and a control has lost members."""
    return bool(row["lost"] and row["violations"]) if row["control"] else not row["violations"]


def _counting(events: Iterable[Event], kinds: Counter[str]) -> Iterator[Event]:
    for event in events:
        if isinstance(event, FaultEvent):
            kinds[event.kind] += 1
        yield event


def _lost(events: Iterable[Event]) -> int:
    """Count the members of sets whose adds were acknowledged, and which the last reading of the set does not show."""
    adds: dict[int, tuple[str, str | None]] = {}
    readings: dict[int, str] = {}
    added: defaultdict[str, set[str | None]] = defaultdict(set)
    there: dict[str, set[str]] = {}
    for event in events:
        if isinstance(event, Invoke) and event.op == "add":
            adds[event.id] = (event.resource, event.value)
        elif isinstance(event, Invoke) and event.op == "read_set":
            readings[event.id] = event.resource
        elif isinstance(event, End) and event.event == "ok" and event.id in adds:
            resource, value = adds.pop(event.id)
            added[resource].add(value)
        elif isinstance(event, End) and event.values is not None:
            there[readings[event.id]] = set(event.values)
    return sum(len(values - there.get(resource, set())) for resource, values in added.items())


def rows(to: Path) -> list[dict[str, Any]]:
    """Read the rows that there are, in the order of their seeds."""
    return [json.loads(path.read_text()) for path in sorted(to.glob("*.json"))]


def tables(found: list[dict[str, Any]]) -> str:
    """Write the tables of docs/proof.md."""
    kinds: Counter[str] = Counter()
    for row in found:
        kinds.update(row["faults"])
    total = {name: sum(row[name] for row in found) for name in ("operations", "accepted", "refused", "unknown")}
    fenced = sum(row["violations"] for row in found if not row["control"])
    controls = [row for row in found if row["control"]]
    lines = [
        f"{len(found)} histories, {total['operations']:,} operations: {total['accepted']:,} accepted,"
        f" {total['refused']:,} refused, {total['unknown']:,} with an unknown outcome. {sum(kinds.values())} faults of"
        f" {len(kinds)} kinds. Violations with fences: {fenced}. Controls that lost members: "
        f"{sum(1 for row in controls if row['lost'])} of {len(controls)}.",
        *_not_run(found),
        *_days(found),
        "",
        _line(_COLUMNS),
        _line(["---", "---", *["---:"] * (len(_COLUMNS) - 2)]),
        *(_line([_cell(row, column) for column in _COLUMNS]) for row in found),
        "",
        "| fault | times |",
        "| --- | ---: |",
        *(_line([f"`{kind}`", str(count)]) for kind, count in sorted(kinds.items())),
    ]
    return "\n".join(lines)


def _not_run(found: list[dict[str, Any]]) -> list[str]:
    """Name the parts for which there was no time."""
    seeds = {row["seed"] for row in found}
    names = [f"{part.workload} on {part.source}" for part in parts() if part.seed not in seeds]
    return ["", f"Planned, and not run for want of time: {', '.join(names)}."] if names else []


def _days(found: list[dict[str, Any]]) -> list[str]:
    """Tell which parts were played on which day. Rows from before 2026-11-27 do not say."""
    days: defaultdict[str, list[str]] = defaultdict(list)
    for row in found:
        if "date" in row:
            days[row["date"]].append(str(row["seed"]))
    return (
        ["", *(f"Played {day}: the seeds {', '.join(seeds)}." for day, seeds in sorted(days.items()))] if days else []
    )


def merged(before: list[dict[str, Any]], fresh: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put fresh rows into the places of those of the same parts. Rows of parts that are no more are left out."""
    by_seed = {row["seed"]: row for row in (*before, *fresh)}
    return [by_seed[part.seed] for part in sorted(parts(), key=lambda part: part.seed) if part.seed in by_seed]


def _cell(row: dict[str, Any], column: str) -> str:
    value = row[column]
    if column == "faults":
        return str(sum(value.values()))
    if column == "lost" and WORKLOADS[row["workload"]].sets is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else str(value)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def write(found: list[dict[str, Any]]) -> None:
    """Write the figures and the tables into docs."""
    FIGURES.write_text(json.dumps(found, indent=1) + "\n")
    before, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{tables(found)}\n\n{END}{rest.split(END)[1]}")


def run_parts(to: Path, minutes: float, jobs: int, only: str | None) -> bool:
    """Run all parts, or those of one workload, that have no row, as long as time is left. Whether all came to what they
    should.
    """
    until, good = time.monotonic() + minutes * 60, True
    wanted = [part for part in parts() if only in (None, part.workload)]
    waiting = [part for part in wanted if not (to / f"{part.name}.json").exists()]
    ends_with_us = functools.partial(die_with_parent, os.getpid(), signal.SIGKILL)
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), initializer=ends_with_us) as pool:
        for done in as_completed([pool.submit(_play_in_time, part, to, until) for part in waiting]):
            words, as_promised = done.result()
            sys.stdout.write(f"{words}\n")
            sys.stdout.flush()
            good = good and as_promised
    return good


def _play_in_time(part: Part, to: Path, until: float) -> tuple[str, bool]:
    if time.monotonic() > until:
        return f"{part.name}: no time left", True
    try:
        row = play(part, to)
    except (RunFailedError, BadInputError, OSError) as error:
        return f"{part.name}: failed: {error}", False
    return f"{part.name}: {row['operations']} operations, {row['violations']} violations, {row['lost']} lost", (
        is_as_promised(row)
    )


def main() -> None:
    """Run parts, or write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, required=True, help="directory of the rows")
    parser.add_argument("--minutes", type=float, default=25.0, help="no part begins later")
    parser.add_argument("--jobs", type=int, default=2, help="parts at the same time")
    parser.add_argument("--write", action="store_true", help="write docs/proof.json and the tables of docs/proof.md")
    parser.add_argument("--only", choices=_ORDER, help="run the parts of this workload only")
    given = parser.parse_args()
    given.to.mkdir(parents=True, exist_ok=True)
    if given.write:
        write(merged(json.loads(FIGURES.read_text()), rows(given.to)))
    elif not run_parts(given.to, given.minutes, given.jobs, given.only):
        sys.exit(1)


if __name__ == "__main__":
    main()
