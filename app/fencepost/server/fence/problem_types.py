"""Every kind of error that a caller can meet, an entry each. The pages under /problems/, docs/problems.md and OpenAPI's
examples are made from the entries. A code is never reused.
"""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Final, Required, TypedDict

from fencepost.server.fence.token import Token


class Example(TypedDict, total=False):
    """What an error of a type says beside what its type does. `Problem` has fields of the same names."""

    detail: Required[str]
    hint: str
    details: str
    code: str
    resource: str
    presented_token: Token
    current_token: int
    retry_after: int
    extra: dict[str, object]


@dataclass(frozen=True, slots=True, eq=False)
class ProblemType:
    """One kind of error. `meaning` and `action` are the text of its page under /problems/, which shows the example;
    `on_call`, where it is not empty, is for who operates the gateway.
    """

    code: str | None
    status: int
    slug: str
    title: str
    meaning: str
    action: str
    _: KW_ONLY
    example: Example
    retryable: bool = False
    retry_after: int | None = None
    """Seconds that a caller is asked to wait, where an error of the type has no other number."""
    hint: str | None = None
    """The hint of an error that has none of its own."""
    on_call: str = ""
    of_caller: bool = False
    """Whether a request gets it for who its caller is: then it is counted by caller."""
    sqlstates: Mapping[str, int] = field(default_factory=dict)
    """The SQLSTATEs of PostgreSQL, or classes of them, that become errors of the type, and with which status."""
    openapi: tuple[str, ...] = ()
    """The shared answers of the OpenAPI document (http/openapi_answers.py) that show the example."""


_RESOURCE: Final = "orders/order-123"

# Code, status, slug and title of a type are its first line.
# fmt: off

