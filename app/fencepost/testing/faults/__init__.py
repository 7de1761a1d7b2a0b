"""Faults as context managers: each is there while its block runs, and is undone whatever happens inside.

They need no pytest. They are not asynchronous, and work in coroutines all the same: what they wait for takes
milliseconds and happens in other processes and threads.
"""

from fencepost.testing.faults.connection import Cutter, When
from fencepost.testing.faults.fault import FaultError, FaultUnavailableError
from fencepost.testing.faults.holders import SteppableClock, clock_stepped, lease_expired
from fencepost.testing.faults.network import Link, cut, delayed, partitioned
from fencepost.testing.faults.processes import killed, paused

__all__ = [
    "Cutter",
    "FaultError",
    "FaultUnavailableError",
    "Link",
    "SteppableClock",
    "When",
    "clock_stepped",
    "cut",
    "delayed",
    "killed",
    "lease_expired",
    "partitioned",
    "paused",
]
