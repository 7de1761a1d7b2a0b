"""What an Idempotency-Key stands for: two requests are one only if every part of them is the same."""

import pytest

from fencepost.http.requests.headers import payload_hash


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("PATCH", "orders", "1"), ("PUT", "orders", "1")),
        (("POST", "ab", "c"), ("POST", "a", "bc")),
        (("POST", "a", "", "b"), ("POST", "a", "b", "")),
        (("POST", "a", b"1:b"), ("POST", "a1:", b"b")),
        (("POST", "a"), ("POST", "a", "")),
    ],
)
def test_parts_do_not_run_into_each_other(one: tuple[str | bytes, ...], other: tuple[str | bytes, ...]) -> None:
    assert payload_hash(*one) != payload_hash(*other)


def test_text_is_hashed_as_its_bytes() -> None:
    assert payload_hash("a", "ä") == payload_hash(b"a", "ä".encode())