STALE_TOKEN: Final = ProblemType(
    "FP001", 409, "stale-token", "The token is older than the last one accepted",
    meaning="A holder with a newer grant of the lock has written (or claimed) this resource since your token was "
    "handed out. Your lock has expired or was taken over, whatever your process believes. Nothing was changed.",
    action="Stop. Do not retry with this token: it can never be accepted again. Acquire the lock anew, claim or read "
    "the resource under the new token, and decide again from what you find.",
    hint="Do not retry. Acquire the lock again, claim or read the resource, and decide anew.",
    on_call="No incident by itself: nothing was written, and a few an hour are normal where locks expire. "
    "`presented_by` and `superseded_by`, or `fencepost status`, say who was refused and who has the lock. When to look "
    "into it: docs/runbook.md.",
    openapi=("Refused", "RefusedRows"),
    example=Example(
        detail="Token 33 is stale for orders/order-123: token 34 has been accepted since.",
        resource=_RESOURCE, presented_token=Token(33), current_token=34,
    ),
)
SPENT_TOKEN: Final = ProblemType(
    "FP002", 409, "spent-token", "The token was already used on this resource",
    meaning="Under the rule strict each token writes a resource once, so that the mark is evidence: a mark equal to "
    "your token means that an operation with this very token was accepted here before. If you are repeating a request "
    "whose answer you lost, it landed. Nothing was changed now.",
    action="For another write under the same lock, mint another token. If your lock service gives one token per grant, "
    "protect the table with --rule epoch.",
    openapi=("Refused",),
    example=Example(
        detail="Token 34 was already used on orders/order-123.",
        hint="Under the rule strict each token writes a resource once: mint another, or protect the table with --rule "
        "epoch if the lock service gives one token per grant.",
        resource=_RESOURCE, presented_token=Token(34), current_token=34,
    ),
)
TOKEN_REQUIRED: Final = ProblemType(
    "FP003", 428, "token-required", "A write to a protected table needs a fencing token",
    meaning="The table is protected, and the request carried no X-Fence-Token; or the table takes sealed tokens only, "
    "and the token has no seal.",
    action="Send the token that your lock service gave with the grant: X-Fence-Token: TOKEN. For a sealed table: what "
    "the gateway gave as sealed_token, whole.",
    openapi=("TokenRequired",),
    example=Example(detail="orders is protected: a write needs the header X-Fence-Token.", resource=_RESOURCE),
)
MALFORMED_TOKEN: Final = ProblemType(
    "FP004", 400, "malformed-token", "The fencing token cannot be read",
    meaning="A token is one header with a positive decimal integer of at most 9223372036854775807, in ASCII digits; "
    "and, where it is sealed, a dot and its seal.",
    action="Send exactly one X-Fence-Token header, with digits only, or with a sealed token whole and unchanged.",
    openapi=("BadRequest",),
    example=Example(detail="X-Fence-Token: a token is one positive decimal integer: ASCII digits only, no sign, space, "
    "comma or leading zero"),
)
UNPROTECTED_TABLE: Final = ProblemType(
    "FP005", 403, "unprotected-table", "The table is not protected",
    meaning="Fencepost writes only to protected tables: its purpose is to prevent unchecked writes.",
    action="Run `fencepost protect TABLE`, or write to the table without Fencepost. Views are read only.",
    openapi=("Forbidden",),
    example=Example(detail="audit_log is not protected.", hint="fencepost protect audit_log"),
)
ROW_NOT_FOUND: Final = ProblemType(
    "FP006", 404, "row-not-found", "There is no such row",
    meaning="No row with this key exists, or row security hides it from the gateway. Nothing was changed.",
    action="Check the key. PUT or POST creates a row.",
    openapi=("NoRow",),
    example=Example(detail="There is no row orders/order-9.", resource="orders/order-9"),
)
ROW_CHANGED: Final = ProblemType(
    "FP049", 412, "row-changed", "The row is not the one that If-Match names",
    meaning="The write carried If-Match, and the row's mark is none of those that it names: the row was written, or "
    "claimed, since the caller has read it. Or there is no such row. The token was good. Nothing was changed, and the "
    "token is not spent.",
    action="Read the row anew, decide again from what it has now, and send its ETag. The same token may be used.",
    hint="Read the row, decide anew, and send its ETag.",
    openapi=("RowChanged",),
    example=Example(
        detail="If-Match: the write is for orders/order-123 with the mark 34, and its mark is 35.",
        resource=_RESOURCE, presented_token=Token(36), current_token=35,
    ),
)
UNKNOWN_TABLE: Final = ProblemType(
    "FP007", 404, "unknown-table", "There is no such table",
    meaning="The database has no table or view of this name that the gateway serves. Tables outside the schema public "
    "are named schema.table; a partition is reached through its parent.",
    action="See / or /openapi.json for the names.",
    openapi=("NoRow", "NoTable"),
    example=Example(detail="There is no table order."),
)
WRONG_TOKEN_SOURCE: Final = ProblemType(
    "FP008", 409, "wrong-token-source", "The token comes from another source than the resource's mark",
    meaning="Tokens of different sources cannot be compared. A lease was to claim a resource whose mark is above a "
    "token that was drawn this moment: another source hands out tokens for it. Nothing was granted, nothing was "
    "changed.",
    action="Use one token source per table. `fencepost protect TABLE --source builtin` pins it and moves the built-in "
    "tokens past the marks that are there.",
    example=Example(
        detail="orders/order-123 has the mark 9000, and token 41 was only drawn this moment: another source hands out "
        "tokens for orders.",
        resource=_RESOURCE, current_token=9000,
    ),
)
OUTCOME_UNKNOWN: Final = ProblemType(
    "FP009", 503, "outcome-unknown", "It is not known whether the write landed",
    meaning="The connection to PostgreSQL broke after the write was sent and before its answer came. It may have been "
    "committed, or may still be.",
    action="Repeat the same request with the same Idempotency-Key, if it had one: it is answered, or done, once. "
    "Without: ask GET /v1/fences?resource=… . A mark below your token means that it has not landed so far. Under the "
    "rule strict a mark equal to it means that a write with this token has. The member known has what the gateway "
    "could find out, or null: then the marks do not show it, and the hint says how to look.",
    retryable=True, retry_after=1, openapi=("Unavailable",),
    example=Example(
        detail="The connection to PostgreSQL broke after the write was sent. It may have been committed.",
        hint="Ask GET /v1/fences?resource=orders/order-123.",
        resource=_RESOURCE, presented_token=Token(34),
        extra={"known": {
            "resource": _RESOURCE, "mark": "34",
            "meaning": "A write with this token was accepted. If it was used for this request only, the request "
            "landed.",
        }},
    ),
)
DATABASE_UNAVAILABLE: Final = ProblemType(
    "FP010", 503, "database-unavailable", "The database cannot be reached, or is overloaded",
    meaning="No connection could be had in time, or the schema is not ready. Nothing was changed.",
    action="Try again after the seconds in Retry-After.",
    sqlstates={"08": 503},  # of a statement: a foreign server that a trigger writes to
    retryable=True, retry_after=1, openapi=("Unavailable",),
    example=Example(detail="No connection to PostgreSQL could be had within 5 seconds."),
)
LOCK_HELD: Final = ProblemType(
    "FP011", 423, "lock-held", "The lock is held by another client",
    meaning="The lock is held, or others have been waiting for it longer. The members holder, held_since and "
    "held_until show by whom; a holder may renew, or release early. Nothing was granted.",
    action="Wait in the queue with wait_ms, or try again after the seconds in Retry-After.",
    retryable=True,
    example=Example(
        detail="worker-a@host-1 has held nightly-report since 2026-11-20T02:00:00.000000+00:00.",
        retry_after=28,
        extra={
            "lock": "nightly-report", "holder": "worker-a@host-1", "lease_id": "40",
            "held_since": "2026-11-20T02:00:00.000000+00:00", "held_until": "2026-11-20T02:00:30.000000+00:00",
            "waiting": 0,
        },
    ),
)
LEASE_LOST: Final = ProblemType(
    "FP012", 410, "lease-lost", "The lease is not held any more",
    meaning="Its time ran out before it was renewed, or it was released, or the id or secret is not that of a live "
    "lease. Another client may hold the lock now. It cannot be renewed, and it mints no more tokens.",
    action="Stop working under this lease. Acquire the lock anew, claim or read what it covers, and decide again.",
    example=Example(
        detail="Lease 40 of nightly-report expired at 2026-11-20T02:00:30.000000+00:00.",
        extra={"lease_id": "40", "lock": "nightly-report", "ended_at": "2026-11-20T02:00:30.000000+00:00"},
    ),
)
KEY_IN_FLIGHT: Final = ProblemType(
    "FP013", 409, "key-in-flight", "A request with this Idempotency-Key is being worked on",
    meaning="Another request with the same Idempotency-Key has begun and has not ended. Nothing was done for this one.",
    action="Repeat it after Retry-After: it gets the other's answer if that one lands, and is done if not.",
    retryable=True, retry_after=1, openapi=("Refused", "RefusedRows"),
    example=Example(detail="Another PATCH of orders/order-123 with the same key has not ended yet."),
)
EARLIER_LINE_FIRST: Final = ProblemType(
    "FP047", 503, "earlier-line-first", "An earlier line of the batch is to be sent again first",
    meaning="An earlier line of the batch, on the same row or scope or under the same Idempotency-Key, was not "
    "decided: its verdict says to send it again. It would take effect after this one, so this one was not done.",
    action="Send both lines again, in their order.",
    retryable=True, retry_after=1,
    example=Example(
        detail="Line 17 is to be sent again, and concerns the same row or key: this line was not done.",
        hint="Send line 17 again, and then this one.",
    ),
)
KEY_REUSED: Final = ProblemType(
    "FP014", 422, "key-reused", "The Idempotency-Key was used for another request",
    meaning="A request with this Idempotency-Key has landed, and it was another one: another method, table, key, query "
    "or body. Nothing was done.",
    action="Every write has a key of its own; only a repetition of it sends the key again, and it is the same request "
    "then.",
    hint="Every write has a key of its own.",
    openapi=("KeyReused",),
    example=Example(detail="This Idempotency-Key was used for another request."),
)
SOURCE_QUARANTINED: Final = ProblemType(
    "FP015", 503, "source-quarantined", "Tokens might repeat, so none are taken",
    meaning="The gateway is connected to another database than the one that was recorded: a standby was promoted, a "
    "backup or a dump restored, a clone put in its place, a former primary came back. Or to one of two copies that "
    "went on by themselves, and it has met the other. Writes that were acknowledged, marks and tokens may be missing "
    "there, so that an old token could pass as a new one. Reads go on; grants and fenced writes wait. Nothing was "
    "changed. The members found and known show which databases these are, met what the gateway was connected to "
    "before. Or a lock service has handed out a number that is not above those before, after a restored backup, for "
    "example: then nothing is acquired or minted there.",
    action="An operator decides: make sure that no other primary is alive, then run `fencepost generation raise "
    "--reason …` on the database that shall go on; or `fencepost source raise NAME --reason …` for a lock service. "
    "Older tokens and leases are void then; the gateway needs no restart.",
    hint="When no other primary is alive: `fencepost generation raise --reason …` on the database to use, with --above "
    "if the detail asks for it.",
    retryable=True, retry_after=10, openapi=("Unavailable",),
    example=Example(
        detail="This PostgreSQL is system 7412345678901234567 on timeline 2, and generation 0 was raised on system "
        "7412345678901234567, timeline 1: a standby was promoted, or a backup restored, and writes that were "
        "acknowledged, their marks and tokens may be missing here.",
        extra={
            "found": {
                "system_identifier": "7412345678901234567", "timeline": 2, "database_oid": "16384",
                "relation_oid": "16611",
            },
            "known": {
                "generation": "0", "identity": "5f0c1f6e-6d1d-4b52-9a55-0f5b2a3c8e11",
                "system_identifier": "7412345678901234567", "timeline": 1, "database_oid": "16384",
                "relation_oid": "16611",
            },
        },
    ),
)
BAD_REQUEST: Final = ProblemType(
    "FP016", 400, "bad-request", "The request cannot be understood",
    meaning="The path, the query, a header or the body is not what this route takes; the detail names what and where. "
    "Nothing was changed.",
    action="Mend the request. /docs lists every route with its parameters and columns.",
    openapi=("BadRequest",),
    example=Example(detail="orders has no column colour.", hint="Its columns are order_id, status."),
)
BODY_TOO_LARGE: Final = ProblemType(
    "FP017", 413, "body-too-large", "The body is too large",
    meaning="The request body has more bytes, or the request touches more rows, than the gateway is set to take.",
    action="Send less at once, or raise FENCEPOST_MAX_BODY_BYTES or FENCEPOST_MAX_ROWS.",
    openapi=("TooLarge",),
    example=Example(detail="The body has more than 1048576 bytes."),
)
UNISSUED_TOKEN: Final = ProblemType(
    "FP018", 409, "unissued-token", "The token was never issued, or is above what the table takes",
    meaning="The table takes the tokens of one source only, and this source has not issued one this high. Or its "
    "source is external, and the token is above the highest that the table takes, or too far above the mark that it "
    "would raise (`fencepost protect --max-token`, `--max-jump`). Accepting it would lock all holders out until the "
    "source gets there. Nothing was changed.",
    action="Use the tokens that your lease gave: POST /v1/leases, or `fencepost lock`; of another lock service, the "
    "token as it came. Where an external service does count so far, `fencepost protect` raises the bound.",
    openapi=("Refused", "RefusedRows"),
    example=Example(
        detail="Token 9000000 for orders/order-123 was never issued: the built-in source has not counted so far.",
        hint="Tokens of this table come from leases: POST /v1/leases, or `fencepost lock`.",
        resource=_RESOURCE, presented_token=Token(9000000),
    ),
)
NO_ROUTE: Final = ProblemType(
    "FP019", 404, "no-such-route", "There is no such route",
    meaning="No route of the gateway has this path.",
    action="See /docs. There are no trailing-slash redirects.",
    example=Example(detail="No route has the path /v1/orders.", hint="Tables are under /v1/data/."),
)
METHOD_NOT_ALLOWED: Final = ProblemType(
    "FP020", 405, "method-not-allowed", "The route does not take this method",
    meaning="The path exists, and the header Allow lists what can be done with it.",
    action="Use a method that Allow lists.",
    example=Example(detail="/v1/claims does not take GET."),
)
NOT_ACCEPTABLE: Final = ProblemType(
    "FP021", 406, "not-acceptable", "The answer cannot have the form that was asked for",
    meaning="Accept asks for a form that the gateway does not have, or for one object where the answer is not one row.",
    action="Ask for application/json. application/vnd.pgrst.object+json needs a query that matches exactly one row.",
    openapi=("NotAcceptable",),
    example=Example(detail="The query matches 3 rows, and one object was asked for."),
)
UNSUPPORTED_MEDIA_TYPE: Final = ProblemType(
    "FP022", 415, "unsupported-media-type", "The body's media type is not JSON",
    meaning="Bodies are JSON.",
    action="Send Content-Type: application/json.",
    openapi=("NotJson",),
    example=Example(detail="The body is text/plain.", hint="Content-Type: application/json"),
)
INTERNAL_ERROR: Final = ProblemType(
    "FP023", 500, "internal-error", "The gateway failed",
    meaning="An error that is the gateway's own. Its log has the traceback under the request id of this answer.",
    action="Report it with the request id. A write may have landed: ask GET /v1/fences?resource=….",
    sqlstates={"XX": 500, "58": 500, "F0": 500},
    example=Example(detail="The gateway failed. Its log has the reason."),
)
SOURCE_UNAVAILABLE: Final = ProblemType(
    "FP024", 503, "source-unavailable", "The lock service cannot be asked",
    meaning="The lock was asked for, renewed or minted from at a lock service that does not answer. Writes under "
    "tokens that were granted before go on: they need the database only.",
    action="Try again after Retry-After. What the service may have granted without an answer expires by itself.",
    retryable=True, retry_after=1,
    example=Example(detail="etcd at etcd-1:2379 did not answer within 3 s.", extra={"source": "etcd"}),
)
SOURCE_FAILED: Final = ProblemType(
    "FP025", 502, "source-failed", "The lock service refused",
    meaning="The lock service answered, and would not do what was asked: something else has its place in the service, "
    "the gateway lacks a privilege there, or its numbers leave no room for the generation. Nothing was granted.",
    action="The detail names what is in the way. Trying again does not help before that is mended.",
    example=Example(
        detail="The key fencepost:lock:nightly-report in Redis is a list of another program, and no lock.",
        extra={"source": "redis"},
    ),
)

