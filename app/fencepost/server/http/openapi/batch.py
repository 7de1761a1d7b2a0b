"""POST /v1/batch, as OpenAPI describes it: a body and an answer of lines, each a JSON value of its own."""

from typing import Any, Final

from fencepost.server.http.openapi.answers import errors
from fencepost.server.http.openapi.headers import headers
from fencepost.server.http.openapi.shared_parameters import PARAMETERS, TOKEN_PATTERN, parameter

Part = dict[str, Any]

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
