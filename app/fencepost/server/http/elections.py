"""The routes of elections: who leads now, and a stream of changes as server-sent events.

A stream sends the present state at once, then each change. It ends when the gateway stops, or cannot ask any more who
leads; EventSource and the SDK connect again, and are sent the state of that moment. So `Last-Event-ID` is taken and
not needed.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final

import orjson
from fastapi import APIRouter
from fastapi.sse import EventSourceResponse, format_sse_event
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fencepost.server import wire
from fencepost.server.election import PREFIX, Election, Leader, Subscription
from fencepost.server.fence.problems import Problem, bad_request
from fencepost.server.fence.token import BUILTIN
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.leases import elections, observe, watch_election
from fencepost.server.http.answers import json_response
from fencepost.server.http.edge import HEAD, caller_of
from fencepost.server.http.guard import leaving, unless
from fencepost.server.http.headers import read_headers
from fencepost.server.http.leases import LIMIT, LONGEST_NAME, MOST_LISTED, SOURCE, is_plain
from fencepost.server.http.openapi_answers import problems
from fencepost.server.http.problems import RequestError, problem_response
from fencepost.server.http.query import query_pairs
from fencepost.server.postgres.query import QueryError

RECONNECT_MS: Final = 1000
LONGEST: Final = LONGEST_NAME - len(PREFIX)  # bytes

_SOURCE: Final[dict[str, Any]] = {
    "name": "source",
    "in": "query",
    "description": "The token source that the election is held with; builtin without it.",
    "schema": {"type": "string"},
}
_NAME: Final[dict[str, Any]] = {
    "name": "name",
    "in": "query",
    "description": f"The election: 1 to {LONGEST} bytes, slashes included.",
    "schema": {"type": "string"},
    "example": "scheduler",
}
_AFTER: Final[dict[str, Any]] = {
    "name": "after",
    "in": "query",
    "description": "Without a name: only elections after this one.",
    "schema": {"type": "string"},
}
_LIMIT: Final[dict[str, Any]] = {
    "name": "limit",
    "in": "query",
    "description": "Without a name: at most so many.",
    "schema": {"type": "integer", "minimum": 1, "maximum": MOST_LISTED},
}
_LAST: Final[dict[str, Any]] = {
    "name": "Last-Event-ID",
    "in": "header",
    "description": "What EventSource sends when it connects again. Every stream begins with how things are, so it is "
    "not needed.",
    "schema": {"type": "string"},
}
# The latter keeps nginx from holding it back.
_HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
_BAD = (400, "The query or a header cannot be read.")
_AWAY = (503, "The database cannot be asked, the gateway is stopping, or too many streams are open.")
_STREAM: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "Events `elected` and `vacant`, each with an ElectionAnswer as its data and the term as its id.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}


@dataclass(frozen=True, slots=True)
class ElectionQuery:
    """The parameters of the query."""

    source: str
    name: str | None
    after: str
    limit: int


def election_routes(gateway: Callable[[Scope], Gateway]) -> APIRouter:
    """Give /v1/elections and /v1/elections/events."""
    router = APIRouter(tags=["elections"])

    @router.get(
        "/v1/elections",
        response_model=wire.ElectionAnswer | list[wire.ElectionAnswer],
        summary="Who leads",
        openapi_extra={"parameters": [_SOURCE, _NAME, _AFTER, _LIMIT]},
        responses=problems(_BAD, _AWAY),
    )
    async def get_elections(request: Request) -> Response:
        """Show who leads an election, or without `name` list those that have a leader.

        For finding the leader, not for deciding who may write: the fence does that, by the term.
        """
        return await _observe(gateway(request.scope), request)

    @router.get(
        "/v1/elections/events",
        response_class=Response,
        summary="Stream who leads, now and whenever it changes",
        openapi_extra={"parameters": [_SOURCE, {**_NAME, "required": True}, _LAST]},
        responses={**problems(_BAD, _AWAY), **_STREAM},
    )
    async def get_events(request: Request) -> Response:
        """Stream server-sent events: how the election stands at once, then each change, and a comment when nothing
        changes for long. `elected` names the leader; `vacant`: there is no leader.
        """
        return await _stream(gateway(request.scope), request)

    return router


def _bad(detail: str) -> RequestError:
    return RequestError(bad_request(detail))


def _read(request: Request, known: Sequence[str]) -> ElectionQuery:
    read_headers(request, "look", query=True)
    given: dict[str, str] = {}
    try:
        pairs = query_pairs(request.scope["query_string"])
    except QueryError as error:
        raise _bad(str(error)) from error
    for parameter, value in pairs:
        if parameter not in known or parameter in given:
            raise _bad(f"query: {parameter}: this takes {', '.join(known)}, each once")
        given[parameter] = value
    name = given.get("name")
    if name is not None and (not 1 <= len(name.encode()) <= LONGEST or not is_plain(name)):
        raise _bad(f"query: name: an election's has 1 to {LONGEST} bytes without control characters")
    if name is not None and not given.keys() <= {"name", "source"}:
        raise _bad("query: after and limit are for the list of elections, and name is of one")
    source = given.get("source", BUILTIN)
    if not SOURCE.fullmatch(source):
        raise _bad(f"query: source: {source!r:.60} is not the name of a token source, such as {BUILTIN} or etcd")
    limit = given.get("limit", str(MOST_LISTED))
    if not LIMIT.fullmatch(limit) or int(limit) > MOST_LISTED:
        raise _bad(f"query: limit: {limit[:20]!r} is not a number from 1 to {MOST_LISTED}")
    return ElectionQuery(source, name, given.get("after", ""), int(limit))


async def _observe(gateway: Gateway, request: Request) -> Response:
    asked = _read(request, ("source", "name", "after", "limit"))
    if asked.name is None:
        listed = await elections(gateway, asked.source, asked.after, asked.limit)
        return (
            problem_response(listed) if isinstance(listed, Problem) else json_response([_election(e) for e in listed])
        )
    found = await observe(gateway, asked.source, asked.name)
    return problem_response(found) if isinstance(found, Problem) else json_response(_election(found))


async def _stream(gateway: Gateway, request: Request) -> Response:
    asked = _read(request, ("source", "name"))
    if asked.name is None:
        raise _bad("query: name: which election? ?name=scheduler")
    async with AsyncExitStack() as stack:
        subscription = await stack.enter_async_context(
            watch_election(gateway, asked.source, asked.name, caller_of(request.scope))
        )
        if isinstance(subscription, Problem):
            return problem_response(subscription)
        first = await subscription.next()
        if isinstance(first, Problem):
            return problem_response(first)
        if request.scope.get(HEAD):
            return Response(headers=_HEADERS, media_type=EventSourceResponse.media_type)
        return Stream(_events(subscription, first, gateway, request.scope), stack.pop_all())


class Stream(EventSourceResponse):
    """The answer that goes on. Its end, by either side, ends the subscription; also when it never began."""

    def __init__(self, events: AsyncIterator[bytes], watched: AsyncExitStack) -> None:
        super().__init__(events, headers=_HEADERS)
        self._watched = watched

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it until the client hangs up, or there is nothing more to send."""
        async with self._watched:
            await super().__call__(scope, receive, send)


