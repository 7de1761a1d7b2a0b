"""Answers of writes and reads, and of writes that are queued."""

import re
from collections.abc import Sequence
from typing import Final, Literal, NotRequired
from urllib.parse import quote

import orjson
from pydantic import with_config
from starlette.responses import Response

# Pydantic reads these, and wants typing_extensions' TypedDict before Python 3.12.
from typing_extensions import TypedDict

from fencepost.server.fence.problem_types import NOT_ACCEPTABLE
from fencepost.server.fence.problems import Problem
from fencepost.server.fence.resource import parse_resource
from fencepost.server.gateway.idempotency import Replayed, read_record
from fencepost.server.gateway.outcomes import Done, Outcome
from fencepost.server.gateway.submit import Submitted
from fencepost.server.gateway.write import OneRow, Preferences, Write
from fencepost.server.http.headers import SINGULAR, is_known
from fencepost.server.http.problems import problem_response
from fencepost.server.postgres.queues import DROPPED, RETRIED_AS, Result
from fencepost.server.queues.message import WriteId

# An answer whose headers are bytes already: what Starlette's own does to them costs more than the rest of it.

Header = tuple[bytes, bytes]
NO_STORE: Header = (b"cache-control", b"no-store")
JSON: Header = (b"content-type", b"application/json")


class RawResponse(Response):
    """A response from its status, its body, and headers in lower case; the length is added, where there is a body."""

    def __init__(self, status: int, headers: list[Header], body: bytes = b"") -> None:
        self.status_code = status
        self.body = body
        self.background = None
        if body:
            headers.append((b"content-length", b"%d" % len(body)))
        self.raw_headers = headers


def json_response(body: object, headers: Sequence[Header] = ()) -> Response:
    """Build an answer of the system routes."""
    return RawResponse(200, [NO_STORE, *headers, JSON], orjson.dumps(body))


declared: Final = with_config({"extra": "forbid"})
"""Decorates the type of an answer: OpenAPI says that it has these members and no others, and the tests compare."""


@declared
class ClaimAnswer(TypedDict):
    """An accepted claim. `row` is null where the key has no row; the mark is raised all the same.

    The mark is null in an answer that is repeated by its Idempotency-Key, where another token has made it. There the
    row is left out, with `Preference-Applied: return=minimal`, where it was too large to be kept.
    """

    resource: str
    mark: str | None
    row: NotRequired[dict[str, object] | None]


# A queued write, as the answer 202, the page /v1/writes/{id} and its events show it.

PREFIX: Final = "/v1/writes/"
_ACCEPTED: Final = 202


@declared
class DecidedAnswer(TypedDict):
    """The answer that the same write would have had at once. `body`: row, rows or problem; null where it has none."""

    status: int
    headers: dict[str, str]
    body: object


@declared
class WriteAnswer(TypedDict):
    """A write that was queued, and what became of it. The body of the answer 202, too.

    `applied`: `answer` has a status of 2xx. `refused`: the fence refused its token. `failed`: it was refused for
    another reason. `answer` is null while it is `queued`; `reason` says why it was not applied. `dead_letter`: it is
    put aside as one, until an operator has it `dropped`, or retried: then `retried_as` is the id of the write that
    it was appended as.
    """

    id: str
    queue: str
    partition: int
    offset: int
    state: Literal["queued", "applied", "refused", "failed"]
    answer: DecidedAnswer | None
    reason: str | None
    dead_letter: bool
    dropped: bool
    retried_as: str | None


def path_of(write_id: WriteId) -> str:
    """Give the path where a write's result is. Every character of an id may stand in a path."""
    return f"{PREFIX}{write_id}"


def submitted_answer(write: Write, submitted: Submitted) -> Response:
    """Answer a write that is in its queue: 202, and where its result will be."""
    headers = [NO_STORE, (b"location", path_of(submitted.write_id).encode("ascii"))]
    if write.preferences.queued:
        headers.append((b"preference-applied", b"respond-async"))
    headers.append(JSON)
    return RawResponse(_ACCEPTED, headers, orjson.dumps(queued_answer(submitted.write_id)))


