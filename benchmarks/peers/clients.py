"""The load of Python clients: `python -m benchmarks.peers.clients` reads a Plan as JSON from stdin, writes a Result.

One process with as many writes in flight as connections: what a usual client costs is part of what its users get.
"""

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

import uvloop

from benchmarks import peers
from benchmarks.load import Result, percentile
from benchmarks.peers import Write
from benchmarks.processes import run
from benchmarks.walk import Walk

_MODULE: Final = "benchmarks.peers.clients"


@dataclass(frozen=True, slots=True)
class Plan:
    """What to write: see load.Plan, whose walk this is, over this many rows."""

    store: str
    port: int
    connections: int
    first_token: int
    warmup: float
    seconds: float
    rows: int


@dataclass(slots=True)
class Tally:
    """What was answered."""

    latencies: list[float] = field(default_factory=list)
    accepted: int = 0
    refused: int = 0
    tokens: dict[int, int] = field(default_factory=dict)


def generate(plan: Plan) -> Result:
    """Run the plan in a process of its own, to its end."""
    given, within = json.dumps(asdict(plan)), plan.warmup + plan.seconds + 90
    result: Result = json.loads(run([sys.executable, "-m", _MODULE], within=within, given=given))
    return result


async def _generate(plan: Plan) -> Result:
    async with peers.store(plan.store).open_writers(plan.port, plan.connections) as writers:
        cpu, begin = time.process_time(), time.perf_counter()
        tally = await _load(plan, writers, begin + plan.warmup)
        cpu = (time.process_time() - cpu) / (time.perf_counter() - begin)
    ordered = sorted(tally.latencies)
    return {
        "rate": len(ordered) / plan.seconds,
        "p50_ms": percentile(ordered, 0.50) * 1000,
        "p99_ms": percentile(ordered, 0.99) * 1000,
        "statuses": {},
        "accepted": tally.accepted,
        "rows": len(tally.tokens),
        "token_sum": sum(tally.tokens.values()) - plan.first_token * len(tally.tokens),
        "faults": {"refused": tally.refused} if tally.refused else {},
        "generator_cpu": cpu,
    }


async def _load(plan: Plan, writers: Sequence[Write], measured_from: float) -> Tally:
    tally, walk, ends_at = Tally(), Walk(rows=plan.rows), measured_from + plan.seconds

    async def write_on(number: int, write: Write) -> None:
        step, now = 0, 0.0
        while now < ends_at:
            step += 1
            key, token = walk.key(number, step, plan.connections), plan.first_token + step
            sent = time.perf_counter()
            accepted = await write(key, token)
            now = time.perf_counter()
            if not accepted:
                tally.refused += 1
                continue
            tally.accepted += 1
            tally.tokens[key] = token
            if measured_from <= now < ends_at:
                tally.latencies.append(now - sent)

    await asyncio.gather(*(write_on(number, write) for number, write in enumerate(writers)))
    return tally


if __name__ == "__main__":
    answer = uvloop.run(_generate(Plan(**json.load(sys.stdin))))
    json.dump(answer, sys.stdout)
