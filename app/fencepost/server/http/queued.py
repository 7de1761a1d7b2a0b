"""The page of a queued write: what became of it, asked once, waited for, or streamed as server-sent events.

A stream sends how the write stands, and ends with the event that says how it was decided. EventSource connects again
when a stream ends: it sends that event's id as `Last-Event-ID`, and is answered 204, at which it stops.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Annotated, Final

import orjson
from fastapi.sse import EventSourceResponse, format_sse_event
from pydantic import Field, PlainValidator, WithJsonSchema
from starlette.responses import Response
from starlette.types import Scope

from fencepost.server.fence.problem_types import NOT_ACCEPTABLE
from fencepost.server.fence.problems import Problem, bad_request
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.submit import Found, find, wait
from fencepost.server.http.answers import WriteAnswer, decided_answer, json_response, queued_answer
from fencepost.server.http.edge import HEAD, caller_of
from fencepost.server.http.guard import leaving, refuse_if_over, unless
from fencepost.server.http.headers import Headers
from fencepost.server.http.problems import RequestError, problem_response
from fencepost.server.http.routes import EVENTS, Answered, Asked, Route, Taken, UnfitError, last_event_id
from fencepost.server.postgres.queues import STATES, Result
from fencepost.server.queues.message import MalformedWriteIdError, WriteId, parse_write_id

RECONNECT_MS: Final = 1000
_SECONDS: Final = re.compile(r"[0-9]{1,7}(\.[0-9]{1,3})?", re.ASCII)
_RETRY: Final = (b"retry-after", b"1")


def _seconds(value: str) -> float:
    if not _SECONDS.fullmatch(value):
        raise UnfitError(f"{value[:20]!r} is no number of seconds, such as 10 or 0.5")
    return float(value)


class WaitQuery(Taken):
    """How long to wait."""

    wait: Annotated[float, PlainValidator(_seconds), WithJsonSchema({"type": "number", "minimum": 0})] | None = Field(
        None,
        description="Wait so many seconds for the decision, if it is still to come: at most FENCEPOST_MAX_WAIT. A write"
        " that is not decided then is `queued`, and may be asked for again.",
        examples=[10],
    )


async def get_write(asked: Asked[WaitQuery, None]) -> Response:
    """Show whether a write that was answered 202 is still queued, and how it was decided: `applied`, with the
    answer that it would have had at once; `refused` by the fence; or `failed`, and then it is a dead letter.
    A write of a caller with a role is there for that caller only.
    """
    gateway, scope, within = asked.gateway, asked.scope, asked.query.wait
    try:
        write_id = parse_write_id(asked.part("write_id"))
    except MalformedWriteIdError as error:
        raise RequestError(bad_request(f"path: {error}.")) from error
    streamed = _is_streamed(asked.headers)
    if within is not None and streamed:
        raise RequestError(bad_request("query: wait: a stream waits by itself.", "Leave out ?wait=."))
    if streamed and asked.headers.get(b"last-event-id", b"").decode("latin-1") in STATES:
        return Response(status_code=204, headers={"Cache-Control": "no-store"})
    found = await find(gateway, write_id)
    if isinstance(found, Problem):
        return problem_response(found)
    if streamed:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        if scope.get(HEAD):
            return Response(headers=headers, media_type=EVENTS)
        return EventSourceResponse(_events(gateway, write_id, found, scope), headers=headers)
    if found is None and within:
        within = min(within, gateway.locks.limits.wait_ms / 1000)
        within = gateway.caller.within(within, asyncio.get_running_loop().time())
        async with leaving(scope) as gone:
            found = await unless(gone, wait(gateway, write_id, within, caller_of(scope)))
            refuse_if_over(scope, gone, gateway.report_if_forbidden)
    if isinstance(found, Problem):
        return problem_response(found)
    return json_response(_body(write_id, found), [_RETRY] if found is None else ())


WRITES: Final = (
    Route(
        *("GET", "/v1/writes/{write_id}", get_write, "What became of a queued write", "writes"),
        needs="write",
        query=WaitQuery,
        parameters=(
            {
                "name": "write_id",
                "in": "path",
                "required": True,
                "description": "The id of the write, as the answer 202 gave it: `queue.partition.offset.nonce`.",
                "schema": {"type": "string"},
                "example": "postgres:default.3.17.5d0f6c2b9a8e4471",
            },
            last_event_id("After the last event of a stream it is answered 204: there is nothing more to come."),
        ),
        answers={
            200: Answered(
                "How the write stands. With `Accept: text/event-stream`: events named after the states, each with a"
                " WriteAnswer as its data.",
                WriteAnswer,
                media=EVENTS,
            ),
            204: Answered("To a stream's `Last-Event-ID`: the write was decided, and the client knows how."),
        },
        refusals=(
            (400, "The id, the query or a header cannot be read."),
            (404, "The caller has no such write, or its result was forgotten."),
            (406, "No such form of the answer."),
            (503, "The database or the queue cannot be asked, the gateway is stopping, or too many requests wait."),
        ),
    ),
)


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


def _body(write_id: WriteId, found: Result | None) -> WriteAnswer:
    return queued_answer(write_id) if found is None else decided_answer(write_id, found)


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
