"""Problems: codes are unique and documented, and a body satisfies both conventions."""

import json
import re
from pathlib import Path

import pytest
from tests.support.asking import PROBLEM_MEMBERS

from fencepost import client
from fencepost.server.fence import problem_types
from fencepost.server.fence import problem_types as access_problem_types
from fencepost.server.fence import problem_types as database_problem_types
from fencepost.server.fence import problem_types as edge_problem_types
from fencepost.server.fence import problem_types as identity_problem_types
from fencepost.server.fence import problem_types as queue_problem_types
from fencepost.server.fence import problem_types as role_problem_types
from fencepost.server.fence import problem_types as seal_problem_types
from fencepost.server.fence.problem_types import BAD_REQUEST, PROBLEM_TYPES, STALE_TOKEN, ProblemType
from fencepost.server.fence.problems import Problem, problem_of
from fencepost.server.fence.token import MAX_TOKEN, MissingRow, Spent, Stale, Token

TESTS = Path(__file__).parents[1]

# A code that was given out is never reused and never changed. Last, the exception that the client raises.
CONTRACT = {
    "FP001": (409, "stale-token", client.StaleToken),
    "FP002": (409, "spent-token", client.SpentToken),
    "FP003": (428, "token-required", client.TokenRequired),
    "FP004": (400, "malformed-token", client.BadRequest),
    "FP005": (403, "unprotected-table", client.Forbidden),
    "FP006": (404, "row-not-found", client.RowNotFound),
    "FP007": (404, "unknown-table", client.NotFound),
    "FP008": (409, "wrong-token-source", client.WrongTokenSource),
    "FP009": (503, "outcome-unknown", client.OutcomeUnknown),
    "FP010": (503, "database-unavailable", client.Unavailable),
    "FP011": (423, "lock-held", client.LockHeld),
    "FP012": (410, "lease-lost", client.LeaseLost),
    "FP013": (409, "key-in-flight", client.OutcomeUnknown),
    "FP014": (422, "key-reused", client.BadRequest),
    "FP015": (503, "source-quarantined", client.Unavailable),
    "FP016": (400, "bad-request", client.BadRequest),
    "FP017": (413, "body-too-large", client.BadRequest),
    "FP018": (409, "unissued-token", client.UnissuedToken),
    "FP019": (404, "no-such-route", client.NotFound),
    "FP020": (405, "method-not-allowed", client.BadRequest),
    "FP021": (406, "not-acceptable", client.BadRequest),
    "FP022": (415, "unsupported-media-type", client.BadRequest),
    "FP023": (500, "internal-error", client.OutcomeUnknown),
    "FP024": (503, "source-unavailable", client.Unavailable),
    "FP025": (502, "source-failed", client.SourceFailed),
    "FP026": (503, "queue-unavailable", client.Unavailable),
    "FP027": (503, "submission-unknown", client.OutcomeUnknown),
    "FP028": (502, "queue-failed", client.ApiError),
    "FP029": (404, "write-not-found", client.NotFound),
    "FP030": (409, "resource-stopped", client.ApiError),
    "FP031": (421, "wrong-host", client.BadRequest),
    "FP032": (403, "cross-site", client.Forbidden),
    "FP033": (408, "request-too-slow", client.Unavailable),
    "FP034": (431, "head-too-large", client.BadRequest),
    "FP035": (503, "too-many-connections", client.Unavailable),
    "FP036": (401, "authentication-required", client.Unauthenticated),
    "FP037": (401, "invalid-credential", client.Unauthenticated),
    "FP038": (403, "insufficient-scope", client.Forbidden),
    "FP039": (503, "verification-unavailable", client.Unavailable),
    "FP041": (403, "seal-refused", client.SealRefused),
    "FP042": (503, "no-seal-keys", client.Unavailable),
    "FP043": (403, "role-not-allowed", client.Forbidden),
    "FP044": (403, "queued-as-role", client.Forbidden),
    "FP045": (403, "lock-forbidden", client.Forbidden),
    "FP046": (429, "rate-limited", client.Unavailable),
    "FP047": (503, "earlier-line-first", client.Unavailable),
    "FP048": (503, "too-many-letters", client.Unavailable),
}