# The kinds of refusals that come from PostgreSQL itself. They have no code of their own: the SQLSTATE is the code.
CONSTRAINT_VIOLATION: Final = ProblemType(
    None, 409, "constraint-violation", "A constraint refused the write",
    meaning="The fence accepted the token, and a constraint of the table refused the data. The whole request was "
    "undone: the token is not spent. A duplicate key or a missing reference is 409, another constraint 400.",
    action="The members constraint and column name what refused; mend the data.",
    # PostgreSQL 18 raises 23001 where others raise 23503, ON DELETE RESTRICT.
    sqlstates={"23001": 409, "23503": 409, "23505": 409, "23P01": 409, "23": 400},
    openapi=("Refused", "RefusedRows"),
    example=Example(
        detail='duplicate key value violates unique constraint "orders_pkey"',
        details="Key (order_id)=(order-123) already exists.",
        code="23505", resource=_RESOURCE, presented_token=Token(35), extra={"constraint": "orders_pkey"},
    ),
)
INVALID_VALUE: Final = ProblemType(
    None, 400, "invalid-value", "A value does not fit its column",
    meaning="PostgreSQL could not take a value: wrong type, out of range, too long, or a generated column. Nothing "
    "changed.",
    action="The detail names the value, and the column where it is known.",
    sqlstates={"428C9": 400, "22": 400},
    openapi=("BadRequest",),
    example=Example(detail='invalid input syntax for type integer: "many"', code="22P02", extra={"column": "quantity"}),
)
PERMISSION_DENIED: Final = ProblemType(
    None, 403, "permission-denied", "The gateway's database role may not do this",
    meaning="PostgreSQL refused for lack of a privilege, or by a row security policy.",
    action="GRANT the privilege to the role of the caller, or, where it has none, to the role in "
    "FENCEPOST_DATABASE_URL. The status is 401 where the request has no credential: with one it may have the "
    "privilege.",
    sqlstates={"42501": 403},
    of_caller=True, openapi=("Forbidden", "Denied"),
    example=Example(detail="permission denied for table orders", code="42501"),
)
DATABASE_BUSY: Final = ProblemType(
    None, 503, "database-busy", "The database did not finish in time",
    meaning="The statement ran into a lock or time limit and was undone. Nothing was changed.",
    action="Try again. If it keeps happening, look for a long transaction that holds the row: in pg_stat_activity, "
    "and, if it was prepared and not ended, in pg_prepared_xacts.",
    sqlstates={"55P03": 503, "57014": 503, "40001": 503, "40P01": 503},
    retryable=True, retry_after=1, openapi=("Unavailable",),
    example=Example(detail="canceling statement due to lock timeout", code="55P03"),
)
DATABASE_REFUSED: Final = ProblemType(
    None, 400, "database-refused", "The database refused the statement",
    meaning="A trigger, a rule or PostgreSQL itself refused; the code is its SQLSTATE. Nothing was changed.",
    action="The detail is the database's own message.",
    sqlstates={"": 400},
    openapi=("BadRequest",),
    example=Example(detail="orders are closed for the year", code="P0001"),
)

