"""How OpenAPI describes the routes of leases and locks: what each takes and answers, as arguments of its route."""

from typing import Any, Final

from fastapi.responses import Response
from pydantic import TypeAdapter

from fencepost.server import wire
from fencepost.server.http.openapi.problems import problems
from fencepost.server.http.requests.leases import MOST_LISTED

# The endpoints take the bare request, and document their parameters here: FastAPI's reading of one header and one path
# parameter would cost as much as everything else that the gateway does for a lease.
_SECRET: Final[dict[str, Any]] = {
    "name": "X-Lease-Secret",
    "in": "header",
    "description": "The lease's secret: 22 to 256 visible ASCII characters with 128 random bits or more.",
    "schema": {"type": "string", "minLength": 22, "maxLength": 256, "pattern": "^[!-~]*$"},
}
_ID: Final[dict[str, Any]] = {
    "name": "lease_id",
    "in": "path",
    "required": True,
    "description": "The lease's id.",
    "schema": {"type": "string"},
    "example": "41",
}
_REQUIRED: Final = {**_SECRET, "required": True}
_LISTING: Final[list[dict[str, Any]]] = [
    {
        "name": "source",
        "in": "query",
        "description": "The token source whose locks to list; builtin without it.",
        "schema": {"type": "string"},
    },
    {"name": "name", "in": "query", "description": "Only this lock.", "schema": {"type": "string"}},
    {"name": "after", "in": "query", "description": "Only names after this one.", "schema": {"type": "string"}},
    {
        "name": "limit",
        "in": "query",
        "description": "At most so many.",
        "schema": {"type": "integer", "minimum": 1, "maximum": MOST_LISTED},
    },
]

_BAD = (400, "The body or the secret cannot be read.")
_NO_BODY = ((413, "The body is too large."), (415, "The body is not JSON."))
_LOST = (410, "The lease is lost, unknown, or another client's.")
_AWAY = (503, "The database or the lock service cannot be asked, or whether it was done is not known.")
_FAILED = (502, "The lock service answered, and would not do it.")


def _takes(
    *parameters: dict[str, Any], body: Any = None, example: dict[str, object] | None = None, required: bool = False
) -> dict[str, Any]:
    taken: dict[str, Any] = {"parameters": list(parameters)}
    if body is not None:
        schema = {**TypeAdapter(body).json_schema(), "additionalProperties": False}
        content = {"application/json": {"schema": schema, "example": example}}
        taken["requestBody"] = {"required": required, "content": content}
    return taken


ACQUIRE: Final[dict[str, Any]] = {
    "status_code": 201,
    "response_model": wire.LeaseAnswer,
    "summary": "Acquire a lock, or several, with a lease and its tokens",
    "openapi_extra": _takes(
        _SECRET,
        body=wire.LeaseRequest,
        example={"lock": "accounts/account-123", "owner": "worker-a", "ttl_ms": 30000},
        required=True,
    ),
    "responses": problems(
        _BAD,
        (403, "A claimed table is not protected."),
        (404, "A claimed table does not exist."),
        (409, "A claimed resource takes the tokens of another source."),
        *_NO_BODY,
        (423, "Another client holds a lock, or has been waiting for it longer."),
        _FAILED,
        _AWAY,
    )
    | {200: {"model": wire.LeaseAnswer, "description": "The same secret again: the same lease."}},
}
WITHDRAW: Final[dict[str, Any]] = {
    "status_code": 204,
    "response_class": Response,
    "summary": "Withdraw an acquire",
    "openapi_extra": _takes(_REQUIRED),
    "responses": problems(_BAD, _FAILED, (503, "A request with this secret is under way, or the database is away.")),
}
LOOK: Final[dict[str, Any]] = {
    "response_model": wire.LeaseState,
    "summary": "Look at a lease",
    "openapi_extra": _takes(_ID),
    "responses": problems((400, "The request has parameters or headers that this route does not take."), _LOST, _AWAY),
}
RENEW: Final[dict[str, Any]] = {
    "response_model": wire.LeaseState,
    "summary": "Keep a lease alive",
    "openapi_extra": _takes(_ID, _REQUIRED, body=wire.RenewRequest, example={"ttl_ms": 30000}),
    "responses": problems(_BAD, _LOST, *_NO_BODY, _FAILED, _AWAY),
}
MINT: Final[dict[str, Any]] = {
    "response_model": wire.MintAnswer,
    "summary": "Mint more tokens under a lease",
    "openapi_extra": _takes(_ID, _REQUIRED, body=wire.MintRequest, example={"count": 10}),
    "responses": problems(_BAD, _LOST, *_NO_BODY, _FAILED, _AWAY),
}
RELEASE: Final[dict[str, Any]] = {
    "status_code": 204,
    "response_class": Response,
    "summary": "Release a lease",
    "openapi_extra": _takes(_ID, _REQUIRED),
    "responses": problems(_BAD, (410, "The lease is held, and the secret is not its holder's."), _FAILED, _AWAY),
}
LIST: Final[dict[str, Any]] = {
    "response_model": list[wire.LockAnswer],
    "summary": "Who holds locks, and who waits",
    "openapi_extra": _takes(*_LISTING),
    "responses": problems((400, "The query or a header cannot be read."), _AWAY),
}
