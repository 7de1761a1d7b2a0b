"""/v1/data: PostgREST's dialect over fenced tables.

A plain ASGI application, called before FastAPI's router and middleware (app.py): the path must be split before it is
decoded (`%2F` is part of a key), and the hot path needs neither models nor dependencies. OpenAPI for it comes from the
catalog.
"""

from collections.abc import Callable
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fencepost.server.fence.problem_types import METHOD_NOT_ALLOWED
from fencepost.server.fence.problems import Problem
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.read import ReadMany, ReadOne
from fencepost.server.gateway.use_cases import read_many, read_one
from fencepost.server.http.answers import list_answer, read_answer
from fencepost.server.http.bodies import BodiesInHand, is_large
from fencepost.server.http.headers import (
    COLLECTION_METHODS,
    JUDGED,
    ROW_METHODS,
    DataRequest,
    by_name,
    only,
    read_preferences,
    refuse_headers,
    require_nameable,
    split_path,
    table_name,
    wants_one,
)
from fencepost.server.http.problems import answer_or_problem, problem_response
from fencepost.server.http.query import parse_query
from fencepost.server.http.writes import read_write, write_answer
from fencepost.server.postgres.row_sql import Key
from fencepost.server.quota import ASKING

PREFIX: Final = b"/v1/data/"
_READING: Final = ("GET", "HEAD")
_OF_COLLECTIONS: Final = frozenset(COLLECTION_METHODS.split(", "))
_OF_ROWS: Final = frozenset(ROW_METHODS.split(", "))


class DataRoutes:
    """Everything under /v1/data/, dispatched by the raw path."""

    def __init__(self, gateway: Callable[[Scope], Gateway], max_body_bytes: int, bodies: BodiesInHand) -> None:
        self._gateway = gateway
        self._max_body_bytes, self._bodies = max_body_bytes, bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await answer_or_problem(self._respond(scope, receive))
        await response(scope, receive, send)

    async def _respond(self, scope: Scope, receive: Receive) -> Response:
        name, key, raw_key = split_path(scope["raw_path"][len(PREFIX) :])
        method = scope["method"]
        if method not in (_OF_COLLECTIONS if key is None else _OF_ROWS):
            allowed = COLLECTION_METHODS if key is None else ROW_METHODS
            problem = Problem(METHOD_NOT_ALLOWED, f"{method} is not for this path: {allowed} are.")
            return problem_response(problem, {"Allow": allowed})
        require_nameable(key)
        raw_headers = scope["headers"]
        headers = by_name(raw_headers)
        if not JUDGED.isdisjoint(headers):
            refuse_headers(headers, writing=method not in _READING)
        asked = DataRequest(method, raw_key, scope["query_string"], raw_headers, headers, receive)
        gateway = self._gateway(scope)
        if method in _READING:
            whose = ASKING.get()
            if key is None:
                return await _read_rows(gateway, asked, name, whose)
            return await _read_row(gateway, asked, name, key, whose)
        if not is_large(headers):
            return await write_answer(gateway, asked, await read_write(asked, name, key, self._max_body_bytes))
        async with self._bodies.counting(ASKING.get(), headers, receive) as asked.receive:
            return await write_answer(gateway, asked, await read_write(asked, name, key, self._max_body_bytes))


async def _read_row(gateway: Gateway, request: DataRequest, name: str, key: Key, caller: str) -> Response:
    """GET /v1/data/{table}/{key}."""
    wants_one(request.headers)
    query = only(parse_query(request.query), "select")
    preferences = read_preferences(request.headers.get(b"prefer"), "row")
    table = table_name(request.headers, name, writing=False)
    return read_answer(await read_one(gateway, ReadOne(table, key, query.select, caller)), preferences)


async def _read_rows(gateway: Gateway, request: DataRequest, name: str, caller: str) -> Response:
    """GET /v1/data/{table}."""
    singular = wants_one(request.headers)
    query = only(parse_query(request.query), "select", "filters", "order", "limit", "offset")
    preferences = read_preferences(request.headers.get(b"prefer"), "list")
    table = table_name(request.headers, name, writing=False)
    outcome = await read_many(gateway, ReadMany(table, query, preferences.count, caller))
    return list_answer(outcome, query.offset, preferences, singular=singular)
