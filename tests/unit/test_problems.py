"""Problems: codes are unique and documented, and a body satisfies both conventions."""

import json
import re

import pytest
from tests.support.asking import PROBLEM_MEMBERS

from fencepost.fencing.problem_types import PROBLEM_TYPES, SPENT_TOKEN, STALE_TOKEN, ProblemType
from fencepost.fencing.problems import Problem, problem_of
from fencepost.fencing.token import MAX_TOKEN, Token
from fencepost.fencing.verdict import MissingRow, Spent, Stale

# A code that was given out is never reused and never changed.
CONTRACT = {
    "FP001": (409, "stale-token"),
    "FP002": (409, "spent-token"),
    "FP003": (428, "token-required"),
    "FP004": (400, "malformed-token"),
    "FP005": (403, "unprotected-table"),
    "FP006": (404, "row-not-found"),
    "FP007": (404, "unknown-table"),
    "FP008": (409, "wrong-token-source"),
    "FP009": (503, "outcome-unknown"),
    "FP010": (503, "database-unavailable"),
    "FP011": (423, "lock-held"),
    "FP012": (410, "lease-lost"),
    "FP013": (409, "key-in-flight"),
    "FP014": (422, "key-reused"),
    "FP015": (503, "source-quarantined"),
    "FP016": (400, "bad-request"),
    "FP017": (413, "body-too-large"),
    "FP018": (409, "unissued-token"),
}


def test_the_contracts_codes_are_what_they_were() -> None:
    made = {kind.code: (kind.status, kind.slug) for kind in PROBLEM_TYPES if kind.code}
    assert CONTRACT.items() <= made.items()


def test_codes_and_slugs_are_unique() -> None:
    codes = [kind.code for kind in PROBLEM_TYPES if kind.code]
    slugs = [kind.slug for kind in PROBLEM_TYPES]
    assert len(set(codes)) == len(codes)
    assert len(set(slugs)) == len(slugs)
    assert all(re.fullmatch(r"FP\d{3}", code) for code in codes)
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", slug) for slug in slugs)


def test_every_type_is_in_the_tuple() -> None:
    from fencepost.fencing import problem_types as problems  # noqa: PLC0415

    declared = {value for value in vars(problems).values() if isinstance(value, ProblemType)}
    assert declared == set(PROBLEM_TYPES)


@pytest.mark.parametrize("kind", PROBLEM_TYPES, ids=lambda kind: kind.slug)
def test_a_body_has_all_members_of_both_conventions(kind: ProblemType) -> None:
    body = json.loads(json.dumps(Problem(kind, "what happened").body()))
    assert body.keys() >= PROBLEM_MEMBERS
    assert (body["type"], body["status"]) == (f"/problems/{kind.slug}", kind.status)
    assert body["detail"] == body["message"] == "what happened"
    assert body["retryable"] is (kind.status in (423, 503) or kind.code == "FP013")


def test_tokens_are_strings() -> None:
    body = Problem(STALE_TOKEN, "x", presented_token=Token(MAX_TOKEN - 1), current_token=MAX_TOKEN).body()
    assert (body["presented_token"], body["current_token"]) == (str(MAX_TOKEN - 1), str(MAX_TOKEN))


def test_refusals_are_never_retryable() -> None:
    assert not STALE_TOKEN.retryable
    assert not SPENT_TOKEN.retryable
    assert {kind.slug for kind in PROBLEM_TYPES if kind.retryable} == {
        "outcome-unknown", "database-unavailable", "database-busy", "lock-held", "key-in-flight", "source-quarantined",
        "source-unavailable",
    }  # fmt: skip


def test_verdicts_become_problems() -> None:
    stale = problem_of(Stale("orders/x", Token(35), 36), "strict")
    assert (stale.name, stale.http_status, stale.retry_after) == ("FP001", 409, None)
    spent = problem_of(Spent("orders/x", Token(36), 36), "strict")
    assert (spent.name, spent.current_token) == ("FP002", 36)
    assert "--rule lease" in str(spent.hint)
    assert problem_of(MissingRow("orders/x"), "strict").name == "FP006"
