"""Outcomes as answers: statuses, bodies and headers. Rows are JSON already; here they are only joined."""

from typing import Literal
from urllib.parse import quote

from starlette.responses import Response

from fencepost.fencing.problem_types import NOT_ACCEPTABLE
from fencepost.fencing.problems import Problem
from fencepost.fencing.resource import parse_resource
from fencepost.gateway.core import Done, Outcome
from fencepost.gateway.once import Replayed
from fencepost.http.problem_response import problem_response
from fencepost.http.reading_requests import SINGULAR
from fencepost.storage.idempotency import Recorded

Answer = Literal["minimal", "representation", "headers-only"] | None

_JSON = "application/json"
_PRINTABLE = "".join(map(chr, range(0x21, 0x7F)))
_OK, _CREATED, _NO_CONTENT, _PARTIAL = 200, 201, 204, 206


def fence_headers(done: Done) -> dict[str, str]:
    """Name the mark of the one resource that was written, claimed or read, and the scope whose mark it is."""
    headers = {}
    if done.mark is not None:
        headers["X-Fence-Mark"] = str(done.mark)
    if done.scope:  # percent-encoded already, but for what a header cannot carry
        headers["X-Fence-Scope"] = quote(done.scope, safe=_PRINTABLE)
    return headers


def _headers(done: Done, answer: Answer) -> dict[str, str]:
    headers = {"Cache-Control": "no-store"} | fence_headers(done)
    if answer is not None:
        headers["Preference-Applied"] = f"return={answer}"
    return headers


def _array(done: Done) -> bytes:
    return f"[{','.join(done.rows)}]".encode()


def _not_one(done: Done) -> Response:
    return problem_response(
        Problem(NOT_ACCEPTABLE, f"Accept: {SINGULAR} wants exactly one row, and there are {len(done.rows)}.")
    )


def recorded(response: Response) -> Recorded:
    """Keep an answer for those who repeat the request."""
    headers = tuple(
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in response.raw_headers
        if name != b"content-length"
    )
    return Recorded(response.status_code, headers, bytes(response.body))


def replayed(outcome: Replayed) -> Response:
    """Give an answer that was given before."""
    answer = outcome.answer
    if answer is None:
        raise TypeError("a replay without its answer")
    response = Response(answer.body, status_code=answer.status)
    for name, value in answer.headers:
        response.headers[name] = value
    response.headers["Idempotent-Replayed"] = "true"
    return response


def one(outcome: Outcome, answer: Answer = None, *, row_by_default: bool = True) -> Response:
    """Answer for a keyed route: the row as an object, or nothing where that was preferred (or is the default)."""
    if isinstance(outcome, Problem):
        return problem_response(outcome)
    if isinstance(outcome, Replayed):
        return replayed(outcome)
    headers = _headers(outcome, answer)
    if answer in ("minimal", "headers-only") or (answer is None and not row_by_default):
        return Response(status_code=_CREATED if outcome.created else _NO_CONTENT, headers=headers)
    status = _CREATED if outcome.created else _OK
    return Response(outcome.rows[0].encode(), status_code=status, media_type=_JSON, headers=headers)


def listed(outcome: Outcome, offset: int, *, singular: bool) -> Response:
    """Answer for a collection read, with PostgREST's Content-Range."""
    if isinstance(outcome, Problem):
        return problem_response(outcome)
    if singular:
        if len(outcome.rows) != 1:
            return _not_one(outcome)
        return Response(outcome.rows[0].encode(), media_type=SINGULAR, headers=_headers(outcome, None))
    count = len(outcome.rows)
    span = f"{offset}-{offset + count - 1}" if count else "*"
    headers = _headers(outcome, None)
    headers["Content-Range"] = f"{span}/{'*' if outcome.total is None else outcome.total}"
    partial = outcome.total is not None and count < outcome.total
    return Response(_array(outcome), status_code=_PARTIAL if partial else _OK, media_type=_JSON, headers=headers)


def _location(resource: str) -> str:
    """Name a row's route: as its resource, with all that a URL wants encoded."""
    read = parse_resource(resource)
    return f"/v1/data/{quote(read.table, safe='')}/{','.join(quote(value, safe='') for value in read.key)}"


def created(outcome: Outcome, answer: Answer, *, singular: bool) -> Response:
    """Answer for POST: 201 with the rows as an array, or without."""
    if isinstance(outcome, Problem):
        return problem_response(outcome)
    if isinstance(outcome, Replayed):
        return replayed(outcome)
    headers = _headers(outcome, answer)
    if outcome.resource:
        headers["Location"] = _location(outcome.resource)
    if answer in ("minimal", "headers-only"):
        return Response(status_code=_CREATED, headers=headers)
    body = outcome.rows[0].encode() if singular and len(outcome.rows) == 1 else _array(outcome)
    return Response(body, status_code=_CREATED, media_type=SINGULAR if singular else _JSON, headers=headers)


def many_written(outcome: Outcome, answer: Answer, *, singular: bool) -> Response:
    """Answer for PATCH and DELETE by filters, as PostgREST does: 204, or 200 with an array where that is preferred."""
    if isinstance(outcome, Problem):
        return problem_response(outcome)
    if isinstance(outcome, Replayed):
        return replayed(outcome)
    headers = _headers(outcome, answer)
    count = len(outcome.rows)
    headers["Content-Range"] = f"0-{count - 1}/*" if count else "*/*"
    if answer != "representation":
        return Response(status_code=_NO_CONTENT, headers=headers)
    body = outcome.rows[0].encode() if singular and count == 1 else _array(outcome)
    return Response(body, status_code=_OK, media_type=SINGULAR if singular else _JSON, headers=headers)
