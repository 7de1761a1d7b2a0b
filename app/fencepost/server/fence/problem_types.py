"""Every kind of error that a caller can meet: its code, status and page.

Codes are added at the end and never reused. Those of queued writes are in queue_problem_types.py, those of requests
that are refused unseen in edge_problem_types.py, those about callers in identity_problem_types.py, those of sealed
tokens in seal_problem_types.py, refusals that come
from PostgreSQL itself in database_problem_types.py.
"""

from typing import Final

from fencepost.server.fence.access_problem_types import ACCESS_PROBLEM_TYPES
from fencepost.server.fence.database_problem_types import DATABASE_PROBLEM_TYPES
from fencepost.server.fence.edge_problem_types import EDGE_PROBLEM_TYPES
from fencepost.server.fence.identity_problem_types import IDENTITY_PROBLEM_TYPES
from fencepost.server.fence.problem_type import ProblemType
from fencepost.server.fence.queue_problem_types import QUEUE_PROBLEM_TYPES
from fencepost.server.fence.role_problem_types import ROLE_PROBLEM_TYPES
from fencepost.server.fence.seal_problem_types import SEAL_PROBLEM_TYPES

STALE_TOKEN: Final = ProblemType(
    "FP001",
    409,
    "stale-token",
    "The token is older than the last one accepted",
    "A holder with a newer grant of the lock has written (or claimed) this resource since your token was handed out. "
    "Your lock has expired or was taken over, whatever your process believes. Nothing was changed.",
    "Stop. Do not retry with this token: it can never be accepted again. Acquire the lock anew, claim or read the "
    "resource under the new token, and decide again from what you find.",
    on_call="No incident by itself: nothing was written, and a few an hour are normal where locks expire. "
    "`presented_by` and `superseded_by`, or `fencepost status`, say who was refused and who has the lock. When to look "
    "into it: docs/runbook.md.",
)
SPENT_TOKEN: Final = ProblemType(
    "FP002",
    409,
    "spent-token",
    "The token was already used on this resource",
    "Under the rule strict each token writes a resource once, so that the mark is evidence: a mark equal to your token "
    "means that an operation with this very token was accepted here before. If you are repeating a request whose "
    "answer you lost, it landed. Nothing was changed now.",
    "For another write under the same lock, mint another token. If your lock service gives one token per grant, "
    "protect the table with --rule epoch.",
)
TOKEN_REQUIRED: Final = ProblemType(
    "FP003",
    428,
    "token-required",
    "A write to a protected table needs a fencing token",
    "The table is protected, and the request carried no X-Fence-Token; or the table takes sealed tokens only, and the "
    "token has no seal.",
    "Send the token that your lock service gave with the grant: X-Fence-Token: TOKEN. For a sealed table: what the "
    "gateway gave as sealed_token, whole.",
)
MALFORMED_TOKEN: Final = ProblemType(
    "FP004",
    400,
    "malformed-token",
    "The fencing token cannot be read",
    "A token is one header with a positive decimal integer of at most 9223372036854775807, in ASCII digits; and, where "
    "it is sealed, a dot and its seal.",
    "Send exactly one X-Fence-Token header, with digits only, or with a sealed token whole and unchanged.",
)
UNPROTECTED_TABLE: Final = ProblemType(
    "FP005",
    403,
    "unprotected-table",
    "The table is not protected",
    "Fencepost writes only to protected tables: its purpose is to prevent unchecked writes.",
    "Run `fencepost protect TABLE`, or write to the table without Fencepost. Views are read only.",
)
ROW_NOT_FOUND: Final = ProblemType(
    "FP006",
    404,
    "row-not-found",
    "There is no such row",
    "No row with this key exists, or row security hides it from the gateway. Nothing was changed.",
    "Check the key. PUT or POST creates a row.",
)
UNKNOWN_TABLE: Final = ProblemType(
    "FP007",
    404,
    "unknown-table",
    "There is no such table",
    "The database has no table or view of this name that the gateway serves. Tables outside the schema public are "
    "named schema.table; a partition is reached through its parent.",
    "See / or /openapi.json for the names.",
)
WRONG_TOKEN_SOURCE: Final = ProblemType(
    "FP008",
    409,
    "wrong-token-source",
    "The token comes from another source than the resource's mark",
    "Tokens of different sources cannot be compared. A lease was to claim a resource whose mark is above a token that "
    "was drawn this moment: another source hands out tokens for it. Nothing was granted, nothing was changed.",
    "Use one token source per table. `fencepost protect TABLE --source builtin` pins it and moves the built-in tokens "
    "past the marks that are there.",
)
OUTCOME_UNKNOWN: Final = ProblemType(
    "FP009",
    503,
    "outcome-unknown",
    "It is not known whether the write landed",
    "The connection to PostgreSQL broke after the write was sent and before its answer came. It may have been "
    "committed, or may still be.",
    "Repeat the same request with the same Idempotency-Key, if it had one: it is answered, or done, once. Without: ask "
    "GET /v1/fences?resource=… . A mark below your token means that it has not landed so far. Under the rule strict a "
    "mark equal to it means that a write with this token has. The member known has what the gateway could find out, "
    "or null: then the marks do not show it, and the hint says how to look.",
    retryable=True,
)
DATABASE_UNAVAILABLE: Final = ProblemType(
    "FP010",
    503,
    "database-unavailable",
    "The database cannot be reached, or is overloaded",
    "No connection could be had in time, or the schema is not ready. Nothing was changed.",
    "Try again after the seconds in Retry-After.",
    retryable=True,
)
LOCK_HELD: Final = ProblemType(
    "FP011",
    423,
    "lock-held",
    "The lock is held by another client",
    "The lock is held, or others have been waiting for it longer. The members holder, held_since and held_until show "
    "by whom; a holder may renew, or release early. Nothing was granted.",
    "Wait in the queue with wait_ms, or try again after the seconds in Retry-After.",
    retryable=True,
)
LEASE_LOST: Final = ProblemType(
    "FP012",
    410,
    "lease-lost",
    "The lease is not held any more",
    "Its time ran out before it was renewed, or it was released, or the id or secret is not that of a live lease. "
    "Another client may hold the lock now. It cannot be renewed, and it mints no more tokens.",
    "Stop working under this lease. Acquire the lock anew, claim or read what it covers, and decide again.",
)
KEY_IN_FLIGHT: Final = ProblemType(
    "FP013",
    409,
    "key-in-flight",
    "A request with this Idempotency-Key is being worked on",
    "Another request with the same Idempotency-Key has begun and has not ended. Nothing was done for this one.",
    "Repeat it after Retry-After: it gets the other's answer if that one lands, and is done if not.",
    retryable=True,
)
EARLIER_LINE_FIRST: Final = ProblemType(
    "FP047",
    503,
    "earlier-line-first",
    "An earlier line of the batch is to be sent again first",
    "An earlier line of the batch, on the same row or scope or under the same Idempotency-Key, was not decided: its "
    "verdict says to send it again. It would take effect after this one, so this one was not done.",
    "Send both lines again, in their order.",
    retryable=True,
)
KEY_REUSED: Final = ProblemType(
    "FP014",
    422,
    "key-reused",
    "The Idempotency-Key was used for another request",
    "A request with this Idempotency-Key has landed, and it was another one: another method, table, key, query or "
    "body. Nothing was done.",
    "Every write has a key of its own; only a repetition of it sends the key again, and it is the same request then.",
)
SOURCE_QUARANTINED: Final = ProblemType(
    "FP015",
    503,
    "source-quarantined",
    "Tokens might repeat, so none are taken",
    "The gateway is connected to another database than the one that was recorded: a standby was promoted, a backup or "
    "a dump restored, a clone put in its place, a former primary came back. Or to one of two copies that went on by "
    "themselves, and it has met the other. Writes that were acknowledged, marks and tokens may be missing "
    "there, so that an old token could pass as a new one. Reads go on; grants and fenced writes wait. Nothing was "
    "changed. The members found and known show which databases these are, met what the gateway was "
    "connected to before. Or a lock service has handed out a number that is not above those before, "
    "after a restored backup, for example: then nothing is acquired or minted there.",
    "An operator decides: make sure that no other primary is alive, then run `fencepost generation raise --reason …` "
    "on the database that shall go on; or `fencepost source raise NAME --reason …` for a lock service. Older tokens "
    "and leases are void then; the gateway needs no restart.",
    retryable=True,
)
BAD_REQUEST: Final = ProblemType(
    "FP016",
    400,
    "bad-request",
    "The request cannot be understood",
    "The path, the query, a header or the body is not what this route takes; the detail names what and where. "
    "Nothing was changed.",
    "Mend the request. /docs lists every route with its parameters and columns.",
)
BODY_TOO_LARGE: Final = ProblemType(
    "FP017",
    413,
    "body-too-large",
    "The body is too large",
    "The request body has more bytes, or the request touches more rows, than the gateway is set to take.",
    "Send less at once, or raise FENCEPOST_MAX_BODY_BYTES or FENCEPOST_MAX_ROWS.",
)
UNISSUED_TOKEN: Final = ProblemType(
    "FP018",
    409,
    "unissued-token",
    "The token was never issued, or is above what the table takes",
    "The table takes the tokens of one source only, and this source has not issued one this high. Or its source is "
    "external, and the token is above the highest that the table takes, or too far above the mark that it would raise "
    "(`fencepost protect --max-token`, `--max-jump`). Accepting it would lock all holders out until the source gets "
    "there. Nothing was changed.",
    "Use the tokens that your lease gave: POST /v1/leases, or `fencepost lock`; of another lock service, the token as "
    "it came. Where an external service does count so far, `fencepost protect` raises the bound.",
)
NO_ROUTE: Final = ProblemType(
    "FP019",
    404,
    "no-such-route",
    "There is no such route",
    "No route of the gateway has this path.",
    "See /docs. There are no trailing-slash redirects.",
)
METHOD_NOT_ALLOWED: Final = ProblemType(
    "FP020",
    405,
    "method-not-allowed",
    "The route does not take this method",
    "The path exists, and the header Allow lists what can be done with it.",
    "Use a method that Allow lists.",
)
NOT_ACCEPTABLE: Final = ProblemType(
    "FP021",
    406,
    "not-acceptable",
    "The answer cannot have the form that was asked for",
    "Accept asks for a form that the gateway does not have, or for one object where the answer is not one row.",
    "Ask for application/json. application/vnd.pgrst.object+json needs a query that matches exactly one row.",
)
UNSUPPORTED_MEDIA_TYPE: Final = ProblemType(
    "FP022",
    415,
    "unsupported-media-type",
    "The body's media type is not JSON",
    "Bodies are JSON.",
    "Send Content-Type: application/json.",
)
INTERNAL_ERROR: Final = ProblemType(
    "FP023",
    500,
    "internal-error",
    "The gateway failed",
    "An error that is the gateway's own. Its log has the traceback under the request id of this answer.",
    "Report it with the request id. A write may have landed: ask GET /v1/fences?resource=….",
)

