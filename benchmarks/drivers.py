"""How a cell is run: its server is started, its load put on, and the outcome held against what was stored."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from benchmarks import load, pgbench
from benchmarks.cells import ROLE, RULED, Cell
from benchmarks.compiled import compiled
from benchmarks.cpu import Cpu
from benchmarks.database import BenchmarkDatabase
from benchmarks.load import HOST, Plan, Result
from benchmarks.machine import busy
from benchmarks.peers import clients, peer, store
from benchmarks.processes import gateway, running
from benchmarks.requests import EXPECTED, SECRET, request, tokens_of_callers
from benchmarks.walk import FRESH, OVER_ROWS, STALE_TOKEN, TOKENS_PER_CELL, Walk, each_once
from fencepost.testing.servers.processes import free_port

_DELETED_PER_SECOND: Final = 60_000
"""More rows than a cell could delete."""
_OK: Final = 200


@dataclass(frozen=True, slots=True)
class Bench:
    """What all cells of a run share. `warmup` and `seconds` are per cell."""

    bin_dir: Path
    directory: Path
    database: BenchmarkDatabase
    warmup: float
    seconds: int
    gateway_url: str = ""
    """Of a login that may be a gateway's where tokens name roles: it is none that may everything."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One cell in one round. `faults` is empty when everything was as it must be.

    `busy_before` is the share of all cores that others used just before.
    """

    result: Result
    busy_before: float
    faults: list[str] = field(default_factory=list)
    cpu: dict[str, float] = field(default_factory=dict)
    """What server, PostgreSQL and load generator took, in µs a row, or a request where that has no rows (cpu.py)."""


def measure(bench: Bench, cell: Cell, number: int) -> Measurement:
    """Run a cell. `number` counts the cells of a run: later ones use higher tokens."""
    first_token = STALE_TOKEN if cell.operation == "stale" else number * TOKENS_PER_CELL
    needs = peer(cell.driver)
    if needs is not None and needs.store:
        return _measure_store(bench, cell, first_token)
    walk = _walk(bench, cell)
    before = asyncio.run(bench.database.settle(cell.table, walk))
    busy_before, by_pgbench = busy(), cell.driver == "pgbench"
    if not by_pgbench:
        compiled(load.SOURCE)  # before the server starts: what a compiler takes is no load
    with nullcontext(0) if by_pgbench else _server(bench, cell) as port:
        cpu = Cpu()
        result = (
            pgbench.measure(bench.bin_dir, bench.directory, bench.database.url, cell, walk, first_token, bench.seconds)
            if by_pgbench
            else _load(bench, cell, walk, port, first_token)
        )
        spent = cpu.per(max(1, sum(result["statuses"].values())) * cell.rows_per_request)
    faults = asyncio.run(_faults(bench.database, cell, number, before, result))
    return Measurement(_in_rows(cell, result), busy_before, faults, spent)


def _walk(bench: Bench, cell: Cell) -> Walk:
    match cell.operation:
        case "insert" | "insert array":
            return FRESH
        case "delete":
            return each_once(int(_DELETED_PER_SECOND * (bench.warmup + bench.seconds)))
        case _:
            return OVER_ROWS


@contextmanager
def _server(bench: Bench, cell: Cell) -> Iterator[int]:
    """Run the cell's server with all of its workers, and give its port."""
    if cell.driver == "prest":
        with _prest(bench) as port:
            yield port
        return
    if cell.driver == "usual handler":
        command = [
            *(sys.executable, "-m", "uvicorn", "benchmarks.usual_handler:app", "--host", HOST, "--port", "0"),
            *("--workers", str(cell.workers), "--loop", "uvloop", "--http", "httptools", "--no-access-log"),
        ]
        # The port is printed first; each worker then reports that it has started.
        ready = rf"(?s)http://{HOST}:(?P<port>\d+)" + r".*?Application startup complete" * cell.workers
        variables = {"BENCHMARK_DATABASE_URL": bench.database.url}
    else:
        program = "benchmarks.unguarded" if cell.driver == "fencepost, no guard" else "fencepost"
        url = bench.database.url
        with_jwt = {}
        if cell.table == RULED:
            url, with_jwt = bench.gateway_url, {"FENCEPOST_JWT_SECRET": SECRET, "FENCEPOST_ROLES": ROLE}
        elif cell.callers:
            with_jwt = {"FENCEPOST_JWT_SECRET": SECRET, "FENCEPOST_JWT_ROLE_CLAIM_KEY": ""}
        with gateway(url, bench.directory, cell.workers, program, **with_jwt) as port:
            yield port
        return
    with running(command, bench.directory / "server.log", ready, **variables) as found:
        yield int(found["port"])


