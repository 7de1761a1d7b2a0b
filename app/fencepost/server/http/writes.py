"""A request for a write, read to the end, and decided; claims too."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import orjson
from starlette.responses import Response

from fencepost.server.fence.problems import Problem, bad_request
from fencepost.server.fence.resource import MalformedResourceError, Resource, parse_resource
from fencepost.server.fence.seal import Presented, SealedToken
from fencepost.server.gateway.claims import Claim
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.idempotency import Replayed
from fencepost.server.gateway.outcomes import Done, Outcome
from fencepost.server.gateway.use_cases import claim
from fencepost.server.gateway.use_cases import write as decide
from fencepost.server.gateway.write import (
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
from fencepost.server.http.answers import answer, fence_headers, json_response, kept_answer, replay, to_recorded
from fencepost.server.http.bodies import (
    read_changes,
    read_no_body,
    read_object,
    read_rows,
    refuse_whole_table,
    require_form_of_patch,
)
from fencepost.server.http.headers import (
    KEY_HEADER,
    DataRequest,
    RawHeaders,
    Route,
    only,
    payload_hash,
    read_idempotency_key,
    read_preferences,
    read_token,
    table_name,
    wants_one,
)
from fencepost.server.http.problems import RequestError, problem_response
from fencepost.server.http.query import parse_query
from fencepost.server.postgres.keyed import Recorded
from fencepost.server.postgres.query import Query
from fencepost.server.postgres.row_sql import Key
from fencepost.server.queues.message import METHODS, WriteMessage

# The one place that reads a write to a table: what is to be written to which rows, and how that is to be answered.
#
# A write is either done at once (http/data.py), or read in the same way when it is put into a queue, and again when
# it is taken from there: so it has the same meaning, and the same answer, either way.


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


# Claims: what POST /v1/claims and the lines of batches have in common.


def read_resource(name: str, where: str) -> Resource:
    """Read the name of a resource. Raises RequestError."""
    try:
        return parse_resource(name)
    except MalformedResourceError as error:
        raise RequestError(bad_request(f"{where}: {error}")) from error


async def claim_answer(gateway: Gateway, name: str, token: Presented | None, raw_headers: RawHeaders) -> Response:
    """Claim the resource of this name, and answer. Raises RequestError."""
    text = read_idempotency_key(raw_headers)
    key = None if text is None else IdempotencyKey(text, payload_hash("claim", name))
    asked = Claim(read_resource(name, "body: resource"), token, key)
    outcome = await claim(gateway, asked, partial(_kept_answer, gateway))
    if isinstance(outcome, Replayed) and outcome.answer is not None:
        outcome.answer = _without_others_mark(outcome.answer, token)
    return _answer(outcome)


def _without_others_mark(answer: Recorded, token: Presented | None) -> Recorded:
    """Leave the mark out that another token than this request's has made: it may be good for writes still."""
    number = token.number if isinstance(token, SealedToken) else token
    if orjson.loads(answer.body)["mark"] == str(number):
        return answer
    # As text: the row stays as PostgreSQL has written it. In a name the quotes would be escaped.
    return replace(answer, body=re.sub(rb',"mark":"[0-9]+"', b',"mark":null', answer.body, count=1))


def _kept_answer(gateway: Gateway, done: Done) -> Recorded:
    """Give what is kept of an answer: all of it, or without the member `row` (gateway/outcomes.py)."""
    whole = to_recorded(_answer(done))
    if gateway.kept.takes(gateway.caller.name, len(whole.body)):
        return whole
    body = {"resource": done.resource, "mark": str(done.mark)}
    return to_recorded(json_response(body, [*fence_headers(done), (b"preference-applied", b"return=minimal")]))


def _answer(outcome: Outcome) -> Response:
    if isinstance(outcome, Problem):
        return problem_response(outcome)
    if isinstance(outcome, Replayed):
        return replay(outcome)
    row = orjson.Fragment(outcome.rows[0]) if outcome.rows else None
    body = {"resource": outcome.resource, "mark": str(outcome.mark), "row": row}
    return json_response(body, fence_headers(outcome))


# Decides a write that was read, at once or by its queue, and answers it: that of a request, or of a batch's line.

_PLAIN: Final = (b"*/*", b"application/json")
"""What Accept and Content-Type mean anyway."""


async def write_answer(gateway: Gateway, request: DataRequest, write: Write) -> Response:
    """Decide a write, or put it into its queue; `request` is what it was read from."""
    outcome = await decide(
        gateway, write, partial(kept_answer, gateway, write), as_message=partial(_as_message, request, write)
    )
    return answer(write, outcome)


def _as_message(request: DataRequest, write: Write) -> WriteMessage:
    """Say what the request says, as a message does. The preferences are those that count when it is applied."""
    accept, content_type = request.headers.get(b"accept"), request.headers.get(b"content-type")
    return WriteMessage(
        "",
        METHODS[request.method.encode()],
        _body(write),
        request.query,
        write.preferences.applied or None,
        None if accept in _PLAIN else accept,
        None if content_type in _PLAIN else content_type,
        next((value for name, value in request.raw_headers if name == KEY_HEADER), None),
    )


def _body(write: Write) -> bytes | None:
    if write.body is NO_BODY:
        return None
    # That of a POST is an array by now; a message has the object.
    return write.body.raw.strip()[1:-1] if write.verb == "post" else write.body.raw