SOURCE_UNAVAILABLE: Final = ProblemType(
    "FP024",
    503,
    "source-unavailable",
    "The lock service cannot be asked",
    "The lock was asked for, renewed or minted from at a lock service that does not answer. Writes under tokens that "
    "were granted before go on: they need the database only.",
    "Try again after Retry-After. What the service may have granted without an answer expires by itself.",
    retryable=True,
)
SOURCE_FAILED: Final = ProblemType(
    "FP025",
    502,
    "source-failed",
    "The lock service refused",
    "The lock service answered, and would not do what was asked: something else has its place in the service, the "
    "gateway lacks a privilege there, or its numbers leave no room for the generation. Nothing was granted.",
    "The detail names what is in the way. Trying again does not help before that is mended.",
)


PROBLEM_TYPES: Final[tuple[ProblemType, ...]] = (
    *(kind for kind in list(globals().values()) if isinstance(kind, ProblemType)),
    *QUEUE_PROBLEM_TYPES,
    *EDGE_PROBLEM_TYPES,
    *IDENTITY_PROBLEM_TYPES,
    *SEAL_PROBLEM_TYPES,
    *ROLE_PROBLEM_TYPES,
    *ACCESS_PROBLEM_TYPES,
    *DATABASE_PROBLEM_TYPES,
)
"""All of them, in the order of their codes; those without one last."""