# The errors of requests whose caller is not known, or may not ask for this.
AUTHENTICATION_REQUIRED: Final = ProblemType(
    "FP036", 401, "authentication-required", "The request does not say who sends it",
    meaning="The gateway serves known callers only, and the request has no `Authorization: Bearer …` header. Nothing "
    "was done.",
    action="Send a JWT or an API key: `Authorization: Bearer …`. The operator of the gateway hands them out.",
    of_caller=True, openapi=("Unauthenticated",),
    example=Example(
        detail="The request has no header Authorization.", hint="Authorization: Bearer …, with a JWT or an API key.",
    ),
)
INVALID_CREDENTIAL: Final = ProblemType(
    "FP037", 401, "invalid-credential", "The JWT or API key is not accepted",
    meaning="The JWT or the API key in the header Authorization is not one that the gateway accepts: it has ended, it "
    "is for another service, or no key of the gateway has signed it. The detail says which. Nothing was done.",
    action="Get a new one, and send the request again with it.",
    of_caller=True, openapi=("Unauthenticated",),
    example=Example(detail="The JWT is not accepted: it has expired."),
)
INSUFFICIENT_SCOPE: Final = ProblemType(
    "FP038", 403, "insufficient-scope", "The JWT or API key is not for this kind of request",
    meaning="A JWT's claim `scope`, or the API key, names what it may be used for: `read` (rows and fences), `write` "
    "(writes and claims), `lock` (leases, locks and elections). This request needs another. Nothing was done.",
    action="Use a JWT or an API key that names it.",
    of_caller=True, openapi=("OutOfScope", "Forbidden", "Denied"),
    example=Example(detail="This needs the scope write; the JWT or API key has read.", extra={"scope": "write"}),
)
VERIFICATION_UNAVAILABLE: Final = ProblemType(
    "FP039", 503, "verification-unavailable", "The JWT or API key cannot be checked for now",
    meaning="What the gateway needs to check it cannot be had: the set of public keys (JWKS) was not fetched for too "
    "long, or the database cannot be asked for API keys. Nothing was done.",
    action="Try again after the seconds in Retry-After. The gateway's log says what it cannot reach.",
    retryable=True, retry_after=10, of_caller=True, openapi=("Unverified",),
    example=Example(detail="The set of keys that verifies JWTs (JWKS) was not fetched for too long."),
)

