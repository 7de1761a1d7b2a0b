"""Each method of the client as the request that it sends. No I/O here."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias
from urllib.parse import quote

from fencepost.client.http.exchange import Call, Pairs
from fencepost.client.keys import Key, collection_path, resource_of, row_path
from fencepost.client.leases.lease import write_headers

Filters: TypeAlias = Mapping[str, str] | Sequence[tuple[str, str]]
"""PostgREST's filters: `{"status": "eq.new"}`, or pairs where a column has several."""

WithToken: TypeAlias = Callable[[int | None], Call]
"""A write that lacks only its token; None for one whose place in a queue is its token."""

MAX_TOKEN: Final = 2**63 - 1
LOCKS_PER_PAGE: Final = 1000
QUEUED: Final = 202
ANSWER_SECONDS: Final = 10.0
"""How long an answer may take that is due."""
_ROWS_BACK: Final = "return=representation"
_ASYNC: Final = "respond-async"


@dataclass(frozen=True, slots=True)
class SelectQuery:
    """What `select` asks for."""

    filters: Filters
    select: str | None
    order: str | None
    limit: int | None
    offset: int | None

    def pairs(self) -> Pairs:
        """Return the query's parameters."""
        single = {"select": self.select, "order": self.order, "limit": self.limit, "offset": self.offset}
        return [*_pairs(self.filters), *((name, str(value)) for name, value in single.items() if value is not None)]


def get(table: str, key: Key, select: str | None) -> Call:
    """GET one row."""
    return Call(method="GET", path=row_path(table, key), params=[] if select is None else [("select", select)])


def select(table: str, query: SelectQuery) -> Call:
    """GET rows."""
    return Call(method="GET", path=collection_path(table), params=query.pairs())


def fence(resource: str) -> Call:
    """GET what is known of a resource."""
    return Call(method="GET", path="/v1/fences", params=[("resource", resource)])


def locks(name: str | None, after: str | None, source: str | None) -> Call:
    """GET a page of locks."""
    given = {"source": source, "name": name, "after": after, "limit": str(LOCKS_PER_PAGE)}
    pairs = [(member, value) for member, value in given.items() if value is not None]
    return Call(method="GET", path="/v1/locks", params=pairs)


def post(table: str, rows: Mapping[str, Any] | Sequence[Mapping[str, Any]], token: int | None) -> Call:
    """POST a row, or several."""
    body = dict(rows) if isinstance(rows, Mapping) else [dict(row) for row in rows]
    return _write("POST", collection_path(table), token, body)


def patch(table: str, key: Key, changes: Mapping[str, Any], token: int | None) -> Call:
    """PATCH one row."""
    return _write("PATCH", row_path(table, key), token, dict(changes), resource=resource_of(table, key))


def put(table: str, key: Key, row: Mapping[str, Any], token: int | None) -> Call:
    """PUT one row."""
    return _write("PUT", row_path(table, key), token, dict(row), resource=resource_of(table, key))


def delete(table: str, key: Key, token: int | None) -> Call:
    """DELETE one row."""
    return _write("DELETE", row_path(table, key), token, None, prefer=None, resource=resource_of(table, key))


def patch_where(table: str, filters: Filters, changes: Mapping[str, Any], token: int | None) -> Call:
    """PATCH the rows that match."""
    return _write("PATCH", collection_path(table), token, dict(changes), params=_some(filters))


def patch_rows(table: str, rows: Sequence[Mapping[str, Any]], token: int | None) -> Call:
    """PATCH the rows that the mappings name by their keys."""
    return _write("PATCH", collection_path(table), token, [dict(row) for row in rows])


def delete_where(table: str, filters: Filters, token: int | None) -> Call:
    """DELETE the rows that match."""
    return _write("DELETE", collection_path(table), token, None, params=_some(filters))


def queued(call: Call) -> Call:
    """Ask for a write to be queued, and for what it would return to be kept."""
    prefer = call.headers.get("Prefer")
    return replace(call, headers={**call.headers, "Prefer": _ASYNC if prefer is None else f"{_ASYNC}, {prefer}"})


def queued_write(write_id: str, wait: int) -> Call:
    """GET what became of a queued write; answered when it is decided, or after `wait` seconds."""
    return Call(
        method="GET",
        path=f"/v1/writes/{quote(write_id, safe=':')}",
        params=[("wait", str(wait))] if wait else [],
        upkeep=True,  # a hundred who wait would leave no connection for writes
        read_seconds=wait + ANSWER_SECONDS if wait else None,
    )


def check_token(token: int) -> int:
    """Return the token if it can be one (R11)."""
    if isinstance(token, bool) or not isinstance(token, int):
        raise TypeError(f"token {token!r}: a token is an int")
    if not 1 <= token <= MAX_TOKEN:
        raise ValueError(f"token {token}: a token is from 1 to {MAX_TOKEN}")
    return token


def _write(
    method: str,
    path: str,
    token: int | None,
    body: object,
    *,
    prefer: str | None = _ROWS_BACK,
    params: Pairs = (),
    resource: str | None = None,
) -> Call:
    headers = write_headers(token, prefer)
    return Call(
        method=method,
        path=path,
        params=params,
        headers=headers,
        body=body,
        writes=True,
        resource=resource,
        token=token,
    )


def _pairs(filters: Filters) -> Pairs:
    return list(filters.items()) if isinstance(filters, Mapping) else list(filters)


def _some(filters: Filters) -> Pairs:
    pairs = _pairs(filters)
    if not pairs:
        raise ValueError("filters: a write of a whole table is refused: name the rows by a filter")
    return pairs
