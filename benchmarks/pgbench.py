"""PostgreSQL's own load generator: the same statement without HTTP, the ceiling."""

import re
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from benchmarks.cells import SCOPED, Cell
from benchmarks.load import Result, percentile
from benchmarks.processes import BenchmarkError, run
from benchmarks.requests import EXPECTED
from benchmarks.walk import Walk

# Walk.key in pgbench's language. Every client has its own :step.
_WALK: Final = r"""
\set step :step + 1
\set key {first_key} + :client_id + {clients} * ((:step * {stride}) % {share})
\set token {first_token} + :step
"""
_UPDATE: Final = """UPDATE {table} SET status = 'paid', last_fence_token = :token
 WHERE order_id = 'order-' || :key AND last_fence_token < :token;
"""
_SELECT: Final = "SELECT order_id, status FROM {table} WHERE order_id = 'order-' || :key;\n"
_INSERT: Final = """INSERT INTO {table} (order_id, status, last_fence_token)
VALUES ('order-' || :key, 'paid', :token);
"""
# What the gateway sends for a scoped table: the scope is raised by a statement of its own.
_ENTER: Final = "SELECT * FROM fencepost.enter('by_order', ARRAY['by_order/order-' || :key], :token);\n"
_SCOPED: Final = "UPDATE {table} SET status = 'paid' WHERE order_id = 'order-' || :key;\n"
# What the gateway sends around a write with an Idempotency-Key.
_BEGIN: Final = "SELECT * FROM fencepost.idem_begin('', 'pgbench-' || :key || '-' || :token, '\\x00'::bytea);\n"
_RECORD: Final = """INSERT INTO fencepost.idempotency (caller, key, payload_hash, outcome, rows)
 VALUES ('', 'pgbench-' || :key || '-' || :token, '\\x00'::bytea, '{{}}', 'paid');
"""
_SAMPLED: Final = 0.05
"""Share of transactions whose latency is written down."""


def _script(cell: Cell) -> str:
    if cell.operation == "read":
        return _WALK + _SELECT
    keyed, scoped = cell.operation == "keyed write", cell.table == SCOPED
    write = _ENTER + _SCOPED if scoped else _INSERT if cell.operation == "insert" else _UPDATE
    if keyed:
        write = _BEGIN + write + _RECORD
    return _WALK + (f"BEGIN;\n{write}COMMIT;\n" if keyed or scoped else write)


def measure(bin_dir: Path, directory: Path, url: str, cell: Cell, walk: Walk, first_token: int, seconds: int) -> Result:
    """Run a cell. What it updated only the database knows: rows and tokens come back as 0. A transaction counts as an
    answer with the status that is expected.
    """
    script = _script(cell).format(
        first_key=walk.first_key,
        clients=cell.connections,
        stride=walk.stride,
        share=walk.rows // cell.connections,
        first_token=first_token,
        table=cell.table,
    )
    result = measure_script(bin_dir, directory, url, script, cell.connections, seconds)
    result["statuses"] = {str(EXPECTED.get(cell.operation, 200)): result["accepted"]}
    return result | {"accepted": 0} if cell.operation == "read" else result


def measure_script(bin_dir: Path, directory: Path, url: str, text: str, clients: int, seconds: int) -> Result:
    """Run `pgbench -M prepared -j 2`. `accepted` counts the transactions."""
    script, logs = directory / "pgbench.sql", directory / "pgbench-log"
    script.write_text(text)
    output = run(
        [
            *(bin_dir / "pgbench", "-n", "-M", "prepared", "-c", str(clients), "-j", "2"),
            *("-T", str(seconds), "-D", "step=0", "-f", script),
            *("-l", f"--log-prefix={logs}", f"--sampling-rate={_SAMPLED}"),
        ],
        within=seconds + 60,
        variables=_connection(url),
    )
    latencies = _latencies(directory, logs.name)
    return {
        "rate": _number(r"^tps = ([\d.]+)", output),
        "p50_ms": percentile(latencies, 0.50),
        "p99_ms": percentile(latencies, 0.99),
        "statuses": {},
        "accepted": int(_number(r"transactions actually processed: (\d+)", output)),
        "rows": 0,
        "token_sum": 0,
        "faults": _failed(int(_number(r"failed transactions: (\d+)", output))),
        "generator_cpu": 0.0,
    }


def _failed(count: int) -> dict[str, int]:
    return {"failed transactions": count} if count else {}


def _connection(url: str) -> dict[str, str]:
    """Put the server's address into the environment: every user can read a command line."""
    parts = urlsplit(url)
    return {
        "PGHOST": parts.hostname or "",
        "PGPORT": str(parts.port),
        "PGUSER": parts.username or "",
        "PGPASSWORD": parts.password or "",
        "PGDATABASE": parts.path.lstrip("/"),
    }


def _latencies(directory: Path, prefix: str) -> list[float]:
    """Read, and remove, what -l wrote, one file per thread: client, transaction, microseconds, … In ms, ordered."""
    found = []
    for file in directory.glob(f"{prefix}.*"):
        found += [int(line.split()[2]) / 1000 for line in file.read_text().splitlines()]
        file.unlink()
    return sorted(found)


def _number(pattern: str, output: str) -> float:
    found = re.search(pattern, output, re.MULTILINE)
    if found is None:
        raise BenchmarkError(f"pgbench did not print {pattern}: {output}")
    return float(found[1])
