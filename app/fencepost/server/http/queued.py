"""The page of a queued write: what became of it, asked once, waited for, or streamed as server-sent events.

A stream sends how the write stands, and ends with the event that says how it was decided. EventSource connects again
when a stream ends: it sends that event's id as `Last-Event-ID`, and is answered 204, at which it stops.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final

import orjson
from fastapi import APIRouter, Path
from fastapi.sse import EventSourceResponse, format_sse_event
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from fencepost.server import wire
from fencepost.server.fence.problem_types import NOT_ACCEPTABLE
from fencepost.server.fence.problems import Problem, bad_request
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.submit import Found, find, wait
from fencepost.server.http.answers import decided_answer, json_response, queued_answer
from fencepost.server.http.edge import HEAD, caller_of
from fencepost.server.http.guard import leaving, refuse_if_over, unless
from fencepost.server.http.headers import Headers, read_headers
from fencepost.server.http.openapi_answers import problems
from fencepost.server.http.problems import RequestError, problem_response
from fencepost.server.http.query import query_pairs
from fencepost.server.postgres.query import QueryError
from fencepost.server.postgres.queues import STATES, Result
from fencepost.server.queues.message import MalformedWriteIdError, WriteId, parse_write_id

RECONNECT_MS: Final = 1000
EVENTS: Final = "text/event-stream"
_SECONDS: Final = re.compile(r"[0-9]{1,7}(\.[0-9]{1,3})?", re.ASCII)
_RETRY: Final = (b"retry-after", b"1")

WriteIdPath = Annotated[
    str,
    Path(
        description="The id of the write, as the answer 202 gave it: `queue.partition.offset.nonce`.",
        examples=["postgres:default.3.17.5d0f6c2b9a8e4471"],
    ),
]
_WAIT: Final[dict[str, Any]] = {
    "name": "wait",
    "in": "query",
    "description": "Wait so many seconds for the decision, if it is still to come: at most FENCEPOST_MAX_WAIT. A write "
    "that is not decided then is `queued`, and may be asked for again.",
    "schema": {"type": "number", "minimum": 0},
    "example": 10,
}
_LAST: Final[dict[str, Any]] = {
    "name": "Last-Event-ID",
    "in": "header",
    "description": "What EventSource sends when it connects again. After the last event of a stream it is answered "
    "204: there is nothing more to come.",
    "schema": {"type": "string"},
}
_RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "How the write stands. With `Accept: text/event-stream`: events named after the states, each "
        "with a WriteAnswer as its data.",
        "content": {EVENTS: {"schema": {"type": "string"}}},
    },
    204: {"description": "To a stream's `Last-Event-ID`: the write was decided, and the client knows how."},
    **problems(
        (400, "The id, the query or a header cannot be read."),
        (404, "The caller has no such write, or its result was forgotten."),
        (406, "No such form of the answer."),
        (503, "The database or the queue cannot be asked, the gateway is stopping, or too many requests wait."),
    ),
}


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A request for a write's page, read."""

    write_id: WriteId
    within: float
    """Seconds to wait."""
    streamed: bool
    last_event: str


def write_routes(gateway: Callable[[Scope], Gateway]) -> APIRouter:
    """Give /v1/writes/{write_id}."""
    router = APIRouter(tags=["writes"])

    @router.get(
        "/v1/writes/{write_id}",
        response_model=wire.WriteAnswer,
        summary="What became of a queued write",
        openapi_extra={"parameters": [_WAIT, _LAST]},
        responses=_RESPONSES,
    )
    async def get_write(request: Request, write_id: WriteIdPath) -> Response:
        """Show whether a write that was answered 202 is still queued, and how it was decided: `applied`, with the
        answer that it would have had at once; `refused` by the fence; or `failed`, and then it is a dead letter.
        A write of a caller with a role is there for that caller only.
        """
        return await _answer(gateway(request.scope), request, write_id)

    return router


