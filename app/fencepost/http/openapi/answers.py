"""The parts that every table's routes share: headers, and each error status with an example body."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from fencepost.fencing.problem_types import (
    BAD_REQUEST,
    BODY_TOO_LARGE,
    DATABASE_BUSY,
    DATABASE_UNAVAILABLE,
    INVALID_VALUE,
    KEY_IN_FLIGHT,
    KEY_REUSED,
    MALFORMED_TOKEN,
    NOT_ACCEPTABLE,
    OUTCOME_UNKNOWN,
    PERMISSION_DENIED,
    ROW_NOT_FOUND,
    SOURCE_QUARANTINED,
    TOKEN_REQUIRED,
    UNKNOWN_TABLE,
    UNPROTECTED_TABLE,
    UNSUPPORTED_MEDIA_TYPE,
)
from fencepost.fencing.problems import Problem
from fencepost.http.problems.examples import CONSTRAINT, SPENT, STALE, example_problem

Part = dict[str, Any]

_TEXT: Final[Part] = {"type": "string"}
_TEXT_OR_NULL: Final[Part] = {"type": ["string", "null"]}

PROBLEM: Final[Part] = {
    "type": "object",
    "title": "Problem",
    "description": "One body for two conventions: RFC 9457's `type title status detail` and PostgREST's "
    "`code message details hint`. Tokens are strings: JavaScript loses integers past 2^53.",
    "required": [
        "type", "title", "status", "detail", "code", "message", "details", "hint",
        "resource", "presented_token", "current_token", "retryable",
    ],
    "properties": {
        "type": {"type": "string", "format": "uri-reference", "description": "The page that explains it."},
        "title": _TEXT | {"description": "What kind of error it is."},
        "status": {"type": "integer", "minimum": 400, "maximum": 599},
        "detail": _TEXT | {"description": "What happened here: names what and where."},
        "code": _TEXT | {"description": "`FPnnn`, or the SQLSTATE of PostgreSQL's own refusal."},
        "message": _TEXT | {"description": "The same as `detail`, where PostgREST's clients look for it."},
        "details": _TEXT_OR_NULL,
        "hint": _TEXT_OR_NULL | {"description": "What to do about it."},
        "resource": _TEXT_OR_NULL | {"description": "The row that the fence judged, as `table/key`."},
        "presented_token": _TEXT_OR_NULL | {"description": "The token of the request."},
        "current_token": _TEXT_OR_NULL | {"description": "The mark: the newest token that was accepted."},
        "retryable": {"type": "boolean", "description": "Whether the same request may succeed later."},
        "table": _TEXT | {"description": "The table whose constraint or column refused."},
        "constraint": _TEXT | {"description": "The constraint that refused."},
        "column": _TEXT | {"description": "The column that refused."},
        "rows": {
            "type": "array",
            "description": "A multi-row write: every row that refused it.",
            "items": {"type": "object", "properties": {"resource": _TEXT, "current_token": _TEXT_OR_NULL}},
        },
    },
}  # fmt: skip

_MANY_STALE: Final = Problem(
    STALE.type,
    "Token 33 is stale for 2 rows.",
    hint=STALE.hint,
    presented_token=STALE.presented_token,
    extra={
        "rows": [
            {"resource": "orders/order-123", "current_token": "34"},
            {"resource": "orders/order-124", "current_token": "41"},
        ]
    },
)


def _examples(*problems: Problem) -> Part:
    return {problem.type.slug: {"summary": problem.type.title, "value": problem.body()} for problem in problems}


def _problem_answer(description: str, examples: Mapping[str, Any], headers: Part | None = None) -> Part:
    content = {"schema": {"$ref": "#/components/schemas/Problem"}, "examples": examples}
    answer: Part = {"description": description, "content": {"application/problem+json": content}}
    return answer if headers is None else answer | {"headers": headers}


_RETRY_AFTER: Final[Part] = {
    "Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer", "minimum": 0}}
}

ERRORS: Final[dict[str, tuple[int, Part]]] = {
    "BadRequest": (
        400,
        _problem_answer(
            "The request, its token or a value cannot be taken. Nothing was changed.",
            _examples(*map(example_problem, (BAD_REQUEST, MALFORMED_TOKEN, INVALID_VALUE))),
        ),
    ),
    "Forbidden": (
        403,
        _problem_answer(
            "The table is not protected, or the gateway's role may not do this.",
            _examples(*map(example_problem, (UNPROTECTED_TABLE, PERMISSION_DENIED))),
        ),
    ),
    "Denied": (
        403,
        _problem_answer("The gateway's role may not do this.", _examples(example_problem(PERMISSION_DENIED))),
    ),
    "NoRow": (
        404,
        _problem_answer(
            "No such row, or the table is gone.",
            _examples(*map(example_problem, (ROW_NOT_FOUND, UNKNOWN_TABLE))),
        ),
    ),
    "NoTable": (404, _problem_answer("The table is gone.", _examples(example_problem(UNKNOWN_TABLE)))),
    "NotAcceptable": (
        406,
        _problem_answer("No such form of the answer.", _examples(example_problem(NOT_ACCEPTABLE))),
    ),
    "Refused": (
        409,
        _problem_answer(
            "**The fence refused**: the token is stale (a newer one has written) or spent (it has written "
            "this row before); do not retry it. Or a constraint refused the data. Nothing was changed. Or a request "
            "with the same Idempotency-Key is being worked on: that one may be repeated.",
            _examples(STALE, SPENT, CONSTRAINT, example_problem(KEY_IN_FLIGHT)),
        ),
    ),
    "RefusedRows": (
        409,
        _problem_answer(
            "**The fence refused**: one stale row refuses the whole request, and `rows` lists them. Or a "
            "constraint refused the data. Nothing was changed. Or a request with the same Idempotency-Key is being "
            "worked on: that one may be repeated.",
            _examples(_MANY_STALE, CONSTRAINT, example_problem(KEY_IN_FLIGHT)),
        ),
    ),
    "TooLarge": (413, _problem_answer("Too many bytes or rows.", _examples(example_problem(BODY_TOO_LARGE)))),
    "NotJson": (
        415,
        _problem_answer("The body is not JSON.", _examples(example_problem(UNSUPPORTED_MEDIA_TYPE))),
    ),
    "KeyReused": (
        422,
        _problem_answer(
            "The Idempotency-Key was used for another request. Nothing was changed.",
            _examples(example_problem(KEY_REUSED)),
        ),
    ),
    "TokenRequired": (
        428,
        _problem_answer("The write carries no token.", _examples(example_problem(TOKEN_REQUIRED))),
    ),
    "Unavailable": (
        503,
        _problem_answer(
            "PostgreSQL cannot be reached or is overloaded: nothing was changed. Or its answer was lost, and the "
            "outcome is unknown. Or no writes are allowed, because it was promoted and no operator has confirmed "
            "it.",
            _examples(
                *map(example_problem, (DATABASE_UNAVAILABLE, DATABASE_BUSY, OUTCOME_UNKNOWN, SOURCE_QUARANTINED))
            ),
            _RETRY_AFTER,
        ),
    ),
}

HEADERS: Final[dict[str, Part]] = {
    "Idempotent-Replayed": {
        "description": "The request had been done before, under this Idempotency-Key; this is what was answered then.",
        "schema": {"type": "string", "enum": ["true"]},
    },
    "Content-Range": {
        "description": "Which rows these are, as PostgREST says it: `first-last/total`; the total is `*` unless it "
        "was asked for.",
        "schema": {"type": "string", "pattern": r"^(\*|\d+-\d+)/(\*|\d+)$"},
        "example": "0-19/*",
    },
    "Location": {
        "description": "Where the row is, when there is one and the request named its key.",
        "schema": {"type": "string", "format": "uri-reference"},
    },
    "X-Fence-Mark": {
        "description": "The row's mark after this request: the newest token accepted for it.",
        "schema": {"type": "string", "pattern": "^(0|[1-9][0-9]{0,18})$"},
        "example": "34",
    },
    "X-Fence-Scope": {
        "description": "The scope that the row belongs to, and whose mark `X-Fence-Mark` is: one for many rows.",
        "schema": _TEXT,
        "example": "account/42",
    },
    "X-Request-Id": {
        "description": "The request's name in the gateway's log: yours, or one that it made.",
        "schema": _TEXT,
    },
}

IDEMPOTENCY_KEY: Final = (
    "A name of your own for this write, new for each: a UUID, say, quoted or bare. Repeat the request with it when its "
    "answer was lost: it is done once, and answered as it was then."
)
IDEMPOTENCY_KEY_PATTERN: Final = r'^([!#-~]{1,255}|"([ !#-\[\]-~]|\\["\\]){1,255}")$'

PARAMETERS: Final[dict[str, Part]] = {
    "FenceToken": {
        "name": "X-Fence-Token",
        "in": "header",
        "required": True,
        "description": "The fencing token that your lock service gave with the grant: a positive integer "
        "of at most 9223372036854775807. Newer grants have larger ones.",
        "schema": {"type": "string", "pattern": "^[1-9][0-9]{0,18}$"},
        "example": "34",
    },
    "IdempotencyKey": {
        "name": "Idempotency-Key",
        "in": "header",
        "description": IDEMPOTENCY_KEY,
        # No example: "Try it out" would send it with every write, and be answered from the first.
        "schema": {"type": "string", "pattern": IDEMPOTENCY_KEY_PATTERN},
    },
    "Prefer": {
        "name": "Prefer",
        "in": "header",
        "description": "Whether the answer carries what was written. What is not done is refused.",
        "schema": {"type": "string", "enum": ["return=minimal", "return=representation", "return=headers-only"]},
    },
    "PreferMany": {
        "name": "Prefer",
        "in": "header",
        "description": "Whether the answer carries what was written, and its `Content-Range` how many rows; and how "
        "many rows may be written at most: one more, and none is. Several are joined by commas. What is not done is "
        "refused.",
        "schema": {
            "type": "string",
            "enum": ["return=minimal", "return=representation", "return=headers-only", "count=exact", "max-affected=1"],
        },
    },
    "PreferCount": {
        "name": "Prefer",
        "in": "header",
        "description": "Count all rows that match; the number stands in `Content-Range`.",
        "schema": {"type": "string", "enum": ["count=exact"]},
    },
    "RequestId": {
        "name": "X-Request-Id",
        "in": "header",
        "description": "A name for this request in the gateway's log; made up when absent.",
        "schema": {"type": "string", "pattern": "^[!-~]{1,128}$"},
    },
}


def parameter(name: str) -> Part:
    """Refer to a shared parameter."""
    return {"$ref": f"#/components/parameters/{name}"}


def errors(names: Iterable[str]) -> Part:
    """Refer to shared error answers, by status."""
    return {str(ERRORS[name][0]): {"$ref": f"#/components/responses/{name}"} for name in names}


def headers(*names: str) -> Part:
    """Refer to shared answer headers."""
    return {"headers": {name: {"$ref": f"#/components/headers/{name}"} for name in names}}