async def _events(
    subscription: Subscription, first: Election | None, gateway: Gateway, scope: Scope
) -> AsyncIterator[bytes]:
    """Stream until the election cannot be watched any more, or the caller is not to be answered any more."""
    yield format_sse_event(retry=RECONNECT_MS)
    caller, now = gateway.caller, asyncio.get_running_loop().time
    last: int | None = None
    election: Election | Problem | None = first
    async with leaving(scope) as gone:
        while not isinstance(election, Problem):
            if election is None:
                yield format_sse_event(comment="nothing new")
            else:
                last = election.leader.term if election.leader is not None else last
                yield _event(election, last)
            within = caller.within(gateway.times.edge.heartbeat, now())
            election = await unless(gone, subscription.next(within))
            if gone.done() or caller.is_over(now()):
                return


def _event(election: Election, last: int | None) -> bytes:
    """Write one event. `vacant` has the id of the term that was last seen."""
    return format_sse_event(
        event="vacant" if election.leader is None else "elected",
        id=None if last is None else str(last),
        data_str=orjson.dumps(_election(election)).decode(),
    )


def _election(election: Election) -> dict[str, object]:
    return {
        "name": election.name,
        "source": election.source,
        "leader": None if election.leader is None else _leader(election.leader),
        "candidates": orjson.Fragment(election.candidates),
    }


def _leader(leader: Leader) -> wire.LeaderAnswer:
    return {
        "term": str(leader.term),
        "owner": leader.owner,
        "lease_id": str(leader.lease_id),
        "since": leader.since,
        "expires_at": leader.expires_at,
        "remaining_ms": leader.remaining_ms,
    }
