"""A request under /v1/data/, as far as every route there reads it."""

from dataclasses import dataclass

from starlette.types import Receive

from fencepost.http.requests.headers import Headers, RawHeaders
from fencepost.storage.statements.query import NO_QUERY, Query, QueryError


@dataclass(slots=True)
class DataRequest:
    """A request, as far as it has been read."""

    method: str
    row: bytes
    """The key in the path, as it came."""
    query: bytes
    raw_headers: RawHeaders
    headers: Headers
    receive: Receive


def only(query: Query, *allowed: str) -> Query:
    """Refuse parameters that mean nothing here: a filter on a keyed route would be ignored silently."""
    if query is NO_QUERY:
        return query
    present = {
        "select": query.select is not None,
        "columns": query.columns is not None,
        "filters": bool(query.filters),
        "order": bool(query.order),
        "limit": query.limit is not None,
        "offset": query.offset > 0,
    }
    if unwanted := [name for name, there in present.items() if there and name not in allowed]:
        raise QueryError(f"query: {', '.join(unwanted)} cannot be used on this route; it takes {', '.join(allowed)}")
    return query
