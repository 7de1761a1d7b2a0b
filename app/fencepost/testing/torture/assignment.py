"""What a worker process is to do: sent to it as one line of JSON on its standard input."""

from dataclasses import asdict, dataclass, field
from typing import Final, Self

import orjson

BUILTIN: Final = "builtin"


@dataclass(frozen=True, slots=True)
class Lapses:
    """What a holder sometimes does between its check and its write, each with its probability per session.

    early: it releases its lock, and writes all the same. expired: the end of its lease is moved into the past, in the
    database; only the built-in source allows that. slept: it sleeps until its lease must be over.
    """

    early: float = 0.0
    expired: float = 0.0
    slept: float = 0.0


@dataclass(frozen=True, slots=True)
class Assignment:
    """A worker's part of a run.

    index: its number in this run; no other worker has it. tasks: holders that it runs at once. prefix: begins the names
    of tables and locks of this run. resources: how many keys each table has. ttl_ms: of leases; least_ttl_ms: as short
    as the source allows.
    authenticated: whether requests carry the token of the environment (holders/token.py).
    database_url: where lapses `expired` and the control without fences connect to.
    """

    seed: int
    index: int
    tasks: int
    gateways: tuple[str, ...]
    workload: str
    prefix: str
    part: str
    tally: str
    source: str = BUILTIN
    resources: int = 8
    ttl_ms: int = 2000
    least_ttl_ms: int = 2000
    lapses: Lapses = field(default_factory=Lapses)
    database_url: str | None = None
    authenticated: bool = False

    def to_json(self) -> bytes:
        """Write it as one line."""
        return orjson.dumps(asdict(self)) + b"\n"

    @classmethod
    def from_json(cls, line: bytes) -> Self:
        given = orjson.loads(line)
        given["gateways"] = tuple(given["gateways"])
        given["lapses"] = Lapses(**given["lapses"])
        return cls(**given)
