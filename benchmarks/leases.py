"""`python -m benchmarks.leases`: acquire+release pairs per second, and how long a hand-over takes, side by side.

alone: each client has a lock of its own. contended: all want the same one, and the holder releases it at once; the
hand-over is the time from the sending of a release to the next holder's having its answer.
"""

import asyncio
import json
import math
import shutil
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import click
import uvloop

from benchmarks.__main__ import make_bench
from benchmarks.drivers import Bench
from benchmarks.lease_clients import AdvisoryClient, Client, HttpClient, RedisClient
from benchmarks.machine import busy, describe
from benchmarks.processes import BenchmarkError, gateway, running
from benchmarks.report import RESULTS, summary
from fencepost.testing.servers.lock_services import redis
from fencepost.testing.servers.processes import free_port

CLIENTS: Final = 32
LATEST: Final = RESULTS / "leases.json"
FENCEPOST: Final = "fencepost, HTTP"
HANDLER: Final = "advisory lock, HTTP"
DIRECT: Final = "advisory lock, direct"
REDIS: Final = "redis SET NX PX, direct"
SOURCE: Final = "fencepost of redis, HTTP"
RATIOS: Final = {
    "fencepost by advisory lock over HTTP": (FENCEPOST, HANDLER),
    "grants of redis by those of builtin": (SOURCE, FENCEPOST),
}
_WARMUP: Final = 0.3  # seconds

Open = Callable[[bool], Awaitable[Client]]
"""Opens one client; the bool: whether it must wait for others."""


@dataclass
class Times:
    """What clients saw, in seconds."""

    pairs: list[float] = field(default_factory=list)
    handovers: list[float] = field(default_factory=list)
    released_at: float = math.inf


@dataclass(frozen=True)
class Result:
    """One workload in one round."""

    rate: float
    pair_p50_ms: float
    pair_p99_ms: float
    handover_p50_ms: float
    handover_p99_ms: float
    busy_before: float


@click.command()
@click.option("--seconds", type=click.IntRange(1), default=3, show_default=True, help="How long each cell is measured.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="How often.")
@click.option("--only", default="", metavar="TEXT", help="Only services and loads with this in their name.")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=Path("/var/tmp"),  # noqa: S108 - a directory of ours is made in it
    show_default=True,
    help="Where the servers keep their data; not a tmpfs, where fsync costs nothing.",
)
@click.option("--output", type=click.Path(path_type=Path), default=LATEST, help="Where the result is written.")
def main(seconds: int, rounds: int, only: str, directory: Path, output: Path) -> None:
    """Measure on this machine, on loopback only, with servers of its own."""
    cells = [
        (service, load)
        for load in ("alone, 1", f"alone, {CLIENTS}", f"contended, {CLIENTS}")
        for service in _SERVERS
        if only in f"{service}, {load}"
    ]
    if missing := [] if shutil.which("redis-server") else [REDIS, SOURCE]:
        click.echo("not measured: redis (no redis-server: `make test-servers` as root installs it)", err=True)
    results: dict[tuple[str, str], list[Result]] = {cell: [] for cell in cells if cell[0] not in missing}
    try:
        with make_bench(directory, 0, seconds) as bench:
            about = {"machine": describe(bench.bin_dir, bench.directory), "rounds": rounds, "seconds": seconds}
            about["postgresql"] = asyncio.run(bench.database.settings())
            for number in range(rounds):
                for cell in results if number % 2 == 0 else reversed(results):
                    results[cell].append(_measure(bench, *cell))
                    click.echo(
                        f"round {number + 1} of {rounds}  {cell[0]:24} {cell[1]:14} {results[cell][-1]}", err=True
                    )
    except BenchmarkError as error:
        raise click.ClickException(str(error)) from error
    made = _report(about, results)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(made, indent=1) + "\n")
    click.echo(_table(made))


def _measure(bench: Bench, service: str, load: str) -> Result:
    clients, contended = int(load.rpartition(" ")[2]), load.startswith("contended")
    busy_before = busy()
    with ExitStack() as servers:
        open_client = _SERVERS[service](bench, servers)
        times, took = uvloop.run(_load(open_client, clients, bench.seconds, contended=contended))
    return Result(
        rate=len(times.pairs) / took,
        pair_p50_ms=_percentile(times.pairs, 0.5),
        pair_p99_ms=_percentile(times.pairs, 0.99),
        handover_p50_ms=_percentile(times.handovers, 0.5),
        handover_p99_ms=_percentile(times.handovers, 0.99),
        busy_before=busy_before,
    )


def _percentile(values: Sequence[float], share: float) -> float:
    """In ms; 0 when there are none."""
    ordered = sorted(values)
    return round(ordered[min(int(len(ordered) * share), len(ordered) - 1)] * 1000, 3) if ordered else 0.0


async def _load(open_client: Open, count: int, seconds: float, *, contended: bool) -> tuple[Times, float]:
    clients = [await open_client(contended) for _ in range(count)]
    try:
        await _run(clients, _WARMUP, contended=contended)
        return await _run(clients, seconds, contended=contended)
    finally:
        for client in clients:
            await client.close()


