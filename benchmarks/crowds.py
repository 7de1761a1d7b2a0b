"""`python -m benchmarks.crowds`: what a crowd that waits for one lock costs others, for each token source.

A PATCH is sent every 50 ms, and the holder renews every 200 ms: first alone, then beside those who wait for the lock,
then while the time of all of them is up at once. Last, requests pass a lock of the built-in source on, few and many.
"""

import asyncio
import itertools
import json
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click
import uvloop

from benchmarks.__main__ import make_bench
from benchmarks.cells import PROTECTED, TableName
from benchmarks.processes import BenchmarkError
from benchmarks.source_clients import BUILTIN
from benchmarks.source_services import start
from benchmarks.walk import OVER_ROWS

PATCH_EVERY: Final = 0.05
RENEW_EVERY: Final = 0.2
TTL_MS: Final = 30_000
AT_ONCE: Final = 50
"""So many arrive together, every ARRIVE_EVERY seconds."""
ARRIVE_EVERY: Final = 0.07
SETTLES: Final = 3.0
"""Seconds until those who have arrived stand in line, and until those who have left are gone."""
FEW: Final = 100
_OK, _CREATED = 200, 201
TABLES: Final[tuple[TableName, ...]] = (PROTECTED,)
_tokens = itertools.count(2**40)
_locks = itertools.count(1)


