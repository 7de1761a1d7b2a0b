"""One example of every problem: what the pages under /problems/ and the OpenAPI document show."""

from typing import Final

from fencepost.server.fence.caller import Caller
from fencepost.server.fence.problem_types import (
    AUTHENTICATION_REQUIRED,
    BAD_REQUEST,
    BODY_TOO_LARGE,
    CONSTRAINT_VIOLATION,
    CROSS_SITE,
    DATABASE_BUSY,
    DATABASE_REFUSED,
    DATABASE_UNAVAILABLE,
    EARLIER_LINE_FIRST,
    HEAD_TOO_LARGE,
    INTERNAL_ERROR,
    INVALID_CREDENTIAL,
    INVALID_VALUE,
    KEY_IN_FLIGHT,
    KEY_REUSED,
    LEASE_LOST,
    LOCK_FORBIDDEN,
    LOCK_HELD,
    MALFORMED_TOKEN,
    METHOD_NOT_ALLOWED,
    NO_ROUTE,
    NO_SEAL_KEYS,
    NOT_ACCEPTABLE,
    OUTCOME_UNKNOWN,
    PERMISSION_DENIED,
    QUEUE_FAILED,
    QUEUE_UNAVAILABLE,
    QUEUED_AS_ROLE,
    RATE_LIMITED,
    REQUEST_TOO_SLOW,
    RESOURCE_STOPPED,
    ROLE_NOT_ALLOWED,
    ROW_CHANGED,
    ROW_NOT_FOUND,
    SEAL_REFUSED,
    SOURCE_FAILED,
    SOURCE_QUARANTINED,
    SOURCE_UNAVAILABLE,
    SUBMISSION_UNKNOWN,
    TOKEN_REQUIRED,
    TOO_MANY_CONNECTIONS,
    TOO_MANY_LETTERS,
    UNKNOWN_TABLE,
    UNPROTECTED_TABLE,
    UNSUPPORTED_MEDIA_TYPE,
    VERIFICATION_UNAVAILABLE,
    WRITE_NOT_FOUND,
    WRONG_HOST,
    WRONG_TOKEN_SOURCE,
    ProblemType,
)
from fencepost.server.fence.problems import Problem, out_of_scope, problem_of
from fencepost.server.fence.token import Spent, Stale, Token, Unissued

_RESOURCE: Final = "orders/order-123"

STALE: Final = problem_of(Stale(_RESOURCE, Token(33), 34), "strict")
SPENT: Final = problem_of(Spent(_RESOURCE, Token(34), 34), "strict")
CONSTRAINT: Final = Problem(
    CONSTRAINT_VIOLATION,
    'duplicate key value violates unique constraint "orders_pkey"',
    details="Key (order_id)=(order-123) already exists.",
    code="23505",
    resource=_RESOURCE,
    presented_token=Token(35),
    extra={"constraint": "orders_pkey"},
)

