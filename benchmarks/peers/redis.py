"""Redis: a row is a hash; a Lua script compares its token and sets it, in one step.

redis-benchmark cannot count tokens upwards. It takes random keys out of so many that none comes twice, each with one
token: the script compares, and sets a hash that is new.
"""

import csv
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from benchmarks.cells import Cell
from benchmarks.database import Marks
from benchmarks.load import HOST, Result
from benchmarks.peers import Write
from benchmarks.processes import BenchmarkError, run
from benchmarks.walk import MARK_AT_FIRST, OVER_ROWS
from fencepost.testing.servers.lock_services import redis as redis_service
from fencepost.testing.servers.processes import free_port

FENCED_SET: Final = """
local mark = redis.call('HGET', KEYS[1], 'token')
if mark and tonumber(mark) >= tonumber(ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 'token', ARGV[1], 'status', ARGV[2])
return 1"""
_ABOVE: Final = """
local rows, sum = 0, 0
for _, key in ipairs(redis.call('KEYS', 'order-*')) do
  local above = tonumber(redis.call('HGET', key, 'token')) - tonumber(ARGV[1])
  if above > 0 then rows = rows + 1; sum = sum + above end
end
return {rows, sum}"""
_TRIED: Final = 5_000
"""Requests whose rate shows how many a measurement takes: the tool counts them, and knows no time."""
_RANDOM: Final = 1_000_000_000
_NEW: Final = 0.999
"""Share of random keys that must have been new."""


@contextmanager
def serving(directory: Path) -> Iterator[int]:
    """Run Redis on the rows of every cell before."""
    data = directory / "redis"
    new = not data.exists()
    port = free_port()
    with redis_service(data, port=port).server:
        if new:
            _fill(port)
        yield port


def _fill(port: int) -> None:
    """Set all rows, in one go."""
    with Redis(host=HOST, port=port) as redis:
        pipeline = redis.pipeline(transaction=False)
        for key in range(OVER_ROWS.first_key, OVER_ROWS.first_key + OVER_ROWS.rows):
            pipeline.hset(f"order-{key}", mapping={"token": MARK_AT_FIRST, "status": "new"})
        pipeline.execute()


@asynccontextmanager
async def open_writers(port: int, count: int) -> AsyncIterator[Sequence[Write]]:
    """Connect redis-py, with a connection for each."""
    async with AsyncExitStack() as opened:
        clients = [AsyncRedis(host=HOST, port=port, single_connection_client=True) for _ in range(count)]
        yield [_writer(await opened.enter_async_context(client)) for client in clients]


def _writer(redis: AsyncRedis) -> Write:
    script = redis.register_script(FENCED_SET)

    async def write(key: int, token: int) -> bool:
        return bool(await script(keys=[f"order-{key}"], args=[token, "paid"]))

    return write


def marks_above(port: int, token: int) -> Marks:
    """Look at all rows."""
    with Redis(host=HOST, port=port) as redis:
        rows, token_sum = redis.eval(_ABOVE, 0, token)
    return Marks(rows, token_sum)


def version() -> str:
    """Ask the program."""
    found = re.search(r"v=(\S+)", run(["redis-server", "--version"], within=10))
    return f"Redis {found[1] if found else '?'}"


def own_tool(cell: Cell, port: int, seconds: float, first_token: int) -> tuple[Result, list[str]]:
    """Run redis-benchmark, with one thread as it has by default."""
    with Redis(host=HOST, port=port) as redis:
        digest = str(redis.script_load(FENCED_SET))
        rate = _benchmark(cell, port, digest, first_token, _TRIED)["rps"]
        _forget(port, redis)  # the tool's seed is its time XOR its pid: both runs may draw the same keys
        before = int(redis.dbsize())
        count = max(_TRIED, int(rate * seconds))
        row = _benchmark(cell, port, digest, first_token, count)
        written = int(redis.dbsize()) - before
        _forget(port, redis)
    faults = [] if _NEW * count <= written <= count else [f"{count} writes answered, {written} keys written"]
    result: Result = {
        "rate": row["rps"],
        "p50_ms": row["p50_latency_ms"],
        "p99_ms": row["p99_latency_ms"],
        "statuses": {},
        "accepted": count,
        "rows": written,
        "token_sum": 0,
        "faults": {},
        "generator_cpu": 0.0,
    }
    return result, faults


def _forget(port: int, redis: "Redis") -> None:
    """Begin the next cell with the rows alone."""
    redis.flushall()
    _fill(port)


def _benchmark(cell: Cell, port: int, digest: str, token: int, count: int) -> dict[str, float]:
    output = run(
        [
            *("redis-benchmark", "-h", HOST, "-p", str(port), "-c", str(cell.connections), "-n", str(count)),
            *("-r", str(_RANDOM), "--csv", "EVALSHA", digest, "1", "order-__rand_int__", str(token), "paid"),
        ],
        within=120,
    )
    row = next(csv.DictReader(line for line in output.splitlines() if line.startswith('"')), None)
    if row is None:
        raise BenchmarkError(f"redis-benchmark did not print its rate: {output}")
    return {name: float(value) for name, value in row.items() if name != "test"}