# The errors of requests whose caller has a role of the database.
ROLE_NOT_ALLOWED: Final = ProblemType(
    "FP043", 403, "role-not-allowed", "The gateway does not act as this role",
    meaning="The caller's token or key names a role of the database, and the gateway does not act as that one: it is "
    "not among the roles that the operator lists, its login may not take it, or it is one that no caller gets, such as "
    "a superuser or the owner of the schema fencepost. Nothing was sent to the database as that role.",
    action="Use a token with a role that is allowed. An operator allows one by FENCEPOST_ROLES, where that is set, and "
    "by GRANT role TO the gateway's login.",
    of_caller=True, openapi=("Forbidden", "Denied"),
    example=Example(detail="The role web is not one that this gateway acts as: the gateway's login may not act as it "
    "(GRANT web TO fencepost)."),
)
QUEUED_AS_ROLE: Final = ProblemType(
    "FP044", 403, "queued-as-role", "A write as a role cannot be queued",
    meaning="The write would be put into a queue, and the caller's token or key names a role of the database. A "
    "message says whose write it is, signed by the gateway, and this gateway has no keys to sign with. Without that "
    "the write would be applied as the consumer's own login, which may do more than the role. Nothing was written.",
    action="An operator gives gateways and consumers keys: FENCEPOST_SEAL_KEYS_FILE. Or send the write without Prefer: "
    "respond-async; a table whose tokens are the positions of a queue takes no others.",
    hint="FENCEPOST_SEAL_KEYS_FILE (--seal-keys-file) names the file with them, at gateways and consumers.",
    of_caller=True, openapi=("Forbidden",),
    example=Example(detail="orders: writes of the role web cannot be queued here: this gateway has no keys to sign "
    "whose they are."),
)

