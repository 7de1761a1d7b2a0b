"""Answers: what stands in headers, and that an answer that was rendered to be recorded is the one that is given."""

import pytest

from fencepost.gateway.outcomes import Done
from fencepost.http.responses.answers import fence_headers, keep_answer, row_answer
from fencepost.http.responses.raw import RawResponse


@pytest.mark.parametrize(
    ("scope", "header"),
    [("account/42", b"account/42"), ("konto/a%2Fb", b"konto/a%2Fb"), ("kontö/a b", b"kont%C3%B6/a%20b")],
)
def test_a_scope_is_sent_as_it_is_but_for_what_a_header_cannot_carry(scope: str, header: bytes) -> None:
    assert (b"x-fence-scope", header) in fence_headers(Done([], 7, scope=scope))


def test_what_is_recorded_is_what_is_given() -> None:
    done = Done(['{"a":1}'], 7)
    response = RawResponse(200, [(b"x", b"y")], b"body")
    record = keep_answer(done, response)
    assert row_answer(done) is response
    assert (record.status, record.headers, record.body) == (200, (("x", "y"),), b"body")
