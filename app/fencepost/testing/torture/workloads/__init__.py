"""What the actors of a run do, one module a workload."""

from typing import Final

from fencepost.testing.torture.workloads import blocks, clients, idempotent, mutex, register, sets
from fencepost.testing.torture.workloads.workload import Workload

WORKLOADS: Final[dict[str, Workload]] = {
    workload.name: workload
    for workload in (
        register.WORKLOAD,
        blocks.WORKLOAD,
        mutex.WORKLOAD,
        sets.FENCED,
        sets.UNFENCED,
        idempotent.WORKLOAD,
        clients.CLIENTS,
        clients.CLIENT_SETS,
    )
}
"""All, by name."""

__all__ = ["WORKLOADS", "Workload"]
