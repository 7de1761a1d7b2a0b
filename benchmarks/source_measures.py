"""What is measured of a source, through the gateway and alone: latency, hand-over on release and after a crash."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import count
from typing import Final

from benchmarks.lease_clients import TTL_MS, Client, HttpClient
from benchmarks.processes import REPOSITORY, BenchmarkError
from benchmarks.source_clients import AloneClient, opened
from benchmarks.source_services import TTL_MS as SHORT_TTL_MS
from benchmarks.source_services import Services

WARMUP: Final = 5
"""Pairs before those that count: connections are opened, statements prepared."""
QUEUED: Final = 0.3
"""Seconds for a waiter to get to its place: part of the load, since each service here shows its waiters in another way,
or not at all."""
_ANSWERS_WITHIN: Final = 60.0  # seconds
_numbers = count(1)

Open = Callable[[bool, int], Awaitable[Client]]
"""Opens one client; whether it waits for others, and the TTL of its locks in ms."""


@dataclass(frozen=True, slots=True)
class Way:
    """Latencies by one way, in ms, and hand-overs after a release, in ms."""

    acquire_p50_ms: float
    acquire_p99_ms: float
    release_p50_ms: float
    release_p99_ms: float
    handover_ms: float


@dataclass(frozen=True, slots=True)
class Round:
    """One source in one round. The crashes are in seconds, the worst case each: the hold had just been prolonged.

    crashed_process_s: the process that talks to the service (in life a gateway) is killed; a waiter is there.
    crashed_client_s: a client of the gateway falls silent; a waiter is at the gateway.
    """

    gateway: Way
    alone: Way
    crashed_process_s: float
    crashed_client_s: float
    busy_before: float


async def measure(services: Services, name: str, seconds: float, times: int, busy_before: float) -> Round:
    """Measure one source."""
    url = services.urls[name]

    async def over_http(waits: bool, ttl_ms: int) -> Client:
        return await HttpClient.open(services.port, waits=waits, ttl_ms=ttl_ms, source=name)

    async with opened(url, services.dsn) as service:

        async def alone(waits: bool, ttl_ms: int) -> Client:
            return AloneClient(service, waits=waits, ttl_ms=ttl_ms)

        return Round(
            gateway=await _way(over_http, seconds, times),
            alone=await _way(alone, seconds, times),
            crashed_process_s=await _crashed_process(alone, url, services.dsn),
            crashed_client_s=await _crashed_client(over_http),
            busy_before=busy_before,
        )


async def _way(open_client: Open, seconds: float, times: int) -> Way:
    acquired, released = await latencies(open_client, seconds)
    handed = await handovers(open_client, times)
    return Way(
        percentile(acquired, 0.5),
        percentile(acquired, 0.99),
        percentile(released, 0.5),
        percentile(released, 0.99),
        percentile(handed, 0.5),
    )


def percentile(values: Sequence[float], share: float) -> float:
    """Of values in seconds, in ms. BenchmarkError when there are none."""
    if not values:
        raise BenchmarkError("nothing was measured in the time given: --seconds more")
    ordered = sorted(values)
    return round(ordered[min(int(len(ordered) * share), len(ordered) - 1)] * 1000, 3)


async def latencies(open_client: Open, seconds: float) -> tuple[list[float], list[float]]:
    """Let one client take and give one lock that no other client wants."""
    lock, acquired, released = _new_lock(), [], []
    async with _client(open_client, waits=False) as client:
        for _ in range(WARMUP):
            await client.acquire(lock)
            await client.release()
        end = time.perf_counter() + seconds
        while (asked := time.perf_counter()) < end:
            await client.acquire(lock)
            granted = time.perf_counter()
            await client.release()
            released.append(time.perf_counter() - granted)
            acquired.append(granted - asked)
    return acquired, released


async def handovers(open_client: Open, times: int) -> list[float]:
    """Let two clients pass one lock to and fro: from the sending of a release to the waiter's having its answer."""
    lock, took = _new_lock(), []
    async with _client(open_client, waits=True) as holder, _client(open_client, waits=True) as waiter:
        await holder.acquire(lock)
        for _ in range(times):
            async with _waiting(waiter, lock) as granted:
                began = time.perf_counter()
                await holder.release()
                took.append(await granted - began)
            holder, waiter = waiter, holder  # noqa: PLW2901 - both are closed where they were opened
        await holder.release()
    return took


async def _crashed_process(alone: Open, url: str, dsn: str) -> float:
    """Kill a holder that has just renewed. Returns the seconds until a waiter has the lock."""
    lock = _new_lock()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.source_holder", url, dsn, lock, str(SHORT_TTL_MS)),
        cwd=REPOSITORY,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        await _heard(process, "held")
        async with _client(alone, waits=True) as waiter, _waiting(waiter, lock) as granted:
            if process.stdin is None:
                raise RuntimeError("the process was started with a pipe")
            process.stdin.write(b"renew\n")
            await _heard(process, "renewed")
            killed = time.perf_counter()
            os.kill(process.pid, signal.SIGKILL)
            took = await granted - killed
            await waiter.release()
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    return took


async def _crashed_client(over_http: Open) -> float:
    """Let a client fall silent after its grant. Returns the seconds until a waiter has the lock."""
    lock = _new_lock()
    async with _client(over_http, waits=False, ttl_ms=SHORT_TTL_MS) as dead:
        await dead.acquire(lock)
        fell_silent = time.perf_counter()
        async with _client(over_http, waits=True) as waiter:
            await waiter.acquire(lock)
            took = time.perf_counter() - fell_silent
            await waiter.release()
    return took


@asynccontextmanager
async def _client(open_client: Open, *, waits: bool, ttl_ms: int = TTL_MS) -> AsyncIterator[Client]:
    client = await open_client(waits, ttl_ms)
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def _waiting(waiter: Client, lock: str) -> AsyncIterator["asyncio.Future[float]"]:
    """Let a client wait for the lock while the block runs; gives when it was granted."""

    async def wait() -> float:
        await waiter.acquire(lock)
        return time.perf_counter()

    waiting = asyncio.create_task(wait())
    try:
        done, _ = await asyncio.wait([waiting], timeout=QUEUED)
        if done:
            waiting.result()  # raises what went wrong, if that is why it is done
            raise BenchmarkError(f"{lock} was granted while it was held")
        yield waiting
    finally:
        waiting.cancel()
        await asyncio.wait([waiting])


async def _heard(process: asyncio.subprocess.Process, word: str) -> None:
    if process.stdout is None:
        raise RuntimeError("the process was started with a pipe")
    async with asyncio.timeout(_ANSWERS_WITHIN):
        line = (await process.stdout.readline()).decode().strip()
    if line != word:
        raise BenchmarkError(f"a holder printed {line!r} instead of {word!r}")


def _new_lock() -> str:
    return f"benchmark/{next(_numbers)}"
