"""`python -m benchmarks.bloat`: what a table's fillfactor does to fenced writes.

An update that changes no indexed column and finds room on its page is HOT: no index is touched, and what it leaves
behind is cleared away by the next statement that reads the page. Fencepost's column has no index, so fenced writes are
HOT as often as the page has room. A page has room because of `fillfactor`, or because earlier versions were cleared
away.

Each cell is a fresh protected table of 10^5 rows with one fillfactor, written to over HTTP with autovacuum on, in
several stretches of load on the same table: the first finds full pages, later ones what it left.
"""

import asyncio
import json
from pathlib import Path
from typing import Any, Final

import click

from benchmarks.__main__ import make_bench
from benchmarks.cells import PROTECTED
from benchmarks.drivers import Bench
from benchmarks.machine import describe
from benchmarks.processes import BenchmarkError
from benchmarks.report import RESULTS
from benchmarks.sized import CONNECTIONS, Sized, everywhere, hot, make, one_row, over_http

LATEST: Final = RESULTS / "bloat.json"
ROWS: Final = 100_000
_STATE: Final = f"""
SELECT n_tup_upd AS updates, n_tup_hot_upd AS hot, n_dead_tup AS dead, autovacuum_count AS vacuums,
       pg_relation_size(relid) AS heap, pg_indexes_size(relid) AS indexes
  FROM pg_stat_user_tables WHERE relid = '{PROTECTED}'::regclass"""

Figures = dict[str, Any]


@click.command()
@click.option("--seconds", type=click.IntRange(1), default=20, show_default=True, help="Length of a stretch of load.")
@click.option("--stretches", type=click.IntRange(1), default=3, show_default=True, help="How many on each table.")
@click.option("--fillfactor", type=int, multiple=True, default=(100, 90, 80), show_default=True)
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=Path("/var/tmp"),  # noqa: S108 - a directory of ours is made in it
    show_default=True,
    help="Where the database is made, and removed; not a tmpfs, where fsync costs nothing.",
)
@click.option("--output", type=click.Path(path_type=Path), default=LATEST, help="Where the result is written.")
def main(seconds: int, stretches: int, fillfactor: tuple[int, ...], directory: Path, output: Path) -> None:
    """Measure on this machine, on an embedded PostgreSQL of its own and on loopback only."""
    try:
        with make_bench(directory, 0.5, seconds) as bench:
            about = {
                "machine": describe(bench.bin_dir, bench.directory),
                "postgresql": asyncio.run(bench.database.settings()),
                "seconds": seconds,
                "stretches": stretches,
                "table_rows": ROWS,
            }
            cells = [_cell(bench, each, scattered, stretches) for scattered in (True, False) for each in fillfactor]
    except BenchmarkError as error:
        raise click.ClickException(str(error)) from error
    made = {**about, "cells": cells}
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(made, indent=1) + "\n")
    click.echo(_table(made))


def _cell(bench: Bench, fillfactor: int, scattered: bool, stretches: int) -> Figures:
    """Write to a fresh table of its own."""
    name = f"{'all_rows' if scattered else 'hot_rows'}_{fillfactor}"
    sized = asyncio.run(make(bench.database.url, name, ROWS, fillfactor=fillfactor))
    walk = everywhere(ROWS) if scattered else hot(ROWS, CONNECTIONS)
    before = asyncio.run(one_row(sized.url, _STATE))
    stretched: list[Figures] = []
    for number in range(1, stretches + 1):
        measured = over_http(bench, sized, "write", walk, number)
        after = _settled(sized, int(before["updates"]) + measured.result["accepted"])
        stretched.append(_stretch(measured.result["rate"], before, after))
        before = after
        click.echo(f"{name:16} stretch {number}: {stretched[-1]} {' '.join(measured.faults)}", err=True)
    return {"fillfactor": fillfactor, "rows": "all" if scattered else "960 hot", "stretches": stretched}


def _settled(sized: Sized, updates: int) -> Figures:
    """Read the table's counts once all of the gateway's backends have reported theirs."""
    found: Figures = {}
    for _ in range(200):  # each a connection of its own
        found = asyncio.run(one_row(sized.url, _STATE))
        if found["updates"] >= updates:
            return found
    raise BenchmarkError(f"{sized.name}: {found['updates']} updates are counted, {updates} were accepted")


def _stretch(rate: float, before: Figures, after: Figures) -> Figures:
    return {
        "rate": round(rate),
        "hot_share": round((after["hot"] - before["hot"]) / max(after["updates"] - before["updates"], 1), 3),
        "heap_mb": round(after["heap"] / 1e6, 1),
        "indexes_mb": round(after["indexes"] / 1e6, 1),
        "dead": after["dead"],
        "autovacuums": after["vacuums"] - before["vacuums"],
    }


def _table(made: Figures) -> str:
    lines = [
        f"{'rows':8} {'fillfactor':>10} {'stretch':>8} {'writes/s':>9} {'HOT':>6} {'heap MB':>8} {'indexes MB':>11}"
    ]
    for cell in made["cells"]:
        for number, each in enumerate(cell["stretches"], start=1):
            lines.append(
                f"{cell['rows']:8} {cell['fillfactor']:10} {number:8} {each['rate']:9,} {each['hot_share']:6.1%}"
                f" {each['heap_mb']:8.1f} {each['indexes_mb']:11.1f}"
            )
    return "\n".join(["", *lines])


if __name__ == "__main__":
    main()
