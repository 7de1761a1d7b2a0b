"""Faults of a run: their kinds by name, when each comes by the seed, and what they interrupt."""

import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Final, Literal

from fencepost.testing.torture.assignment import BadInputError

Need = Literal["holders", "gateways", "postgres", "standby", "database", "builtin", "lock-service", "sessions"]
"""What a fault is done to. holders: our processes, which every run has. gateways: processes that we started, and links
before and behind them. postgres: one that we started. standby: and a copy of it. database: SQL is enough. builtin:
leases of the built-in source. lock-service: one that we started. sessions: connections of our gateways to PostgreSQL,
which end."""

MISSING: Final[dict[Need, str]] = {
    "gateways": "the gateway must be one that fencepost torture has started: leave --url out",
    "postgres": "PostgreSQL must be one that fencepost torture has started: leave --url and --database-url out",
    "standby": "PostgreSQL must be one that fencepost torture has started: leave --url and --database-url out",
    "database": "it is done in the database: give --database-url",
    "builtin": "it is done to leases of the built-in source: leave --source out",
    "lock-service": "fencepost torture has started no lock service: give --source redis, say, and no --url",
    "holders": "every run has holders",
    "sessions": "the gateway must be one that fencepost torture has started: leave --url out",
}
"""What to do where it is not there."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault. It lasts between `least` and `most` seconds, in which the run goes on."""

    name: str
    what: str
    needs: frozenset[Need]
    least: float = 0.0
    most: float = 0.0


def _kind(name: str, what: str, *needs: Need, lasts: tuple[float, float] = (0.0, 0.0)) -> Kind:
    return Kind(name, what, frozenset(needs), *lasts)


KINDS: Final[dict[str, Kind]] = {
    kind.name: kind
    for kind in (
        _kind("pause-holder", "SIGSTOP a holder process, beyond its leases", "holders", lasts=(0.2, 3.0)),
        _kind("kill-holder", "SIGKILL a holder process; another takes its place", "holders"),
        _kind("pause-gateway", "SIGSTOP a gateway", "gateways", lasts=(0.1, 2.0)),
        _kind("kill-gateway", "SIGKILL a gateway, and start it again", "gateways", "sessions", lasts=(0.0, 0.5)),
        _kind("partition-client", "no byte passes between clients and a gateway", "gateways", lasts=(0.1, 2.0)),
        _kind(
            "partition-database",
            "no byte passes between a gateway and PostgreSQL",
            "gateways",
            "sessions",
            lasts=(0.1, 2.0),
        ),
        _kind("cut-client", "a client's connection ends before the answer", "gateways", lasts=(0.2, 1.0)),
        _kind("delay-client", "answers of a gateway come late", "gateways", lasts=(0.5, 2.0)),
        _kind("delay-database", "answers of PostgreSQL come late", "gateways", lasts=(0.5, 2.0)),
        _kind(
            "cut-before-commit",
            "a connection to PostgreSQL ends before a COMMIT",
            "gateways",
            "sessions",
            lasts=(0.2, 1.0),
        ),
        _kind(
            "cut-after-commit",
            "a connection to PostgreSQL ends after a COMMIT",
            "gateways",
            "sessions",
            lasts=(0.2, 1.0),
        ),
        _kind(
            "cut-after-bytes", "a connection to PostgreSQL ends in the middle", "gateways", "sessions", lasts=(0.2, 1.0)
        ),
        _kind("restart-fast", "PostgreSQL restarts, rolling back what is open", "postgres", "sessions"),
        _kind("restart-immediate", "PostgreSQL crashes and recovers", "postgres", "sessions"),
        _kind("failover", "a standby is promoted, and the generation raised", "standby"),
        _kind("expire-leases", "all leases of a holder process end at once", "database", "builtin"),
        _kind("step-clock", "the database's clock steps, as leases of this run see it", "database", "builtin"),
        _kind("pause-lock-service", "SIGSTOP the lock service", "lock-service", lasts=(0.2, 3.0)),
        _kind("kill-lock-service", "SIGKILL the lock service, and start it again", "lock-service", lasts=(0.0, 1.0)),
    )
}

