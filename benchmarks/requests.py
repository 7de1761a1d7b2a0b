"""The raw HTTP request of a cell, for the load generator to fill in: the same headers for every server."""

from typing import Final

from benchmarks.cells import Cell, Operation
from benchmarks.load import HOST
from benchmarks.walk import Walk

_CHANGE: Final = '{"status": "paid"}'
_ROW: Final = '{"order_id": "order-%(key)d", "status": "paid"}'
_SAME_ROW: Final = _ROW.replace("key", "same")

EXPECTED: Final[dict[Operation, int]] = {"stale": 409, "delete": 204, "insert": 201, "insert array": 201}
"""The status that says what must be said; of other operations it is 200."""


def request(cell: Cell, walk: Walk, first_token: int) -> str:
    """Write the request. All tokens of a cell are as long as its first."""
    line, body = _pieces(cell)
    head = f"{line} HTTP/1.1\r\nHost: {HOST}\r\nX-Fence-Token: %(token)d\r\n"
    if cell.operation == "keyed write":
        head += "Idempotency-Key: %(same)d-%(token)d\r\n"
    key = str(walk.first_key)
    length = len(body.replace("%(key)d", key).replace("%(same)d", key).replace("%(token)d", str(first_token)))
    return f"{head}Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"


def _pieces(cell: Cell) -> tuple[str, str]:
    """Return the request line and the body."""
    if cell.driver == "usual handler":
        return "PATCH /orders/order-%(key)d", _CHANGE
    if cell.driver == "prest":
        # Its operators are in the query. The token is written like any other column.
        target = f"/postgres/public/{cell.table}?order_id=$eq.order-%(key)d&last_fence_token=$lt.%(token)d"
        return f"PATCH {target}", '{"status": "paid", "last_fence_token": %(token)d}'
    table, row = f"/v1/data/{cell.table}", f"/v1/data/{cell.table}/order-%(key)d"
    array, write = f"[{', '.join([_ROW] * cell.rows_per_request)}]", (f"PATCH {row}", _CHANGE)
    pieces: dict[Operation, tuple[str, str]] = {
        "write": write,
        "keyed write": write,
        "stale": write,
        "claim": ("POST /v1/claims", '{"resource": "orders/order-%(key)d"}'),
        "put": (f"PUT {row}", _SAME_ROW),
        "delete": (f"DELETE {row}", ""),
        "insert": (f"POST {table}", _ROW),
        "insert array": (f"POST {table}", array),
        "patch array": (f"PATCH {table}", array),
    }
    return pieces[cell.operation]
