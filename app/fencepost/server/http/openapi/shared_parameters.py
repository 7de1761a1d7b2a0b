"""The parameters that every table's routes share."""

from typing import Any, Final

from fencepost.server.fence.seal import LONGEST

Part = dict[str, Any]

TOKEN_PATTERN: Final = (
    r"^[1-9][0-9]{0,18}"  # noqa: S105 - what one looks like
    r"(\.[A-Za-z0-9_-]{1,32}\.[A-Za-z0-9_-]{2,}\.[A-Za-z0-9_-]{43})?$"
)
"""A number, and the seal that it may have."""
IDEMPOTENCY_KEY: Final = (
    "A name of your own for this write, new for each: for example a UUID, quoted or bare. Repeat the request with "
    "it when its answer was lost: it is done once, and answered as it was then."
)
IDEMPOTENCY_KEY_PATTERN: Final = r'^([!#-~]{1,255}|"([ !#-\[\]-~]|\\["\\]){1,255}")$'

PARAMETERS: Final[dict[str, Part]] = {
    "FenceToken": {
        "name": "X-Fence-Token",
        "in": "header",
        "required": True,
        "description": "The fencing token that your lock service gave with the grant: a positive integer "
        "of at most 9223372036854775807. Newer grants have larger ones. Where it is sealed: with its seal, whole, as "
        "`sealed_token` of the lease has it.",
        "schema": {"type": "string", "pattern": TOKEN_PATTERN, "maxLength": LONGEST},
        "example": "34",
    },
    "IdempotencyKey": {
        "name": "Idempotency-Key",
        "in": "header",
        "description": IDEMPOTENCY_KEY,
        # No example: "Try it out" would send it with every write, and be answered from the first.
        "schema": {"type": "string", "pattern": IDEMPOTENCY_KEY_PATTERN},
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
