"""A request under /v1/data/, as far as all read it that have one: the routes, queued messages, the lines of a batch."""

from dataclasses import dataclass
from typing import Final

from starlette.types import Message, Receive

from fencepost.server.fence.problem_types import NO_ROUTE
from fencepost.server.fence.problems import Problem, bad_request
from fencepost.server.fence.resource import MalformedResourceError, decode_key, decode_segment
from fencepost.server.http.problems.response import RequestError
from fencepost.server.http.requests.headers import Headers, RawHeaders
from fencepost.server.postgres.query import NO_QUERY, Query, QueryError
from fencepost.server.postgres.row_sql import Key

COLLECTION_METHODS: Final = "GET, HEAD, POST, PATCH, DELETE"
ROW_METHODS: Final = "GET, HEAD, PATCH, PUT, DELETE"
UNNAMEABLE: Final = (("",), (".",), ("..",))


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


def split_path(path: bytes) -> tuple[str, Key | None, bytes]:
    """Split what follows /v1/data/, before it is decoded: %2F is part of a key. Gives the table, the key (None: it is
    the path of a collection), and the key as it came. Raises RequestError.
    """
    table, slash, raw_key = path.partition(b"/")
    if b"/" in raw_key or not table:
        raise RequestError(
            Problem(NO_ROUTE, "The path is /v1/data/{table} or /v1/data/{table}/{key}; a / inside a name is %2F.")
        )
    try:
        return decode_segment(table), decode_key(raw_key) if slash else None, raw_key
    except MalformedResourceError as error:
        raise RequestError(bad_request(f"path: {error}")) from error


def require_nameable(key: Key | None) -> None:
    """Refuse a key that clients and proxies would read as another path."""
    if key in UNNAMEABLE:
        raise RequestError(
            bad_request(f"path: the key {key[0]!r} cannot stand in a path.", "Name the row by a filter: ?column=eq.")
        )


def body_of(body: bytes) -> Receive:
    """Give a body that is there already as a request has it."""

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    return receive


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
