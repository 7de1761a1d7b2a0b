"""The load generator: its arguments and its report. `load.c` does the work, in a process of its own."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypedDict

from benchmarks.compiled import compiled
from benchmarks.processes import run
from benchmarks.walk import OVER_ROWS, Walk

HOST: Final = "127.0.0.1"
DRAINED_WITHIN: Final = 10.0
"""Seconds that outstanding answers are waited for once the time is up."""
SOURCE: Final = Path(__file__).with_suffix(".c")


@dataclass(frozen=True, slots=True)
class Plan:
    """What to send.

    `request` is raw HTTP. `%(key)d` in it is the next key of the connection's walk, so that a request with several
    writes as many rows; `%(same)d` is the key before it once more; `%(token)d` is the token, `%(caller)d` what stands
    for the connection's caller.
    """

    port: int
    request: str
    connections: int
    first_token: int
    rising: bool
    """Whether every request has a token of its own; else all have the first."""
    expected_status: int
    expected_text: str
    """What an answer must contain."""
    warmup: float
    seconds: float
    walk: Walk = OVER_ROWS
    callers: tuple[str, ...] = ()
    """What stands for each caller. Connections have them in turn."""


class Result(TypedDict):
    """What came back. Rate and latencies: of expected answers after the warm-up; everything else counts all."""

    rate: float
    p50_ms: float
    p99_ms: float
    statuses: dict[str, int]
    accepted: int
    """Requests with rising tokens that were answered 2xx."""
    rows: int
    """Different keys that they wrote."""
    token_sum: int
    """Sum, over these, of the last accepted token less the plan's first."""
    faults: dict[str, int]
    generator_cpu: float
    """Of one core."""


def generate(plan: Plan) -> Result:
    """Run the plan to its end."""
    fields = dataclasses.asdict(plan) | {"rising": int(plan.rising), "drained_within": DRAINED_WITHIN}
    fields |= fields.pop("walk")
    request, callers = fields.pop("request"), fields.pop("callers")
    lines = [*fields.items(), *(("caller", each) for each in callers)]
    given = "".join(f"{name} {value}\n" for name, value in lines) + "\n" + request
    within = plan.warmup + plan.seconds + DRAINED_WITHIN + 20
    result: Result = json.loads(run([compiled(SOURCE)], within=within, given=given))
    return result


def percentile(ordered: list[float], share: float) -> float:
    """Return the value below which this share of an ordered list lies; 0 for an empty one."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
