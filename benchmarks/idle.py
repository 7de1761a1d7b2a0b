"""`python -m benchmarks.idle`: what connections that are kept open, and send nothing, cost a gateway and others."""

import asyncio
import os
import socket
import statistics
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import click

from benchmarks import load
from benchmarks.__main__ import make_bench
from benchmarks.cells import PATCH, PROTECTED
from benchmarks.cpu import Cpu
from benchmarks.load import Plan
from benchmarks.processes import BenchmarkError, gateway
from benchmarks.requests import request
from benchmarks.walk import OVER_ROWS, TOKENS_PER_CELL
from fencepost.testing.servers.processes import descendants

WORKERS: Final = 2
_OK: Final = 200
_ASKED: Final = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


@contextmanager
def idle(port: int, count: int) -> Iterator[None]:
    """Keep so many connections open, each of which has been answered once."""
    with ExitStack() as stack:
        for _ in range(count):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
            connection.sendall(_ASKED)
            if b" 200 " not in connection.recv(4096):
                raise BenchmarkError("an idle connection was not served")
        yield


def memory() -> float:
    """Add up the memory of the gateway's processes, in MiB; what they share counts once."""
    kib = 0
    for pid in descendants(os.getpid()):
        if Path(f"/proc/{pid}/comm").read_text().startswith("python"):
            shares = Path(f"/proc/{pid}/smaps_rollup").read_text().split("\nPss:")[1]
            kib += int(shares.split()[0])
    return kib / 1024


@click.command()
@click.option("--connections", type=click.IntRange(1), default=10_000, show_default=True, help="How many are idle.")
@click.option("--seconds", type=click.IntRange(1), default=5, show_default=True, help="How long PATCHes are sent.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="How often.")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=Path("/var/tmp"),  # noqa: S108 - a directory of ours is made in it
    show_default=True,
    help="Where the database is made, and removed.",
)
def main(connections: int, seconds: int, rounds: int, directory: Path) -> None:
    """Send PATCHes over 64 connections to two workers: alone, and beside idle connections, in turns."""
    bounds = {"FENCEPOST_MAX_CONNECTIONS": "20000", "FENCEPOST_MAX_CONNECTIONS_PER_ADDRESS": "20000"}
    rates: dict[int, list[float]] = {0: [], connections: []}
    cell, token = PATCH, 0
    with make_bench(directory, 0.5, seconds, [PROTECTED]) as bench:
        asyncio.run(bench.database.settle(PROTECTED, OVER_ROWS))
        with gateway(bench.database.url, bench.directory, WORKERS, **bounds, FENCEPOST_KEEP_ALIVE="3600") as port:
            for number in range(rounds):
                for count, measured in rates.items():
                    before = memory()
                    with idle(port, count):
                        after, cpu, token = memory(), Cpu(), token + TOKENS_PER_CELL
                        result = load.generate(
                            Plan(
                                port=port,
                                request=request(cell, OVER_ROWS, token),
                                connections=cell.connections,
                                first_token=token,
                                rising=True,
                                expected_status=_OK,
                                expected_text="order-",
                                warmup=bench.warmup,
                                seconds=seconds,
                                walk=OVER_ROWS,
                            )
                        )
                        spent = cpu.per(result["accepted"])["fencepost_us"]
                    if result["faults"]:
                        raise BenchmarkError(str(result["faults"]))
                    measured.append(result["rate"])
                    click.echo(
                        f"round {number + 1} of {rounds}  {count:6,} idle connections: PATCH {result['rate']:7,.0f}/s,"
                        f" p99 {result['p99_ms']:.1f} ms, {spent:.0f} µs of the gateway;"
                        + (f" {1024 * (after - before) / count:.1f} KiB a connection" if count else "")
                    )
    ratio = statistics.median(b / a for a, b in zip(rates[0], rates[connections], strict=True))
    click.echo(f"PATCH beside {connections:,} idle connections / alone: {ratio:.2f}")


if __name__ == "__main__":
    main()
