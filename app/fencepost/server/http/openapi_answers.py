"""Answers in the OpenAPI document: problems, headers, the batch."""

from collections.abc import Iterable
from typing import Any, Final

from fencepost.server.fence.problem_types import PROBLEM_TYPES, STALE_TOKEN
from fencepost.server.fence.problems import Problem, example_problem
from fencepost.server.fence.token import Token
from fencepost.server.http.openapi_parts import PARAMETERS, TOKEN_PATTERN, parameter

# The errors of a route, as OpenAPI describes them.

_PROBLEM: dict[str, Any] = {
    "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
}


def problems(*statuses: tuple[int, str]) -> dict[int | str, dict[str, Any]]:
    """Document these errors of a route."""
    return {status: {"description": text, **_PROBLEM} for status, text in statuses}


# The answers that every table's routes share: each error status with an example body.

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
    STALE_TOKEN,
    "Token 33 is stale for 2 rows.",
    presented_token=Token(33),
    extra={
        "rows": [
            {"resource": "orders/order-123", "current_token": "34"},
            {"resource": "orders/order-124", "current_token": "41"},
        ]
    },
)

_RETRY_AFTER: Final[Part] = {
    "Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer", "minimum": 0}}
}
_HEADERS: Final[dict[int, Part]] = {
    401: {"WWW-Authenticate": {"description": "`Bearer`, with what is wrong (RFC 6750).", "schema": _TEXT}},
    429: _RETRY_AFTER,
    503: _RETRY_AFTER,
}

_SHARED: Final[dict[str, tuple[int, str]]] = {
    "BadRequest": (400, "The request, its token or a value cannot be taken. Nothing was changed."),
    "Unauthenticated": (
        401,
        "The request does not say who sends it, or its JWT or API key is not accepted. Nothing was done.",
    ),
    "OutOfScope": (403, "The JWT or API key is not for this kind of request."),
    "TooManyRequests": (
        429,
        "The caller has sent too many requests, or its address too many tokens or keys that are not accepted.",
    ),
    "Unverified": (503, "The JWT or API key cannot be checked for now."),
    "Forbidden": (
        403,
        "The table is not protected, or the role of the caller, or of the gateway, may not do this, or the JWT or"
        " API key is not for this; or the token's seal is not for what would be written.",
    ),
    "Denied": (
        403,
        "The role of the caller, or of the gateway, may not do this, or the JWT or API key is not for this.",
    ),
    "NoRow": (404, "No such row, or the table is gone."),
    "NoTable": (404, "The table is gone."),
    "NotAcceptable": (406, "No such form of the answer."),
    "Refused": (
        409,
        "**The fence refused**: the token is stale (a newer one has written) or spent (it has written "
        "this row before), or was never issued; do not retry it. Or a constraint refused the data. Nothing was "
        "changed. Or a request with the same Idempotency-Key is being worked on: that one may be repeated.",
    ),
    "RefusedRows": (
        409,
        "**The fence refused**: one stale row refuses the whole request, and `rows` lists them. Or a "
        "constraint refused the data. Nothing was changed. Or a request with the same Idempotency-Key is being "
        "worked on: that one may be repeated.",
    ),
    "RowChanged": (
        412,
        "The row's mark is none of those that If-Match names, or there is no row. Nothing was changed.",
    ),
    "TooLarge": (413, "Too many bytes or rows."),
    "NotJson": (415, "The body is not JSON."),
    "KeyReused": (422, "The Idempotency-Key was used for another request. Nothing was changed."),
    "TokenRequired": (428, "The write carries no token, or one without the seal that the table wants."),
    "QueueFailed": (502, "The queue would not take the write."),
    "Unavailable": (
        503,
        "PostgreSQL cannot be reached or is overloaded: nothing was changed. Or its answer was lost, and the "
        "outcome is unknown. Or no writes are allowed, because it was promoted and no operator has confirmed "
        "it. Or the table takes sealed tokens, and the gateway has no keys. Or the write was to be queued, and the "
        "queue cannot be reached, did not say whether it has it, or has too many dead letters.",
    ),
}
"""Answers that routes share: a status, and what it means there. Types of problems name those that show them."""


def _problem_answer(name: str, status: int, description: str) -> Part:
    shown = [example_problem(kind) for kind in PROBLEM_TYPES if name in kind.openapi]
    if name == "RefusedRows":
        shown = [_MANY_STALE if each.type is STALE_TOKEN else each for each in shown]
    examples = {each.type.slug: {"summary": each.type.title, "value": each.body()} for each in shown}
    content = {"schema": {"$ref": "#/components/schemas/Problem"}, "examples": examples}
    answer: Part = {"description": description, "content": {"application/problem+json": content}}
    return answer | {"headers": _HEADERS[status]} if status in _HEADERS else answer


ERRORS: Final = {name: (status, _problem_answer(name, status, text)) for name, (status, text) in _SHARED.items()}

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


# Headers that answers share.