# Kinds of errors that sealed tokens can meet.
SEAL_REFUSED: Final = ProblemType(
    "FP041", 403, "seal-refused", "The token's seal does not allow this write",
    meaning="The token has a seal, and it is not one of this gateway's, or is bound to other resources, or is of "
    "another source than the table takes, or has ended. The member reason says which: unknown-key, wrong-seal, "
    "other-resource, other-source, ended. Nothing was changed.",
    action="Send the token as it came with the lease, and only for what the lease is bound to: the resources that its "
    "locks are named after, that it claims, and that the request for it listed in writes. Where a seal has ended, or "
    "its key was taken away, mint new tokens: POST /v1/leases/{lease_id}/tokens.",
    of_caller=True, openapi=("Forbidden",),
    example=Example(
        detail="The seal of token 34 is not for orders/order-123: lease 40 is bound to other resources.",
        hint='Acquire a lock of that name, or claim it, or name it in "writes": ["table/*"], with the lease.',
        resource=_RESOURCE, presented_token=Token(34), extra={"reason": "other-resource"},
    ),
)
NO_SEAL_KEYS: Final = ProblemType(
    "FP042", 503, "no-seal-keys", "The gateway has no keys for seals",
    meaning="The table takes sealed tokens only, and this gateway has no keys, so that it can neither make a seal nor "
    "verify one. Nothing was changed.",
    action="An operator gives the gateway the keys that the others have: FENCEPOST_SEAL_KEYS_FILE. `fencepost doctor` "
    "says what is wrong with them.",
    hint="FENCEPOST_SEAL_KEYS_FILE names the file with them; all gateways of a database have the same.",
    retryable=True, retry_after=10, openapi=("Unavailable",),
    example=Example(detail="orders takes sealed tokens only, and this gateway has no keys by which to verify one."),
)

