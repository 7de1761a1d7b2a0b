"""How long the processes that a benchmark has started were on a core, by what they do. Other work on the machine
changes that less than it changes a rate.
"""

import os
import resource
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
LOAD: Final = "load"
"""The programs that this process has run to their ends: the load generator's, and pgbench."""

_NAMES: Final = {"postgres": DATABASE, "java": BROKER, "prestd": PYTHON}
_TICKS: Final = os.sysconf("SC_CLK_TCK")


class Cpu:
    """Begins to count when it is made. A process that ends meanwhile counts as its parent's, which waits for it."""

    def __init__(self) -> None:
        self._before = _spent()

    def per(self, count: int) -> dict[str, float]:
        """Give what each part has spent since, in µs for each of so many writes, or requests."""
        return {f"{part}_us": 1e6 * (now - self._before[part]) / count for part, now in _spent().items()}


def _spent() -> Spent:
    """Add up what all processes have spent; once more when one of them ends while they are read."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent: Spent = dict.fromkeys(PARTS, 0.0) | {LOAD: ended.ru_utime + ended.ru_stime}
    for pid in descendants(os.getpid()):
        try:
            name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
        except (FileNotFoundError, ProcessLookupError):
            return _spent()
        part = _NAMES.get(name) or (PYTHON if name.startswith("python") else None)
        if part is not None:  # utime, stime, and both of the children that it has waited for
            spent[part] += sum(int(ticks) for ticks in rest.split()[11:15]) / _TICKS
    return spent
