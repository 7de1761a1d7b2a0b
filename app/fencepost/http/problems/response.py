"""A problem as an answer: application/problem+json, with what its reader's client understands beside it."""

import orjson
from starlette.responses import Response

from fencepost.fencing.problems import Problem

MEDIA_TYPE = "application/problem+json"


class RequestError(Exception):
    """What a request lacks or has too much of, found while it is read; answered with its problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


def problem_response(problem: Problem, headers: dict[str, str] | None = None) -> Response:
    """Build the answer. `Retry-After` only where trying again can help."""
    all_headers = {"Cache-Control": "no-store", **(headers or {})}
    if problem.retry_after is not None:
        all_headers["Retry-After"] = str(problem.retry_after)
    return Response(
        orjson.dumps(problem.body()), status_code=problem.http_status, media_type=MEDIA_TYPE, headers=all_headers
    )
