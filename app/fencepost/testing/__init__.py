"""The integration test harness: shows whether a service survives a paused lock holder.

It knows the gateway as its users do: over HTTP and by the commands. It shares no code with what it judges. Names are
imported on use: pytest loads this package in every run.
"""

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from fencepost.testing.checker import assert_exactly_once, assert_fenced, assert_mutual_exclusion
    from fencepost.testing.faults import (
        FaultError,
        FaultUnavailableError,
        Link,
        SteppableClock,
        clock_stepped,
        cut,
        delayed,
        killed,
        lease_expired,
        partitioned,
        paused,
    )

__all__ = [
    "FaultError",
    "FaultUnavailableError",
    "Link",
    "SteppableClock",
    "assert_exactly_once",
    "assert_fenced",
    "assert_mutual_exclusion",
    "clock_stepped",
    "cut",
    "delayed",
    "killed",
    "lease_expired",
    "partitioned",
    "paused",
]

_CHECKER: Final = frozenset({"assert_exactly_once", "assert_fenced", "assert_mutual_exclusion"})


def __getattr__(name: str) -> object:
    """Import a name of the checker or of the faults when it is asked for."""
    if name in __all__:
        package = "fencepost.testing.checker" if name in _CHECKER else "fencepost.testing.faults"
        found: object = getattr(importlib.import_module(package), name)
        globals()[name] = found
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