HEADERS: Final[dict[str, Part]] = {
    "Idempotent-Replayed": {
        "description": "The answer that was stored when the request was done under this Idempotency-Key: before, or "
        "just now, when the gateway's connection broke after the commit and the gateway looked the outcome up.",
        "schema": {"type": "string", "enum": ["true"]},
    },
    "Content-Range": {
        "description": "Which rows these are, as PostgREST writes it: `first-last/total`; the total is `*` unless it "
        "was asked for.",
        "schema": {"type": "string", "pattern": r"^(\*|\d+-\d+)/(\*|\d+)$"},
        "example": "0-19/*",
    },
    "ETag": {
        "description": "The row's mark in quotes: the version of the row, for If-Match and If-None-Match.",
        "schema": {"type": "string", "pattern": '^"(0|[1-9][0-9]{0,18})"$'},
        "example": '"34"',
    },
    "Location": {
        "description": "Where the row is, when there is one whose key can stand in a path.",
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


def headers(*names: str) -> Part:
    """Refer to shared answer headers."""
    return {"headers": {name: {"$ref": f"#/components/headers/{name}"} for name in names}}


# POST /v1/batch, as OpenAPI describes it: a body and an answer of lines, each a JSON value of its own.

MEDIA_TYPE: Final = "application/x-ndjson"
_TOKEN: Final[Part] = {
    "description": "As X-Fence-Token; a number, or a string. A sealed token is a string.",
    "anyOf": [
        {"type": "integer", "minimum": 1, "maximum": 2**63 - 1},
        {"type": "string", "pattern": TOKEN_PATTERN},
    ],
}
_KEY: Final[Part] = {
    "type": "string",
    "pattern": "^[ -~]{1,255}$",
    "description": PARAMETERS["IdempotencyKey"]["description"],
}
LINE_SCHEMAS: Final[dict[str, Part]] = {
    "BatchWrite": {
        "type": "object",
        "additionalProperties": False,
        "required": ["method", "path"],
        "properties": {
            "method": {"enum": ["POST", "PATCH", "PUT", "DELETE"]},
            "path": {
                "type": "string",
                "description": "What follows /v1/data/, percent-encoded, with its query.",
            },
            "token": _TOKEN,
            "idempotency_key": _KEY,
            "prefer": {"type": "string", "description": "As the header Prefer; without respond-async."},
            "if_match": {
                "type": ["string", "integer"],
                "description": "The mark that the row of the path must have, as the header If-Match; or `*`.",
            },
            "body": {"description": "As that of the request: an object, or an array of them."},
        },
    },
    "BatchClaim": {
        "type": "object",
        "additionalProperties": False,
        "required": ["claim"],
        "properties": {
            "claim": {"type": "string", "description": "The resource to claim: table/key."},
            "token": _TOKEN,
            "idempotency_key": _KEY,
        },
    },
    "BatchVerdict": {
        "type": "object",
        "required": ["number", "status", "body"],
        "properties": {
            "number": {"type": "integer", "minimum": 1, "description": "Which line it is for; the first one is 1."},
            "status": {"type": "integer", "description": "The status of the answer that a request would have got."},
            "mark": {"type": "string", "description": "As X-Fence-Mark."},
            "scope": {"type": "string", "description": "As X-Fence-Scope."},
            "location": {"type": "string", "description": "As Location: the row that was made, or the queued write."},
            "content_range": {"type": "string", "description": "As Content-Range."},
            "preference_applied": {"type": "string", "description": "As Preference-Applied."},
            "replayed": {"const": True, "description": "It was done before, under its Idempotency-Key."},
            "retry_after": {"type": "integer", "description": "Seconds, as Retry-After."},
            "body": {"description": "The body of that answer: rows, a claim, or a problem. Null where it has none."},
        },
    },
    "BatchStopped": {
        "type": "object",
        "required": ["stopped", "lines", "reason"],
        "description": "The last line of a batch that was not read to its end. Go on after line `lines`.",
        "properties": {
            "stopped": {"const": True},
            "lines": {"type": "integer", "description": "How many lines were read; all of them have their verdicts."},
            "reason": {"type": "string"},
        },
    },
}
_LINES: Final = (
    '{"method":"PATCH","path":"orders/order-123?select=status","token":34,"body":{"status":"paid"}}\n'
    '{"claim":"orders/order-125","token":36}\n'
)
_VERDICTS: Final = (
    '{"number":1,"status":200,"mark":"34","body":{"status":"paid"}}\n'
    '{"number":2,"status":200,"mark":"36","body":{"resource":"orders/order-125","mark":"36","row":null}}\n'
)
_ATOMIC: Final[Part] = {
    "name": "atomic",
    "in": "query",
    "description": "`true`: all lines land in one transaction, or none. Then a refusal is that of the first line that"
    " is refused, with the member `line`.",
    "schema": {"type": "boolean", "default": False},
}
_WHOLE: Final = ("BadRequest", "Forbidden", "NoRow", "Refused", "TooLarge", "KeyReused", "TokenRequired", "Unavailable")
"""How a batch is refused that is to land as a whole."""


def batch_path() -> dict[str, Part]:
    """Describe the route. Its bodies are texts here: OpenAPI 3.1 has no type of lines."""
    operation: Part = {
        "tags": ["fences"],
        "operationId": "batch",
        "summary": "Many writes and claims in one request, a line each",
        "description": "Each line is a `BatchWrite` or a `BatchClaim`, each line of the answer a `BatchVerdict`, in the"
        " order of the lines, while the body still arrives. A bad line stops nobody. Lines on one resource take effect"
        " in their order. Read the answer while you send: lines whose verdicts are not taken are not read.",
        "parameters": [_ATOMIC, parameter("RequestId")],
        "requestBody": {
            "required": True,
            "content": {MEDIA_TYPE: {"schema": {"type": "string"}, "example": _LINES}},
        },
        "responses": {
            "200": {
                "description": "The verdicts. The last line is a `BatchStopped` where not all was read.",
                "content": {MEDIA_TYPE: {"schema": {"type": "string"}, "example": _VERDICTS}},
            }
            | headers("X-Request-Id"),
            **errors([*_WHOLE, "NotAcceptable", "NotJson"]),
        },
    }
    return {"/v1/batch": {"post": operation}}