async def _run(clients: Sequence[Client], seconds: float, *, contended: bool) -> tuple[Times, float]:
    times, begin = Times(), time.perf_counter()
    end = begin + seconds

    async def contend(client: Client, name: str) -> None:
        while (asked_at := time.perf_counter()) < end:
            await client.acquire(name)
            now = time.perf_counter()
            if contended and asked_at < times.released_at < now:  # it waited while another one released
                times.handovers.append(now - times.released_at)
            times.released_at = released_at = time.perf_counter()
            await client.release()
            times.pairs.append(now - asked_at + time.perf_counter() - released_at)

    await asyncio.gather(*(contend(c, "one" if contended else f"lock-{n}") for n, c in enumerate(clients)))
    return times, time.perf_counter() - begin


def _fencepost(bench: Bench, servers: ExitStack) -> Open:
    port = servers.enter_context(gateway(bench.database.url, bench.directory))
    return lambda waits: HttpClient.open(port, waits=waits)


def _source(bench: Bench, servers: ExitStack) -> Open:
    redis_port = free_port()
    servers.enter_context(redis(bench.directory / f"redis-{redis_port}", port=redis_port).server)
    name = f"redis_{redis_port}"  # a new Redis counts from 1: it is a source of its own
    url = f"{name}=redis://127.0.0.1:{redis_port}"
    port = servers.enter_context(gateway(bench.database.url, bench.directory, FENCEPOST_SOURCES=url))
    return lambda waits: HttpClient.open(port, waits=waits, source=name)


def _handler(bench: Bench, servers: ExitStack) -> Open:
    command = [*(sys.executable, "-m", "uvicorn", "benchmarks.advisory_handler:app", "--host", "127.0.0.1"),
               *("--port", "0", "--loop", "uvloop", "--http", "httptools", "--no-access-log")]  # fmt: skip
    ready = r"running on http://127.0.0.1:(?P<port>\d+)"
    log = bench.directory / "server.log"
    found = servers.enter_context(running(command, log, ready, BENCHMARK_DATABASE_URL=bench.database.url))
    return lambda waits: HttpClient.open(int(found["port"]), waits=waits)


def _direct(bench: Bench, _servers: ExitStack) -> Open:
    return lambda _waits: AdvisoryClient.open(bench.database.url)


def _redis(bench: Bench, servers: ExitStack) -> Open:
    port = free_port()
    servers.enter_context(redis(bench.directory / f"redis-{port}", port=port).server)

    async def open_client(_waits: bool) -> Client:
        return RedisClient(port)

    return open_client


_SERVERS: Final[dict[str, Callable[[Bench, ExitStack], Open]]] = {
    FENCEPOST: _fencepost,
    HANDLER: _handler,
    DIRECT: _direct,
    REDIS: _redis,
    SOURCE: _source,
}


def _report(about: dict[str, Any], results: dict[tuple[str, str], list[Result]]) -> dict[str, Any]:
    loads = dict.fromkeys(load for _, load in results)
    ratios = {
        name: {
            load: summary([a.rate / b.rate for a, b in zip(results[one, load], results[other, load], strict=True)], 3)
            for load in loads
            if (one, load) in results and (other, load) in results
        }
        for name, (one, other) in RATIOS.items()
    }
    return {
        **about,
        "cells": [
            {
                "service": service,
                "load": load,
                **{name: summary([asdict(r)[name] for r in rounds], 3) for name in asdict(rounds[0])},
            }
            for (service, load), rounds in results.items()
        ],
        **ratios,
    }


def _table(made: dict[str, Any]) -> str:
    machine = made["machine"]
    noise = statistics.mean(cell["busy_before"]["median"] for cell in made["cells"])
    lines = [
        f"{machine['cores']} cores ({machine['cpu']}), PostgreSQL {made['postgresql']['server_version']},"
        f" fdatasync {machine['fdatasync_us']:g} µs; others used {noise:.0%} of the cores before the cells",
        "",
        f"{'median of ' + str(made['rounds']) + ' round(s)':42}{'pairs/s':>9} {'pair p50':>9} {'p99 ms':>8}"
        f" {'hand-over p50':>14} {'p99 ms':>8}",
    ]
    for cell in made["cells"]:
        median = {name: value["median"] for name, value in cell.items() if isinstance(value, dict)}
        handover = f"{median['handover_p50_ms']:14.2f} {median['handover_p99_ms']:8.2f}"
        lines.append(
            f"{cell['service']:26}{cell['load']:16}{median['rate']:9,.0f} {median['pair_p50_ms']:9.2f}"
            f" {median['pair_p99_ms']:8.2f} {handover if median['handover_p50_ms'] else ''}"
        )
    lines.append("")
    for name in RATIOS:
        for load, ratio in made[name].items():
            spread = f"({ratio['lowest']:.2f} to {ratio['highest']:.2f})"
            lines.append(f"{name}, {load:14}{ratio['median']:6.2f} {spread}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
