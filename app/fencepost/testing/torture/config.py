"""What a run is asked to do."""

import math
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from fencepost.testing.torture.assignment import BUILTIN, BadInputError
from fencepost.testing.torture.workloads import WORKLOADS, Workload

SOURCES: Final = (BUILTIN, "redis", "redlock", "etcd", "zookeeper", "postgres-advisory", "kubernetes")

HISTORY: Final = "history.jsonl"
REPORT: Final = "report.html"
UNJUDGED: Final = "unjudged.jsonl"
"""The history of a run that cannot be judged."""

_LEAST_TTL_MS: Final = {"etcd": 1000, "redlock": 600, "postgres-advisory": 2000, "kubernetes": 1000}
"""Of leases, where the service has a least one."""
_TTL_MS: Final = {**_LEAST_TTL_MS, "zookeeper": 1000}
_SHORT_TTL_MS: Final = 500
_DATABASE_URL: Final = "$DATABASE_URL"
"""Stands for `--database-url` in the command that a report shows: the URL has a password."""


@dataclass(frozen=True, slots=True)
class Config:
    """A run. It ends after `minutes` or `operations`, whichever comes first (but see `share_of` in running.py).

    out: the directory that gets history and report, and has none yet. faults: names with commas between, `all`, `none`.
    url: a gateway that runs already; else gateways are started, on the database at `database_url`, or else on a
    PostgreSQL that is started too. With `url`, `database_url` is the gateway's database, where the tables are made.
    source: one of SOURCES; with `url`, a name that the gateway has for its own.
    holders: processes that are paused and killed, with two tasks each. loaders: others, with `tasks` tasks each.
    gateways: how many are started. gateway_command: what starts one, before `serve` and its options.
    worker_command: what starts a worker process.
    """

    out: Path
    seed: int
    workload: str = "register"
    source: str = BUILTIN
    minutes: float = 1.0
    operations: int | None = None
    faults: str = "all"
    url: str | None = None
    database_url: str | None = None
    gateways: int = 2
    loaders: int = 2
    tasks: int = 12
    holders: int = 2
    resources: int = 8
    gateway_command: tuple[str, ...] = (sys.executable, "-P", "-m", "fencepost")
    worker_command: tuple[str, ...] = (sys.executable, "-P", "-m", "fencepost.testing.torture.worker")

    def __post_init__(self) -> None:
        if self.workload not in WORKLOADS:
            raise BadInputError(f"there is no workload {self.workload!r}. Known are: {', '.join(WORKLOADS)}.")
        if self.url is None and self.source not in SOURCES:
            raise BadInputError(f"there is no source {self.source!r} to start. Known are: {', '.join(SOURCES)}.")
        if self.play.builtin and self.source != BUILTIN:
            raise BadInputError(
                f"--source does nothing for the workload {self.workload}: the gateway grants its leases itself."
            )
        if not 0 < self.minutes < math.inf or (self.operations is not None and self.operations <= 0):
            raise BadInputError("--minutes and --ops must be numbers above 0.")
        if self.url is None and self.database_url is not None and not _leads_by_tcp(self.database_url):
            raise BadInputError(
                "--database-url must be written postgresql://USER:PASSWORD@HOST:PORT/DATABASE: the run puts links"
                " before the host and the port."
            )
        if self.out.exists() and not self.out.is_dir():
            raise BadInputError(f"{self.out} is a file: --out takes a directory.")
        if there := [name for name in (HISTORY, REPORT, UNJUDGED) if (self.out / name).exists()]:
            raise BadInputError(
                f"{self.out} has the {' and the '.join(there)} of another run, and no run is written over: give another"
                " --out, or move them away."
            )

    @property
    def play(self) -> Workload:
        return WORKLOADS[self.workload]

    @property
    def source_name(self) -> str:
        """What the gateway calls the source: letters, digits and underscores."""
        return self.source.replace("-", "_")

    @property
    def ttl_ms(self) -> int:
        """How long leases live: as short as the source allows, so that they end while their holders are paused."""
        return _TTL_MS.get(self.source, _SHORT_TTL_MS)

    @property
    def least_ttl_ms(self) -> int:
        """The shortest TTL that the source takes as it is."""
        return _LEAST_TTL_MS.get(self.source, 1)

    @property
    def command(self) -> str:
        """The command that makes the same choices, in a directory where there is no run."""
        given = {
            "--url": self.url,
            "--database-url": None if self.database_url is None else _DATABASE_URL,
            "--workload": self.workload,
            "--source": self.source,
            "--faults": self.faults,
            "--seed": self.seed,
            "--minutes": f"{self.minutes:g}",
            "--ops": self.operations,
            "--gateways": None if self.url else self.gateways,
            "--tasks": self.tasks,
            "--resources": self.resources,
            "--out": self._another_out(),
        }
        words = [text for option, value in given.items() if value is not None for text in (option, str(value))]
        return shlex.join(["fencepost", "torture", *words]).replace(f"'{_DATABASE_URL}'", f'"{_DATABASE_URL}"')

    def _another_out(self) -> str:
        """Name a directory, in the one where the command is called, that is not there yet."""
        name = f"{self.out.resolve().name or 'torture'}-again"
        while Path(name).exists():
            name += "-again"
        return name


def _leads_by_tcp(url: str) -> bool:
    """Whether it is the URL of a PostgreSQL at one host and port."""
    parts = urlsplit(url)
    try:
        return parts.scheme in {"postgresql", "postgres"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is no number
        return False
