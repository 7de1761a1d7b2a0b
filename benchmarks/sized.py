"""Databases with a table of any size, and the same load on each: what scaling.py and bloat.py share."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from benchmarks import load, pgbench
from benchmarks.cells import PROTECTED, Cell, Operation
from benchmarks.drivers import Bench, Measurement
from benchmarks.load import Plan, Result
from benchmarks.machine import busy
from benchmarks.processes import gateway
from benchmarks.requests import EXPECTED, request
from benchmarks.walk import MARK_AT_FIRST, TOKENS_PER_CELL, Walk
from fencepost.server.ops.migrate import upgrade
from fencepost.server.ops.protect import protect

FIRST_KEY: Final = 10_000_000
"""Keys have eight digits each, whatever the size of the table: every request is equally long."""
CONNECTIONS: Final = 64
CLIENTS: Final = 32
"""pgbench's."""
_HOT_ROWS: Final = 960
_OK: Final = 200


@dataclass(frozen=True, slots=True)
class Sized:
    """A database on the server of a run, with `orders` in it."""

    name: str
    url: str
    rows: int


async def make(server_url: str, name: str, rows: int, *, fillfactor: int = 100) -> Sized:
    """Make a database with a protected table of so many rows, vacuumed."""
    parts = urlsplit(server_url)
    url = urlunsplit(parts._replace(path=f"/{name}"))
    await execute(server_url, f"CREATE DATABASE {name}")
    await upgrade(url)
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(
            f"CREATE TABLE {PROTECTED} (order_id text PRIMARY KEY, status text NOT NULL)"
            f" WITH (fillfactor = {fillfactor})"
        )
        await protect(connection, PROTECTED)
        await connection.execute("SET session_replication_role = replica")
        await connection.execute(
            f"INSERT INTO {PROTECTED} (order_id, status, last_fence_token)"
            f" SELECT 'order-' || n, 'new', {MARK_AT_FIRST} FROM generate_series($1::int8, $2) n",
            FIRST_KEY,
            FIRST_KEY + rows - 1,
        )
        await connection.execute(f"VACUUM ANALYZE {PROTECTED}")
    finally:
        await connection.close()
    return Sized(name, url, rows)


async def execute(url: str, *statements: str) -> None:
    """Run statements, each in a transaction of its own."""
    connection = await asyncpg.connect(url)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


async def one_row(url: str, query: str) -> dict[str, Any]:
    """Return what a query finds, by column."""
    connection = await asyncpg.connect(url)
    try:
        found = await connection.fetchrow(query)
        return dict(found) if found is not None else {}
    finally:
        await connection.close()


def hot(rows: int, connections: int) -> Walk:
    """Walk over the same number of rows in every table, evenly scattered over all of it."""
    each = _HOT_ROWS // connections
    apart = rows // (each * connections)
    return Walk(first_key=FIRST_KEY, rows=each * connections * apart, stride=apart)


def everywhere(rows: int) -> Walk:
    """Walk over all rows."""
    return Walk(first_key=FIRST_KEY, rows=rows)


def fresh(number: int) -> Walk:
    """Walk over keys that were not used before."""
    return Walk(first_key=1_000_000_000 + number * 20_000_000, rows=20_000_000, stride=1)


def over_http(bench: Bench, sized: Sized, operation: Operation, walk: Walk, number: int) -> Measurement:
    """Write to a table over HTTP: 64 connections, 2 workers. `number` counts the cells of a run."""
    cell = Cell("", "fencepost", operation, PROTECTED, CONNECTIONS, 2)
    asyncio.run(execute(sized.url, "CHECKPOINT"))
    busy_before = busy()
    expected = EXPECTED.get(operation, _OK)
    with gateway(sized.url, bench.directory, workers=2) as port:
        result = load.generate(
            Plan(
                port=port,
                request=request(cell, walk, number * TOKENS_PER_CELL),
                connections=CONNECTIONS,
                first_token=number * TOKENS_PER_CELL,
                rising=True,
                expected_status=expected,
                expected_text="order-" if expected == _OK else "",
                warmup=bench.warmup,
                seconds=bench.seconds,
                walk=walk,
            )
        )
    return Measurement(result, busy_before, _faults(result, expected))


def by_pgbench(bench: Bench, sized: Sized, walk: Walk, number: int) -> Measurement:
    """Do the same UPDATE, triggers and all, by pgbench: 32 clients."""
    cell = Cell("", "pgbench", "write", PROTECTED, CLIENTS)
    asyncio.run(execute(sized.url, "CHECKPOINT"))
    busy_before = busy()

    def run(seconds: float, token: int) -> Result:
        return pgbench.measure(bench.bin_dir, bench.directory, sized.url, cell, walk, token, max(round(seconds), 1))

    run(bench.warmup, number * TOKENS_PER_CELL)
    result = run(bench.seconds, number * TOKENS_PER_CELL + TOKENS_PER_CELL // 2)
    return Measurement(result, busy_before, _faults(result, None))


def _faults(result: Result, expected: int | None) -> list[str]:
    faults = [f"{count} x {what}" for what, count in result["faults"].items()]
    return faults + [f"{count} x status {s}" for s, count in result["statuses"].items() if s != str(expected)]


def warmed(bench: Bench, seconds: float) -> Bench:
    """Return the same with another warm-up."""
    return replace(bench, warmup=seconds)


def noise(rounds: Sequence[Measurement]) -> float:
    """Return how busy others were before, at most."""
    return round(max(one.busy_before for one in rounds), 2)
