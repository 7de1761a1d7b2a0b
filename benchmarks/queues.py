"""`python -m benchmarks.queues`: applied writes per second from queues, beside the synchronous PATCH and the consumer
that most would write, side by side in one run.

Each round has every cell: PATCH through the gateway; a backlog in PostgreSQL and one in Kafka, drained by `fencepost
consume`; the usual Kafka consumer over such messages; latency from 202 to applied. Rounds go forwards and backwards
in turn. The broker is up all the time, and idle but for its own cells.
"""

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import click
import uvloop

from benchmarks import queue_report
from benchmarks.__main__ import make_bench
from benchmarks.cells import CELLS, PLAIN, PROTECTED, patch_name
from benchmarks.drivers import Bench, measure
from benchmarks.machine import busy, describe
from benchmarks.processes import BenchmarkError
from benchmarks.queue_measures import RATE, Figures, drain, latency, settle
from benchmarks.queue_report import WORKERS, drain_name, latency_name, usual_name
from benchmarks.queue_services import (
    KAFKA,
    KAFKA_IS,
    POSTGRES,
    TABLES,
    USUAL_TOPIC,
    Services,
    messages,
    produce,
    services,
)
from benchmarks.usual_consumer import COMMITS, Plan, applied_per_second
from fencepost.server.ops.embedded_files import EmbeddedServerError
from fencepost.testing.servers.lock_services import MissingServerError
from fencepost.testing.servers.server import ServerError

Measure = Callable[[], Figures]
_WARMUP: Final = 0.5  # seconds
_MOST_USUAL: Final = 6_000
"""More messages a second than the usual consumer could apply."""


@click.command()
@click.option("--seconds", type=click.IntRange(1), default=3, show_default=True, help="How long PATCH is measured.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="How often.")
@click.option("--backlog", type=click.IntRange(1000), default=30_000, show_default=True, help="Messages to drain.")
@click.option("--only", default="", metavar="TEXT", help="Only cells with this in their name.")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=Path("/var/tmp"),  # noqa: S108 - a directory of ours is made in it
    show_default=True,
    help="Where the servers keep their data; not a tmpfs, where fsync costs nothing.",
)
@click.option("--output", type=click.Path(path_type=Path), default=queue_report.LATEST, help="Where the result goes.")
def main(seconds: int, rounds: int, backlog: int, only: str, directory: Path, output: Path) -> None:
    """Measure on this machine, on loopback only, with servers of its own."""
    try:
        with make_bench(directory, _WARMUP, seconds, {PROTECTED, PLAIN}) as bench, ExitStack() as stack:
            about = {
                "machine": describe(bench.bin_dir, bench.directory),
                "postgresql": asyncio.run(bench.database.settings()),
                "kafka": KAFKA_IS,
                "rounds": rounds,
                "seconds": seconds,
                "backlog": backlog,
                "writes_per_second_for_latency": RATE,
            }
            found = stack.enter_context(services(bench.directory, bench.database.url))
            produce(found.bootstrap, USUAL_TOPIC, messages(TABLES[KAFKA], int(_MOST_USUAL * (seconds + _WARMUP))))
            cells = {name: run for name, run in _cells(bench, found, backlog).items() if only in name}
            measured = _run(cells, rounds)
    except (BenchmarkError, EmbeddedServerError, MissingServerError, ServerError) as error:
        raise click.ClickException(str(error)) from error
    made = queue_report.report(about, measured)
    queue_report.write(made, output)
    click.echo(queue_report.markdown(made))
    click.echo(f"written to {output}")


def _cells(bench: Bench, found: Services, backlog: int) -> dict[str, Measure]:
    cells: dict[str, Measure] = {}
    for workers in WORKERS:
        cells[patch_name(64, workers)] = partial(_patch, bench, patch_name(64, workers))
    for queue in (POSTGRES, KAFKA):
        for workers in WORKERS:
            cells[drain_name(queue, workers)] = partial(_drain, found, queue, workers, backlog)
    for commit in COMMITS:
        cells[usual_name(commit)] = partial(_usual, found, commit, bench.seconds)
    for queue in (POSTGRES, KAFKA):
        cells[latency_name(queue)] = partial(_latency, found, queue, bench.seconds)
    return cells


def _run(cells: dict[str, Measure], rounds: int) -> dict[str, list[Figures]]:
    measured: dict[str, list[Figures]] = {name: [] for name in cells}
    for number in range(rounds):
        for name in cells if number % 2 == 0 else reversed(cells):
            before = busy()
            figures = cells[name]()
            measured[name].append({**figures, "busy_before": before})
            shown = "  ".join(f"{figure} {value:,.2f}" for figure, value in figures.items())
            click.echo(f"round {number + 1} of {rounds}  {name:34} {shown}", err=True)
    return measured


_patches = 0


def _patch(bench: Bench, name: str) -> Figures:
    global _patches  # noqa: PLW0603 - each has tokens above those of the one before
    _patches += 1
    measured = measure(bench, next(cell for cell in CELLS if cell.name == name), _patches)
    if measured.faults:
        raise BenchmarkError(f"{name}: {', '.join(measured.faults)}")
    result = measured.result
    return {"rate": result["rate"], "p50_ms": result["p50_ms"], "p99_ms": result["p99_ms"], **measured.cpu}


def _drain(found: Services, queue: str, workers: int, backlog: int) -> Figures:
    asyncio.run(settle(found.dsn, TABLES[queue]))
    return uvloop.run(drain(found, queue, workers, backlog))


def _usual(found: Services, commit: str, seconds: int) -> Figures:
    asyncio.run(settle(found.dsn, PLAIN))
    return {"rate": applied_per_second(Plan(found.dsn, found.bootstrap, USUAL_TOPIC, commit, _WARMUP, seconds))}


def _latency(found: Services, queue: str, seconds: int) -> Figures:
    asyncio.run(settle(found.dsn, TABLES[queue]))
    with ExitStack() as stack:
        if queue == KAFKA:
            stack.enter_context(found.consuming(queue, 1))
        port = stack.enter_context(found.serving())
        return uvloop.run(latency(port, TABLES[queue], seconds))


if __name__ == "__main__":
    main()
