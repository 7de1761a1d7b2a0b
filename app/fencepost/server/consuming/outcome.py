"""What becomes of a message, and the answer that is kept for it: the page /v1/writes/{id} shows that."""

from dataclasses import dataclass
from typing import Final

import orjson

from fencepost.server.fence.problems import Problem
from fencepost.server.gateway.results import STATE_HEADER, State
from fencepost.server.http.problems.response import problem_response
from fencepost.server.http.responses.answers import to_recorded
from fencepost.server.postgres.statements.idempotency import Recorded


@dataclass(frozen=True, slots=True)
class Decided:
    """It will have no other effect. `answer` None: it was kept in the transaction of its effect."""

    state: State
    answer: Recorded | None = None
    misplaced: bool = False
    """Whether it stands where it does not belong. So its record is of this place alone: the same message at its own
    place is no copy of it.
    """
    late: bool = False
    """Whether there may have been a record of it: where its own place is committed it was decided before."""


APPLIED: Final = Decided("applied")


@dataclass(frozen=True, slots=True)
class Before:
    """It was decided before: this is what was kept."""

    answer: Recorded


@dataclass(frozen=True, slots=True)
class Copied:
    """It is a copy of a message at another offset, whose effect is there: this one's was undone."""


@dataclass(frozen=True, slots=True)
class MarkReached:
    """The resource has taken a token as high as that of the message's position. Either the message was decided before,
    and there is a record of it, or it came too late.
    """

    problem: Problem


@dataclass(frozen=True, slots=True)
class Later:
    """It is not decided, and is tried again. `everything`: nothing else can be decided either, until the database and
    the log have been looked at anew. `by_others`: this process can never decide it, and leaves what it has to others.
    `too_slow`: what PostgreSQL said when the statement had taken longer than the statement timeout: that may be the
    message's own fault.
    """

    reason: str
    everything: bool = False
    by_others: bool = False
    too_slow: Problem | None = None


Result = Decided | Before | Copied | MarkReached | Later


def kept(answer: Recorded, state: State) -> Recorded:
    """Give an answer as it is kept."""
    return Recorded(answer.status, (*answer.headers, (STATE_HEADER, state)), answer.body)


def of_problem(state: State, problem: Problem) -> Decided:
    """Decide by a problem: its answer is the one that a synchronous write would have got."""
    return Decided(state, kept(to_recorded(problem_response(problem)), state))


def reason_of(answer: Recorded) -> str:
    """Sum a kept problem up in a sentence."""
    try:
        body = orjson.loads(answer.body)
    except orjson.JSONDecodeError:
        return f"status {answer.status}"
    if not isinstance(body, dict):
        return f"status {answer.status}"
    code, detail = body.get("code"), body.get("detail")
    return f"{code}: {detail}" if code and detail else f"status {answer.status}"
