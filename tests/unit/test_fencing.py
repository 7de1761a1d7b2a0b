"""Tokens, verdicts, resource names, patterns of locks: the rules without I/O."""

from urllib.parse import unquote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fencepost.server.fence.caller import Caller, likes, matches
from fencepost.server.fence.resource import MalformedResourceError, Resource, decode_key, decode_segment, parse_resource
from fencepost.server.fence.token import (
    MAX_TOKEN,
    NO_MARK,
    MalformedTokenError,
    Rule,
    Spent,
    Stale,
    Token,
    accepts,
    parse_token,
    refusal,
)

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


OF_TOKENS = st.integers(1, MAX_TOKEN).map(Token)
RULES = st.sampled_from(["strict", "epoch"])


@given(rule=RULES, mark=st.integers(0, MAX_TOKEN), token=OF_TOKENS)
def test_below_is_stale_and_equal_is_spent_under_strict_only(rule: Rule, mark: int, token: Token) -> None:
    verdict = refusal(rule, "orders/x", mark, token)
    if token > mark:
        assert verdict is None
    elif token < mark:
        assert verdict == Stale("orders/x", token, mark)
    else:
        assert verdict == (Spent("orders/x", token, mark) if rule == "strict" else None)


@given(rule=RULES, token=OF_TOKENS)
def test_what_was_never_written_takes_every_token(rule: Rule, token: Token) -> None:
    assert refusal(rule, "orders/x", NO_MARK, token) is None


TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)


@given(table=TEXTS.filter(bool), key=st.lists(TEXTS, min_size=1, max_size=4))
def test_what_postgresql_renders_is_read_back(table: str, key: list[str]) -> None:
    def enc(part: str) -> str:  # fencepost.enc
        return part.replace("%", "%25").replace("/", "%2F").replace(",", "%2C").replace(";", "%3B")

    assert parse_resource(f"{enc(table)}/{','.join(map(enc, key))}") == Resource(table, tuple(key))


@given(raw=st.binary(max_size=12))
def test_a_segment_is_decoded_strictly_or_refused(raw: bytes) -> None:
    try:
        text = decode_segment(raw)
    except MalformedResourceError:
        return
    assert text == unquote(raw.decode("utf-8"), errors="strict")
    assert "\0" not in text


@pytest.mark.parametrize("raw", [b"%", b"%2", b"%zz", b"a%", b"%FF", b"\xff", b"%C0%AF", b"%00", b"\0", b"%ED%A0%80"])
def test_malformed_segments(raw: bytes) -> None:
    with pytest.raises(MalformedResourceError):
        decode_segment(raw)
    with pytest.raises(MalformedResourceError):
        decode_key(b"a," + raw)


def test_a_malformed_name_is_shown_as_it_was_sent() -> None:
    for name, shown in (
        ("orders/%00", "'%00': PostgreSQL"),
        ("orders/\0", r"'\\x00': PostgreSQL"),
        ("a/%ff", "'%ff': is"),
    ):
        with pytest.raises(MalformedResourceError, match=f"^{shown}"):
            parse_resource(name)


@pytest.mark.parametrize("name", ["", "orders", "/x", "/", "orders/%", "%/x", "or\ud800ders/x", "orders/\ud800"])
def test_malformed_names(name: str) -> None:
    with pytest.raises(MalformedResourceError):
        parse_resource(name)


def test_commas_separate_and_encoded_commas_do_not() -> None:
    assert decode_key(b"a,b%2Cc,") == ("a", "b,c", "")
    assert parse_resource("t/a/b") == Resource("t", ("a/b",)), "only the first slash separates"
    assert decode_segment(b"a+b") == "a+b"


CASES = [
    ("orders/*", "orders/1", True),
    ("orders/*", "orders/", True),
    ("orders/*", "orders", False),
    ("orders/*", "my-orders/1", False),
    ("*", "", True),
    ("*", "any/thing\nat all", True),
    ("job", "job", True),
    ("job", "jobs", False),
    ("a.c", "abc", False),
    ("a_c", "abc", False),
    ("100%", "100 per cent", False),
    ("100%", "100%", True),
    ("a\\b", "a\\b", True),
]


@pytest.mark.parametrize(("pattern", "name", "expected"), CASES)
def test_a_pattern_names_locks(pattern: str, name: str, expected: bool) -> None:
    assert matches(pattern, name) is expected


@pytest.mark.parametrize(
    ("pattern", "like"), [("orders/*", "orders/%"), ("100%_*", r"100\%\_%"), ("a\\b", r"a\\b"), ("*", "%")]
)
def test_a_pattern_is_written_as_like_has_it(pattern: str, like: str) -> None:
    assert likes([pattern]) == [like]


def test_no_patterns_are_no_condition() -> None:
    assert likes(None) is None
    assert likes([]) == []


def test_a_caller_without_patterns_may_see_and_take_all_locks() -> None:
    assert Caller("a").may_lock("anything")


def test_a_caller_with_no_pattern_at_all_may_take_none() -> None:
    assert not Caller("a", locks=()).may_lock("anything")


def test_a_wait_is_no_longer_than_the_callers_token_lives() -> None:
    caller = Caller("a", ends=100.0)
    assert (caller.within(5, 90.0), caller.within(50, 90.0), caller.within(5, 101.0)) == (5, 10.0, 0.0)
    assert (caller.is_over(99.9), caller.is_over(100.0)) == (False, True)
    assert Caller("b").within(5, 1e9) == 5