_ENDING_LEASES: Final[frozenset[Need]] = frozenset({"builtin", "lock-service", "standby"})
"""Where leases end before their time, whatever source they are of."""
ADVISORY: Final = "postgres-advisory"
"""The source whose leases end with a connection."""


def spared(source: str, *, trusts: bool) -> frozenset[Need]:
    """What is not to have faults in a run of holders that stop in time (Workload.trusts): they would end leases before
    their time.
    """
    if not trusts:
        return frozenset()
    return _ENDING_LEASES | {"sessions"} if source == ADVISORY else _ENDING_LEASES


_TRUSTED: Final = (
    "the holders of this workload stop when their leases are over, and a fault that ends leases before their time would"
    " break its promise by itself"
)


def choose(names: str, available: frozenset[Need], spare: frozenset[Need] = frozenset()) -> tuple[str, ...]:
    """Read a list of kinds: names with commas between, `all` (that this run can have), or `none`.

    `-NAME` after `all` leaves a kind out: `all,-failover`. `spare`: what is not to have faults, of
    `spared`. Raises BadInputError for a name that is not known, and for a kind that this run cannot have.
    """
    if names.strip() == "none":
        return ()
    chosen = tuple(name.strip() for name in names.split(",") if name.strip())
    if not chosen:
        raise BadInputError("--faults names no fault: for a run without faults give none.")
    if chosen[0] == "all":
        left_out = _left_out(chosen[1:])
        return tuple(name for name, kind in KINDS.items() if kind.needs <= available and name not in left_out)
    for name in chosen:
        if name in {"all", "none"} or name.startswith("-"):
            raise BadInputError(
                f"{name} cannot stand there in --faults: give names, or all, or all and what to leave out"
                " (all,-failover), or none."
            )
        if name not in KINDS:
            raise BadInputError(f"there is no fault {name!r}. Known are: {', '.join(KINDS)}; or all, or none.")
        for need in sorted(KINDS[name].needs - available):
            why = _TRUSTED if need in spare else MISSING[need]
            raise BadInputError(f"the fault {name} is not possible here: {why}.")
    return chosen


def _left_out(given: tuple[str, ...]) -> frozenset[str]:
    for name in given:
        if not name.startswith("-") or name[1:] not in KINDS:
            raise BadInputError(f"after `all` only kinds to leave out can follow, as in all,-failover; not {name!r}.")
    return frozenset(name[1:] for name in given)


# Which faults a run has, when, and to whom: chosen by its seed alone, so that the same seed makes the same choices.

_SHORTEST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 1.0


@dataclass(frozen=True, slots=True)
class Planned:
    """A fault that is to come: `after` seconds without one. `target` from 0 to 1 chooses among those that there are."""

    kind: Kind
    after: float
    lasts: float
    target: float

    def among(self, count: int) -> int:
        return int(self.target * count)


def schedule(seed: int, kinds: Sequence[str]) -> Iterator[Planned]:
    """Give faults without end, none at all if there are no kinds. Each kind comes once before one comes again."""
    dice = random.Random(f"faults/{seed}")  # noqa: S311 - must repeat
    while kinds:
        for name in dice.sample(sorted(kinds), len(kinds)):
            kind = KINDS[name]
            yield Planned(
                kind,
                after=dice.uniform(_SHORTEST_PAUSE, _LONGEST_PAUSE),
                lasts=dice.uniform(kind.least, kind.most),
                target=dice.random(),
            )


# Ctrl-C: the first one asks the run to end, so that no fault is left half undone; the second one does not wait.
#
# One that comes within a second of the first counts as the same: `timeout`, and some supervisors, signal a process and
# then its group, and so signal it twice.

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_THE_SAME: Final = 1.0  # seconds


class Interruption:
    """Whether an end was asked for."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = 0.0
        self.asked = False

    def heed(self, _number: int, _frame: FrameType | None) -> None:
        """Take a signal. Raises KeyboardInterrupt at the second one."""
        if not self.asked:
            self.asked, self._since = True, self._clock()
        elif self._clock() - self._since >= _THE_SAME:
            raise KeyboardInterrupt


@contextmanager
def heeding_interrupts() -> Iterator[Interruption]:
    """Heed SIGINT and SIGTERM in this block. Main thread only."""
    interruption = Interruption()
    before = {number: signal.signal(number, interruption.heed) for number in _SIGNALS}
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
