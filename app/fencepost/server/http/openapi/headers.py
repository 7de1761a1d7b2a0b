"""Headers that answers share."""

from typing import Final

from fencepost.server.http.openapi.answers import Part

_TEXT: Final[Part] = {"type": "string"}

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
