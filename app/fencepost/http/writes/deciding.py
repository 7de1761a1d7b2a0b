"""Decides a write that was read, at once or by its queue, and answers it: that of a request, or of a batch's line."""

from collections.abc import Awaitable

from starlette.responses import Response

from fencepost.fencing.problems import bad_request
from fencepost.gateway.gateway import Gateway
from fencepost.gateway.use_cases import write as decide
from fencepost.gateway.writes.write import Write
from fencepost.http.problems.response import RequestError, problem_response
from fencepost.http.requests.data import DataRequest
from fencepost.http.responses.answers import answer, to_recorded
from fencepost.http.writes.submission import is_queued, is_queued_by_now, submit_write
from fencepost.storage.statements.query import QueryError


async def write_answer(gateway: Gateway, request: DataRequest, write: Write) -> Response:
    """Decide a write, or put it into its queue; `request` is what it was read from. Raises RequestError."""
    queued = is_queued(gateway, write)
    if gateway.together is not None:
        if queued:
            raise RequestError(
                bad_request(
                    f"{write.table} takes its writes by a queue, which is decided later: it cannot be part of a batch"
                    " that lands as a whole."
                )
            )
    elif queued or (queued is None and await is_queued_by_now(gateway, write)):
        async with gateway.place():
            return await submit_write(gateway, request, write)
    return answer(write, await decide(gateway, write, lambda done: to_recorded(answer(write, done))))


async def answer_or_problem(answered: Awaitable[Response]) -> Response:
    """Give the answer, or that of what the request lacks."""
    try:
        return await answered
    except RequestError as error:
        return problem_response(error.problem)
    except QueryError as error:
        return problem_response(bad_request(str(error)))