_EXAMPLES: Final[tuple[Problem, ...]] = (
    STALE,
    SPENT,
    CONSTRAINT,
    Problem(TOKEN_REQUIRED, "orders is protected: a write needs the header X-Fence-Token.", resource=_RESOURCE),
    Problem(
        MALFORMED_TOKEN,
        "X-Fence-Token: a token is one positive decimal integer: ASCII digits only, no sign, space, comma or "
        "leading zero",
    ),
    Problem(UNPROTECTED_TABLE, "audit_log is not protected.", hint="fencepost protect audit_log"),
    Problem(ROW_NOT_FOUND, "There is no row orders/order-9.", resource="orders/order-9"),
    Problem(
        ROW_CHANGED,
        f"If-Match: the write is for {_RESOURCE} with the mark 34, and its mark is 35.",
        hint="Read the row, decide anew, and send its ETag.",
        resource=_RESOURCE,
        presented_token=Token(36),
        current_token=35,
    ),
    Problem(UNKNOWN_TABLE, "There is no table order."),
    Problem(
        OUTCOME_UNKNOWN,
        "The connection to PostgreSQL broke after the write was sent. It may have been committed.",
        hint="Ask GET /v1/fences?resource=orders/order-123.",
        resource=_RESOURCE,
        presented_token=Token(34),
        retry_after=1,
        extra={
            "known": {
                "resource": _RESOURCE,
                "mark": "34",
                "meaning": "A write with this token was accepted. If it was used for this request only, the request"
                " landed.",
            }
        },
    ),
    Problem(DATABASE_UNAVAILABLE, "No connection to PostgreSQL could be had within 5 seconds.", retry_after=1),
    Problem(BAD_REQUEST, "orders has no column colour.", hint="Its columns are order_id, status."),
    Problem(BODY_TOO_LARGE, "The body has more than 1048576 bytes."),
    Problem(WRONG_HOST, "Host: shop.example is not served.", hint="FENCEPOST_ALLOWED_HOSTS=shop.example allows it."),
    Problem(CROSS_SITE, "Origin: https://elsewhere.example is another site than shop.example."),
    Problem(REQUEST_TOO_SLOW, "After 10 seconds the request's head was not there.", retry_after=1),
    Problem(HEAD_TOO_LARGE, "The request's head has more than 65536 bytes."),
    Problem(
        TOO_MANY_CONNECTIONS,
        "10.0.0.7 has 1024 connections, and each has a request under way.",
        hint="FENCEPOST_MAX_CONNECTIONS and FENCEPOST_MAX_CONNECTIONS_PER_ADDRESS set how many there may be.",
        retry_after=1,
    ),
    Problem(
        SEAL_REFUSED,
        "The seal of token 34 is not for orders/order-123: lease 40 is bound to other resources.",
        hint='Acquire a lock of that name, or claim it, or name it in "writes": ["table/*"], with the lease.',
        resource=_RESOURCE,
        presented_token=Token(34),
        extra={"reason": "other-resource"},
    ),
    Problem(
        NO_SEAL_KEYS,
        "orders takes sealed tokens only, and this gateway has no keys by which to verify one.",
        hint="FENCEPOST_SEAL_KEYS_FILE names the file with them; all gateways of a database have the same.",
        retry_after=10,
    ),
    Problem(
        RATE_LIMITED,
        "The caller jwt:https://login.example|worker-a has sent more requests than 100 per 1 second, which is what one "
        "may send to a process of this gateway.",
        retry_after=1,
    ),
    Problem(
        LOCK_FORBIDDEN,
        "The lock 'payments/7' is not for jwt:https://login.example|worker-a.",
        hint="The caller's token or key has these patterns: orders/*.",
        extra={"lock": "payments/7"},
    ),
    Problem(
        AUTHENTICATION_REQUIRED,
        "The request has no header Authorization.",
        hint="Authorization: Bearer …, with a JWT or an API key.",
    ),
    Problem(INVALID_CREDENTIAL, "The JWT is not accepted: it has expired."),
    out_of_scope(Caller("jwt:https://id.example|worker-a", access=frozenset({"read"})), "write"),
    Problem(
        VERIFICATION_UNAVAILABLE,
        "The set of keys that verifies JWTs (JWKS) was not fetched for too long.",
        retry_after=10,
    ),
    Problem(
        ROLE_NOT_ALLOWED,
        "The role web is not one that this gateway acts as: the gateway's login may not act as it (GRANT web TO"
        " fencepost).",
    ),
    Problem(
        QUEUED_AS_ROLE,
        "orders: writes of the role web cannot be queued here: this gateway has no keys to sign whose they are.",
        hint="FENCEPOST_SEAL_KEYS_FILE (--seal-keys-file) names the file with them, at gateways and consumers.",
    ),
    problem_of(Unissued(_RESOURCE, Token(9_000_000), 41), "strict"),
    Problem(
        WRONG_TOKEN_SOURCE,
        "orders/order-123 has the mark 9000, and token 41 was only drawn this moment: another source hands out tokens "
        "for orders.",
        resource=_RESOURCE,
        current_token=9000,
    ),
    Problem(
        LOCK_HELD,
        "worker-a@host-1 has held nightly-report since 2026-11-20T02:00:00.000000+00:00.",
        retry_after=28,
        extra={
            "lock": "nightly-report",
            "holder": "worker-a@host-1",
            "lease_id": "40",
            "held_since": "2026-11-20T02:00:00.000000+00:00",
            "held_until": "2026-11-20T02:00:30.000000+00:00",
            "waiting": 0,
        },
    ),
    Problem(
        LEASE_LOST,
        "Lease 40 of nightly-report expired at 2026-11-20T02:00:30.000000+00:00.",
        extra={"lease_id": "40", "lock": "nightly-report", "ended_at": "2026-11-20T02:00:30.000000+00:00"},
    ),
    Problem(KEY_IN_FLIGHT, "Another PATCH of orders/order-123 with the same key has not ended yet.", retry_after=1),
    Problem(
        EARLIER_LINE_FIRST,
        "Line 17 is to be sent again, and concerns the same row or key: this line was not done.",
        hint="Send line 17 again, and then this one.",
        retry_after=1,
    ),
    Problem(KEY_REUSED, "This Idempotency-Key was used for another request.", hint="Every write has a key of its own."),
    Problem(
        SOURCE_QUARANTINED,
        "This PostgreSQL is system 7412345678901234567 on timeline 2, and generation 0 was raised on system"
        " 7412345678901234567, timeline 1: a standby was promoted, or a backup restored, and writes that were"
        " acknowledged, their marks and tokens may be missing here.",
        hint="When no other primary is alive: `fencepost generation raise --reason …` on the database to use, with"
        " --above if the detail asks for it.",
        retry_after=10,
        extra={
            "found": {
                "system_identifier": "7412345678901234567",
                "timeline": 2,
                "database_oid": "16384",
                "relation_oid": "16611",
            },
            "known": {
                "generation": "0",
                "identity": "5f0c1f6e-6d1d-4b52-9a55-0f5b2a3c8e11",
                "system_identifier": "7412345678901234567",
                "timeline": 1,
                "database_oid": "16384",
                "relation_oid": "16611",
            },
        },
    ),
    Problem(
        SOURCE_UNAVAILABLE,
        "etcd at etcd-1:2379 did not answer within 3 s.",
        retry_after=1,
        extra={"source": "etcd"},
    ),
    Problem(
        SOURCE_FAILED,
        "The key fencepost:lock:nightly-report in Redis is a list of another program, and no lock.",
        extra={"source": "redis"},
    ),
    Problem(
        QUEUE_UNAVAILABLE,
        "kafka:orders: no broker of kafka-1:9092 answered within 5 s.",
        retry_after=1,
        extra={"queue": "kafka:orders"},
    ),
    Problem(
        SUBMISSION_UNKNOWN,
        "It is not known whether the write is in the queue kafka:orders: no acknowledgement came within 5 s.",
        hint="Repeat the request with the same Idempotency-Key: the write is done once.",
        resource=_RESOURCE,
        retry_after=1,
        extra={"queue": "kafka:orders"},
    ),
    Problem(
        TOO_MANY_LETTERS,
        "kafka:orders: too many dead letters wait for an operator: those of this caller have 268436480 bytes, of"
        " 268435456 that one caller's may have.",
        hint="`fencepost dead retry` or `fencepost dead drop` makes room. FENCEPOST_MAX_LETTER_BYTES sets the most.",
        retry_after=10,
        extra={"queue": "kafka:orders"},
    ),
    Problem(
        QUEUE_FAILED,
        "kafka:orders: the message is larger than the topic's max.message.bytes.",
        resource=_RESOURCE,
        extra={"queue": "kafka:orders"},
    ),
    Problem(
        WRITE_NOT_FOUND,
        "There is no result of postgres:default.3.17.5d0f6c2b9a8e4471: no write has had this place in the queue.",
        extra={"queue": "postgres:default"},
    ),
    Problem(
        RESOURCE_STOPPED,
        f"{_RESOURCE} is stopped, since an earlier write of it is a dead letter: "
        "postgres:default.3.16.0c61d29e5ab87f34.",
        hint="`fencepost dead retry` or `fencepost dead drop` lets its later writes go on.",
        resource=_RESOURCE,
    ),
    Problem(NO_ROUTE, "No route has the path /v1/orders.", hint="Tables are under /v1/data/."),
    Problem(METHOD_NOT_ALLOWED, "/v1/claims does not take GET."),
    Problem(NOT_ACCEPTABLE, "The query matches 3 rows, and one object was asked for."),
    Problem(UNSUPPORTED_MEDIA_TYPE, "The body is text/plain.", hint="Content-Type: application/json"),
    Problem(INTERNAL_ERROR, "The gateway failed. Its log has the reason."),
    Problem(
        INVALID_VALUE,
        'invalid input syntax for type integer: "many"',
        code="22P02",
        extra={"column": "quantity"},
    ),
    Problem(PERMISSION_DENIED, "permission denied for table orders", code="42501"),
    Problem(DATABASE_BUSY, "canceling statement due to lock timeout", code="55P03", retry_after=1),
    Problem(DATABASE_REFUSED, "orders are closed for the year", code="P0001"),
)

_BY_SLUG: Final = {problem.type.slug: problem for problem in _EXAMPLES}


def example_problem(kind: ProblemType) -> Problem:
    """Show one problem of this type. A type without an example of its own is shown by its title."""
    return _BY_SLUG.get(kind.slug) or Problem(kind, f"{kind.title}.")