class Connection:
    """A bare HTTP client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, port: int) -> "Connection":
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def ask(self, line: str, body: dict[str, Any] | None = None, **headers: object) -> tuple[int, bytes]:
        """Send a request; give status and body."""
        text = "" if body is None else json.dumps(body)
        fields = {"Host": "localhost", "Content-Type": "application/json", "Content-Length": len(text), **headers}
        shown = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
        self._writer.write(f"{line} HTTP/1.1\r\n{shown}\r\n{text}".encode())
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0]) if b"content-length: " in head else 0
        return int(head.split(b" ", 2)[1]), await self._reader.readexactly(length)

    async def acquire(self, lock: str, source: str, wait_s: float) -> tuple[int, dict[str, Any]]:
        wanted = {"lock": lock, "source": source, "ttl_ms": TTL_MS, "wait_ms": round(wait_s * 1000)}
        status, answer = await self.ask("POST /v1/leases", wanted)
        return status, json.loads(answer)

    async def release(self, lease: dict[str, Any]) -> None:
        await self.ask(f"DELETE /v1/leases/{lease['lease_id']}", X_Lease_Secret=lease["secret"])

    def close(self) -> None:
        self._writer.transport.abort()


@dataclass
class Probe:
    """How long PATCHes and renewals took, in ms, and which were refused."""

    patches: list[float] = field(default_factory=list)
    renewals: list[float] = field(default_factory=list)
    refused: Counter[int] = field(default_factory=Counter)

    def __str__(self) -> str:
        patches, renewals = (_shown(each) for each in (self.patches, self.renewals))
        return f"{patches} | {renewals}" + (f" (refused: {dict(self.refused)})" if self.refused else "")


def _shown(values: list[float]) -> str:
    ordered = sorted(values)
    return f"{statistics.median(ordered):.1f} / {ordered[int(len(ordered) * 0.99)]:.1f}" if ordered else "none"


class Probing:
    """Sends PATCHes and renewals, one after another each; `probe` has those since `anew`."""

    def __init__(self, port: int, lease: dict[str, Any]) -> None:
        self._port, self._lease = port, lease
        self.probe = Probe()

    def anew(self) -> Probe:
        """Begin a new one; give the one before."""
        before, self.probe = self.probe, Probe()
        return before

    async def patch(self) -> None:
        connection = await Connection.open(self._port)
        while True:
            line, body = f"PATCH /v1/data/{PROTECTED}/order-{OVER_ROWS.first_key}", {"status": "paid"}
            asked = connection.ask(line, body, X_Fence_Token=next(_tokens))
            await self._timed(asked, lambda: self.probe.patches, PATCH_EVERY)

    async def renew(self) -> None:
        connection = await Connection.open(self._port)
        while True:
            line, secret = f"POST /v1/leases/{self._lease['lease_id']}/renew", self._lease["secret"]
            await self._timed(connection.ask(line, {}, X_Lease_Secret=secret), lambda: self.probe.renewals, RENEW_EVERY)

    async def _timed(self, asked: Any, into: Callable[[], list[float]], every: float) -> None:
        began = time.perf_counter()
        status, _ = await asked
        took = time.perf_counter() - began
        into().append(took * 1000)
        if status != _OK:
            self.probe.refused[status] += 1
        await asyncio.sleep(max(every - took, 0))


@asynccontextmanager
async def held(port: int, source: str) -> AsyncIterator[tuple[str, Probing]]:
    """Hold a lock, and probe, while the block runs."""
    lock, connection = f"crowd/{next(_locks)}", await Connection.open(port)
    status, lease = await connection.acquire(lock, source, 0)
    if status != _CREATED:
        raise BenchmarkError(f"a lock of {source} was not granted: {status} {lease}")
    probing = Probing(port, lease)
    tasks = [asyncio.create_task(each) for each in (probing.patch(), probing.renew())]
    try:
        yield lock, probing
    finally:
        await _end(tasks)
        await connection.release(lease)
        connection.close()


async def beside(port: int, source: str, number: int, seconds: float) -> str:
    """Measure a crowd of so many; give a row of the table."""
    async with held(port, source) as (lock, probing):
        await asyncio.sleep(1)
        probing.anew()
        await asyncio.sleep(seconds)
        quiet = probing.anew()
        ends = time.perf_counter() + number / AT_ONCE * 2 * ARRIVE_EVERY + SETTLES + seconds + SETTLES
        answers, late = Counter[int](), list[float]()

        async def wait() -> None:
            connection = await Connection.open(port)
            status, _ = await connection.acquire(lock, source, ends - time.perf_counter())
            late.append((time.perf_counter() - ends) * 1000)
            answers[status] += 1
            connection.close()

        tasks = await _arrive(wait, number)
        await asyncio.sleep(SETTLES)
        probing.anew()
        await asyncio.sleep(seconds)
        among = probing.anew()
        early = sum(answers.values())
        await asyncio.sleep(max(ends - time.perf_counter(), 0))
        probing.anew()
        await asyncio.wait(tasks, timeout=10 * SETTLES)
        leaving = probing.anew()
        await _end(tasks)
    ratio = statistics.median(among.patches) / statistics.median(quiet.patches)
    said = ", ".join(f"{count} of {status}" for status, count in sorted(answers.items()))
    return f"| {source}, {number} | {quiet} | {among} | {ratio:.2f} | {early} | {said} | {_shown(late)} | {leaving} |"


async def hand_overs(port: int, number: int, seconds: float) -> float:
    """Let so many pass one lock of the built-in source on; give how often in a second."""
    count, lock = 0, f"crowd/{next(_locks)}"

    async def pass_on() -> None:
        nonlocal count
        connection = await Connection.open(port)
        while True:
            status, lease = await connection.acquire(lock, BUILTIN, 250)
            if status == _CREATED:
                await connection.release(lease)
                count += 1

    holder = await Connection.open(port)
    _, first = await holder.acquire(lock, BUILTIN, 0)
    tasks = await _arrive(pass_on, number)
    await asyncio.sleep(SETTLES + number / 1000)
    await holder.release(first)
    await asyncio.sleep(1)
    before, began = count, time.perf_counter()
    await asyncio.sleep(seconds)
    rate = (count - before) / (time.perf_counter() - began)
    await _end(tasks)
    return rate


async def _arrive(one: Callable[[], Any], number: int) -> list[asyncio.Task[None]]:
    tasks = list[asyncio.Task[None]]()
    for first in range(0, number, AT_ONCE):
        tasks += [asyncio.create_task(one()) for _ in range(min(AT_ONCE, number - first))]
        await asyncio.sleep(ARRIVE_EVERY)
    return tasks


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.gather(*tasks, return_exceptions=True)


@click.command()
@click.option("--waiters", type=click.IntRange(1), default=2000, show_default=True, help="How many wait for one lock.")
@click.option("--many", type=click.IntRange(1), default=5000, show_default=True, help="How many pass a lock on.")
@click.option("--seconds", type=click.IntRange(1), default=5, show_default=True, help="How long each is measured.")
@click.option("--only", default="", metavar="TEXT", help="Beside builtin, only sources with this in their name.")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=Path("/var/tmp"),  # noqa: S108 - a directory of ours is made in it
    show_default=True,
    help="Where the servers keep their data.",
)
def main(waiters: int, many: int, seconds: int, only: str, directory: Path) -> None:
    """Measure on this machine, on loopback only, with servers of its own."""
    most = str(2 * max(waiters, many))
    names = ("MAX_WAITERS", "MAX_WAITERS_PER_CALLER", "MAX_CONNECTIONS", "MAX_CONNECTIONS_PER_ADDRESS")
    with make_bench(directory, 0, seconds, TABLES) as bench, ExitStack() as stack:
        limits = {f"FENCEPOST_{name}": most for name in names}
        services = start(stack, bench.directory, bench.database.url, only, **limits)
        for name, why in services.left_out.items():
            click.echo(f"left out: {name} ({why})", err=True)
        click.echo("| waiters | PATCH, ms: p50 / p99 | renewal | PATCH beside them | renewal | ratio | answered early |"
                   " answers | late, ms | PATCH as they leave | renewal |")  # fmt: skip
        click.echo("|" + " --- |" * 11)
        for source in services.urls:
            click.echo(uvloop.run(beside(services.port, source, waiters, seconds)))
        few, all_of_them = (uvloop.run(hand_overs(services.port, each, seconds)) for each in (FEW, many))
        click.echo(f"hand-overs of builtin in a second: {few:.0f} of {FEW}, {all_of_them:.0f} of {many}:"
                   f" {all_of_them / few:.2f}")  # fmt: skip


if __name__ == "__main__":
    main()