@contextmanager
def _prest(bench: Bench) -> Iterator[int]:
    """Run pREST with as many connections to PostgreSQL as two workers of the gateway have, and keep them open."""
    needs, url, port = peer("prest"), urlsplit(bench.database.url), free_port()
    if needs is None:
        raise AssertionError("prest is a peer")
    variables = {
        "PREST_CONF": str(bench.directory / "no-prest.toml"),
        "PREST_HTTP_HOST": HOST,
        "PREST_HTTP_PORT": str(port),
        "PREST_PG_HOST": url.hostname or "",
        "PREST_PG_PORT": str(url.port),
        "PREST_PG_USER": url.username or "",
        "PREST_PG_PASS": url.password or "",
        "PREST_PG_DATABASE": url.path.lstrip("/"),
        "PREST_PG_MAXOPENCONN": "20",
        "PREST_PG_MAXIDLECONN": "20",
        "PREST_JWT_DEFAULT": "false",
        "PREST_SSL_MODE": "disable",
        "PREST_PG_SSL_MODE": "disable",
        "HOME": str(bench.directory),
    }
    with running(list(needs.programs), bench.directory / "server.log", "listening on", **variables):
        yield port


def _load(bench: Bench, cell: Cell, walk: Walk, port: int, first_token: int) -> Result:
    rising, status = cell.operation not in ("stale", "read"), EXPECTED.get(cell.operation, _OK)
    text = {409: '"FP001"', _OK: "order-"}.get(status, "")
    if cell.operation == "batch":
        text = f'"number":{cell.rows_per_request},"status":200'
    plan = Plan(
        port=port,
        request=request(cell, walk, first_token),
        connections=cell.connections,
        first_token=first_token,
        rising=rising,
        expected_status=status,
        expected_text='"rows_affected":1' if cell.driver == "prest" and rising else text,
        warmup=bench.warmup,
        seconds=bench.seconds,
        walk=walk,
        callers=tokens_of_callers(cell),
    )
    return load.generate(plan)


def _measure_store(bench: Bench, cell: Cell, first_token: int) -> Measurement:
    """Run a cell of a peer that is not PostgreSQL's."""
    needs = peer(cell.driver)
    if needs is None:
        raise AssertionError(f"{cell.driver} is a peer")
    keeps = store(needs.store)
    with keeps.serving(bench.directory) as port:
        busy_before = busy()
        if needs.own_tool:
            result, faults = keeps.own_tool(cell, port, bench.seconds, first_token)
            return Measurement(result, busy_before, faults)
        plan = clients.Plan(
            store=needs.store,
            port=port,
            connections=cell.connections,
            first_token=first_token,
            warmup=bench.warmup,
            seconds=bench.seconds,
            rows=needs.rows,
        )
        result = clients.generate(plan)
        marks = keeps.marks_above(port, first_token)
    faults = [f"{count} x {what}" for what, count in result["faults"].items()]
    if (marks.rows, marks.token_sum) != (result["rows"], result["token_sum"]):
        faults.append(f"stored tokens are not the last accepted: {marks}, {result['rows']}, {result['token_sum']}")
    return Measurement(result, busy_before, faults)


async def _faults(database: BenchmarkDatabase, cell: Cell, number: int, before: int, result: Result) -> list[str]:
    """Compare the clients' answers with what the database holds. The server is gone, its backends have reported."""
    faults = [f"{count} x {what}" for what, count in result["faults"].items()]
    expected = str(EXPECTED.get(cell.operation, _OK))
    faults += [f"{count} x status {s}" for s, count in result["statuses"].items() if s != expected]
    if result["rate"] == 0:
        faults.append("nothing was answered in time")
    written = result["accepted"] * cell.rows_per_request
    changed = await database.changed_since(cell.table, before, written)
    if changed != written:
        faults.append(f"{written} rows accepted, {changed} rows changed")
    marks = await database.marks_above(cell.table, number * TOKENS_PER_CELL)
    if cell.driver != "pgbench" and (marks.rows, marks.token_sum) != (result["rows"], result["token_sum"]):
        faults.append(f"marks are not the last tokens accepted: {marks}, {result['rows']}, {result['token_sum']}")
    return faults


def _in_rows(cell: Cell, result: Result) -> Result:
    """Give the rate in rows; latencies stay those of requests."""
    return {**result, "rate": result["rate"] * cell.rows_per_request}
