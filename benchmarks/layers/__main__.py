"""`python -m benchmarks.layers`: run all eight combinations, print the table, and write it to docs/combining.md."""

import asyncio
import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from benchmarks.layers import report
from benchmarks.layers.layers import COMBINATIONS, Layers
from benchmarks.layers.run import Services, measure
from fencepost.server.ops.embedded_files import embedded_bin_dir
from fencepost.testing.servers.gateway import gateway_environment
from fencepost.testing.servers.launcher import Launcher
from fencepost.testing.servers.lock_services import redis
from fencepost.testing.servers.postgres import Postgres, in_database, run_on
from fencepost.testing.servers.processes import server_directory

TEMPLATE = "migrated"


@contextmanager
def services() -> Iterator[Services]:
    """Run a PostgreSQL with a migrated database, and a Redis."""
    with server_directory() as data, tempfile.TemporaryDirectory() as logs, Launcher() as launcher:
        postgres = Postgres(bin_dir=embedded_bin_dir(), data_dir=data)
        postgres.start()
        service = redis(Path(logs) / "redis")
        try:
            with service.server:
                asyncio.run(run_on(postgres.url, f"CREATE DATABASE {TEMPLATE}"))
                launcher.run(["migrate"], gateway_environment(in_database(postgres.url, TEMPLATE)))
                yield Services(launcher, postgres.url, TEMPLATE, service.url, Path(logs))
        finally:
            postgres.stop()


async def measure_all(running: Services, combinations: Sequence[Layers], seed: int) -> list[Mapping[str, Any]]:
    """Measure one after the other."""
    return [await measure(running, layers, seed) for layers in combinations]


@click.command()
@click.option("--seed", type=int, help="Chooses which processes are paused when; default: another one each time.")
def main(seed: int | None) -> None:
    """Measure on this machine, with a PostgreSQL and a Redis of its own."""
    seed = random.SystemRandom().randrange(10**6) if seed is None else seed
    with services() as running:
        rows = asyncio.run(measure_all(running, COMBINATIONS, seed))
    report.write(seed, rows)
    click.echo(report.table({"rows": rows}))


if __name__ == "__main__":
    main()
