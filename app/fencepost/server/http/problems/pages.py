"""The pages that an error's `type` points to: what happened, and what to do about it."""

import json
import re
from html import escape
from http import HTTPStatus
from typing import Final

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from fencepost.server.fence.problem_types import NO_ROUTE, PROBLEM_TYPES, ProblemType
from fencepost.server.fence.problems import Problem
from fencepost.server.gateway.refusals import type_of
from fencepost.server.http.html_page import page
from fencepost.server.http.problems.examples import example_problem
from fencepost.server.http.problems.response import problem_response

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


def problem_index() -> HTMLResponse:
    """List all types of problems."""
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


async def _index(_request: Request) -> Response:
    return problem_index()


async def _to_index(_request: Request) -> Response:
    return RedirectResponse("../problems", 308)


async def _page(request: Request) -> Response:
    slug = request.path_params["slug"]
    for kind in PROBLEM_TYPES:
        if kind.slug == slug:
            return problem_page(kind)
    code = slug.upper()
    named = next((kind for kind in PROBLEM_TYPES if kind.code == code), None)
    if named is None and _SQLSTATE.fullmatch(code):
        named = type_of(code)
    if named is not None:
        return RedirectResponse(named.slug, 308)
    return problem_response(Problem(NO_ROUTE, f"There is no problem called {slug}.", hint="GET /problems lists them."))


def _status(status: int) -> str:
    return f"{status} {HTTPStatus(status).phrase}"


def _prose(text: str) -> str:
    """Escape a text and set what stands between backticks as code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if index % 2 else part for index, part in enumerate(parts))
