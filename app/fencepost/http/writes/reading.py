"""The one place that reads a write to a table: what is to be done, by which use case, and how that is answered.

A write is either done at once (routes/data.py), or read in the same way when it is put into a queue, and again when it
is taken from there: so it has the same meaning, and the same answer, either way.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from starlette.responses import Response

from fencepost.gateway.gateway import Gateway
from fencepost.gateway.outcomes import Outcome
from fencepost.gateway.use_cases import delete, delete_many, insert, patch, patch_many, patch_rows, put
from fencepost.gateway.writes.idempotency import IdempotentRequest
from fencepost.gateway.writes.insert import Insert
from fencepost.gateway.writes.keyed import KeyedWrite
from fencepost.gateway.writes.matching import FilteredWrite
from fencepost.gateway.writes.patch_rows import RowsPatch
from fencepost.http.problems.response import RequestError
from fencepost.http.requests.bodies import (
    read_changes,
    read_no_body,
    read_object,
    read_rows,
    refuse_whole_table,
    require_form_of_patch,
)
from fencepost.http.requests.data import DataRequest, only
from fencepost.http.requests.headers import payload_hash, read_idempotency_key, read_token, table_name, wants_one
from fencepost.http.requests.preferences import Preferences, read_preferences
from fencepost.http.requests.query import parse_query
from fencepost.http.responses.answers import filtered_answer, keep_answer, post_answer, row_answer
from fencepost.storage.statements.parameters import Key

WriteVerb = Literal["PATCH", "PUT", "DELETE", "POST"]
Write = KeyedWrite | Insert | FilteredWrite | RowsPatch
Render = Callable[[Outcome], Response]


@dataclass(slots=True)
class WriteRequest:
    """A write that was read: `render(await use(gateway, request))` does and answers it."""

    verb: WriteVerb
    table: str
    """As the request names it, with its schema unless that is public."""
    key: Key | None
    """The key in the path; None: the path is that of a collection."""
    request: Write
    use: Callable[[Gateway, Any], Awaitable[Outcome]]
    """The use case. It takes requests of the type that `request` has."""
    render: Render
    single: bool
    """Whether it is of one row: that of the path, or a POST of one object."""
    preferences: Preferences


def read_write(request: DataRequest, name: str, key: Key | None, max_body_bytes: int) -> Awaitable[WriteRequest]:
    """Read a write of the table `name`: of the row with this key, or (None) of the collection. The method must be one
    that the path takes. Raises RequestError, QueryError for what cannot be understood.
    """
    if key is None:
        return _COLLECTION[request.method](request, name, max_body_bytes)
    if request.method == "DELETE":
        return _delete_row(request, name, key, max_body_bytes)
    return _change_row(request, name, key, max_body_bytes)


async def _change_row(request: DataRequest, name: str, key: Key, limit: int) -> WriteRequest:
    """PATCH and PUT /v1/data/{table}/{key}."""
    preferences = read_preferences(request.headers.get(b"prefer"), "one")
    token = read_token(request.raw_headers)
    wants_one(request.headers)
    query = only(parse_query(request.query), "select", "columns")
    body = await read_object(request.headers, request.receive, limit, query.columns, complete=preferences.complete)
    table = table_name(request.headers, name, writing=True)

    def render(outcome: Outcome) -> Response:
        return row_answer(outcome, preferences)

    once = _read_once(request, table, body.text, render)
    write = KeyedWrite(table, key, token, query.select, body, once, preferences.shows(by_default=True))
    if request.method == "PUT":
        return WriteRequest("PUT", table, key, write, put, render, True, preferences)
    return WriteRequest("PATCH", table, key, write, patch, render, True, preferences)


async def _delete_row(request: DataRequest, name: str, key: Key, limit: int) -> WriteRequest:
    """DELETE /v1/data/{table}/{key}; PostgREST's clients send a body of {}, which is empty."""
    preferences = read_preferences(request.headers.get(b"prefer"), "one")
    token = read_token(request.raw_headers)
    wants_one(request.headers)
    query = only(parse_query(request.query), "select")
    await read_no_body(request.headers, request.receive, limit)
    table = table_name(request.headers, name, writing=True)

    def render(outcome: Outcome) -> Response:
        return row_answer(outcome, preferences, row_by_default=False)

    once = _read_once(request, table, "", render)
    write = KeyedWrite(table, key, token, query.select, None, once, preferences.shows(by_default=False))
    return WriteRequest("DELETE", table, key, write, delete, render, True, preferences)


