"""`python -m benchmarks.scaling`: the cost of a write by the size of what is there. It should be flat.

The same single-row PATCH, over HTTP and by pgbench, on tables of several sizes; and PATCH, POST and keyed PATCH beside
few and beside many marks and idempotency records. Two ways to choose rows:

- hot: the same number of rows (960) in every table, scattered evenly over all of it. What differs is the table: the
  depth of its index, and that the rows of a large one are on 960 pages, those of the smallest on a dozen.
- everywhere: all rows in turn. On 10^7 rows almost every write is on a page that was not touched since the last
  checkpoint, and PostgreSQL logs such a page whole; shared_buffers (128 MB, the default) holds an eighth of the table.
  That is PostgreSQL's price for random access, with or without a fence: pgbench beside it shows it.

Every measurement begins after a CHECKPOINT, with a warm-up (--warmup, and --long-warmup for `everywhere`, by whose
end most pages have been logged once). The files of all tables fit the page cache of a machine with 4 GB.
"""

import asyncio
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from benchmarks.__main__ import make_bench
from benchmarks.cells import PROTECTED
from benchmarks.drivers import Bench, Measurement
from benchmarks.machine import describe, source_digest
from benchmarks.processes import BenchmarkError
from benchmarks.report import RESULTS, summary
from benchmarks.sized import (
    CLIENTS,
    CONNECTIONS,
    Sized,
    by_pgbench,
    everywhere,
    execute,
    fresh,
    hot,
    make,
    noise,
    over_http,
    warmed,
)

LATEST: Final = RESULTS / "scaling.json"
SIZES: Final = (1_000, 100_000, 10_000_000)
MANY: Final = 1_000_000
WANTED: Final = 0.9
_BYTES_PER_ROW: Final = 300
"""Table, index and log."""

_MANY_MARKS: Final = """
INSERT INTO fencepost.marks (resource, last_fence_token, xid, row_absent)
SELECT 'orders/gone-' || n, 10, pg_current_xact_id(), true FROM generate_series(1, {many}) n"""
_MANY_RECORDS: Final = """
INSERT INTO fencepost.idempotency (caller, key, payload_hash, outcome, rows)
SELECT '', 'earlier-' || n, '\\x00', '{{}}', '{{"order_id": "order-' || n || '", "status": "paid"}}'
  FROM generate_series(1, {many}) n"""


@dataclass(frozen=True)
class Workload:
    """One load on one table. `kind` is what is compared with itself on another table."""

    kind: str
    sized: Sized
    run: Callable[[Bench, int], Measurement]

    @property
    def name(self) -> str:
        """Kind and table."""
        return f"{self.kind}, {self.sized.name}"


@click.command()
@click.option("--seconds", type=click.IntRange(1), default=4, show_default=True, help="How long each is measured.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="How often.")
@click.option("--warmup", type=float, default=2.0, show_default=True, help="Seconds of load before measuring.")
@click.option("--long-warmup", type=float, default=15.0, show_default=True, help="The same where all rows are written.")
@click.option("--rows", type=int, multiple=True, default=SIZES, show_default=True, help="Sizes of tables, rising.")
@click.option("--many", type=int, default=MANY, show_default=True, help="Marks, and idempotency records.")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=Path("/var/tmp"),  # noqa: S108 - a directory of ours is made in it
    show_default=True,
    help="Where the database is made, and removed; not a tmpfs, where fsync costs nothing.",
)
@click.option("--output", type=click.Path(path_type=Path), default=LATEST, help="Where the result is written.")
def main(
    seconds: int,
    rounds: int,
    warmup: float,
    long_warmup: float,
    rows: tuple[int, ...],
    many: int,
    directory: Path,
    output: Path,
) -> None:
    """Measure on this machine, on an embedded PostgreSQL of its own and on loopback only."""
    needed = (sum(rows) + 2 * many) * _BYTES_PER_ROW + 2 * 2**30
    if (free := shutil.disk_usage(directory).free) < needed:
        raise click.ClickException(f"{directory} has {free / 2**30:.1f} GiB free, {needed / 2**30:.1f} are needed")
    try:
        with make_bench(directory, warmup, seconds) as bench:
            about = {
                "machine": describe(bench.bin_dir, bench.directory),
                "postgresql": asyncio.run(bench.database.settings()),
                "source": source_digest(),
                "rounds": rounds,
                "seconds": seconds,
                "warmup": warmup,
                "long_warmup": long_warmup,
                "many": many,
            }
            workloads = asyncio.run(_make(bench, rows, many, long_warmup))
            made = _report(about, workloads, _run(bench, workloads, rounds))
    except BenchmarkError as error:
        raise click.ClickException(str(error)) from error
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(made, indent=1) + "\n")
    click.echo(_table(made))
    click.echo(f"written to {output}")
    if made["faults"]:
        raise SystemExit(1)