# Problems whose code is an SQLSTATE of PostgreSQL's, with one of them.
OF_POSTGRESQL = {
    "23503": (409, "constraint-violation", client.ConstraintViolated),
    "22P02": (400, "invalid-value", client.BadRequest),
    "42501": (403, "permission-denied", client.Forbidden),
    "55P03": (503, "database-busy", client.Unavailable),
    "P0001": (400, "database-refused", client.BadRequest),
}

ASKED = ("http", "sources", "integration")
"""Where tests send requests."""


def test_the_contract_has_every_problem_with_its_status() -> None:
    listed: set[tuple[str | None, int, str]] = {(code, status, slug) for code, (status, slug, _) in CONTRACT.items()}
    listed |= {(None, status, slug) for status, slug, _ in OF_POSTGRESQL.values()}
    declared = {(kind.code, kind.status, kind.slug) for kind in PROBLEM_TYPES}
    assert declared == listed, "a new problem gets a line in CONTRACT or OF_POSTGRESQL; lines that are there stay"


def test_a_request_gets_each_problem() -> None:
    texts = [file.read_text() for folder in ASKED for file in (TESTS / folder).rglob("test_*.py")]
    for code, (status, _, _) in (CONTRACT | OF_POSTGRESQL).items():
        found = [text for text in texts if f'"{code}"' in text and re.search(rf"\b{status}\b", text)]
        assert found, f"no test of {', '.join(ASKED)} has {code} with {status}: add one that sends a request"


def test_every_type_is_in_the_tuple() -> None:
    files = (
        access_problem_types, database_problem_types, edge_problem_types, identity_problem_types, problem_types,
        queue_problem_types, role_problem_types, seal_problem_types,
    )  # fmt: skip
    declared = {value for each in files for value in vars(each).values() if isinstance(value, ProblemType)}
    assert declared == set(PROBLEM_TYPES)


def test_a_body_has_all_members_of_both_conventions() -> None:
    for kind in PROBLEM_TYPES:
        body = json.loads(json.dumps(Problem(kind, "what happened").body()))
        assert body.keys() >= PROBLEM_MEMBERS
        assert (body["type"], body["status"]) == (f"/problems/{kind.slug}", kind.status)
        assert body["detail"] == body["message"] == "what happened"
        assert body["retryable"] is (kind.status in (408, 423, 429, 503) or kind.code == "FP013"), kind.slug


@pytest.mark.parametrize("text", ["n", "ж", "\U0001f600", "\ud800"])
def test_a_body_shows_the_beginning_and_the_end_of_what_is_too_long(text: str) -> None:
    long = f"The column {text * 900_000} is none of orders."
    problem = Problem(BAD_REQUEST, long, long, long, resource=long, extra={"rows": [{"resource": long}], "at": (long,)})
    body = json.loads(json.dumps(problem.body()))
    sentences = [(body[name], 1000) for name in ("detail", "message", "hint", "details")]
    names = [(name, 2600) for name in (body["resource"], body["rows"][0]["resource"], *body["at"])]
    for shown, most in sentences + names:
        assert most - 100 < len(shown.encode("utf-8", "surrogatepass")) <= most
        assert re.fullmatch(r"The column (.)\1+… \(cut: 900030 characters in all\) …\1+ is none of orders\.", shown)
    for kept in ("ж" * 500, "n" * 1000):
        assert Problem(BAD_REQUEST, kept).detail == kept


def test_tokens_are_strings() -> None:
    body = Problem(STALE_TOKEN, "x", presented_token=Token(MAX_TOKEN - 1), current_token=MAX_TOKEN).body()
    assert (body["presented_token"], body["current_token"]) == (str(MAX_TOKEN - 1), str(MAX_TOKEN))


def test_verdicts_become_problems() -> None:
    stale = problem_of(Stale("orders/x", Token(35), 36), "strict")
    assert (stale.name, stale.http_status, stale.retry_after) == ("FP001", 409, None)
    spent = problem_of(Spent("orders/x", Token(36), 36), "strict")
    assert (spent.name, spent.current_token) == ("FP002", 36)
    assert "--rule epoch" in str(spent.hint)
    assert problem_of(MissingRow("orders/x"), "strict").name == "FP006"
