"""`python -m benchmarks.roles`: what a caller's role costs a batched PATCH.

A lane takes the role when it takes a connection, and gives it back after: two statements for as many batches as follow
each other. Without HTTP, which would hide it: the use case `patch`, with 1, 16 and 64 writes under way, rounds with and
without a role in turn, on an embedded PostgreSQL of its own.
"""

import asyncio
import itertools
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import asyncpg
import click
import uvloop

from benchmarks.__main__ import make_bench
from benchmarks.cells import PROTECTED
from benchmarks.database import BenchmarkDatabase
from benchmarks.processes import BenchmarkError
from fencepost.server.fence.caller import Caller
from fencepost.server.fence.token import Token
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.outcomes import Done
from fencepost.server.gateway.use_cases import write
from fencepost.server.gateway.write import Body, OneRow, Write
from fencepost.server.serve import consumer_gateway
from fencepost.server.settings import Settings

ROLE: Final = "benchmark_web"
WANTED: Final = 0.85
"""The target of the ratio with 64 writes under way, set before it was measured."""
CONNECTIONS: Final = (1, 16, 64)
ROWS: Final = 1000
BODY: Final = Body(b'{"status": "paid"}', ("status",), {"status": "paid"})


@click.command()
@click.option("--seconds", type=click.FloatRange(0.1), default=2.0, show_default=True, help="Length of a round.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Rounds of each kind.")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=Path("/var/tmp"),  # noqa: S108 - a directory of ours is made in it
    show_default=True,
    help="Where the database is made, and removed; not a tmpfs, where fsync costs nothing.",
)
def main(seconds: float, rounds: int, directory: Path) -> None:
    """Measure on this machine."""
    try:
        with make_bench(directory, 0.5, max(1, int(seconds))) as bench:
            uvloop.run(_measure(bench.database, seconds, rounds))
    except BenchmarkError as error:
        raise click.ClickException(str(error)) from error


async def _measure(database: BenchmarkDatabase, seconds: float, rounds: int) -> None:
    await database.make([PROTECTED])
    async with _gateway(database.url) as gateway:
        numbers = itertools.count(1_000_000)
        acting = gateway.of(Caller("", role=ROLE))
        click.echo("| writes under way | without a role, per s | with one, per s | ratio |\n| --- | --- | --- | --- |")
        for under_way in CONNECTIONS:
            pairs = []
            for _ in range(rounds):
                one = await _rate(gateway, under_way, seconds, numbers)
                pairs.append((one, await _rate(acting, under_way, seconds, numbers)))
            ratio = statistics.median(b / a for a, b in pairs)
            without, having = (statistics.median(each) for each in zip(*pairs, strict=True))
            click.echo(f"| {under_way} | {without:.0f} | {having:.0f} | {ratio:.2f} |")
        click.echo(f"wanted with {CONNECTIONS[-1]}: {WANTED}; reached: {ratio >= WANTED}")


@asynccontextmanager
async def _gateway(url: str) -> AsyncIterator[Gateway]:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(f"CREATE ROLE {ROLE}; GRANT SELECT, UPDATE ON {PROTECTED} TO {ROLE}")
        rows = await connection.fetch(f"SELECT order_id FROM {PROTECTED} LIMIT {ROWS}")
        _KEYS.extend(row[0] for row in rows)
        async with consumer_gateway(
            Settings.model_validate({"database_url": url, "log_level": "error", "roles": ROLE}), []
        ) as gateway:
            yield gateway
    finally:
        await connection.close()


_KEYS: Final[list[str]] = []


async def _rate(gateway: Gateway, under_way: int, seconds: float, numbers: "itertools.count[int]") -> float:
    until = time.perf_counter() + seconds
    accepted = 0

    async def keep_writing() -> None:
        nonlocal accepted
        while time.perf_counter() < until:
            number = next(numbers)
            request = Write("patch", PROTECTED, OneRow((_KEYS[number % len(_KEYS)],)), Token(number), BODY)
            outcome = await write(gateway, request)
            if not isinstance(outcome, Done):
                raise BenchmarkError(f"not accepted: {outcome}")
            accepted += 1

    begun = time.perf_counter()
    await asyncio.gather(*(keep_writing() for _ in range(under_way)))
    return accepted / (time.perf_counter() - begun)


if __name__ == "__main__":
    main()
