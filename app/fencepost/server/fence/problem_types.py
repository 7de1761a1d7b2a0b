"""Every kind of error that a caller can meet: code, status and page. A code is added at the end, and never reused."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class ProblemType:
    """One kind of error. `meaning` and `action` are the text of its page under /problems/; `on_call`, where it is not
    empty, is for who operates the gateway.
    """

    code: str | None
    status: int
    slug: str
    title: str
    meaning: str
    action: str
    retryable: bool = False
    on_call: str = ""


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
ROW_CHANGED: Final = ProblemType(
    "FP049",
    412,
    "row-changed",
    "The row is not the one that If-Match names",
    "The write carried If-Match, and the row's mark is none of those that it names: the row was written, or claimed, "
    "since the caller has read it. Or there is no such row. The token was good. Nothing was changed, and the token is "
    "not spent.",
    "Read the row anew, decide again from what it has now, and send its ETag. The same token may be used.",
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

# The kinds of refusals that come from PostgreSQL itself. They have no code of their own: the SQLSTATE is the code.

CONSTRAINT_VIOLATION: Final = ProblemType(
    None,
    409,
    "constraint-violation",
    "A constraint refused the write",
    "The fence accepted the token, and a constraint of the table refused the data. The whole request was undone: the "
    "token is not spent. A duplicate key or a missing reference is 409, another constraint 400.",
    "The members constraint and column name what refused; mend the data.",
)
INVALID_VALUE: Final = ProblemType(
    None,
    400,
    "invalid-value",
    "A value does not fit its column",
    "PostgreSQL could not take a value: wrong type, out of range, too long, or a generated column. Nothing changed.",
    "The detail names the value, and the column where it is known.",
)
PERMISSION_DENIED: Final = ProblemType(
    None,
    403,
    "permission-denied",
    "The gateway's database role may not do this",
    "PostgreSQL refused for lack of a privilege, or by a row security policy.",
    "GRANT the privilege to the role of the caller, or, where it has none, to the role in FENCEPOST_DATABASE_URL. The "
    "status is 401 where the request has no credential: with one it may have the privilege.",
)
DATABASE_BUSY: Final = ProblemType(
    None,
    503,
    "database-busy",
    "The database did not finish in time",
    "The statement ran into a lock or time limit and was undone. Nothing was changed.",
    "Try again. If it keeps happening, look for a long transaction that holds the row: in pg_stat_activity, and, if it"
    " was prepared and not ended, in pg_prepared_xacts.",
    retryable=True,
)
DATABASE_REFUSED: Final = ProblemType(
    None,
    400,
    "database-refused",
    "The database refused the statement",
    "A trigger, a rule or PostgreSQL itself refused; the code is its SQLSTATE. Nothing was changed.",
    "The detail is the database's own message.",
)


# The errors of requests whose caller is not known, or may not ask for this.

AUTHENTICATION_REQUIRED: Final = ProblemType(
    "FP036",
    401,
    "authentication-required",
    "The request does not say who sends it",
    "The gateway serves known callers only, and the request has no `Authorization: Bearer …` header. Nothing was done.",
    "Send a JWT or an API key: `Authorization: Bearer …`. The operator of the gateway hands them out.",
)
INVALID_CREDENTIAL: Final = ProblemType(
    "FP037",
    401,
    "invalid-credential",
    "The JWT or API key is not accepted",
    "The JWT or the API key in the header Authorization is not one that the gateway accepts: it has ended, it is for "
    "another service, or no key of the gateway has signed it. The detail says which. Nothing was done.",
    "Get a new one, and send the request again with it.",
)
INSUFFICIENT_SCOPE: Final = ProblemType(
    "FP038",
    403,
    "insufficient-scope",
    "The JWT or API key is not for this kind of request",
    "A JWT's claim `scope`, or the API key, names what it may be used for: `read` (rows and fences), `write` (writes "
    "and claims), `lock` (leases, locks and elections). This request needs another. Nothing was done.",
    "Use a JWT or an API key that names it.",
)
VERIFICATION_UNAVAILABLE: Final = ProblemType(
    "FP039",
    503,
    "verification-unavailable",
    "The JWT or API key cannot be checked for now",
    "What the gateway needs to check it cannot be had: the set of public keys (JWKS) was not fetched for too long, or "
    "the database cannot be asked for API keys. Nothing was done.",
    "Try again after the seconds in Retry-After. The gateway's log says what it cannot reach.",
    retryable=True,
)


# The errors of requests whose caller has a role of the database.

ROLE_NOT_ALLOWED: Final = ProblemType(
    "FP043",
    403,
    "role-not-allowed",
    "The gateway does not act as this role",
    "The caller's token or key names a role of the database, and the gateway does not act as that one: it is not among "
    "the roles that the operator lists, its login may not take it, or it is one that no caller gets, such as a "
    "superuser or the owner of the schema fencepost. Nothing was sent to the database as that role.",
    "Use a token with a role that is allowed. An operator allows one by FENCEPOST_ROLES, where that is set, and by "
    "GRANT role TO the gateway's login.",
)
QUEUED_AS_ROLE: Final = ProblemType(
    "FP044",
    403,
    "queued-as-role",
    "A write as a role cannot be queued",
    "The write would be put into a queue, and the caller's token or key names a role of the database. A message says "
    "whose write it is, signed by the gateway, and this gateway has no keys to sign with. Without that the write would "
    "be applied as the consumer's own login, which may do more than the role. Nothing was written.",
    "An operator gives gateways and consumers keys: FENCEPOST_SEAL_KEYS_FILE. Or send the write without Prefer: "
    "respond-async; a table whose tokens are the positions of a queue takes no others.",
)


# Kinds of errors that sealed tokens can meet.

SEAL_REFUSED: Final = ProblemType(
    "FP041",
    403,
    "seal-refused",
    "The token's seal does not allow this write",
    "The token has a seal, and it is not one of this gateway's, or is bound to other resources, or is of another "
    "source than the table takes, or has ended. The member reason says which: unknown-key, wrong-seal, other-resource, "
    "other-source, ended. Nothing was changed.",
    "Send the token as it came with the lease, and only for what the lease is bound to: the resources that its locks "
    "are named after, that it claims, and that the request for it listed in writes. Where a seal has ended, or its key "
    "was taken away, mint new tokens: POST /v1/leases/{lease_id}/tokens.",
)
NO_SEAL_KEYS: Final = ProblemType(
    "FP042",
    503,
    "no-seal-keys",
    "The gateway has no keys for seals",
    "The table takes sealed tokens only, and this gateway has no keys, so that it can neither make a seal nor verify "
    "one. Nothing was changed.",
    "An operator gives the gateway the keys that the others have: FENCEPOST_SEAL_KEYS_FILE. `fencepost doctor` says "
    "what is wrong with them.",
    retryable=True,
)


# The errors of callers that are known, and ask for more than is theirs.

LOCK_FORBIDDEN: Final = ProblemType(
    "FP045",
    403,
    "lock-forbidden",
    "The lock is not for this caller",
    "The caller's token or key has patterns of the locks and elections that it may see and take, and the name fits "
    "none of them. Nothing was done.",
    "Use a lock whose name fits one of the patterns. They are in the claim `locks` of the token, or belong to the key.",
)

RATE_LIMITED: Final = ProblemType(
    "FP046",
    429,
    "rate-limited",
    "There were too many requests",
    "The caller has sent more requests than one may send in this time, or the address more tokens that are not "
    "accepted. Nothing was done.",
    "Wait for the seconds in Retry-After. The fields RateLimit-Policy and RateLimit of each answer show how many may "
    "be sent and how many are left. The bounds are FENCEPOST_RATE_LIMIT and FENCEPOST_FAILED_RATE_LIMIT.",
    retryable=True,
)


# The errors of requests that are refused before anything looks at what they ask for.

WRONG_HOST: Final = ProblemType(
    "FP031",
    421,
    "wrong-host",
    "The gateway does not serve this host",
    "The header Host names another host than those that the gateway serves. A page of another site can reach a gateway "
    "in a private network under a name of its own (DNS rebinding), and Host has that name then. Nothing was done.",
    "Use a name that is served: localhost, 127.0.0.1 and [::1] are. Others are for the operator to allow: "
    "FENCEPOST_ALLOWED_HOSTS.",
)
CROSS_SITE: Final = ProblemType(
    "FP032",
    403,
    "cross-site",
    "The request comes from a page of another site",
    "The browser says, by Sec-Fetch-Site or Origin, that a page of another site sent the request. Such pages may read "
    "only what the gateway allows them to, and may change nothing. Nothing was done.",
    "A page that may use the gateway is allowed by its operator: FENCEPOST_CORS_ORIGINS. A program that is no browser "
    "sends neither header.",
)
REQUEST_TOO_SLOW: Final = ProblemType(
    "FP033",
    408,
    "request-too-slow",
    "The request did not arrive in time",
    "The head of a request is to be there ten seconds after its first byte, and the body within a minute and at one "
    "kilobyte a second. This one was not, or other clients needed its connection. Nothing was done.",
    "Send it again, on a new connection.",
    retryable=True,
)
HEAD_TOO_LARGE: Final = ProblemType(
    "FP034",
    431,
    "head-too-large",
    "The request's head is too large",
    "The path, the query and the headers of a request have more than 65536 bytes together. Nothing was done.",
    "Name fewer columns or filters. For many rows: a filter like ?id=in.(…) in several requests.",
)
TOO_MANY_CONNECTIONS: Final = ProblemType(
    "FP035",
    503,
    "too-many-connections",
    "There are too many connections",
    "The gateway, or this address, has as many connections as it may have, and each has a request under way. Nothing "
    "was done.",
    "Use connections again (keep-alive), and a pool of them. Try again after the seconds in Retry-After. The bounds "
    "are FENCEPOST_MAX_CONNECTIONS and FENCEPOST_MAX_CONNECTIONS_PER_ADDRESS.",
    retryable=True,
)


# Kinds of errors that queued writes can meet.

QUEUE_UNAVAILABLE: Final = ProblemType(
    "FP026",
    503,
    "queue-unavailable",
    "The queue cannot be reached",
    "The write was to be queued, and its log could not be reached in time, or too few of its replicas could. The write "
    "is not in the queue, and will not be. Or it was asked what became of a write, and only the log knows.",
    "Try again after the seconds in Retry-After.",
    retryable=True,
)
SUBMISSION_UNKNOWN: Final = ProblemType(
    "FP027",
    503,
    "submission-unknown",
    "It is not known whether the write was queued",
    "The log did not acknowledge the write in time. It may be in the queue, and then it will be applied.",
    "Repeat the same request with the same Idempotency-Key, if it had one: if both are in the queue, at most one of "
    "them is applied. Without: read the row before you submit the write again.",
    retryable=True,
)
QUEUE_FAILED: Final = ProblemType(
    "FP028",
    502,
    "queue-failed",
    "The queue refused the write",
    "The log answered, and would not take the write: it is larger than the log's settings allow, the gateway lacks a "
    "privilege there, or the log is gone. The write is not in the queue.",
    "The detail names what is in the way. Trying again does not help before that is mended.",
)
WRITE_NOT_FOUND: Final = ProblemType(
    "FP029",
    404,
    "write-not-found",
    "There is no such queued write, or its result was forgotten",
    "No write with this id is in the queue, and there is no result of one. Either there never was one, or it was "
    "decided so long ago that its result was forgotten: the detail says what is known.",
    "Take the id from the answer 202, as it is. Results are kept for as long as FENCEPOST_IDEMPOTENCY_RETENTION sets: "
    "ask in that time. The row itself shows what it is now.",
)
RESOURCE_STOPPED: Final = ProblemType(
    "FP030",
    409,
    "resource-stopped",
    "An earlier queued write of the resource is a dead letter",
    "The consumer runs with --stop-resources: when a queued write of a resource becomes a dead letter, those after it "
    "are not applied, but become dead letters as well, until an operator retries or drops the first. This is what "
    "such a write came to. Nothing was changed.",
    "The detail names the first. `fencepost dead show` says what is wrong with it, and `fencepost dead retry QUEUE "
    "--resource RESOURCE` appends it and all that wait behind it, in their order.",
)

TOO_MANY_LETTERS: Final = ProblemType(
    "FP048",
    503,
    "too-many-letters",
    "Too many queued writes have failed",
    "The write was to be queued. Writes that were queued before and failed are kept as dead letters until an operator "
    "retries or drops them, and those of the caller, or of all callers, have as many bytes as the operator allows. The "
    "write is not in the queue.",
    "An operator looks at the letters: `fencepost dead list QUEUE` says why the writes have failed. Then the same "
    "request is taken again.",
    retryable=True,
)

OF_CALLERS: Final = frozenset(
    {
        *(AUTHENTICATION_REQUIRED, INVALID_CREDENTIAL, INSUFFICIENT_SCOPE, VERIFICATION_UNAVAILABLE),
        *(LOCK_FORBIDDEN, RATE_LIMITED, ROLE_NOT_ALLOWED, QUEUED_AS_ROLE, PERMISSION_DENIED, SEAL_REFUSED),
    }
)
"""Those that a request gets for who its caller is: they are counted by caller."""

PROBLEM_TYPES: Final[tuple[ProblemType, ...]] = tuple(
    sorted(
        (kind for kind in list(globals().values()) if isinstance(kind, ProblemType)),
        key=lambda kind: kind.code or "without",
    )
)
"""All of them, in the order of their codes; those without one last."""
