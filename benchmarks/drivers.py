"""How a cell is run: its server is started, its load put on, and the outcome held against the database."""

import asyncio
import sys
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from re import Match
from typing import Final

from benchmarks import load, pgbench
from benchmarks.cells import Cell
from benchmarks.database import BenchmarkDatabase
from benchmarks.load import HOST, Plan, Result
from benchmarks.machine import busy
from benchmarks.processes import running
from benchmarks.walk import STALE_TOKEN, TOKENS_PER_CELL

_BODY: Final = '{"status": "paid"}'
_CLAIM: Final = '{"resource": "orders/order-%(key)d"}'
_KEY_LENGTH: Final = 6
_OK, _CONFLICT = 200, 409


@dataclass(frozen=True, slots=True)
class Bench:
    """What all cells of a run share. `warmup` and `seconds` are per cell."""

    bin_dir: Path
    directory: Path
    database: BenchmarkDatabase
    warmup: float
    seconds: int


@dataclass(frozen=True, slots=True)
class Measurement:
    """One cell in one round. `faults` is empty when everything was as it must be.

    `busy_before` is the share of all cores that others used just before.
    """

    result: Result
    busy_before: float
    faults: list[str]


def measure(bench: Bench, cell: Cell, number: int) -> Measurement:
    """Run a cell. `number` counts the cells of a run: later ones use higher tokens."""
    before = asyncio.run(bench.database.settle(cell.table))
    busy_before = busy()
    first_token = STALE_TOKEN if cell.operation == "stale" else number * TOKENS_PER_CELL
    if cell.driver == "pgbench":
        result = pgbench.measure(bench.bin_dir, bench.directory, bench.database.url, cell, first_token, bench.seconds)
    else:
        with _server(bench, cell) as ready:
            result = _load(bench, cell, int(ready["port"]), first_token)
    return Measurement(result, busy_before, asyncio.run(_faults(bench.database, cell, number, before, result)))


def _server(bench: Bench, cell: Cell) -> AbstractContextManager[Match[str]]:
    """Start the cell's server with all of its workers."""
    url, log = bench.database.url, bench.directory / "server.log"
    if cell.driver == "fencepost":
        command = [sys.executable, "-m", "fencepost", "serve", "--port", "0", "--workers", str(cell.workers)]
        ready = rf"serves http://{HOST}:(?P<port>\d+)"
        return running(command, log, ready, FENCEPOST_DATABASE_URL=url, TMPDIR=str(bench.directory))
    command = [
        *(sys.executable, "-m", "uvicorn", "benchmarks.usual_handler:app", "--host", HOST, "--port", "0"),
        *("--workers", str(cell.workers), "--loop", "uvloop", "--http", "httptools", "--no-access-log"),
    ]
    # The port is told first; each worker then says that it has started.
    ready = rf"(?s)http://{HOST}:(?P<port>\d+)" + r".*?Application startup complete" * cell.workers
    return running(command, log, ready, BENCHMARK_DATABASE_URL=url)


def _load(bench: Bench, cell: Cell, port: int, first_token: int) -> Result:
    stale = cell.operation == "stale"
    plan = Plan(
        port=port,
        request=_request(cell),
        connections=cell.connections,
        first_token=first_token,
        rising=not stale,
        expected_status=_CONFLICT if stale else _OK,
        expected_text='"FP001"' if stale else "order-",
        warmup=bench.warmup,
        seconds=bench.seconds,
    )
    return load.generate(plan)


def _request(cell: Cell) -> str:
    """Write the raw request: the same headers for every server."""
    line, body = f"PATCH /v1/data/{cell.table}/order-%(key)d", _BODY
    if cell.operation == "claim":
        line, body = "POST /v1/claims", _CLAIM
    elif cell.driver == "usual handler":
        line = "PATCH /orders/order-%(key)d"
    length = len(body.replace("%(key)d", "0" * _KEY_LENGTH))
    head = f"{line} HTTP/1.1\r\nHost: {HOST}\r\nX-Fence-Token: %(token)d\r\n"
    if cell.operation == "keyed write":
        head += "Idempotency-Key: %(same)d-%(token)d\r\n"
    return f"{head}Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"


async def _faults(database: BenchmarkDatabase, cell: Cell, number: int, before: int, result: Result) -> list[str]:
    """Compare what clients were told with what the database holds. The server is gone, its backends have reported."""
    faults = [f"{count} x {what}" for what, count in result["faults"].items()]
    expected = str(_CONFLICT if cell.operation == "stale" else _OK)
    faults += [f"{count} x status {s}" for s, count in result["statuses"].items() if s != expected]
    if result["rate"] == 0:
        faults.append("nothing was answered in time")
    updated = await database.updated_since(cell.table, before, result["accepted"])
    if updated != result["accepted"]:
        faults.append(f"{result['accepted']} writes accepted, {updated} rows updated")
    marks = await database.marks_above(cell.table, number * TOKENS_PER_CELL)
    if cell.driver != "pgbench" and (marks.rows, marks.token_sum) != (result["rows"], result["token_sum"]):
        faults.append(f"marks are not the last tokens accepted: {marks}, {result['rows']}, {result['token_sum']}")
    return faults