async def _post_rows(request: DataRequest, name: str, limit: int) -> WriteRequest:
    """POST /v1/data/{table}: one object, or an array."""
    preferences = read_preferences(request.headers.get(b"prefer"), "insert")
    token = read_token(request.raw_headers)
    singular = wants_one(request.headers)
    query = only(parse_query(request.query), "select", "columns")
    body, count = await read_rows(request.headers, request.receive, limit, query.columns, complete=preferences.complete)
    table = table_name(request.headers, name, writing=True)

    def render(outcome: Outcome) -> Response:
        return post_answer(outcome, preferences, singular=singular)

    once = _read_once(request, table, body.text, render)
    most, shown = preferences.most, preferences.shows(by_default=True)
    write = Insert(table, token, body, count, query.select, singular, once, most, shown)
    return WriteRequest("POST", table, None, write, insert, render, count == 1, preferences)


async def _patch_rows(request: DataRequest, name: str, limit: int) -> WriteRequest:
    """PATCH /v1/data/{table}?filters with an object, or without filters and with an array."""
    preferences = read_preferences(request.headers.get(b"prefer"), "many")
    token = read_token(request.raw_headers)
    singular = wants_one(request.headers)
    query = only(parse_query(request.query), "select", "columns", "filters")
    body, count = await read_changes(
        request.headers, request.receive, limit, query.columns, complete=preferences.complete
    )
    require_form_of_patch(query, count)
    table = table_name(request.headers, name, writing=True)

    def render(outcome: Outcome) -> Response:
        return filtered_answer(outcome, preferences, singular=singular)

    once = _read_once(request, table, body.text, render)
    most, shown = preferences.most, preferences.shows(by_default=False)
    if count is None:
        filtered = FilteredWrite(table, query.filters, token, body, query.select, singular, once, most, shown)
        return WriteRequest("PATCH", table, None, filtered, patch_many, render, False, preferences)
    rows = RowsPatch(table, token, body, count, query.select, singular, once, most, shown)
    return WriteRequest("PATCH", table, None, rows, patch_rows, render, False, preferences)


async def _delete_rows(request: DataRequest, name: str, limit: int) -> WriteRequest:
    """DELETE /v1/data/{table}?filters."""
    preferences = read_preferences(request.headers.get(b"prefer"), "many")
    token = read_token(request.raw_headers)
    singular = wants_one(request.headers)
    query = only(parse_query(request.query), "select", "filters")
    if not query.filters:
        raise RequestError(refuse_whole_table("DELETE"))
    await read_no_body(request.headers, request.receive, limit)
    table = table_name(request.headers, name, writing=True)

    def render(outcome: Outcome) -> Response:
        return filtered_answer(outcome, preferences, singular=singular)

    once = _read_once(request, table, "", render)
    most, shown = preferences.most, preferences.shows(by_default=False)
    write = FilteredWrite(table, query.filters, token, None, query.select, singular, once, most, shown)
    return WriteRequest("DELETE", table, None, write, delete_many, render, False, preferences)


_COLLECTION: Final[dict[str, Callable[[DataRequest, str, int], Awaitable[WriteRequest]]]] = {
    "POST": _post_rows,
    "PATCH": _patch_rows,
    "DELETE": _delete_rows,
}


def _read_once(request: DataRequest, table: str, body: str, render: Render) -> IdempotentRequest | None:
    """Read the request's Idempotency-Key, and what it stands for: everything but token and preferences, so that the
    lock's next holder may repeat a write. `render` gives the answer that will be kept.
    """
    key = read_idempotency_key(request.raw_headers)
    if key is None:
        return None
    payload = payload_hash(request.method, table.removeprefix("public."), request.row, request.query, body)
    return IdempotentRequest(key, payload, lambda done: keep_answer(done, render(done)))
