"""The one place that reads a write to a table: what is to be written to which rows, and how that is to be answered.

A write is either done at once (routes/data.py), or read in the same way when it is put into a queue, and again when it
is taken from there: so it has the same meaning, and the same answer, either way.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from fencepost.server.gateway.writes.write import (
    NO_BODY,
    Body,
    IdempotencyKey,
    Listed,
    Matching,
    OneRow,
    Preferences,
    Target,
    Verb,
    Write,
)
from fencepost.server.http.problems.response import RequestError
from fencepost.server.http.requests.bodies import (
    read_changes,
    read_no_body,
    read_object,
    read_rows,
    refuse_whole_table,
    require_form_of_patch,
)
from fencepost.server.http.requests.data import DataRequest, only
from fencepost.server.http.requests.headers import payload_hash, read_idempotency_key, read_token, table_name, wants_one
from fencepost.server.http.requests.preferences import Route, read_preferences
from fencepost.server.http.requests.query import parse_query
from fencepost.server.postgres.query import Query
from fencepost.server.postgres.row_sql import Key


async def read_write(request: DataRequest, name: str, key: Key | None, max_body_bytes: int) -> Write:
    """Read a write of the table `name`: of the row with this key, or (None) of the collection. The method must be one
    that the path takes. Raises RequestError, QueryError for what cannot be understood.
    """
    form = _OF_COLLECTION[request.method] if key is None else _OF_ROW[request.method]
    preferences = read_preferences(request.headers.get(b"prefer"), form.route)
    token = read_token(request.raw_headers)
    one = wants_one(request.headers)
    query = only(parse_query(request.query), *form.parameters)
    body, target = await form.read(_Reading(request, key or (), query, preferences, max_body_bytes))
    table = table_name(request.headers, name, writing=True)
    idempotency_key = _read_idempotency_key(request, table, body)
    return Write(form.verb, table, target, token, body, query.select, preferences, one, idempotency_key)


def _read_idempotency_key(request: DataRequest, table: str, body: Body) -> IdempotencyKey | None:
    text = read_idempotency_key(request.raw_headers)
    if text is None:
        return None
    written = b"" if body is NO_BODY else body.raw
    payload = payload_hash(request.method, table.removeprefix("public."), request.row, request.query, written)
    return IdempotencyKey(text, payload)


@dataclass(slots=True)
class _Reading:
    """A write whose body is to be read."""

    request: DataRequest
    key: Key
    query: Query
    preferences: Preferences
    limit: int


async def _object(of: _Reading) -> tuple[Body, Target]:
    headers, receive, columns = of.request.headers, of.request.receive, of.query.columns
    body = await read_object(headers, receive, of.limit, columns, complete=of.preferences.complete)
    return body, OneRow(of.key)


async def _no_body(of: _Reading) -> tuple[Body, Target]:
    await read_no_body(of.request.headers, of.request.receive, of.limit)
    return NO_BODY, OneRow(of.key)


async def _rows(of: _Reading) -> tuple[Body, Target]:
    headers, receive, columns = of.request.headers, of.request.receive, of.query.columns
    body, count = await read_rows(headers, receive, of.limit, columns, complete=of.preferences.complete)
    return body, Listed(count)


async def _changes(of: _Reading) -> tuple[Body, Target]:
    """Read an object, for the rows that match the filters; or an array without them."""
    headers, receive, columns = of.request.headers, of.request.receive, of.query.columns
    body, count = await read_changes(headers, receive, of.limit, columns, complete=of.preferences.complete)
    require_form_of_patch(of.query, count)
    return body, Matching(of.query.filters) if count is None else Listed(count)


async def _filters(of: _Reading) -> tuple[Body, Target]:
    if not of.query.filters:
        raise RequestError(refuse_whole_table("DELETE"))
    await read_no_body(of.request.headers, of.request.receive, of.limit)
    return NO_BODY, Matching(of.query.filters)


@dataclass(frozen=True, slots=True)
class _Form:
    """What a method takes on a path."""

    verb: Verb
    route: Route
    parameters: tuple[str, ...]
    read: Callable[[_Reading], Awaitable[tuple[Body, Target]]]
    """Reads the body, and which rows are meant."""


_OF_ROW: Final = {
    "PATCH": _Form("patch", "patch", ("select", "columns"), _object),
    "PUT": _Form("put", "put", ("select", "columns"), _object),
    "DELETE": _Form("delete", "delete", ("select",), _no_body),  # PostgREST's clients send a body of {}, which is empty
}
_OF_COLLECTION: Final = {
    "POST": _Form("post", "post", ("select", "columns"), _rows),
    "PATCH": _Form("patch", "patch-rows", ("select", "columns", "filters"), _changes),
    "DELETE": _Form("delete", "delete-rows", ("select", "filters"), _filters),
}
