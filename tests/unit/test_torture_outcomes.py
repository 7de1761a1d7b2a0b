"""What answers say of an operation: in doubt it is unknown, never refused."""

import json

import pytest

from fencepost.torture.holders.exchange import Answer
from fencepost.torture.holders.outcomes import Reason, Refused, Unknown, outcome


def answer(status: int, **problem: object) -> Answer:
    return Answer(status, {}, json.dumps(problem).encode() if problem else b"")


@pytest.mark.parametrize("status", [200, 201, 204])
def test_success_is_what_happened(status: int) -> None:
    assert outcome(answer(status)) == answer(status)


@pytest.mark.parametrize(
    ("status", "code", "reason"),
    [
        (409, "FP001", "stale"),
        (404, "FP006", "missing"),
        (423, "FP011", "held"),
        (409, "FP018", "unissued"),
        (409, "23505", "other"),
        (503, "FP015", "other"),
    ],
)
def test_a_refusal_has_a_reason(status: int, code: str, reason: Reason) -> None:
    assert outcome(answer(status, code=code)) == Refused(reason, code)


def test_a_503_that_may_be_repeated_did_nothing() -> None:
    assert outcome(answer(503, code="FP010", retryable=True)) == Refused("other", "FP010")


@pytest.mark.parametrize(
    "given",
    [
        answer(503, code="FP009", retryable=False),
        answer(500, code="FP023"),
        Answer(504, {}, b"<html>a proxy's"),
        answer(409),
    ],
    ids=str,
)
def test_all_else_is_unknown(given: Answer) -> None:
    assert isinstance(outcome(given), Unknown)
