"""The answers that every table's routes share: each error status with an example body."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from fencepost.server.fence.problem_types import (
    AUTHENTICATION_REQUIRED,
    BAD_REQUEST,
    BODY_TOO_LARGE,
    DATABASE_BUSY,
    DATABASE_REFUSED,
    DATABASE_UNAVAILABLE,
    INSUFFICIENT_SCOPE,
    INVALID_CREDENTIAL,
    INVALID_VALUE,
    KEY_IN_FLIGHT,
    KEY_REUSED,
    MALFORMED_TOKEN,
    NO_SEAL_KEYS,
    NOT_ACCEPTABLE,
    OUTCOME_UNKNOWN,
    PERMISSION_DENIED,
    QUEUE_FAILED,
    QUEUE_UNAVAILABLE,
    QUEUED_AS_ROLE,
    RATE_LIMITED,
    ROLE_NOT_ALLOWED,
    ROW_NOT_FOUND,
    SEAL_REFUSED,
    SOURCE_QUARANTINED,
    SUBMISSION_UNKNOWN,
    TOKEN_REQUIRED,
    TOO_MANY_LETTERS,
    UNISSUED_TOKEN,
    UNKNOWN_TABLE,
    UNPROTECTED_TABLE,
    UNSUPPORTED_MEDIA_TYPE,
    VERIFICATION_UNAVAILABLE,
)
from fencepost.server.fence.problems import Problem
from fencepost.server.http.problems.examples import CONSTRAINT, SPENT, STALE, example_problem

Part = dict[str, Any]

_TEXT: Final[Part] = {"type": "string"}
_TEXT_OR_NULL: Final[Part] = {"type": ["string", "null"]}

_HOLDER: Final[Part] = {
    "type": "object",
    "properties": {
        **dict.fromkeys(("holder", "lease_id", "granted_at", "issued_at", "source"), _TEXT),
        "locks": {"type": "array", "items": _TEXT},
    },
}

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
        "presented_by": _HOLDER | {"description": "Whose token the request presented, where its source knows it."},
        "superseded_by": _HOLDER | {"description": "Whose token the mark is, where its source knows it."},
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
            _examples(*map(example_problem, (BAD_REQUEST, MALFORMED_TOKEN, INVALID_VALUE, DATABASE_REFUSED))),
        ),
    ),
    "Unauthenticated": (
        401,
        _problem_answer(
            "The request does not say who sends it, or its JWT or API key is not accepted. Nothing was done.",
            _examples(*map(example_problem, (AUTHENTICATION_REQUIRED, INVALID_CREDENTIAL))),
            {"WWW-Authenticate": {"description": "`Bearer`, with what is wrong (RFC 6750).", "schema": _TEXT}},
        ),
    ),
    "OutOfScope": (
        403,
        _problem_answer(
            "The JWT or API key is not for this kind of request.", _examples(example_problem(INSUFFICIENT_SCOPE))
        ),
    ),
    "TooManyRequests": (
        429,
        _problem_answer(
            "The caller has sent too many requests, or its address too many tokens or keys that are not accepted.",
            _examples(example_problem(RATE_LIMITED)),
            _RETRY_AFTER,
        ),
    ),
    "Unverified": (
        503,
        _problem_answer(
            "The JWT or API key cannot be checked for now.",
            _examples(example_problem(VERIFICATION_UNAVAILABLE)),
            _RETRY_AFTER,
        ),
    ),
    "Forbidden": (
        403,
        _problem_answer(
            "The table is not protected, or the role of the caller, or of the gateway, may not do this, or the JWT or"
            " API key is not for this; or the token's seal is not for what would be written.",
            _examples(
                *map(
                    example_problem,
                    (
                        UNPROTECTED_TABLE,
                        PERMISSION_DENIED,
                        INSUFFICIENT_SCOPE,
                        SEAL_REFUSED,
                        ROLE_NOT_ALLOWED,
                        QUEUED_AS_ROLE,
                    ),
                )
            ),
        ),
    ),
    "Denied": (
        403,
        _problem_answer(
            "The role of the caller, or of the gateway, may not do this, or the JWT or API key is not for this.",
            _examples(*map(example_problem, (PERMISSION_DENIED, INSUFFICIENT_SCOPE, ROLE_NOT_ALLOWED))),
        ),
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
            "this row before), or was never issued; do not retry it. Or a constraint refused the data. Nothing was "
            "changed. Or a request with the same Idempotency-Key is being worked on: that one may be repeated.",
            _examples(STALE, SPENT, *map(example_problem, (UNISSUED_TOKEN, KEY_IN_FLIGHT)), CONSTRAINT),
        ),
    ),
    "RefusedRows": (
        409,
        _problem_answer(
            "**The fence refused**: one stale row refuses the whole request, and `rows` lists them. Or a "
            "constraint refused the data. Nothing was changed. Or a request with the same Idempotency-Key is being "
            "worked on: that one may be repeated.",
            _examples(_MANY_STALE, *map(example_problem, (UNISSUED_TOKEN, KEY_IN_FLIGHT)), CONSTRAINT),
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
        _problem_answer(
            "The write carries no token, or one without the seal that the table wants.",
            _examples(example_problem(TOKEN_REQUIRED)),
        ),
    ),
    "QueueFailed": (
        502,
        _problem_answer("The queue would not take the write.", _examples(example_problem(QUEUE_FAILED))),
    ),
    "Unavailable": (
        503,
        _problem_answer(
            "PostgreSQL cannot be reached or is overloaded: nothing was changed. Or its answer was lost, and the "
            "outcome is unknown. Or no writes are allowed, because it was promoted and no operator has confirmed "
            "it. Or the table takes sealed tokens, and the gateway has no keys. Or the write was to be queued, and the "
            "queue cannot be reached, did not say whether it has it, or has too many dead letters.",
            _examples(
                *map(
                    example_problem,
                    (
                        DATABASE_UNAVAILABLE,
                        DATABASE_BUSY,
                        OUTCOME_UNKNOWN,
                        SOURCE_QUARANTINED,
                        NO_SEAL_KEYS,
                        QUEUE_UNAVAILABLE,
                        SUBMISSION_UNKNOWN,
                        TOO_MANY_LETTERS,
                    ),
                )
            ),
            _RETRY_AFTER,
        ),
    ),
}

QUEUED: Final[Part] = {
    "description": "The write is in its queue, safe on disk, and will be applied in the order of its row's writes. "
    "`Location` has what became of it.",
    "headers": {
        "Location": {
            "description": "Where the write's result will be.",
            "schema": {"type": "string", "format": "uri-reference"},
        },
        "Preference-Applied": {
            "description": "`respond-async`, where it was asked for.",
            "schema": {"type": "string", "enum": ["respond-async"]},
        },
        "X-Request-Id": {"$ref": "#/components/headers/X-Request-Id"},
    },
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/WriteAnswer"}}},
}
"""The answer of a write that is queued."""


def errors(names: Iterable[str]) -> Part:
    """Refer to shared error answers, by status."""
    return {str(ERRORS[name][0]): {"$ref": f"#/components/responses/{name}"} for name in names}
