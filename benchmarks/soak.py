"""`python -m benchmarks.soak`: everything at once for some minutes, and whether anything leaks or swells.

Every few seconds it looks at the workers' memory and open files, the metrics, PostgreSQL's connections, and the size
and the HOT updates of every table. The first half is the warm-up. It fails (exit 1) when

- a worker's memory is higher in the last quarter than in the third by more than --memory MB;
- open files, or connections to PostgreSQL, rise from the third quarter to the last;
- a table whose rows only change, or come and go, has grown by more than a quarter between these two;
- a while after the load has ended something is left: connections of clients, of the pool in use, waiters, locks;
- a request got an answer that it must not get.

Records of idempotency keys and ended leases are kept for a minute here, so that pruning is a part of it. `new`, where
rows are only inserted, and marks, one for each row that was inserted, grow as they must. A leaked task is not counted
by itself: it shows as memory, or as a connection in use.
"""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

import asyncpg
import click

from benchmarks.__main__ import make_bench
from benchmarks.drivers import Bench
from benchmarks.load import Result
from benchmarks.machine import describe, source_digest
from benchmarks.processes import BenchmarkError, gateway
from benchmarks.report import RESULTS
from benchmarks.soak_loads import LOADS, make_tables, put_on
from benchmarks.soak_samples import Sample, gateway_workers, look

LATEST: Final = RESULTS / "soak.json"
_BOUNDED: Final = ("public.orders", "public.scoped", "public.churn", "fencepost.locks", "fencepost.leases")
_QUIET_WITHIN: Final = 60.0  # seconds: leases that were not released end after 30
_SMALL: Final = 2_000_000  # bytes
_SWOLLEN: Final = 1.25

Outcome = tuple[list[Sample], Sample, dict[str, Result], int]


@click.command()
@click.option("--minutes", type=click.FloatRange(0.2), default=5.0, show_default=True, help="How long the load lasts.")
@click.option("--every", type=click.FloatRange(0.5), default=3.0, show_default=True, help="Seconds between two looks.")
@click.option("--memory", type=float, default=8.0, show_default=True, help="MB that a worker may grow by.")
@click.option("--workers", type=click.IntRange(2), default=2, show_default=True, help="Of the gateway.")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=Path("/var/tmp"),  # noqa: S108 - a directory of ours is made in it
    show_default=True,
    help="Where the database is made, and removed; not a tmpfs, where fsync costs nothing.",
)
@click.option("--output", type=click.Path(path_type=Path), default=LATEST, help="Where the result is written.")
def main(minutes: float, every: float, memory: float, workers: int, directory: Path, output: Path) -> None:
    """Run on this machine, on an embedded PostgreSQL of its own and on loopback only."""
    try:
        with make_bench(directory, 0, 1) as bench:
            about = {
                "machine": describe(bench.bin_dir, bench.directory),
                "postgresql": asyncio.run(bench.database.settings()),
                "source": source_digest(),
                "minutes": minutes,
                "workers": workers,
            }
            samples, after, results, pairs = _soaked(bench, minutes * 60, every, workers)
    except BenchmarkError as error:
        raise click.ClickException(str(error)) from error
    faults = [*leaks(samples, memory), *left(samples, after)]
    faults += [fault for each in LOADS for fault in each.faults(results[each.name])]
    made = {
        **about,
        "requests": {name: round(sum(result["statuses"].values())) for name, result in results.items()},
        "lease_pairs": pairs,
        "p99_ms": {name: round(result["p99_ms"], 2) for name, result in results.items()},
        "samples": [sample.to_json() for sample in samples],
        "after": after.to_json(),
        "faults": faults,
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(made, indent=1) + "\n")
    click.echo(_table(made, samples, after))
    click.echo(f"written to {output}")
    if faults:
        raise SystemExit(1)


def _soaked(bench: Bench, seconds: float, every: float, workers: int) -> Outcome:
    """Put the load on, and look. The first sample is from before it, the one apart from after it."""
    asyncio.run(make_tables(bench.database.url))
    short = {"FENCEPOST_IDEMPOTENCY_RETENTION": "60", "FENCEPOST_LEASE_HISTORY": "60"}
    with gateway(bench.database.url, bench.directory, workers, **short) as port:
        return asyncio.run(_watched(bench.database.url, port, seconds, every))


async def _watched(url: str, port: int, seconds: float, every: float) -> Outcome:
    pids, begun = gateway_workers(), time.monotonic()
    connection = await asyncpg.connect(url)
    try:
        samples = [await look(connection, port, pids, begun)]
        working = asyncio.create_task(put_on(port, seconds))
        while not working.done():
            await asyncio.wait([working], timeout=every)
            samples.append(await look(connection, port, pids, begun))
            _print_sample(samples[-1])
        results, pairs = await working
        deadline = time.monotonic() + _QUIET_WITHIN
        after = await look(connection, port, pids, begun)
        while left(samples, after) and time.monotonic() < deadline:
            await asyncio.sleep(1)
            after = await look(connection, port, pids, begun)
    finally:
        await connection.close()
    return samples[:-1], after, results, pairs


