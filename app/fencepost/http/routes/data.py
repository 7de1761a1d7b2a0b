"""/v1/data: PostgREST's dialect over fenced tables.

A plain ASGI application, called before FastAPI's router and middleware (app.py): the path must be split before it is
decoded (`%2F` is part of a key), and the hot path needs neither models nor dependencies. OpenAPI for it comes from the
catalog.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fencepost.fencing.problem_types import METHOD_NOT_ALLOWED, NO_ROUTE
from fencepost.fencing.problems import Problem, bad_request
from fencepost.fencing.resource import MalformedResourceError, decode_key, decode_segment
from fencepost.gateway.gateway import Gateway
from fencepost.gateway.outcomes import Done
from fencepost.gateway.read import ReadMany, ReadOne
from fencepost.gateway.use_cases import (
    delete,
    delete_many,
    insert,
    patch,
    patch_many,
    patch_rows,
    put,
    read_many,
    read_one,
)
from fencepost.gateway.writes.idempotency import IdempotentRequest
from fencepost.gateway.writes.insert import Insert
from fencepost.gateway.writes.matching import FilteredWrite
from fencepost.gateway.writes.patch_rows import RowsPatch
from fencepost.gateway.writes.plans import KeyedWrite
from fencepost.http.problems.response import RequestError, problem_response
from fencepost.http.requests.bodies import (
    read_changes,
    read_no_body,
    read_object,
    read_rows,
    refuse_whole_table,
    require_form_of_patch,
)
from fencepost.http.requests.header_rules import JUDGED, refuse_headers
from fencepost.http.requests.headers import (
    Headers,
    RawHeaders,
    by_name,
    payload_hash,
    read_idempotency_key,
    read_token,
    table_name,
    wants_one,
)
from fencepost.http.requests.preferences import Preferences, read_preferences
from fencepost.http.requests.query import NO_QUERY, parse_query
from fencepost.http.responses.answers import filtered_answer, keep_answer, list_answer, post_answer, row_answer
from fencepost.storage.statements.query import Query, QueryError

PREFIX: Final = b"/v1/data/"
COLLECTION_METHODS: Final = "GET, HEAD, POST, PATCH, DELETE"
_READING: Final = ("GET", "HEAD")
_UNNAMEABLE: Final = (("",), (".",), ("..",))
ROW_METHODS: Final = "GET, HEAD, PATCH, PUT, DELETE"

Render = Callable[[Done], Response]


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


Handler = Callable[["DataRoutes", DataRequest, str, tuple[str, ...]], Awaitable[Response]]


class DataRoutes:
    """Everything under /v1/data/, dispatched by the raw path."""

    def __init__(self, gateway: Callable[[], Gateway], max_body_bytes: int) -> None:
        self._gateway = gateway
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            response = await self._respond(scope, receive)
        except RequestError as error:
            response = problem_response(error.problem)
        except QueryError as error:
            response = problem_response(bad_request(str(error)))
        await response(scope, receive, send)

    async def _respond(self, scope: Scope, receive: Receive) -> Response:
        table, slash, raw_key = scope["raw_path"][len(PREFIX) :].partition(b"/")
        if b"/" in raw_key or not table:
            raise RequestError(
                Problem(NO_ROUTE, "The path is /v1/data/{table} or /v1/data/{table}/{key}; a / inside a name is %2F.")
            )
        try:
            name = decode_segment(table)
            key = decode_key(raw_key)
        except MalformedResourceError as error:
            raise RequestError(bad_request(f"path: {error}")) from error
        method = scope["method"]
        handlers, allowed = (_ROW, ROW_METHODS) if slash else (_COLLECTION, COLLECTION_METHODS)
        handler = handlers.get(method)
        if handler is None:
            problem = Problem(METHOD_NOT_ALLOWED, f"{method} is not for this path: {allowed} are.")
            return problem_response(problem, {"Allow": allowed})
        if slash and key in _UNNAMEABLE:
            raise RequestError(
                bad_request(
                    f"path: the key {key[0]!r} cannot stand in a path.", "Name the row by a filter: ?column=eq."
                )
            )
        raw_headers = scope["headers"]
        headers = by_name(raw_headers)
        if not JUDGED.isdisjoint(headers):
            refuse_headers(headers, writing=method not in _READING)
        asked = DataRequest(method, raw_key, scope["query_string"], raw_headers, headers, receive)
        return await handler(self, asked, name, key)

    async def get_row(self, request: DataRequest, name: str, key: tuple[str, ...]) -> Response:
        """GET /v1/data/{table}/{key}."""
        wants_one(request.headers)
        query = _only(parse_query(request.query), "select")
        preferences = read_preferences(request.headers.get(b"prefer"), "row")
        table = table_name(request.headers, name, writing=False)
        return row_answer(await read_one(self._gateway(), ReadOne(table, key, query.select)), preferences)

    async def get_rows(self, request: DataRequest, name: str, _key: tuple[str, ...]) -> Response:
        """GET /v1/data/{table}."""
        singular = wants_one(request.headers)
        query = _only(parse_query(request.query), "select", "filters", "order", "limit", "offset")
        preferences = read_preferences(request.headers.get(b"prefer"), "list")
        table = table_name(request.headers, name, writing=False)
        outcome = await read_many(self._gateway(), ReadMany(table, query, preferences.count))
        return list_answer(outcome, query.offset, preferences, singular=singular)

    async def patch_row(self, request: DataRequest, name: str, key: tuple[str, ...]) -> Response:
        """PATCH /v1/data/{table}/{key}."""
        preferences = read_preferences(request.headers.get(b"prefer"), "one")
        write = await self._read_change(request, name, key, preferences)
        return row_answer(await patch(self._gateway(), write), preferences)

    async def put_row(self, request: DataRequest, name: str, key: tuple[str, ...]) -> Response:
        """PUT /v1/data/{table}/{key}."""
        preferences = read_preferences(request.headers.get(b"prefer"), "one")
        write = await self._read_change(request, name, key, preferences)
        return row_answer(await put(self._gateway(), write), preferences)

    async def delete_row(self, request: DataRequest, name: str, key: tuple[str, ...]) -> Response:
        """DELETE /v1/data/{table}/{key}; PostgREST's clients send a body of {}, which says nothing."""
        preferences = read_preferences(request.headers.get(b"prefer"), "one")
        token = read_token(request.raw_headers)
        wants_one(request.headers)
        query = _only(parse_query(request.query), "select")
        await read_no_body(request.headers, request.receive, self._max_body_bytes)
        table = table_name(request.headers, name, writing=True)
        once = read_once(request, table, "", lambda done: row_answer(done, preferences, row_by_default=False))
        write = KeyedWrite(table, key, token, query.select, None, once, preferences.shows(by_default=False))
        return row_answer(await delete(self._gateway(), write), preferences, row_by_default=False)

    async def _read_change(
        self, request: DataRequest, name: str, key: tuple[str, ...], preferences: Preferences
    ) -> KeyedWrite:
        token = read_token(request.raw_headers)
        wants_one(request.headers)
        query = _only(parse_query(request.query), "select", "columns")
        body = await read_object(
            request.headers, request.receive, self._max_body_bytes, query.columns, complete=preferences.complete
        )
        table = table_name(request.headers, name, writing=True)
        once = read_once(request, table, body.text, lambda done: row_answer(done, preferences))
        return KeyedWrite(table, key, token, query.select, body, once, preferences.shows(by_default=True))

    async def post_rows(self, request: DataRequest, name: str, _key: tuple[str, ...]) -> Response:
        """POST /v1/data/{table}: one object, or an array."""
        preferences = read_preferences(request.headers.get(b"prefer"), "insert")
        token = read_token(request.raw_headers)
        singular = wants_one(request.headers)
        query = _only(parse_query(request.query), "select", "columns")
        body, count = await read_rows(
            request.headers, request.receive, self._max_body_bytes, query.columns, complete=preferences.complete
        )
        table = table_name(request.headers, name, writing=True)
        once = read_once(request, table, body.text, lambda done: post_answer(done, preferences, singular=singular))
        most, shown = preferences.most, preferences.shows(by_default=True)
        write = Insert(table, token, body, count, query.select, singular, once, most, shown)
        return post_answer(await insert(self._gateway(), write), preferences, singular=singular)

    async def patch_rows(self, request: DataRequest, name: str, _key: tuple[str, ...]) -> Response:
        """PATCH /v1/data/{table}?filters with an object, or without filters and with an array."""
        preferences = read_preferences(request.headers.get(b"prefer"), "many")
        token = read_token(request.raw_headers)
        singular = wants_one(request.headers)
        query = _only(parse_query(request.query), "select", "columns", "filters")
        body, count = await read_changes(
            request.headers, request.receive, self._max_body_bytes, query.columns, complete=preferences.complete
        )
        require_form_of_patch(query, count)
        table = table_name(request.headers, name, writing=True)
        once = read_once(request, table, body.text, lambda done: filtered_answer(done, preferences, singular=singular))
        most, shown = preferences.most, preferences.shows(by_default=False)
        if count is None:
            filtered = FilteredWrite(table, query.filters, token, body, query.select, singular, once, most, shown)
            outcome = await patch_many(self._gateway(), filtered)
        else:
            rows = RowsPatch(table, token, body, count, query.select, singular, once, most, shown)
            outcome = await patch_rows(self._gateway(), rows)
        return filtered_answer(outcome, preferences, singular=singular)

    async def delete_rows(self, request: DataRequest, name: str, _key: tuple[str, ...]) -> Response:
        """DELETE /v1/data/{table}?filters."""
        preferences = read_preferences(request.headers.get(b"prefer"), "many")
        token = read_token(request.raw_headers)
        singular = wants_one(request.headers)
        query = _only(parse_query(request.query), "select", "filters")
        if not query.filters:
            raise RequestError(refuse_whole_table("DELETE"))
        await read_no_body(request.headers, request.receive, self._max_body_bytes)
        table = table_name(request.headers, name, writing=True)
        once = read_once(request, table, "", lambda done: filtered_answer(done, preferences, singular=singular))
        most, shown = preferences.most, preferences.shows(by_default=False)
        write = FilteredWrite(table, query.filters, token, None, query.select, singular, once, most, shown)
        return filtered_answer(await delete_many(self._gateway(), write), preferences, singular=singular)


def read_once(request: DataRequest, table: str, body: str, render: Render) -> IdempotentRequest | None:
    """Read the request's Idempotency-Key, and what it stands for: everything but token and preferences, so that the
    lock's next holder may repeat a write. `render` gives the answer that will be kept.
    """
    key = read_idempotency_key(request.raw_headers)
    if key is None:
        return None
    payload = payload_hash(request.method, table.removeprefix("public."), request.row, request.query, body)
    return IdempotentRequest(key, payload, lambda done: keep_answer(done, render(done)))


def _only(query: Query, *allowed: str) -> Query:
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


_ROW: Final[dict[str, Handler]] = {
    "GET": DataRoutes.get_row,
    "HEAD": DataRoutes.get_row,
    "PATCH": DataRoutes.patch_row,
    "PUT": DataRoutes.put_row,
    "DELETE": DataRoutes.delete_row,
}
_COLLECTION: Final[dict[str, Handler]] = {
    "GET": DataRoutes.get_rows,
    "HEAD": DataRoutes.get_rows,
    "POST": DataRoutes.post_rows,
    "PATCH": DataRoutes.patch_rows,
    "DELETE": DataRoutes.delete_rows,
}
