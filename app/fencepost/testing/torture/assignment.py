"""What a worker process is to do: sent to it as one line of JSON on its standard input."""

import mmap
import struct
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, Literal, Self

import orjson


class BadInputError(Exception):
    """What was asked for cannot be run; the message says what to change. Nothing was written."""


class RunFailedError(Exception):
    """The harness itself failed: a worker or a server ended that no fault had ended. No verdict can be had."""


Kind = Literal["strict", "epoch", "scoped", "blocks", "ledger", "sets", "jobs", "plain", "plain_jobs"]

JOBS: Final[frozenset[Kind]] = frozenset({"jobs", "plain_jobs"})
"""Tables of jobs: `new` or `done` by their status. A row of the status `effect` beside them has a job's key as its
value, and as its own key the value that its worker gave the job.
"""
OF_BATCH: Final = "-"
"""Stands in a job's key between the name of the batch with which it was made, and its number there."""

_RULES: Final[dict[Kind, Literal["strict", "epoch"]]] = {"epoch": "epoch"}


@dataclass(frozen=True, slots=True)
class Fenced:
    """A table of this run. `kind`: how it is protected; the plain ones are not, for the controls without fences."""

    prefix: str
    kind: Kind

    @property
    def name(self) -> str:
        """Its name, in the schema public."""
        return f"{self.prefix}_{self.kind}"

    @property
    def is_plain(self) -> bool:
        """Whether nothing protects it, and so no gateway serves it."""
        return self.kind in {"plain", "plain_jobs"}

    @property
    def rule(self) -> Literal["strict", "epoch"]:
        return _RULES.get(self.kind, "strict")

    def resource(self, key: str) -> str:
        return f"{self.prefix}_scope/{key}" if self.kind == "scoped" else f"{self.name}/{key}"

    def path(self, key: str | None) -> str:
        """Where the gateway has a row of it; None: the table."""
        return f"/v1/data/{self.name}" if key is None else f"/v1/data/{self.name}/{key}"


# How many operations have ended, and how: counted by worker processes in a file that all map into memory.

_SLOT: Final = struct.Struct("4q")
_SLOTS: Final = 512
"""Workers that one run can have, with those that replace killed ones."""

How = Literal["accepted", "refused", "unknown", "unsent"]
_PLACES: Final[dict[How, int]] = {"accepted": 0, "refused": 1, "unknown": 2, "unsent": 3}


@dataclass(frozen=True, slots=True)
class Counts:
    """Operations that have ended so far. `unsent`: no gateway could be reached; they count for nothing."""

    accepted: int
    refused: int
    unknown: int
    unsent: int

    @property
    def operations(self) -> int:
        return self.accepted + self.refused + self.unknown


class Tally:
    """The counts of one run, in the file at `path`. A worker counts in its own slot, so no lock is needed."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)

    @classmethod
    def create(cls, path: Path) -> "Tally":
        path.write_bytes(bytes(_SLOT.size * _SLOTS))
        return cls(path)

    def count(self, slot: int, how: How) -> None:
        at = (slot % _SLOTS) * _SLOT.size + _PLACES[how] * 8
        (before,) = struct.unpack_from("q", self._memory, at)
        struct.pack_into("q", self._memory, at, before + 1)

    def total(self) -> Counts:
        slots = _SLOT.iter_unpack(self._memory[:])
        return Counts(*(sum(column) for column in zip(*slots, strict=True)))

    def close(self) -> None:
        self._memory.close()


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
    authenticated: whether requests carry the token of the environment (torture/holders.py).
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
        return orjson.dumps(asdict(self)) + b"\n"

    @classmethod
    def from_json(cls, line: bytes) -> Self:
        given = orjson.loads(line)
        given["gateways"] = tuple(given["gateways"])
        given["lapses"] = Lapses(**given["lapses"])
        return cls(**given)