# The errors of callers that are known, and ask for more than is theirs.
LOCK_FORBIDDEN: Final = ProblemType(
    "FP045", 403, "lock-forbidden", "The lock is not for this caller",
    meaning="The caller's token or key has patterns of the locks and elections that it may see and take, and the name "
    "fits none of them. Nothing was done.",
    action="Use a lock whose name fits one of the patterns. They are in the claim `locks` of the token, or belong to "
    "the key.",
    of_caller=True,
    example=Example(
        detail="The lock 'payments/7' is not for jwt:https://login.example|worker-a.",
        hint="The caller's token or key has these patterns: orders/*.",
        extra={"lock": "payments/7"},
    ),
)
RATE_LIMITED: Final = ProblemType(
    "FP046", 429, "rate-limited", "There were too many requests",
    meaning="The caller has sent more requests than one may send in this time, or the address more tokens that are not "
    "accepted. Nothing was done.",
    action="Wait for the seconds in Retry-After. The fields RateLimit-Policy and RateLimit of each answer show how "
    "many may be sent and how many are left. The bounds are FENCEPOST_RATE_LIMIT and FENCEPOST_FAILED_RATE_LIMIT.",
    retryable=True, of_caller=True, openapi=("TooManyRequests",),
    example=Example(
        detail="The caller jwt:https://login.example|worker-a has sent more requests than 100 per 1 second, which is "
        "what one may send to a process of this gateway.",
        retry_after=1,
    ),
)

# The errors of requests that are refused before anything looks at what they ask for.
WRONG_HOST: Final = ProblemType(
    "FP031", 421, "wrong-host", "The gateway does not serve this host",
    meaning="The header Host names another host than those that the gateway serves. A page of another site can reach a "
    "gateway in a private network under a name of its own (DNS rebinding), and Host has that name then. Nothing was "
    "done.",
    action="Use a name that is served: localhost, 127.0.0.1 and [::1] are. Others are for the operator to allow: "
    "FENCEPOST_ALLOWED_HOSTS.",
    example=Example(detail="Host: shop.example is not served.", hint="FENCEPOST_ALLOWED_HOSTS=shop.example allows it."),
)
CROSS_SITE: Final = ProblemType(
    "FP032", 403, "cross-site", "The request comes from a page of another site",
    meaning="The browser says, by Sec-Fetch-Site or Origin, that a page of another site sent the request. Such pages "
    "may read only what the gateway allows them to, and may change nothing. Nothing was done.",
    action="A page that may use the gateway is allowed by its operator: FENCEPOST_CORS_ORIGINS. A program that is no "
    "browser sends neither header.",
    example=Example(detail="Origin: https://elsewhere.example is another site than shop.example."),
)
REQUEST_TOO_SLOW: Final = ProblemType(
    "FP033", 408, "request-too-slow", "The request did not arrive in time",
    meaning="The head of a request is to be there ten seconds after its first byte, and the body within a minute and "
    "at one kilobyte a second. This one was not, or other clients needed its connection. Nothing was done.",
    action="Send it again, on a new connection.",
    retryable=True,
    example=Example(detail="After 10 seconds the request's head was not there.", retry_after=1),
)
HEAD_TOO_LARGE: Final = ProblemType(
    "FP034", 431, "head-too-large", "The request's head is too large",
    meaning="The path, the query and the headers of a request have more than 65536 bytes together. Nothing was done.",
    action="Name fewer columns or filters. For many rows: a filter like ?id=in.(…) in several requests.",
    example=Example(detail="The request's head has more than 65536 bytes."),
)
TOO_MANY_CONNECTIONS: Final = ProblemType(
    "FP035", 503, "too-many-connections", "There are too many connections",
    meaning="The gateway, or this address, has as many connections as it may have, and each has a request under way. "
    "Nothing was done.",
    action="Use connections again (keep-alive), and a pool of them. Try again after the seconds in Retry-After. The "
    "bounds are FENCEPOST_MAX_CONNECTIONS and FENCEPOST_MAX_CONNECTIONS_PER_ADDRESS.",
    hint="FENCEPOST_MAX_CONNECTIONS and FENCEPOST_MAX_CONNECTIONS_PER_ADDRESS set how many there may be.",
    retryable=True, retry_after=1,
    example=Example(detail="10.0.0.7 has 1024 connections, and each has a request under way."),
)

