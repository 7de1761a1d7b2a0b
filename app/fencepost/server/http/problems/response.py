"""A problem as an answer: application/problem+json, with what its reader's client understands beside it."""

from collections.abc import Awaitable
from http import HTTPStatus
from typing import Final

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match

from fencepost.server.fence.problem_types import (
    AUTHENTICATION_REQUIRED,
    BAD_REQUEST,
    INSUFFICIENT_SCOPE,
    INVALID_CREDENTIAL,
    METHOD_NOT_ALLOWED,
    NO_ROUTE,
)
from fencepost.server.fence.problems import Problem, bad_request
from fencepost.server.postgres.query import QueryError

MEDIA_TYPE = "application/problem+json"
_CHALLENGES: Final = {
    AUTHENTICATION_REQUIRED: None,
    INVALID_CREDENTIAL: "invalid_token",
    INSUFFICIENT_SCOPE: "insufficient_scope",
}
"""Problems that a token could help with, and their names in RFC 6750."""


class RequestError(Exception):
    """What a request lacks or has too much of, found while it is read; answered with its problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


def problem_response(problem: Problem, headers: dict[str, str] | None = None) -> Response:
    """Build the answer. `Retry-After` only where trying again can help; `WWW-Authenticate` where a token can."""
    all_headers = {"Cache-Control": "no-store", **(headers or {})}
    if problem.type in _CHALLENGES or problem.http_status == HTTPStatus.UNAUTHORIZED:
        all_headers["WWW-Authenticate"] = _challenge(problem)
    if problem.retry_after is not None:
        all_headers["Retry-After"] = str(problem.retry_after)
    return Response(
        orjson.dumps(problem.body()), status_code=problem.http_status, media_type=MEDIA_TYPE, headers=all_headers
    )


async def answer_or_problem(answered: Awaitable[Response]) -> Response:
    """Give the answer, or that of what the request lacks."""
    try:
        return await answered
    except RequestError as error:
        return problem_response(error.problem)
    except QueryError as error:
        return problem_response(bad_request(str(error)))


def _challenge(problem: Problem) -> str:
    """Write WWW-Authenticate (RFC 6750 §3). A request without a credential gets no error."""
    error = _CHALLENGES.get(problem.type)
    if error is None:
        return "Bearer"
    detail = "".join(each if " " <= each <= "~" and each not in '"\\' else "'" for each in problem.detail)
    scope = f', scope="{problem.extra["scope"]}"' if "scope" in problem.extra else ""
    return f'Bearer error="{error}", error_description="{detail}"{scope}'


def _allowed(request: Request) -> str:
    """List the methods of a path (RFC 9110 §10.2.1). Starlette names those of one route of it only."""

    def is_served(method: str) -> bool:
        scope = {**request.scope, "method": method}
        return any(route.matches(scope)[0] is Match.FULL for route in request.app.routes)

    methods = [method for method in ("DELETE", "GET", "PATCH", "POST", "PUT") if is_served(method)]
    return ", ".join([*methods, "HEAD"] if "GET" in methods else methods)  # HEAD: see http/edge.py


async def http_problem(request: Request, error: Exception) -> Response:
    """Give Starlette's own refusals the one form."""
    if not isinstance(error, HTTPException):
        raise error
    headers = dict(error.headers or {})
    if error.status_code == METHOD_NOT_ALLOWED.status:
        headers["Allow"] = _allowed(request)
        return problem_response(Problem(METHOD_NOT_ALLOWED, f"{request.method} is not for this path."), headers)
    if error.status_code == NO_ROUTE.status:
        path = request.url.path
        return problem_response(Problem(NO_ROUTE, f"There is no route {path}.", hint=_instead_of(path)), headers)
    return problem_response(Problem(BAD_REQUEST, str(error.detail), status=error.status_code), headers)


def _instead_of(path: str) -> str | None:
    table, _, resource = path.removeprefix("/v1/").partition("/")
    if not path.startswith("/v1/"):
        return None
    return f"GET /v1/fences?resource={resource}" if table == "fences" and resource else "Tables are under /v1/data/."
