"""The load generator: keep-alive HTTP/1.1 on loopback from one process, as many requests in flight as connections.

`python -m benchmarks.load` reads a Plan as JSON from stdin and writes a Result as JSON to stdout. It ends by itself:
when the time is up nothing more is sent, and outstanding answers are waited for, so that every request has a known end.
"""

import asyncio
import dataclasses
import functools
import json
import re
import sys
import time
from array import array
from collections import Counter
from dataclasses import dataclass
from typing import Final, TypedDict, cast

import uvloop

from benchmarks.walk import row_key

HOST: Final = "127.0.0.1"
DRAINED_WITHIN: Final = 10.0  # seconds
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_HEAD_ENDS: Final = b"\r\n\r\n"
_BEGINNING: Final = b"HTTP/1.1 "


@dataclass(frozen=True, slots=True)
class Plan:
    """What to send. `request` is raw HTTP with `%(key)d` and `%(token)d` in it."""

    port: int
    request: str
    connections: int
    first_token: int
    rising: bool
    expected_status: int
    expected_text: str
    """What an answer must contain."""
    warmup: float
    seconds: float


class Result(TypedDict):
    """What came back. Rate and latencies are those of answers after the warm-up; everything else counts all."""

    rate: float
    p50_ms: float
    p99_ms: float
    statuses: dict[str, int]
    accepted: int
    rows: int
    token_sum: int
    """Sum, over the rows written, of the last accepted token less the plan's first."""
    faults: dict[str, int]
    generator_cpu: float
    """Of one core."""


class Run:
    """The state that connections share."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.expected_text = plan.expected_text.encode()
        self.measured_from = self.ends_at = 0.0
        self.latencies = array("d")
        self.statuses: Counter[int] = Counter()
        self.faults: Counter[str] = Counter()
        self.accepted = 0
        self.tokens: dict[int, int] = {}
        self.open = plan.connections
        self.all_done = asyncio.Event()

    def answered(self, key: int, token: int, sent: float, now: float, status: int) -> None:
        """Count one answer."""
        self.statuses[status] += 1
        if status == self.plan.expected_status and self.measured_from <= now < self.ends_at:
            self.latencies.append(now - sent)
        if self.plan.rising and 200 <= status < 300:  # noqa: PLR2004
            self.accepted += 1
            self.tokens[key] = token

    def connection_done(self) -> None:
        """Note that a connection sends no more."""
        self.open -= 1
        if self.open == 0:
            self.all_done.set()


class Client(asyncio.Protocol):
    """One connection: a request, its answer, the next request."""

    def __init__(self, run: Run, number: int) -> None:
        self._run = run
        self._number = number
        self._template = run.plan.request
        self._transport: asyncio.WriteTransport | None = None
        self._buffer = b""
        self._step = 0
        self._key = self._token = 0
        self._sent = 0.0
        self._finished = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; the first request waits until all are connected."""
        self._transport = cast("asyncio.WriteTransport", transport)  # uvloop's own class, not a subclass

    def send(self) -> None:
        """Send the next request of this connection's walk."""
        plan = self._run.plan
        self._step += 1
        self._key = row_key(self._number, self._step, plan.connections)
        self._token = plan.first_token + self._step if plan.rising else plan.first_token
        request = (self._template % {"key": self._key, "token": self._token}).encode()
        self._sent = time.perf_counter()
        if self._transport is not None:
            self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        """Take an answer once it is whole, and go on."""
        data = self._buffer + data if self._buffer else data
        head_end = data.find(_HEAD_ENDS)
        if head_end < 0:
            self._buffer = data
            return
        found = _LENGTH.search(data, 0, head_end)
        if found is None or not data.startswith(_BEGINNING):
            self._stop("answer that is not understood")
            return
        missing = head_end + len(_HEAD_ENDS) + int(found[1]) - len(data)
        if missing > 0:
            self._buffer = data
            return
        if missing < 0:
            self._stop("more than one answer")
            return
        self._buffer = b""
        now = time.perf_counter()
        if self._run.expected_text not in data:
            self._run.faults["answer without the expected text"] += 1
        status = int(data[len(_BEGINNING) : len(_BEGINNING) + 3])
        self._run.answered(self._key, self._token, self._sent, now, status)
        if now < self._run.ends_at:
            self.send()
        else:
            self._stop(None)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Count a connection that the server closed."""
        self._stop("connection lost")

    def _stop(self, fault: str | None) -> None:
        if self._finished:
            return
        self._finished = True
        if fault is not None:
            self._run.faults[fault] += 1
        if self._transport is not None:
            self._transport.close()
        self._run.connection_done()


async def generate(plan: Plan) -> Result:
    """Run the plan."""
    loop = asyncio.get_running_loop()
    run = Run(plan)
    clients = [
        (await loop.create_connection(functools.partial(Client, run, number), HOST, plan.port))[1]
        for number in range(plan.connections)
    ]
    cpu, begin = time.process_time(), time.perf_counter()
    run.measured_from = begin + plan.warmup
    run.ends_at = run.measured_from + plan.seconds
    for client in clients:
        client.send()
    try:
        async with asyncio.timeout(plan.warmup + plan.seconds + DRAINED_WITHIN):
            await run.all_done.wait()
    except TimeoutError:
        run.faults["connections whose last answer never came"] += run.open
    return _result(run, (time.process_time() - cpu) / (time.perf_counter() - begin))


def _result(run: Run, cpu: float) -> Result:
    ordered = sorted(run.latencies)
    return {
        "rate": len(ordered) / run.plan.seconds,
        "p50_ms": percentile(ordered, 0.50) * 1000,
        "p99_ms": percentile(ordered, 0.99) * 1000,
        "statuses": {str(status): count for status, count in sorted(run.statuses.items())},
        "accepted": run.accepted,
        "rows": len(run.tokens),
        "token_sum": sum(run.tokens.values()) - run.plan.first_token * len(run.tokens),
        "faults": dict(run.faults),
        "generator_cpu": cpu,
    }


def percentile(ordered: list[float], share: float) -> float:
    """Return the value below which this share of an ordered list lies; 0 for an empty one."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def to_json(plan: Plan) -> str:
    """Write a plan for stdin."""
    return json.dumps(dataclasses.asdict(plan))


if __name__ == "__main__":
    json.dump(uvloop.run(generate(Plan(**json.load(sys.stdin)))), sys.stdout)