# Kinds of errors that queued writes can meet.
QUEUE_UNAVAILABLE: Final = ProblemType(
    "FP026", 503, "queue-unavailable", "The queue cannot be reached",
    meaning="The write was to be queued, and its log could not be reached in time, or too few of its replicas could. "
    "The write is not in the queue, and will not be. Or it was asked what became of a write, and only the log knows.",
    action="Try again after the seconds in Retry-After.",
    retryable=True, retry_after=1, openapi=("Unavailable",),
    example=Example(
        detail="kafka:orders: no broker of kafka-1:9092 answered within 5 s.", extra={"queue": "kafka:orders"},
    ),
)
SUBMISSION_UNKNOWN: Final = ProblemType(
    "FP027", 503, "submission-unknown", "It is not known whether the write was queued",
    meaning="The log did not acknowledge the write in time. It may be in the queue, and then it will be applied.",
    action="Repeat the same request with the same Idempotency-Key, if it had one: if both are in the queue, at most "
    "one of them is applied. Without: read the row before you submit the write again.",
    retryable=True, retry_after=1, openapi=("Unavailable",),
    example=Example(
        detail="It is not known whether the write is in the queue kafka:orders: no acknowledgement came within 5 s.",
        hint="Repeat the request with the same Idempotency-Key: the write is done once.",
        resource=_RESOURCE, extra={"queue": "kafka:orders"},
    ),
)
QUEUE_FAILED: Final = ProblemType(
    "FP028", 502, "queue-failed", "The queue refused the write",
    meaning="The log answered, and would not take the write: it is larger than the log's settings allow, the gateway "
    "lacks a privilege there, or the log is gone. The write is not in the queue.",
    action="The detail names what is in the way. Trying again does not help before that is mended.",
    openapi=("QueueFailed",),
    example=Example(
        detail="kafka:orders: the message is larger than the topic's max.message.bytes.",
        resource=_RESOURCE, extra={"queue": "kafka:orders"},
    ),
)
WRITE_NOT_FOUND: Final = ProblemType(
    "FP029", 404, "write-not-found", "There is no such queued write, or its result was forgotten",
    meaning="No write with this id is in the queue, and there is no result of one. Either there never was one, or it "
    "was decided so long ago that its result was forgotten: the detail says what is known.",
    action="Take the id from the answer 202, as it is. Results are kept for as long as FENCEPOST_IDEMPOTENCY_RETENTION "
    "sets: ask in that time. The row itself shows what it is now.",
    example=Example(
        detail="There is no result of postgres:default.3.17.5d0f6c2b9a8e4471: no write has had this place in the "
        "queue.",
        extra={"queue": "postgres:default"},
    ),
)
RESOURCE_STOPPED: Final = ProblemType(
    "FP030", 409, "resource-stopped", "An earlier queued write of the resource is a dead letter",
    meaning="The consumer runs with --stop-resources: when a queued write of a resource becomes a dead letter, those "
    "after it are not applied, but become dead letters as well, until an operator retries or drops the first. This is "
    "what such a write came to. Nothing was changed.",
    action="The detail names the first. `fencepost dead show` says what is wrong with it, and `fencepost dead retry "
    "QUEUE --resource RESOURCE` appends it and all that wait behind it, in their order.",
    example=Example(
        detail="orders/order-123 is stopped, since an earlier write of it is a dead letter: "
        "postgres:default.3.16.0c61d29e5ab87f34.",
        hint="`fencepost dead retry` or `fencepost dead drop` lets its later writes go on.",
        resource=_RESOURCE,
    ),
)
TOO_MANY_LETTERS: Final = ProblemType(
    "FP048", 503, "too-many-letters", "Too many queued writes have failed",
    meaning="The write was to be queued. Writes that were queued before and failed are kept as dead letters until an "
    "operator retries or drops them, and those of the caller, or of all callers, have as many bytes as the operator "
    "allows. The write is not in the queue.",
    action="An operator looks at the letters: `fencepost dead list QUEUE` says why the writes have failed. Then the "
    "same request is taken again.",
    hint="`fencepost dead retry` or `fencepost dead drop` makes room. FENCEPOST_MAX_LETTER_BYTES sets the most.",
    retryable=True, retry_after=10, openapi=("Unavailable",),
    example=Example(
        detail="kafka:orders: too many dead letters wait for an operator: those of this caller have 268436480 bytes, "
        "of 268435456 that one caller's may have.",
        extra={"queue": "kafka:orders"},
    ),
)

# fmt: on

PROBLEM_TYPES: Final[tuple[ProblemType, ...]] = tuple(
    sorted(
        (kind for kind in list(globals().values()) if isinstance(kind, ProblemType)),
        key=lambda kind: kind.code or "without",
    )
)
"""All of them, in the order of their codes; those without one last."""

_OF_SQLSTATES: Final = {state: (kind, status) for kind in PROBLEM_TYPES for state, status in kind.sqlstates.items()}


def of_sqlstate(sqlstate: str) -> tuple[ProblemType, int]:
    """Give the type and the status of the error that an SQLSTATE becomes: by itself, by its class, or as any other."""
    return _OF_SQLSTATES.get(sqlstate) or _OF_SQLSTATES.get(sqlstate[:2]) or _OF_SQLSTATES[""]
