"""One example of every problem: what the pages under /problems/ and the OpenAPI document show."""

from typing import Final

from fencepost.fencing.problem_types import (
    BAD_REQUEST,
    BODY_TOO_LARGE,
    CONSTRAINT_VIOLATION,
    DATABASE_BUSY,
    DATABASE_REFUSED,
    DATABASE_UNAVAILABLE,
    INTERNAL_ERROR,
    INVALID_VALUE,
    KEY_IN_FLIGHT,
    KEY_REUSED,
    LEASE_LOST,
    LOCK_HELD,
    MALFORMED_TOKEN,
    METHOD_NOT_ALLOWED,
    NO_ROUTE,
    NOT_ACCEPTABLE,
    OUTCOME_UNKNOWN,
    PERMISSION_DENIED,
    ROW_NOT_FOUND,
    SOURCE_FAILED,
    SOURCE_QUARANTINED,
    SOURCE_UNAVAILABLE,
    TOKEN_REQUIRED,
    UNKNOWN_TABLE,
    UNPROTECTED_TABLE,
    UNSUPPORTED_MEDIA_TYPE,
    WRONG_TOKEN_SOURCE,
    ProblemType,
)
from fencepost.fencing.problems import Problem, problem_of
from fencepost.fencing.token import Token
from fencepost.fencing.verdict import Spent, Stale, Unissued

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
    Problem(KEY_REUSED, "This Idempotency-Key was used for another request.", hint="Every write has a key of its own."),
    Problem(
        SOURCE_QUARANTINED,
        "This PostgreSQL is system 7412345678901234567 on timeline 2, and generation 0 was raised on system"
        " 7412345678901234567, timeline 1: a standby was promoted, or a backup restored, and writes that were"
        " acknowledged, their marks and tokens may be missing here.",
        hint="When no other primary is alive: `fencepost generation raise --reason …` on the database to use, with"
        " --above if the detail says so.",
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