async def _answer(gateway: Gateway, request: Request, write_id: str) -> Response:
    asked, caller = _read(request, write_id), caller_of(request.scope)
    if asked.streamed and asked.last_event in STATES:
        return Response(status_code=204)
    found = await find(gateway, asked.write_id)
    if isinstance(found, Problem):
        return problem_response(found)
    if asked.streamed:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        if request.scope.get(HEAD):
            return Response(headers=headers, media_type=EVENTS)
        return EventSourceResponse(_events(gateway, asked.write_id, found, request.scope), headers=headers)
    if found is None and asked.within:
        within = min(asked.within, gateway.locks.limits.wait_ms / 1000)
        within = gateway.caller.within(within, asyncio.get_running_loop().time())
        async with leaving(request.scope) as gone:
            found = await unless(gone, wait(gateway, asked.write_id, within, caller))
            refuse_if_over(request.scope, gone, gateway.report_if_forbidden)
    if isinstance(found, Problem):
        return problem_response(found)
    return json_response(_body(asked.write_id, found), [_RETRY] if found is None else ())


async def _events(gateway: Gateway, write_id: WriteId, first: Result | None, scope: Scope) -> AsyncIterator[bytes]:
    """Stream until the write is decided, or the caller is not to be answered any more."""
    yield format_sse_event(retry=RECONNECT_MS)
    found: Found = first
    now, caller = asyncio.get_running_loop().time, caller_of(scope)
    if found is None:
        yield _event(write_id, None)
    async with leaving(scope) as gone:
        while found is None:
            within = gateway.caller.within(gateway.times.edge.heartbeat, now())
            found = await unless(gone, wait(gateway, write_id, within, caller))
            if gone.done() or (found is None and gateway.caller.is_over(now())):
                return
            if found is None:
                yield format_sse_event(comment="nothing new")
    if not isinstance(found, Problem):  # else the stream ends, and the client connects again
        yield _event(write_id, found)


def _event(write_id: WriteId, found: Result | None) -> bytes:
    body = _body(write_id, found)
    return format_sse_event(event=body["state"], id=body["state"], data_str=orjson.dumps(body).decode())


def _body(write_id: WriteId, found: Result | None) -> wire.WriteAnswer:
    return queued_answer(write_id) if found is None else decided_answer(write_id, found)


def _read(request: Request, named: str) -> PageRequest:
    headers = read_headers(request, "look", query=True)
    try:
        write_id = parse_write_id(named)
    except MalformedWriteIdError as error:
        raise RequestError(bad_request(f"path: {error}.")) from error
    within, streamed = _seconds(request.scope["query_string"]), _is_streamed(headers)
    if within is not None and streamed:
        raise RequestError(bad_request("query: wait: a stream waits by itself.", "Leave out ?wait=."))
    last = headers.get(b"last-event-id", b"").decode("latin-1")
    return PageRequest(write_id, within or 0.0, streamed, last)


def _seconds(raw: bytes) -> float | None:
    try:
        pairs = query_pairs(raw)
    except QueryError as error:
        raise RequestError(bad_request(str(error))) from error
    if not pairs:
        return None
    if [name for name, _ in pairs] != ["wait"]:
        raise RequestError(bad_request("query: this takes one parameter: ?wait=10"))
    if not _SECONDS.fullmatch(pairs[0][1]):
        raise RequestError(bad_request(f"query: wait: {pairs[0][1][:20]!r} is no number of seconds, such as 10 or 0.5"))
    return float(pairs[0][1])


def _is_streamed(headers: Headers) -> bool:
    accept = headers.get(b"accept", b"*/*").decode("latin-1").lower()
    kinds = {part.partition(";")[0].strip() for part in accept.split(",")}
    if EVENTS in kinds:
        return True
    if kinds.isdisjoint({"*/*", "application/*", "application/json", ""}):
        raise RequestError(
            Problem(NOT_ACCEPTABLE, f"Accept: {accept[:100]}: answers are application/json, or {EVENTS}.")
        )
    return False
