"""What is measured of a queue: how fast its consumers drain a backlog, and how long a write takes after its 202."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Sequence
from typing import Final

import asyncpg

from benchmarks.cpu import Cpu
from benchmarks.load import HOST, percentile
from benchmarks.processes import BenchmarkError
from benchmarks.queue_services import TABLES, Services, append, messages
from benchmarks.walk import OVER_ROWS

Figures = dict[str, float]
RATE: Final = 100
"""Writes a second while latency is measured: far below what any queue here can do."""

_FROM: Final = 0.2
"""The part of a backlog after which draining is timed: all workers have joined by then."""
_TO: Final = 0.95
"""The part up to which it is timed: after it some partitions have come to their end before others."""
_DRAINED_WITHIN: Final = 120.0  # seconds
_POLL: Final = 0.2  # seconds
_ACCEPTED: Final = b"202"
_COUNT: Final = "SELECT count(*) FROM fencepost.idempotency WHERE caller = 'queue'"
# Each message has a record, made in the statement of its effect at the time of day.
_RECORDS: Final = """
SELECT split_part(key, '.', 2)::int AS partition, extract(epoch FROM created_at)::float8 AS at, state
  FROM fencepost.idempotency WHERE caller = 'queue' ORDER BY created_at"""


async def settle(dsn: str, table: str) -> None:
    """Bring the database to where every cell begins."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("TRUNCATE fencepost.idempotency")
        await connection.execute(f"VACUUM ANALYZE {table}, fencepost.marks, fencepost.queued")
        await connection.execute("CHECKPOINT")
    finally:
        await connection.close()


async def drain(services: Services, queue: str, workers: int, count: int) -> Figures:
    """Have so many messages applied, by workers that are started when all are there. Rates are per second; the time
    on a core is that of the middle, from the first look at which it has begun to the first at which it is over.

    BenchmarkError when they are not applied in time, or one of them is not applied.
    """
    await append(services, queue, messages(TABLES[queue], count))
    connection = await asyncpg.connect(services.dsn)
    try:
        with services.consuming(queue, workers):
            cpu = await _watched(connection, queue, count)
        records = await connection.fetch(_RECORDS)
    finally:
        await connection.close()
    if bad := Counter(each["state"] for each in records if each["state"] != "applied"):
        raise BenchmarkError(f"{queue}: answers that are not 200: {dict(bad)}")
    if len(records) != count:
        raise BenchmarkError(f"{queue}: {len(records)} records of {count} messages")
    return {**rates([(each["partition"], each["at"]) for each in records]), **cpu}


async def _watched(connection: "asyncpg.Connection[asyncpg.Record]", queue: str, count: int) -> Figures:
    """Wait until all are decided; what that took of the cores, in µs a write."""
    deadline = time.monotonic() + _DRAINED_WITHIN
    begun: tuple[int, Cpu] | None = None
    spent: Figures = {}
    while True:
        decided = await connection.fetchval(_COUNT)
        if begun is None and decided >= count * _FROM:
            begun = decided, Cpu()
        elif begun is not None and not spent and decided >= count * _TO:
            spent = begun[1].per(decided - begun[0])
        if decided >= count:
            break
        if time.monotonic() > deadline:
            raise BenchmarkError(f"{queue}: {decided} of {count} messages were decided in time")
        await asyncio.sleep(_POLL)
    if not spent:
        raise BenchmarkError("the backlog is too small to be timed")
    return spent


def rates(records: Sequence[tuple[int, float]]) -> Figures:
    """Give the rate of a backlog's middle, and those of the slowest and the fastest partition, each from its own first
    message to its last: a log may give one partition after the other. `records`: each message's partition and when it
    was applied, by time.
    """
    middle = records[int(len(records) * _FROM) : int(len(records) * _TO)]
    partitions: dict[int, list[float]] = {}
    for partition, at in records:
        partitions.setdefault(partition, []).append(at)
    each = [_rate(times) for times in partitions.values()]
    total = _rate([at for _, at in middle])
    return {"rate": total, "slowest_partition_rate": min(each), "fastest_partition_rate": max(each)}


def _rate(times: Sequence[float]) -> float:
    took = times[-1] - times[0]
    if took <= 0:
        raise BenchmarkError("the backlog is too small to be timed")
    return len(times) / took


class _Connections:
    """HTTP/1.1 connections to the gateway, as many as there are requests at once."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self, line: str, body: str = "") -> tuple[bytes, bytes]:
        """Send a request; return the answer's status and body."""
        reader, writer = self._free.pop() if self._free else await asyncio.open_connection(HOST, self._port)
        head = f"{line} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        writer.write(f"{head}\r\n\r\n{body}".encode())
        answer = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(answer.split(b"content-length: ")[1].split(b"\r\n")[0])
        given = await reader.readexactly(length)
        self._free.append((reader, writer))
        return answer.split(b" ", 2)[1], given

    def close(self) -> None:
        """Hang up."""
        for _, writer in self._free:
            writer.close()


async def latency(port: int, table: str, seconds: float) -> Figures:
    """Send RATE writes a second, each with a wait for its result; milliseconds as the client sees them: from the
    request to its 202, and from there to the answer of /v1/writes/{id} that it is applied.
    """
    connections = _Connections(port)
    times: list[tuple[float, float]] = []

    async def write(step: int) -> None:
        begin = time.perf_counter()
        key = OVER_ROWS.key(0, step, 1)
        status, body = await connections.ask(f"PATCH /v1/data/{table}/order-{key}", '{"status": "paid"}')
        accepted = time.perf_counter()
        if status != _ACCEPTED:
            raise BenchmarkError(f"{table}: {status.decode()} {body.decode()}")
        _, shown = await connections.ask(f"GET /v1/writes/{json.loads(body)['id']}?wait=30")
        applied = time.perf_counter()
        if (state := json.loads(shown).get("state")) != "applied":
            raise BenchmarkError(f"{table}: a write is {state} and not applied")
        times.append((accepted - begin, applied - accepted))

    await write(0)  # the connections to the log are made
    times.clear()
    begin = time.perf_counter()
    try:
        async with asyncio.TaskGroup() as group:
            for step in range(1, int(RATE * seconds) + 1):
                await asyncio.sleep(max(begin + step / RATE - time.perf_counter(), 0))
                group.create_task(write(step))
    finally:
        connections.close()
    accepted, applied = ([1000 * each for each in sorted(column)] for column in zip(*times, strict=True))
    return {
        "accepted_p50_ms": percentile(accepted, 0.5),
        "accepted_p99_ms": percentile(accepted, 0.99),
        "applied_p50_ms": percentile(applied, 0.5),
        "applied_p99_ms": percentile(applied, 0.99),
    }
