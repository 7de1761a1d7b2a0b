"""The routes of elections: who leads now, and a stream of changes as server-sent events.

A stream sends the present state at once, then each change. It ends when the gateway stops, or cannot ask any more who
leads; EventSource and the SDK connect again, and are sent the state of that moment. So `Last-Event-ID` is taken and
not needed.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Annotated, Final

import orjson
from fastapi.sse import EventSourceResponse, format_sse_event
from pydantic import AfterValidator, Field, model_validator
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from typing_extensions import TypedDict

from fencepost.server.fence.problems import Problem
from fencepost.server.fence.token import BUILTIN
from fencepost.server.gateway.election import PREFIX, Election, Leader, Subscription
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.leases import elections, observe, watch_election
from fencepost.server.http.answers import declared, json_response
from fencepost.server.http.edge import HEAD, caller_of
from fencepost.server.http.guard import leaving, unless
from fencepost.server.http.leases import LONGEST_NAME, MOST_LISTED, Limit, Source, WaiterAnswer, is_plain
from fencepost.server.http.problems import problem_response
from fencepost.server.http.routes import EVENTS, Answered, Asked, Route, Taken, UnfitError, last_event_id

RECONNECT_MS: Final = 1000
LONGEST: Final = LONGEST_NAME - len(PREFIX)  # bytes
# The latter keeps nginx from holding it back.
_HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


@declared
class LeaderAnswer(TypedDict):
    """The leader of an election. `term` is the number of its lease: a later leader's is larger. It is no token."""

    term: str
    owner: str
    lease_id: str
    since: str
    expires_at: str
    remaining_ms: int


@declared
class ElectionAnswer(TypedDict):
    """An election as it stands. `candidates`: who waits to be elected, first come first; empty where only the lock
    service knows.
    """

    name: str
    source: str
    leader: LeaderAnswer | None
    candidates: list[WaiterAnswer]


def _name(value: str) -> str:
    if not 1 <= len(value.encode()) <= LONGEST or not is_plain(value):
        raise UnfitError(f"an election's has 1 to {LONGEST} bytes without control characters")
    return value


Name = Annotated[str, AfterValidator(_name)]
_NAME: Final = Field(description=f"The election: 1 to {LONGEST} bytes, slashes included.", examples=["scheduler"])
SourceOfElection = Annotated[
    Source, Field(description="The token source that the election is held with; builtin without it.")
]


class ElectionQuery(Taken):
    """One election, or a page of those that have a leader."""

    source: SourceOfElection = BUILTIN
    name: Name | None = Field(None, description=_NAME.description, examples=_NAME.examples)
    after: str = Field("", description="Without a name: only elections after this one.")
    limit: Limit = Field(MOST_LISTED, description="Without a name: at most so many.")

    @model_validator(mode="after")
    def _one_or_a_page(self) -> "ElectionQuery":
        if self.name is not None and not self.model_fields_set <= {"name", "source"}:
            raise UnfitError("after and limit are for the list of elections, and name is of one")
        return self


class WatchQuery(Taken):
    """Which election."""

    source: SourceOfElection = BUILTIN
    name: Name = _NAME


async def get_elections(asked: Asked[ElectionQuery, None]) -> Response:
    """Show who leads an election, or without `name` list those that have a leader.

    For finding the leader, not for deciding who may write: the fence does that, by the term.
    """
    query, gateway = asked.query, asked.gateway
    if query.name is None:
        listed = await elections(gateway, query.source, query.after, query.limit)
        return (
            problem_response(listed) if isinstance(listed, Problem) else json_response([_election(e) for e in listed])
        )
    found = await observe(gateway, query.source, query.name)
    return problem_response(found) if isinstance(found, Problem) else json_response(_election(found))


async def get_events(asked: Asked[WatchQuery, None]) -> Response:
    """Stream server-sent events: how the election stands at once, then each change, and a comment when nothing
    changes for long. `elected` names the leader; `vacant`: there is no leader.
    """
    query, gateway, scope = asked.query, asked.gateway, asked.scope
    async with AsyncExitStack() as stack:
        subscription = await stack.enter_async_context(
            watch_election(gateway, query.source, query.name, caller_of(scope))
        )
        if isinstance(subscription, Problem):
            return problem_response(subscription)
        first = await subscription.next()
        if isinstance(first, Problem):
            return problem_response(first)
        if scope.get(HEAD):
            return Response(headers=_HEADERS, media_type=EventSourceResponse.media_type)
        return Stream(_events(subscription, first, gateway, scope), stack.pop_all())


_REFUSALS: Final = (
    (400, "The query or a header cannot be read."),
    (503, "The database cannot be asked, the gateway is stopping, or too many streams are open."),
)
ELECTIONS: Final = (
    Route(
        *("GET", "/v1/elections", get_elections, "Who leads", "elections"),
        needs="lock",
        query=ElectionQuery,
        answers={200: Answered("The election, or a page of elections.", ElectionAnswer | list[ElectionAnswer])},
        refusals=_REFUSALS,
    ),
    Route(
        *("GET", "/v1/elections/events", get_events, "Stream who leads, now and whenever it changes", "elections"),
        needs="lock",
        query=WatchQuery,
        parameters=(last_event_id("Every stream begins with how things are, so it is not needed."),),
        answers={
            200: Answered(
                "Events `elected` and `vacant`, each with an ElectionAnswer as its data and the term as its id.",
                media=EVENTS,
            )
        },
        refusals=_REFUSALS,
    ),
)


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


def _leader(leader: Leader) -> LeaderAnswer:
    return {
        "term": str(leader.term),
        "owner": leader.owner,
        "lease_id": str(leader.lease_id),
        "since": leader.since,
        "expires_at": leader.expires_at,
        "remaining_ms": leader.remaining_ms,
    }
