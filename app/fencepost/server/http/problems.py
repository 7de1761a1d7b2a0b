"""Problems as answers: `application/problem+json`, and their pages."""

import json
import re
from html import escape
from http import HTTPStatus
from pathlib import Path
from typing import Final

import orjson
from fastapi import APIRouter
from fastapi.responses import RedirectResponse
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Match

from fencepost.server.fence.problem_types import (
    BAD_REQUEST,
    INSUFFICIENT_SCOPE,
    INVALID_CREDENTIAL,
    METHOD_NOT_ALLOWED,
    NO_ROUTE,
    PROBLEM_TYPES,
    ProblemType,
    of_sqlstate,
)
from fencepost.server.fence.problems import Problem, example_problem

# The gateway's own small HTML pages have one inline style sheet: no script may run, and nothing is fetched.

_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}

_STYLE: Final = (Path(__file__).parent / "static/page.css").read_text("utf-8")


def page(title: str, body: str, *, home: str) -> HTMLResponse:
    """Answer with a page. `title` is text, `body` is HTML whose parts are escaped; `home` leads to /."""
    html = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)} · Fencepost</title>"
        f'<link rel="icon" href="{home}docs/assets/favicon-32x32.png"><style>\n{_STYLE}</style></head>'
        f"<body><main>{body}</main></body></html>\n"
    )
    return HTMLResponse(html, headers=_HEADERS)


# A problem as an answer: application/problem+json, with what its reader's client understands beside it.

MEDIA_TYPE = "application/problem+json"
_CHALLENGES: Final = {INVALID_CREDENTIAL: "invalid_token", INSUFFICIENT_SCOPE: "insufficient_scope"}
"""Problems that another token could help with, and their names in RFC 6750."""


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


# The pages that an error's `type` points to: what happened, and what to do about it.

_SQLSTATE: Final = re.compile("(?=.*[0-9])(?!FP)[0-9FHPX][0-9A-Z]{4}")


def problem_routes() -> APIRouter:
    """Give the routes `/problems` and `/problems/{slug}`. A log has codes only: `/problems/FP001` leads to the page of
    the code, as does an SQLSTATE.
    """
    router = APIRouter(include_in_schema=False)
    router.add_api_route("/problems", _index)
    router.add_api_route("/problems/", _to_index)
    router.add_api_route("/problems/{slug}", _page)
    return router


def problem_page(kind: ProblemType) -> HTMLResponse:
    """Show one type of problem."""
    retry = (
        '<span class="badge go">may be retried</span>'
        if kind.retryable
        else '<span class="badge stop">do not retry</span>'
    )
    example = example_problem(kind)
    code = escape(kind.code) if kind.code else "the SQLSTATE"
    answer = json.dumps(example.body(), indent=2, ensure_ascii=False)
    head = f"HTTP/1.1 {_status(example.http_status)}\nContent-Type: application/problem+json\n"
    if example.retry_after is not None:
        head += f"Retry-After: {example.retry_after}\n"
    return page(
        kind.title,
        f'<nav><a href="../">Fencepost</a> / <a href="../problems">problems</a> / {escape(kind.slug)}</nav>'
        f"<h1>{escape(kind.title)}</h1>"
        f'<p><span class="badge">{_status(kind.status)}</span>'
        f'<span class="badge">code {code}</span>{retry}</p>'
        f"<h2>What it means</h2><p>{_prose(kind.meaning)}</p>"
        f"<h2>What to do</h2><p>{_prose(kind.action)}</p>"
        f"{f'<h2>On call</h2><p>{_prose(kind.on_call)}</p>' if kind.on_call else ''}"
        f"<h2>Example</h2><pre><code>{escape(head + chr(10) + answer)}</code></pre>",
        home="../",
    )


async def _index(_request: Request) -> Response:
    rows = "".join(
        f'<tr><td class="code"><code>{escape(kind.code or "SQLSTATE")}</code></td><td>{kind.status}</td>'
        f'<td><a href="problems/{escape(kind.slug)}">{escape(kind.title)}</a></td>'
        f"<td>{'yes' if kind.retryable else 'no'}</td></tr>"
        for kind in PROBLEM_TYPES
    )
    return page(
        "Problems",
        '<nav><a href="./">Fencepost</a> / problems</nav><h1>Problems</h1>'
        "<p>Every error is one <code>application/problem+json</code> body whose <code>type</code> is one of "
        "these pages. Decide by <code>code</code>; retry only where <code>retryable</code> is true.</p>"
        f"<table><thead><tr><th>Code</th><th>Status</th><th>Problem</th><th>Retry</th></tr></thead>"
        f"<tbody>{rows}</tbody></table>",
        home="./",
    )


async def _to_index(_request: Request) -> Response:
    return RedirectResponse("../problems", 308)


async def _page(request: Request) -> Response:
    slug = request.path_params["slug"]
    code = slug.upper()
    for kind in PROBLEM_TYPES:
        if kind.slug == slug:
            return problem_page(kind)
        if kind.code == code:
            return RedirectResponse(kind.slug, 308)
    if _SQLSTATE.fullmatch(code):
        return RedirectResponse(of_sqlstate(code)[0].slug, 308)
    return problem_response(Problem(NO_ROUTE, f"There is no problem called {slug}.", hint="GET /problems lists them."))


def _status(status: int) -> str:
    return f"{status} {HTTPStatus(status).phrase}"


def _prose(text: str) -> str:
    """Escape a text and set what stands between backticks as code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if index % 2 else part for index, part in enumerate(parts))