def _print_sample(sample: Sample) -> None:
    orders = sample.tables["public.orders"]
    click.echo(
        f"{sample.at:6.0f} s  memory {' '.join(f'{kb / 1000:.1f}' for kb in sample.rss_kb)} MB"
        f"  files {' '.join(map(str, sample.files))}  clients {sample.clients}  PostgreSQL {sample.backends}"
        f"  orders {orders['heap'] / 1e6:.1f} MB, {orders['dead']} dead, HOT {_hot(orders):.1%}",
        err=True,
    )


def _hot(table: dict[str, Any]) -> float:
    return float(table["hot"] / table["updates"]) if table["updates"] else 0.0


def _quarters(samples: Sequence[Sample]) -> tuple[Sequence[Sample], Sequence[Sample]]:
    """Return the third and the last quarter."""
    half, last = len(samples) // 2, len(samples) * 3 // 4
    if len(samples) < 8:  # noqa: PLR2004 - two in each quarter
        raise BenchmarkError("too few samples: let it run longer")
    return samples[half:last], samples[last:]


def leaks(samples: Sequence[Sample], memory: float) -> list[str]:
    """Compare the third quarter with the last."""
    earlier, later = _quarters(samples)
    found = []

    def risen(what: str, figure: Callable[[Sample], float], allowed: float) -> None:
        before, now = median(map(figure, earlier)), median(map(figure, later))
        if now > before + allowed:
            found.append(f"{what} rose from {before:,.0f} to {now:,.0f}")

    for number in range(len(samples[0].rss_kb)):
        risen(f"memory of worker {number + 1}, kB,", lambda s, n=number: s.rss_kb[n], memory * 1000)  # type: ignore[misc]
        risen(f"open files of worker {number + 1}", lambda s, n=number: s.files[n], 2)  # type: ignore[misc]
    risen("connections to PostgreSQL", lambda s: s.backends, 1)
    for table in _BOUNDED:
        for part in ("heap", "indexes"):
            before = median(s.tables[table][part] for s in earlier)
            risen(f"{part} of {table}, bytes,", lambda s, t=table, p=part: s.tables[t][p],  # type: ignore[misc]
                  before * (_SWOLLEN - 1) + _SMALL)  # fmt: skip
    return found


def left(samples: Sequence[Sample], after: Sample) -> list[str]:
    """Name what is left of the load. Open files that are no connections are compared with those under load."""
    pool = sum(value for name, value in after.metrics.items() if "pool_connections" in name and "idle" not in name)
    under_load = median(_other_files(sample) for sample in _quarters(samples)[0])
    left = {
        "connections of clients": after.clients,
        "connections of the pool in use": pool,
        "waiters": sum(value for name, value in after.metrics.items() if "waiters" in name),
        "locks held": sum(value for name, value in after.metrics.items() if "locks_held" in name),
        "open files too many": max(_other_files(after) - under_load - 2, 0),
    }
    return [f"left after the load: {count:.0f} {what}" for what, count in left.items() if count]


def _other_files(sample: Sample) -> int:
    return sum(sample.files) - sample.backends - sample.clients


def _table(made: dict[str, Any], samples: Sequence[Sample], after: Sample) -> str:
    earlier, later = _quarters(samples)
    seconds = made["minutes"] * 60
    lines = [f"{'requests':20}{'all':>10} {'per second':>11} {'p99 ms':>8}"]
    lines += [
        f"{name:20}{count:10,} {count / seconds:11,.0f} {made['p99_ms'][name]:8.2f}"
        for name, count in made["requests"].items()
    ]
    lines += [f"{'leases, pairs':20}{made['lease_pairs']:10,} {made['lease_pairs'] / seconds:11,.0f}", ""]
    lines.append(f"{'':34}{'before':>10} {'third quarter':>14} {'last quarter':>13} {'after':>10}")

    def row(what: str, figure: Callable[[Sample], float]) -> None:
        values = (figure(samples[0]), median(map(figure, earlier)), median(map(figure, later)), figure(after))
        lines.append(f"{what:34}{values[0]:10,.1f} {values[1]:14,.1f} {values[2]:13,.1f} {values[3]:10,.1f}")

    row("memory of all workers, MB", lambda s: sum(s.rss_kb) / 1000)
    row("open files of all workers", lambda s: sum(s.files))
    row("connections of clients", lambda s: s.clients)
    row("connections to PostgreSQL", lambda s: s.backends)
    for table in samples[0].tables:
        row(f"{table}, heap MB", lambda s, t=table: s.tables[t]["heap"] / 1e6)  # type: ignore[misc]
        row(f"{table}, indexes MB", lambda s, t=table: s.tables[t]["indexes"] / 1e6)  # type: ignore[misc]
    lines += ["", f"{'updates':34}{'all':>12} {'HOT':>7} {'dead at the end':>16} {'autovacuums':>12}"]
    for name, figures in samples[-1].tables.items():
        if figures["updates"]:
            lines.append(
                f"{name:34}{figures['updates']:12,} {_hot(figures):7.1%} {figures['dead']:16,} {figures['vacuums']:12}"
            )
    verdict = made["faults"] or ["nothing leaks, nothing swells"]
    return "\n".join(["", *lines, "", *verdict])


if __name__ == "__main__":
    main()