async def _make(bench: Bench, rows: Sequence[int], many: int, long_warmup: float) -> list[Workload]:
    """Make the tables, and print what is done to them."""
    url = bench.database.url
    tables = [await make(url, f"rows_{size}", size) for size in rows]
    few, full = [await make(url, name, 100_000) for name in ("few", "many")]
    await execute(
        full.url,
        _MANY_MARKS.format(many=many),
        _MANY_RECORDS.format(many=many),
        "VACUUM ANALYZE fencepost.marks",
        "VACUUM ANALYZE fencepost.idempotency",
    )
    workloads = []
    for table in tables:
        workloads += [_patch_hot(table), _update_hot(table)]
    for table in tables[1:]:
        workloads += [_patch_everywhere(table, long_warmup), _update_everywhere(table, long_warmup)]
    for table in (few, full):
        workloads += [_patch_beside(table), _keyed_beside(table), _post_beside(table)]
    return workloads


def _patch_hot(table: Sized) -> Workload:
    walk = hot(table.rows, CONNECTIONS)
    return Workload("PATCH, hot rows", table, lambda b, n: over_http(b, table, "write", walk, n))


def _update_hot(table: Sized) -> Workload:
    walk = hot(table.rows, CLIENTS)
    return Workload("UPDATE by pgbench, hot rows", table, lambda b, n: by_pgbench(b, table, walk, n))


def _patch_everywhere(table: Sized, warmup: float) -> Workload:
    walk = everywhere(table.rows)
    return Workload("PATCH, everywhere", table, lambda b, n: over_http(warmed(b, warmup), table, "write", walk, n))


def _update_everywhere(table: Sized, warmup: float) -> Workload:
    walk = everywhere(table.rows)
    return Workload("UPDATE by pgbench, everywhere", table, lambda b, n: by_pgbench(warmed(b, warmup), table, walk, n))


def _patch_beside(table: Sized) -> Workload:
    walk = hot(table.rows, CONNECTIONS)
    return Workload("PATCH, marks and records", table, lambda b, n: over_http(b, table, "write", walk, n))


def _keyed_beside(table: Sized) -> Workload:
    walk = hot(table.rows, CONNECTIONS)
    return Workload("keyed PATCH, marks and records", table, lambda b, n: over_http(b, table, "keyed write", walk, n))


def _post_beside(table: Sized) -> Workload:
    return Workload("POST, marks and records", table, lambda b, n: over_http(b, table, "insert", fresh(n), n))


def _run(bench: Bench, workloads: Sequence[Workload], rounds: int) -> dict[str, list[Measurement]]:
    """Measure everything in every round; every other round goes backwards. Between two, tables are vacuumed."""
    measured: dict[str, list[Measurement]] = {each.name: [] for each in workloads}
    number = 0
    for round_number in range(rounds):
        for each in workloads if round_number % 2 == 0 else reversed(workloads):
            number += 1
            asyncio.run(execute(each.sized.url, f"VACUUM {PROTECTED}"))
            one = each.run(bench, number)
            measured[each.name].append(one)
            faults = "".join(f"  {fault}" for fault in one.faults)
            click.echo(
                f"round {round_number + 1} of {rounds}  {each.name:46}{one.result['rate']:10,.0f}/s{faults}", err=True
            )
    return measured


def _report(
    about: dict[str, Any], workloads: Sequence[Workload], measured: dict[str, list[Measurement]]
) -> dict[str, Any]:
    cells, ratios = [], {}
    first: dict[str, Workload] = {}
    for each in workloads:
        rounds = measured[each.name]
        figures = {
            "rate": summary([one.result["rate"] for one in rounds], 0),
            "p50_ms": summary([one.result["p50_ms"] for one in rounds], 3),
            "p99_ms": summary([one.result["p99_ms"] for one in rounds], 3),
        }
        cells.append({"name": each.name, "rows": each.sized.rows, "busy_before": noise(rounds), **figures})
        base = first.setdefault(each.kind, each)
        if base is not each:
            ratios[f"{each.kind}: {each.sized.name} ÷ {base.sized.name}"] = _ratio(rounds, measured[base.name])
    faults = [f"{name}: {fault}" for name, rounds in measured.items() for one in rounds for fault in one.faults]
    return {**about, "cells": cells, "wanted": WANTED, "ratios": ratios, "faults": faults}


def _ratio(of: Sequence[Measurement], to: Sequence[Measurement]) -> dict[str, float]:
    return summary([a.result["rate"] / max(b.result["rate"], 1) for a, b in zip(of, to, strict=True)], 3)


def _table(made: dict[str, Any]) -> str:
    heading = f"median of {made['rounds']} round(s) of {made['seconds']} s"
    lines = [f"{heading:46}{'per second':>10} {'(lowest to highest)':>20} {'p50 ms':>8} {'p99 ms':>8} {'others':>7}"]
    for cell in made["cells"]:
        rate = cell["rate"]
        spread = f"({rate['lowest']:,.0f} to {rate['highest']:,.0f})"
        latency = f"{cell['p50_ms']['median']:8.2f} {cell['p99_ms']['median']:8.2f}"
        lines.append(f"{cell['name']:46}{rate['median']:10,.0f} {spread:>20} {latency} {cell['busy_before']:7.0%}")
    lines.append("")
    for name, ratio in made["ratios"].items():
        lines.append(f"{name:60}{ratio['median']:6.2f} ({ratio['lowest']:.2f} to {ratio['highest']:.2f})")
    return "\n".join(["", *lines, "", *made["faults"]])


if __name__ == "__main__":
    main()
