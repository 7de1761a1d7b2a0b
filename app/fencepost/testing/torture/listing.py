"""What there is to choose from."""

from fencepost.testing.torture.config import SOURCES
from fencepost.testing.torture.faults import KINDS
from fencepost.testing.torture.workloads import WORKLOADS


def listing() -> str:
    """Describe all workloads, faults and sources, one a line."""
    lines = ["Workloads:"]
    lines += [f"  {workload.name:20} {workload.what}" for workload in WORKLOADS.values()]
    lines += ["", "Faults:"]
    lines += [f"  {kind.name:20} {kind.what}" for kind in KINDS.values()]
    lines += ["", f"Sources: {', '.join(SOURCES)}"]
    return "\n".join(lines)
