"""`fencepost torture`: a workload against a gateway, with faults; a history of it, and a verdict.

    Config → run() → servers of its own, or a gateway that runs already (stages.py)
                   → workers (worker.py), each playing a workload (workloads.py) as many actors (holders.py)
                   → faults, chosen by the seed (faults.py), brought about one after the other (running.py)
                   → parts of the history, merged (merging.py), checked (fencepost.testing.checker), drawn (report/)

It knows the gateway by HTTP only. To the database it connects for three things: to make and protect its tables, to end
leases, and for the controls that write without a fence. It shares no code with the gateway but that of `protect` and
`migrate`, which make its tables.
"""

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from fencepost.testing.torture.assignment import BadInputError, RunFailedError
    from fencepost.testing.torture.config import Config
    from fencepost.testing.torture.running import run

__all__ = ["BadInputError", "Config", "RunFailedError", "run"]

_MODULES: Final = {"BadInputError": "assignment", "Config": "config", "RunFailedError": "assignment", "run": "running"}


def __getattr__(name: str) -> Any:
    """Import on use: a worker process needs little of this package, and starts ten times as fast without the rest."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
