"""Verdicts: how a mark judges a token."""

from hypothesis import given
from hypothesis import strategies as st

from fencepost.fencing.token import MAX_TOKEN, NO_MARK, Rule, Token
from fencepost.fencing.verdict import Spent, Stale, refusal

TOKENS = st.integers(1, MAX_TOKEN).map(Token)
RULES = st.sampled_from(["strict", "epoch"])


@given(rule=RULES, mark=st.integers(0, MAX_TOKEN), token=TOKENS)
def test_below_is_stale_and_equal_is_spent_under_strict_only(rule: Rule, mark: int, token: Token) -> None:
    verdict = refusal(rule, "orders/x", mark, token)
    if token > mark:
        assert verdict is None
    elif token < mark:
        assert verdict == Stale("orders/x", token, mark)
    else:
        assert verdict == (Spent("orders/x", token, mark) if rule == "strict" else None)


@given(rule=RULES, token=TOKENS)
def test_what_was_never_written_takes_every_token(rule: Rule, token: Token) -> None:
    assert refusal(rule, "orders/x", NO_MARK, token) is None