def queued_answer(write_id: WriteId) -> WriteAnswer:
    """Show a write that is not decided."""
    return {
        "id": str(write_id),
        "queue": write_id.queue,
        "partition": write_id.position.partition,
        "offset": write_id.position.offset,
        "state": "queued",
        "answer": None,
        "reason": None,
        "dead_letter": False,
        "dropped": False,
        "retried_as": None,
    }


def decided_answer(write_id: WriteId, result: Result) -> WriteAnswer:
    """Show a write that is decided, with the answer that it would have had at once."""
    state, letter, outcome = result.state, result.letter or "", read_record(result.came_to)
    if isinstance(outcome, Problem):
        shown = problem_response(outcome)
    else:
        shown = _landed(outcome.asked(), outcome)
        if outcome.again:
            replayed(shown)
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in shown.raw_headers]
    dropped, retried = letter == DROPPED, letter.startswith(RETRIED_AS)
    return {
        **queued_answer(write_id),
        "state": state,
        "answer": {
            "status": shown.status_code,
            "headers": {name: value for name, value in headers if name != "content-length"},
            "body": orjson.Fragment(bytes(shown.body)) if shown.body else None,
        },
        "reason": outcome.detail if isinstance(outcome, Problem) else None,
        "dead_letter": state == "failed" and not dropped and not retried,
        "dropped": dropped,
        "retried_as": letter.removeprefix(RETRIED_AS) if retried else None,
    }


# Outcomes as answers: statuses, bodies and headers. Rows are JSON already; here they are only joined.

_SINGULAR: Header = (b"content-type", SINGULAR.encode("ascii"))
_PRINTABLE = "".join(map(chr, range(0x21, 0x7F)))
_SENDABLE = re.compile(r"[\x21-\x7e]+")
_OK, _CREATED, _NO_CONTENT, _PARTIAL, _NOT_MODIFIED = 200, 201, 204, 206, 304


def fence_headers(done: Done) -> list[Header]:
    """Name the mark of the one resource that was written, claimed or read, and the scope whose mark it is."""
    headers: list[Header] = []
    if done.mark is not None:
        headers.append((b"x-fence-mark", b"%d" % done.mark))
    if done.scope:  # percent-encoded already, but for what a header cannot carry
        scope = done.scope if _SENDABLE.fullmatch(done.scope) else quote(done.scope, safe=_PRINTABLE)
        headers.append((b"x-fence-scope", scope.encode("ascii")))
    return headers


def _headers(done: Done, preferences: Preferences) -> list[Header]:
    headers = [NO_STORE, *fence_headers(done)]
    if preferences.applied:
        headers.append((b"preference-applied", preferences.applied))
    return headers


def _array(done: Done) -> bytes:
    return f"[{','.join(done.rows)}]".encode()


def _not_one_row(done: Done) -> Response:
    return problem_response(
        Problem(NOT_ACCEPTABLE, f"Accept: {SINGULAR} wants exactly one row, and there are {len(done.rows)}.")
    )


def answer(write: Write, outcome: Outcome) -> Response:
    """Answer a write."""
    if isinstance(outcome, Problem):
        return problem_response(outcome)
    if isinstance(outcome, Replayed):
        outcome.mark = None  # whose token it is, the fence has not compared with this request's (decision 0032)
        return replayed(_landed(outcome.asked(write), outcome))
    if isinstance(outcome, Submitted):
        return submitted_answer(write, outcome)
    return _landed(write, outcome)


def _landed(write: Write, done: Done) -> Response:
    """Answer a write that landed."""
    if isinstance(write.target, OneRow):
        return _row_answer(done, write.preferences, shown=write.shown)
    return _post_answer(write, done) if write.verb == "post" else _answer_of_many(write, done)


def replayed(response: Response) -> Response:
    """Say in an answer that it was given before."""
    headers = response.raw_headers
    last = len(headers) - 1 if headers[-1][0] == b"content-length" else len(headers)
    headers.insert(last, (b"idempotent-replayed", b"true"))
    return response


