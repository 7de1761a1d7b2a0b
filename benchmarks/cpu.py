"""How long the processes that a benchmark has started were on a core, by what they do. Other work on the machine
changes that less than it changes a rate.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from fencepost.testing.servers.processes import descendants

Spent = dict[str, float]
"""Seconds, by part."""
PYTHON: Final = "fencepost"
DATABASE: Final = "postgresql"
BROKER: Final = "broker"
PARTS: Final = (PYTHON, DATABASE, BROKER)
"""Gateway or consumers, PostgreSQL, Kafka."""

_NAMES: Final = {"postgres": DATABASE, "java": BROKER}
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_Times = dict[int, tuple[str, float]]


class Cpu:
    """Begins to count when it is made. What ends meanwhile is not in it."""

    def __init__(self) -> None:
        self._before = _times()

    def per_write(self, writes: int) -> dict[str, float]:
        """Give what was spent since, in µs a write."""
        spent: Spent = dict.fromkeys(PARTS, 0.0)
        for pid, (part, seconds) in _times().items():
            spent[part] += seconds - self._before.get(pid, (part, 0.0))[1]
        return {f"{part}_us": 1e6 * seconds / writes for part, seconds in spent.items()}


def _times() -> _Times:
    found: _Times = {}
    for pid in descendants(os.getpid()):
        with suppress(FileNotFoundError, ProcessLookupError):
            name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
            part = _NAMES.get(name) or (PYTHON if name.startswith("python") else None)
            if part is not None:
                found[pid] = part, sum(int(ticks) for ticks in rest.split()[11:13]) / _TICKS
    return found
