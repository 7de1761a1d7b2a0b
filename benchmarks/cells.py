"""What is measured: a cell is a workload with its server. README.md explains what each is there for."""

from dataclasses import dataclass
from typing import Final, Literal

Driver = Literal[
    "pgbench",
    "fencepost",
    "fencepost, no guard",
    "usual handler",
    "prest",
    "redis",
    "redis-benchmark",
    "etcd",
    "etcd-benchmark",
    "zookeeper",
]
"""fencepost, no guard: its connections are uvicorn's own, without the bounds of serving/protocol.py (unguarded.py)."""
Operation = Literal[
    "write", "keyed write", "stale", "claim", "put", "delete", "insert", "insert array", "patch array", "batch", "read"
]
"""A keyed write carries an Idempotency-Key of its own."""
TableName = Literal[
    "orders",
    "orders_plain",
    "orders_scoped",
    "orders_triggered",
    "orders_stamped",
    "orders_ruled",
    "orders_new",
    "orders_new_plain",
    "orders_gone",
]

PROTECTED: Final = "orders"
PLAIN: Final = "orders_plain"
SCOPED: Final = "orders_scoped"
"""Every row has a scope of its own, so that connections never wait for each other."""
TRIGGERED: Final = "orders_triggered"
"""With a trigger of the user's own that is not understood, and sets `changed_at`: its writes go alone."""
STAMPED: Final = "orders_stamped"
"""With the usual trigger that sets `changed_at`: its writes share transactions."""
RULED: Final = "orders_ruled"
"""Under row security: callers of ROLE see the rows of the tenant that their claims name."""
ROLE: Final = "benchmark_web"
NEW: Final = "orders_new"
NEW_PLAIN: Final = "orders_new_plain"
"""Empty before each cell."""
GONE: Final = "orders_gone"
"""Filled before each cell, for it to delete from."""

ARRAY: Final = 100
"""Rows in an array's body."""
LINES: Final = 256
"""Lines of a batch, each a PATCH of a row of its own."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One workload. `workers` are the server's processes; where it is 0, the server has as many threads as it likes."""

    name: str
    driver: Driver
    operation: Operation
    table: TableName
    connections: int
    workers: int = 0
    rows_per_request: int = 1
    callers: int = 0
    """How many callers there are, each with a token of its own; 0: the gateway wants none."""


def patch_name(connections: int, workers: int) -> str:
    """Name the cell of a single-row PATCH."""
    return f"patch, {connections} conn., {workers} w."


def _patch(connections: int, workers: int) -> Cell:
    return Cell(patch_name(connections, workers), "fencepost", "write", PROTECTED, connections, workers)


def _pgbench(name: str, operation: Operation, table: TableName, connections: int = 32) -> Cell:
    return Cell(f"{name} (pgbench)", "pgbench", operation, table, connections)


def _http(name: str, operation: Operation, table: TableName, rows: int = 1) -> Cell:
    return Cell(f"{name}, 64 conn., 2 w.", "fencepost", operation, table, 64, 2, rows)


def _peer(name: str, driver: Driver, workers: int = 0) -> Cell:
    return Cell(f"{name}, 64 conn.", driver, "write", PLAIN, 64, workers)


BARE: Final = _pgbench("bare UPDATE", "write", PLAIN)
BARE_ALONE: Final = _pgbench("bare UPDATE, 1 conn.", "write", PLAIN, 1)
TRIGGERS: Final = _pgbench("UPDATE with triggers", "write", PROTECTED)
KEY: Final = _pgbench("UPDATE with key", "keyed write", PROTECTED)
SCOPE: Final = _pgbench("UPDATE with scope", "write", SCOPED)
ALL_LAYERS: Final = _pgbench("UPDATE with scope and key", "keyed write", SCOPED)
BARE_INSERT: Final = _pgbench("bare INSERT", "insert", NEW_PLAIN)
INSERT: Final = _pgbench("INSERT with triggers", "insert", NEW)

SELECT: Final = _pgbench("SELECT of one row", "read", PROTECTED)

PATCH: Final = _patch(64, 2)
GET: Final = _http("get", "read", PROTECTED)
PATCH_TOKEN: Final = Cell(
    "patch with authentication, 64 conn., 2 w.", "fencepost", "write", PROTECTED, 64, 2, callers=1
)
NO_GUARD: Final = Cell("patch without guard, 64 conn., 2 w.", "fencepost, no guard", "write", PROTECTED, 64, 2)
PATCH_KEY: Final = _http("patch with key", "keyed write", PROTECTED)
PATCH_SCOPE: Final = _http("patch with scope", "write", SCOPED)
PATCH_ALL: Final = _http("patch with scope and key", "keyed write", SCOPED)
PATCH_STAMPED: Final = _http("patch, updated_at trigger", "write", STAMPED)
PATCH_TRIGGERED: Final = _http("patch with own trigger", "write", TRIGGERED)
PATCH_RULED: Final = Cell("patch, row security, 1 caller", "fencepost", "write", RULED, 64, 2, callers=1)
PATCH_RULED_MANY: Final = Cell("patch, row security, 64 callers", "fencepost", "write", RULED, 64, 2, callers=64)
STALE: Final = _http("stale patch", "stale", PROTECTED)
CLAIM: Final = _http("claim", "claim", PROTECTED)
POST_ARRAY: Final = _http(f"post arrays of {ARRAY}", "insert array", NEW, ARRAY)
PATCH_ARRAY: Final = _http(f"patch arrays of {ARRAY}", "patch array", PROTECTED, ARRAY)
BATCH: Final = Cell(f"batches of {LINES} lines, 8 conn., 2 w.", "fencepost", "batch", PROTECTED, 8, 2, LINES)

USUAL: Final = _peer("usual handler, 2 w.", "usual handler", 2)
PREST: Final = _peer("pREST", "prest")
USUAL_GET: Final = Cell("usual handler's get, 2 w., 64 conn.", "usual handler", "read", PLAIN, 64, 2)
PREST_GET: Final = Cell("pREST's get, 64 conn.", "prest", "read", PLAIN, 64)
REDIS: Final = _peer("Redis, redis-py", "redis")
REDIS_TOOL: Final = _peer("Redis, redis-benchmark", "redis-benchmark")
ETCD: Final = _peer("etcd, httpx", "etcd")
ETCD_TOOL: Final = _peer("etcd, its benchmark", "etcd-benchmark")
ZOOKEEPER: Final = _peer("ZooKeeper, kazoo", "zookeeper")

CELLS: Final = (
    *(BARE, BARE_ALONE, TRIGGERS, KEY, SCOPE, ALL_LAYERS),
    *(_patch(connections, workers) for workers in (1, 2) for connections in (1, 16, 64, 256)),
    *(
        NO_GUARD,
        PATCH_TOKEN,
        PATCH_KEY,
        PATCH_SCOPE,
        PATCH_ALL,
        PATCH_STAMPED,
        PATCH_TRIGGERED,
        PATCH_RULED,
        PATCH_RULED_MANY,
        STALE,
        CLAIM,
    ),
    _http("put", "put", PROTECTED),
    _http("delete", "delete", GONE),
    _http("post", "insert", NEW),
    POST_ARRAY,
    PATCH_ARRAY,
    BATCH,
    *(BARE_INSERT, INSERT),
    *(SELECT, GET, USUAL_GET, PREST_GET),
    *(USUAL, PREST, REDIS, REDIS_TOOL, ETCD, ETCD_TOOL, ZOOKEEPER),
)
