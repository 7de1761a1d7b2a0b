"""`python -m benchmarks`: run every cell in alternating rounds, write the result, print the table."""

import asyncio
import shutil
import signal
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click

from benchmarks import report
from benchmarks.cells import CELLS, RULED, Cell, TableName
from benchmarks.database import BenchmarkDatabase
from benchmarks.drivers import Bench, Measurement, measure
from benchmarks.machine import describe, source_digest
from benchmarks.peers import about_peers, missing
from benchmarks.processes import BenchmarkError
from benchmarks.walk import ROWS
from fencepost.server.ops.embedded import PostgresServer
from fencepost.server.ops.embedded_files import EmbeddedServerError, embedded_bin_dir


@click.command()
@click.option("--seconds", type=click.IntRange(1), default=3, show_default=True, help="How long each cell is measured.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="How often.")
@click.option("--warmup", type=float, default=0.5, show_default=True, help="Seconds of HTTP load before measuring.")
@click.option("--only", multiple=True, metavar="TEXT", help="Only cells with this in their name; repeatable.")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=Path("/var/tmp"),  # noqa: S108 - a directory of ours is made in it
    show_default=True,
    help="Where the database is made, and removed; not a tmpfs, where fsync costs nothing.",
)
@click.option("--output", type=click.Path(path_type=Path), help="Where the result is written; else in results/.")
def main(seconds: int, rounds: int, warmup: float, only: tuple[str, ...], directory: Path, output: Path | None) -> None:
    """Measure on this machine, on an embedded PostgreSQL of its own and on loopback only."""
    wanted = [cell for cell in CELLS if not only or any(text in cell.name for text in only)]
    if not wanted:
        raise click.ClickException(f"no cell has {' or '.join(only)} in its name")
    left_out = {cell.name: why for cell in wanted if (why := missing(cell.driver)) is not None}
    cells = [cell for cell in wanted if cell.name not in left_out]
    for name, why in left_out.items():
        click.echo(f"left out: {name} ({why})", err=True)
    if not cells:
        raise click.ClickException("nothing is left to measure")
    try:
        with make_bench(directory, warmup, seconds, {cell.table for cell in cells}) as bench:
            about = {
                "machine": describe(bench.bin_dir, bench.directory),
                "postgresql": asyncio.run(bench.database.settings()),
                "source": (source := source_digest()),
                "table_rows": ROWS,
                "rounds": rounds,
                "seconds": seconds,
                "warmup": warmup,
                "only": only,
                "peers": about_peers(cells),
                "left_out": left_out,
            }
            made = report.report(about, cells, _run(bench, cells, rounds))
            if source_digest() != source:
                made["faults"].append("app/ was edited during the run: its cells did not measure the same code")
    except (BenchmarkError, EmbeddedServerError) as error:
        raise click.ClickException(str(error)) from error
    output = output or (report.PART if only else report.LATEST)
    report.write(made, output)
    click.echo(report.table(made))
    click.echo(f"written to {output}")
    if made["faults"]:
        raise SystemExit(1)


@contextmanager
def make_bench(parent: Path, warmup: float, seconds: int, tables: Collection[TableName] = ()) -> Iterator[Bench]:
    """Make a database with these tables on a server of its own, gone afterwards, also when SIGTERM ends us."""
    signal.signal(signal.SIGTERM, _exit)
    directory = Path(tempfile.mkdtemp(prefix="fencepost-bench-", dir=parent))
    directory.chmod(0o755)  # as root, PostgreSQL runs as another user and must get through
    bin_dir = embedded_bin_dir()
    try:
        with PostgresServer(bin_dir=bin_dir, data_dir=directory / "data") as server:
            database = BenchmarkDatabase(server.url)
            asyncio.run(database.make(tables))
            gateway_url = asyncio.run(database.make_gateway_role(ruled=RULED in tables))
            yield Bench(bin_dir, directory, database, warmup, seconds, gateway_url)
    finally:
        shutil.rmtree(directory)


def _exit(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _run(bench: Bench, cells: Sequence[Cell], rounds: int) -> dict[str, list[Measurement]]:
    """Measure every cell in every round; every other round goes backwards."""
    measured: dict[str, list[Measurement]] = {cell.name: [] for cell in cells}
    number = 0
    for round_number in range(rounds):
        for cell in cells if round_number % 2 == 0 else reversed(cells):
            number += 1
            one = measure(bench, cell, number)
            measured[cell.name].append(one)
            click.echo(
                f"round {round_number + 1} of {rounds}  {cell.name:42}{one.result['rate']:10,.0f}/s"
                + "".join(f"  {fault}" for fault in one.faults),
                err=True,
            )
    return measured


if __name__ == "__main__":
    main()
