"""The grammar of tokens (R11) and how a rule compares two (R1, R2)."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fencepost.fencing.token import MAX_TOKEN, MalformedTokenError, Token, accepts, parse_token

TOKENS = st.integers(1, MAX_TOKEN)
NEARLY = st.text(st.sampled_from("0123456789 +-_,.\u0663\uff14\u00b2e\n\0"), max_size=22).map(
    lambda text: text.encode()
)


def is_a_token(raw: bytes) -> bool:
    """The definition again, by characters and not by a pattern."""
    digits = b"0123456789"
    return (
        0 < len(raw) <= 19
        and all(byte in digits for byte in raw)
        and raw[0] != digits[0]
        and sum((byte - digits[0]) * 10**place for place, byte in enumerate(reversed(raw))) <= 2**63 - 1
    )


@given(raw=st.binary(max_size=25) | NEARLY | st.integers().map(lambda number: str(number).encode()))
@example(raw=b"9223372036854775807")
@example(raw=b"9223372036854775808")
@example(raw=b"34\n")
@example(raw=b"")
def test_bytes_are_a_token_iff_the_definition_has_it(raw: bytes) -> None:
    if is_a_token(raw):
        assert parse_token(raw) == int(raw)
    else:
        with pytest.raises(MalformedTokenError):
            parse_token(raw)


@given(mark=st.integers(0, MAX_TOKEN), token=TOKENS)
def test_strict_takes_what_is_newer_and_lease_what_is_not_older(mark: int, token: int) -> None:
    assert accepts("strict", mark, Token(token)) is (token > mark)
    assert accepts("epoch", mark, Token(token)) is not (token < mark)
