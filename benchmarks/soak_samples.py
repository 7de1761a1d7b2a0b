"""What a soak looks at every few seconds: the gateway's processes, its metrics, and the database."""

import asyncio
import re
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.processes import BenchmarkError

if TYPE_CHECKING:
    import asyncpg

_TABLES: Final = """
SELECT s.schemaname || '.' || s.relname AS name, n_tup_upd AS updates, n_tup_hot_upd AS hot, n_dead_tup AS dead,
       n_live_tup AS live, autovacuum_count AS vacuums,
       pg_relation_size(s.relid) AS heap, pg_indexes_size(s.relid) AS indexes
  FROM pg_stat_user_tables s
 WHERE s.schemaname = 'public'
    OR s.relname IN ('marks', 'idempotency', 'locks', 'leases', 'draws', 'waiters', 'gateways')
 ORDER BY 1"""
_BACKENDS: Final = """
SELECT count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()"""
_METRIC: Final = re.compile(r"^(fencepost_(?:pool_connections|lock_waiters|locks_held)\S*) (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Sample:
    """One look. `at` is in seconds since the first; memory is in kB, of each worker."""

    at: float
    rss_kb: list[int]
    files: list[int]
    clients: int
    """Connections of clients."""
    backends: int
    """Connections to PostgreSQL."""
    metrics: dict[str, float]
    tables: dict[str, dict[str, Any]]

    def to_json(self) -> dict[str, Any]:
        """Return it for the result's file."""
        return asdict(self)


def gateway_workers() -> list[int]:
    """Find the worker processes of the gateway that this process has started."""
    for child in _children("self"):
        if b"fencepost" in Path(f"/proc/{child}/cmdline").read_bytes():
            found = [p for p in _children(child) if b"spawn_main" in Path(f"/proc/{p}/cmdline").read_bytes()]
            if found:
                return sorted(found)
    raise BenchmarkError("the gateway has no workers")


def _children(pid: int | str) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


async def look(connection: "asyncpg.Connection[asyncpg.Record]", port: int, workers: list[int], begun: float) -> Sample:
    """Take a sample."""
    backends = await connection.fetchval(_BACKENDS)
    rows = await connection.fetch(_TABLES)
    return Sample(
        at=round(time.monotonic() - begun, 1),
        rss_kb=[_rss(pid) for pid in workers],
        files=[_files(pid) for pid in workers],
        clients=_clients(port),
        backends=int(backends),
        metrics={name: float(value) for name, value in _METRIC.findall(await _scrape(port))},
        tables={row["name"]: {k: v for k, v in dict(row).items() if k != "name"} for row in rows},
    )


def _rss(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) if found else 0


def _files(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def _clients(port: int) -> int:
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(1 for line in lines if line[3] == "01" and int(line[1].partition(":")[2], 16) == port)


async def _scrape(port: int) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    answer = await asyncio.wait_for(reader.read(), 30)
    writer.close()
    await writer.wait_closed()
    return answer.decode()