def read_answer(outcome: Outcome, preferences: Preferences, none_match: bytes | None) -> Response:
    """Answer a read of one row, with its mark as ETag. `none_match`: the request's If-None-Match; a client that has the
    row as it is gets 304.
    """
    if isinstance(outcome, Problem):
        return problem_response(outcome)
    headers = _headers(outcome, preferences)
    if outcome.version is not None:
        etag = b'"%d"' % outcome.version
        headers.append((b"etag", etag))
        if none_match is not None and is_known(none_match, etag):
            return RawResponse(_NOT_MODIFIED, headers)
    headers.append(JSON)
    return RawResponse(_OK, headers, outcome.rows[0].encode())


def _row_answer(outcome: Done, preferences: Preferences, *, shown: bool) -> Response:
    """Answer a write of a row: the row as an object, or nothing where that was preferred (or is the default)."""
    headers = _headers(outcome, preferences)
    if not shown:
        return _without_body(_CREATED if outcome.created else _NO_CONTENT, headers)
    headers.append(JSON)
    return RawResponse(_CREATED if outcome.created else _OK, headers, outcome.rows[0].encode())


def _without_body(status: int, headers: list[Header]) -> Response:
    if status != _NO_CONTENT:
        headers.append((b"content-length", b"0"))
    return RawResponse(status, headers)


def _rows(outcome: Done, status: int, headers: list[Header], *, singular: bool) -> Response:
    headers.append(_SINGULAR if singular else JSON)
    body = outcome.rows[0].encode() if singular and outcome.count == 1 else _array(outcome)
    return RawResponse(status, headers, body)


def list_answer(outcome: Outcome, offset: int, preferences: Preferences, *, singular: bool) -> Response:
    """Answer for a collection read, with PostgREST's Content-Range."""
    if isinstance(outcome, Problem):
        return problem_response(outcome)
    count = len(outcome.rows)
    if singular and count != 1:
        return _not_one_row(outcome)
    headers = _headers(outcome, preferences)
    span = f"{offset}-{offset + count - 1}" if count else "*"
    headers.append(_content_range(span, outcome.total))
    partial = not singular and outcome.total is not None and count < outcome.total
    return _rows(outcome, _PARTIAL if partial else _OK, headers, singular=singular)


def _content_range(span: str, total: int | None) -> Header:
    return (b"content-range", f"{span}/{'*' if total is None else total}".encode("ascii"))


UNNAMEABLE: Final = (("",), (".",), ("..",))
"""Keys that clients and proxies would read as another path."""


def _location(resource: str) -> str | None:
    """Name a row's route: as its resource, with all that a URL wants encoded. None: its key cannot stand in a path."""
    read = parse_resource(resource)
    if read.key in UNNAMEABLE:
        return None
    return f"/v1/data/{quote(read.table, safe='')}/{','.join(quote(value, safe='') for value in read.key)}"


def _post_answer(write: Write, outcome: Done) -> Response:
    """Answer for POST: 201 with the rows as an array, or without."""
    headers = _headers(outcome, write.preferences)
    if outcome.resource and (location := _location(outcome.resource)) is not None:
        headers.append((b"location", location.encode("ascii")))
    if write.preferences.count:
        headers.append(_content_range("*", outcome.count))
    if not write.shown:
        return _without_body(_CREATED, headers)
    return _rows(outcome, _CREATED, headers, singular=write.exactly_one)


def _answer_of_many(write: Write, outcome: Done) -> Response:
    """Answer for PATCH and DELETE of a collection, as PostgREST does: 204, or 200 with an array where that is
    preferred.
    """
    headers = _headers(outcome, write.preferences)
    count = outcome.count
    headers.append(_content_range(f"0-{count - 1}" if count else "*", count if write.preferences.count else None))
    if not write.shown:
        return _without_body(_NO_CONTENT, headers)
    return _rows(outcome, _OK, headers, singular=write.exactly_one)
