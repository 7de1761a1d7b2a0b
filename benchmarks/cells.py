"""What is measured, and which cells are compared."""

from dataclasses import dataclass
from typing import Final, Literal

Driver = Literal["pgbench", "fencepost", "usual handler"]
Operation = Literal["write", "keyed write", "stale", "claim"]
"""A keyed write carries an Idempotency-Key of its own."""
TableName = Literal["orders", "orders_plain", "orders_scoped"]

PROTECTED: Final = "orders"
PLAIN: Final = "orders_plain"
SCOPED: Final = "orders_scoped"
"""Every row has a scope of its own, so that connections never wait for each other."""


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


def _layered(name: str, operation: Operation, table: TableName) -> tuple[Cell, Cell]:
    return (
        Cell(f"UPDATE with {name} (pgbench)", "pgbench", operation, table, 32),
        Cell(f"patch with {name}, 64 conn., 2 w.", "fencepost", operation, table, 64, 2),
    )


_BARE: Final = Cell("bare UPDATE (pgbench)", "pgbench", "write", PLAIN, 32)
_TRIGGERS: Final = Cell("UPDATE with triggers (pgbench)", "pgbench", "write", PROTECTED, 32)
_KEY: Final = _layered("key", "keyed write", PROTECTED)
_SCOPE: Final = _layered("scope", "write", SCOPED)
_BOTH: Final = _layered("scope and key", "keyed write", SCOPED)

CELLS: Final = (
    _BARE,
    _TRIGGERS,
    *(_KEY + _SCOPE + _BOTH),
    *(_patch(connections, workers) for workers in (1, 2) for connections in (1, 16, 64)),
    Cell("stale patch, 64 conn., 2 w.", "fencepost", "stale", PROTECTED, 64, 2),
    Cell("claim, 64 conn., 2 w.", "fencepost", "claim", PROTECTED, 64, 2),
    Cell("usual handler, 64 conn., 2 w.", "usual handler", "write", PLAIN, 64, 2),
)

RATIOS: Final = (
    Ratio("triggers: protected by bare UPDATE", _TRIGGERS.name, _BARE.name),
    Ratio("key: keyed by triggers alone", _KEY[0].name, _TRIGGERS.name),
    Ratio("scope: scoped by triggers alone", _SCOPE[0].name, _TRIGGERS.name),
    Ratio("all layers by bare UPDATE", _BOTH[0].name, _BARE.name),
    Ratio("key over HTTP: by patch", _KEY[1].name, _patch(64, 2).name),
    Ratio("scope over HTTP: by patch", _SCOPE[1].name, _patch(64, 2).name),
    Ratio("all layers over HTTP: by patch", _BOTH[1].name, _patch(64, 2).name),
    Ratio("HTTP: patch by UPDATE with triggers", _patch(64, 2).name, _TRIGGERS.name),
    Ratio("all: patch by bare UPDATE", _patch(64, 2).name, _BARE.name),
    Ratio("patch by usual handler", _patch(64, 2).name, "usual handler, 64 conn., 2 w."),
    Ratio("second worker: patch, 2 by 1", _patch(64, 2).name, _patch(64, 1).name),
    Ratio("stale by accepted patch", "stale patch, 64 conn., 2 w.", _patch(64, 2).name),
    Ratio("claim by patch", "claim, 64 conn., 2 w.", _patch(64, 2).name),
)
