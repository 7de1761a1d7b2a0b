"""The raw HTTP request of a cell, for the load generator to fill in: the same headers for every server."""

from typing import Final

from joserfc import jwt
from joserfc.jwk import OctKey

from benchmarks.cells import PROTECTED, ROLE, RULED, Cell, Operation
from benchmarks.load import HOST
from benchmarks.walk import Walk

_CHANGE: Final = '{"status": "paid"}'
_ROW: Final = '{"order_id": "order-%(key)d", "status": "paid"}'
_LINE: Final = f'{{"method": "PATCH", "path": "{PROTECTED}/order-%(key)d", "token": %(token)d, "body": {_CHANGE}}}\n'
_SAME_ROW: Final = _ROW.replace("key", "same")

SECRET: Final = "the secret of tokens, in benchmarks"  # noqa: S105 - of this machine alone, for a minute
"""Under which the tokens of callers are signed: each caller sends always the same one, as a client does."""
EXPECTED: Final[dict[Operation, int]] = {
    "stale": 409,
    "delete": 204,
    "insert": 201,
    "insert array": 201,
    "patch array": 204,
}
"""The status that an operation must be answered with; 200 for those not listed."""


def request(cell: Cell, walk: Walk, first_token: int) -> str:
    """Write the request. All tokens of a cell are as long as its first."""
    line, body = _pieces(cell)
    head = f"{line} HTTP/1.1\r\nHost: {HOST}\r\n"
    if cell.operation == "read":
        return f"{head}\r\n"
    kind = "x-ndjson" if cell.operation == "batch" else "json"
    if cell.operation != "batch":
        head += "X-Fence-Token: %(token)d\r\n"
    if cell.callers:
        head += "Authorization: Bearer %(caller)d\r\n"
    if cell.operation == "keyed write":
        head += "Idempotency-Key: %(same)d-%(token)d\r\n"
    key = str(walk.first_key)
    length = len(body.replace("%(key)d", key).replace("%(same)d", key).replace("%(token)d", str(first_token)))
    return f"{head}Content-Type: application/{kind}\r\nContent-Length: {length}\r\n\r\n{body}"


def tokens_of_callers(cell: Cell) -> tuple[str, ...]:
    """Make the tokens. Where row security rules they name a role, and the tenant whose rows all are."""
    claims: dict[str, object] = {"iss": "https://id.example", "exp": 4_000_000_000}
    if cell.table == RULED:
        claims |= {"role": ROLE, "tenant": "shop"}
    names = [f"benchmark-{number}" for number in range(cell.callers)]
    return tuple(jwt.encode({"alg": "HS256"}, claims | {"sub": name}, OctKey.import_key(SECRET)) for name in names)


def _row_path(cell: Cell) -> str:
    """Return where a server has a row."""
    if cell.driver == "usual handler":
        return "/orders/order-%(key)d"
    if cell.driver == "prest":
        return f"/postgres/public/{cell.table}?order_id=$eq.order-%(key)d"
    return f"/v1/data/{cell.table}/order-%(key)d"


def _pieces(cell: Cell) -> tuple[str, str]:
    """Return the request line and the body."""
    if cell.operation == "read":
        return f"GET {_row_path(cell)}", ""
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
        "batch": ("POST /v1/batch", _LINE * cell.rows_per_request),
    }
    return pieces[cell.operation]
