"""`python -m benchmarks.sources`: acquire, release and hand-over of every token source, side by side in one run.

All servers are up all the time, and idle but for the one that is measured; rounds go through the sources forwards and
backwards in turn. Each is measured through the gateway's HTTP API, and its source object alone, so that the gateway's
share is seen. What a machine lacks is named and left out.
"""

import asyncio
from contextlib import ExitStack
from pathlib import Path

import click
import uvloop

from benchmarks import source_report
from benchmarks.__main__ import make_bench
from benchmarks.machine import busy, describe
from benchmarks.processes import BenchmarkError
from benchmarks.source_clients import BUILTIN
from benchmarks.source_measures import Round, measure
from benchmarks.source_services import KINDS, TTL_MS, Services, start, version
from fencepost.server.ops.embedded_files import EmbeddedServerError


@click.command()
@click.option("--seconds", type=click.IntRange(1), default=3, show_default=True, help="How long latency is measured.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="How often.")
@click.option("--handovers", type=click.IntRange(1), default=10, show_default=True, help="Hand-overs in a round.")
@click.option("--only", default="", metavar="TEXT", help="Beside builtin, only sources with this in their name.")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=Path("/var/tmp"),  # noqa: S108 - a directory of ours is made in it
    show_default=True,
    help="Where the servers keep their data; not a tmpfs, where fsync costs nothing.",
)
@click.option("--output", type=click.Path(path_type=Path), default=source_report.LATEST, help="Where the result goes.")
def main(seconds: int, rounds: int, handovers: int, only: str, directory: Path, output: Path) -> None:
    """Measure on this machine, on loopback only, with servers of its own."""
    try:
        with make_bench(directory, 0, seconds) as bench, ExitStack() as stack:
            about = {
                "machine": describe(bench.bin_dir, bench.directory),
                "postgresql": (settings := asyncio.run(bench.database.settings())),
                "rounds": rounds,
                "seconds": seconds,
                "handovers": handovers,
                "ttl_ms": TTL_MS,
            }
            services = start(stack, bench.directory, bench.database.url, only)
            for name, why in services.left_out.items():
                click.echo(f"left out: {name} ({why})", err=True)
            measured = _run(services, seconds, rounds, handovers)
            versions = {kind.name: version(kind) for kind in KINDS if kind.name in measured}
            versions[BUILTIN] = settings["server_version"]
    except (BenchmarkError, EmbeddedServerError) as error:
        raise click.ClickException(str(error)) from error
    made = source_report.report({**about, "left_out": services.left_out}, measured, versions)
    source_report.write(made, output)
    click.echo(source_report.markdown(made))
    click.echo(f"written to {output}")


def _run(services: Services, seconds: int, rounds: int, handovers: int) -> dict[str, list[Round]]:
    measured: dict[str, list[Round]] = {name: [] for name in services.urls}
    for number in range(rounds):
        for name in measured if number % 2 == 0 else reversed(measured):
            one = uvloop.run(measure(services, name, seconds, handovers, busy()))
            measured[name].append(one)
            click.echo(f"round {number + 1} of {rounds}  {name:18} {one}", err=True)
    return measured


if __name__ == "__main__":
    main()
