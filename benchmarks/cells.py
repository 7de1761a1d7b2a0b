"""What is measured, and which cells are compared."""

from dataclasses import dataclass
from typing import Final, Literal

Driver = Literal["pgbench", "fencepost", "usual handler"]
Operation = Literal["write", "stale", "claim"]
TableName = Literal["orders", "orders_plain"]

PROTECTED: Final = "orders"
PLAIN: Final = "orders_plain"


@dataclass(frozen=True, slots=True)
class Cell:
    """One workload. `workers` are the server's processes; pgbench has none between itself and PostgreSQL."""

    name: str
    driver: Driver
    operation: Operation
    table: TableName
    connections: int
    workers: int = 0


@dataclass(frozen=True, slots=True)
class Ratio:
    """Rate of one cell by that of another, taken within a round."""

    name: str
    of: str
    to: str


def _patch(connections: int, workers: int) -> Cell:
    return Cell(f"patch, {connections} conn., {workers} w.", "fencepost", "write", PROTECTED, connections, workers)


CELLS: Final = (
    Cell("bare UPDATE (pgbench)", "pgbench", "write", PLAIN, 32),
    Cell("UPDATE with triggers (pgbench)", "pgbench", "write", PROTECTED, 32),
    *(_patch(connections, workers) for workers in (1, 2) for connections in (1, 16, 64)),
    Cell("stale patch, 64 conn., 2 w.", "fencepost", "stale", PROTECTED, 64, 2),
    Cell("claim, 64 conn., 2 w.", "fencepost", "claim", PROTECTED, 64, 2),
    Cell("usual handler, 64 conn., 2 w.", "usual handler", "write", PLAIN, 64, 2),
)

RATIOS: Final = (
    Ratio("triggers: protected by bare UPDATE", CELLS[1].name, CELLS[0].name),
    Ratio("HTTP: patch by UPDATE with triggers", _patch(64, 2).name, CELLS[1].name),
    Ratio("all: patch by bare UPDATE", _patch(64, 2).name, CELLS[0].name),
    Ratio("patch by usual handler", _patch(64, 2).name, "usual handler, 64 conn., 2 w."),
    Ratio("second worker: patch, 2 by 1", _patch(64, 2).name, _patch(64, 1).name),
    Ratio("stale by accepted patch", "stale patch, 64 conn., 2 w.", _patch(64, 2).name),
    Ratio("claim by patch", "claim, 64 conn., 2 w.", _patch(64, 2).name),
)
