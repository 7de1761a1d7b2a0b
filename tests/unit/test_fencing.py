"""Tokens, verdicts, resource names, patterns of locks: the rules without I/O."""

import base64
import hashlib
import hmac
import json
from urllib.parse import unquote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fencepost.server.fence.caller import Caller, likes, matches
from fencepost.server.fence.resource import MalformedResourceError, Resource, decode_key, decode_segment, parse_resource
from fencepost.server.fence.seal import (
    LONGEST_SEALED,
    Binding,
    SealedToken,
    SealKeys,
    SealKeysError,
    parse_keys,
    parse_presented,
)
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


def is_a_token(raw: bytes) -> bool:
    """The definition again, by characters and not by a pattern."""
    digits = b"0123456789"
    return (
        0 < len(raw) <= 19
        and all(byte in digits for byte in raw)
        and raw[0] != digits[0]
        and sum((byte - digits[0]) * 10**place for place, byte in enumerate(reversed(raw))) <= 2**63 - 1
    )


@given(
    raw=st.binary(max_size=25)
    | st.text(st.sampled_from("0123456789 +-_,.\u0663\uff14\u00b2e\n\0"), max_size=22).map(lambda text: text.encode())
    | st.integers().map(lambda number: str(number).encode())
)
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


@given(mark=st.integers(0, MAX_TOKEN), token=st.integers(1, MAX_TOKEN))
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


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
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
    ],
)
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


# Seals: what they prove, and what a file of keys may have.

KEYS = SealKeys({"new": b"n" * 32, "old": b"o" * 32})
BINDING = Binding("builtin", "33", frozenset({"orders/a", "orders/b"}), ("items/",))


def sealed(number: int = 34, binding: Binding = BINDING, ends: int = 1000, keys: SealKeys = KEYS) -> SealedToken:
    found = parse_presented(keys.seal([Token(number)], binding, ends)[0].encode())
    assert isinstance(found, SealedToken)
    return found


def presented(text: str) -> SealedToken:
    found = parse_presented(text.encode())
    assert isinstance(found, SealedToken)
    return found


def test_a_seal_says_what_it_is_bound_to_until_it_ends() -> None:
    token = sealed()
    assert (token.number, KEYS.open(token, 999.9)) == (34, BINDING)
    assert KEYS.open(token, 1000) == "ended"


def test_the_end_of_a_seal_does_not_count_for_a_write_that_waited_in_a_queue() -> None:
    token = sealed()
    assert KEYS.open(SealedToken(token.number, token.text, queued=True), 1e9) == BINDING


def test_the_first_key_seals_and_all_verify() -> None:
    assert sealed().text.startswith("34.new.")
    old_first = SealKeys({"old": b"o" * 32, "new": b"n" * 32})
    assert KEYS.open(sealed(keys=old_first), 0) == BINDING
    assert SealKeys({"old": b"o" * 32}).open(sealed(), 0) == "unknown-key"
    assert SealKeys({"new": b"x" * 32}).open(sealed(), 0) == "wrong-seal"


def test_no_part_of_a_sealed_token_can_be_another_one() -> None:
    text = sealed().text
    _, key, payload, mac = text.split(".")
    other = sealed(binding=Binding("builtin", "33", frozenset({"orders/c"}))).text.split(".")
    for changed in (
        f"35.{key}.{payload}.{mac}",
        f"34.old.{payload}.{mac}",
        f"34.{key}.{other[2]}.{mac}",
        f"34.{key}.{payload}.{other[3]}",
    ):
        assert KEYS.open(presented(changed), 0) == "wrong-seal", changed


def test_every_character_of_a_seal_counts() -> None:
    """Of the last one of base64 some bits are not used: another text of the same bytes is refused, too."""
    text = sealed().text
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    for letter in alphabet:
        if letter != text[-1]:
            assert KEYS.open(presented(text[:-1] + letter), 0) == "wrong-seal"


def test_the_form_is_the_one_of_the_page() -> None:
    """What docs/sealed-tokens.md says, done by hand: for programs of others that seal or verify."""

    def encoded(raw: bytes) -> str:
        return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()

    payload = encoded(json.dumps({"s": "builtin", "l": "33", "e": 1000, "n": ["orders/a"], "p": ["items/"]}).encode())
    body = f"34.new.{payload}"
    mac = hmac.new(b"n" * 32, b"fencepost seal 1\n" + body.encode(), hashlib.sha256).digest()
    found = KEYS.open(presented(f"{body}.{encoded(mac)}"), 0)
    assert found == Binding("builtin", "33", frozenset({"orders/a"}), ("items/",))


@pytest.mark.parametrize(
    "said",
    [b"{}", b"[]", b"x", b'{"s":"b","l":"1"}', b'{"s":"b","l":"1","e":"x"}', b'{"s":"b","l":"1","e":9,"n":"orders/a"}',
     b'{"s":"b","l":"1","e":9,"p":[1]}', b'{"s":"b","l":"1","e":9,"d":1}', b"\xff"],
)  # fmt: skip
def test_a_payload_of_another_form_is_refused_though_its_seal_is_right(said: bytes) -> None:
    body = f"34.new.{base64.urlsafe_b64encode(said).rstrip(b'=').decode()}"
    mac = hmac.new(b"n" * 32, b"fencepost seal 1\n" + body.encode(), hashlib.sha256).digest()
    text = f"{body}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"
    assert KEYS.open(presented(text), 0) == "wrong-seal"


def test_what_a_binding_covers() -> None:
    assert all(map(BINDING.covers, ("orders/a", "orders/b", "items/1", "items/")))
    assert not any(map(BINDING.covers, ("orders/c", "orders/", "items", "orders/a ", "")))
    assert not Binding("builtin", "1").covers("orders/a")
    assert (BINDING.covers_all("items/"), BINDING.covers_all("orders/"), BINDING.covers_all("items")) == (
        True,
        False,
        False,
    )


@given(st.frozensets(st.text(min_size=1), max_size=40), st.text())
def test_digests_cover_what_the_names_do(names: frozenset[str], other: str) -> None:
    names = frozenset(name for name in names if name.isprintable())
    found = KEYS.open(sealed(binding=Binding("builtin", "1", names | {"x" * 600})), 0)
    assert isinstance(found, Binding)
    assert not found.names
    assert all(map(found.covers, names))
    assert other.isprintable() is False or found.covers(other) == (other in names or other == "x" * 600)


def test_the_longest_binding_that_a_lease_can_have_fits() -> None:
    names = frozenset(f"{number:0500}" for number in range(32 + 100 + 32))
    token = sealed(2**63 - 1, Binding("a" * 32, "a" * 52, names, ("x" * 1023 + "/",)))
    assert len(token.text) < LONGEST_SEALED


@pytest.mark.parametrize(
    "raw",
    [b"34.", b"34.a", b"34.a.b", b"34.a.b.c", b".a.bb." + b"c" * 43, b"034.a.bb." + b"c" * 43, b"34.a.bb." + b"c" * 42,
     b"34.a.bb." + b"c" * 44, b"34.a.b=." + b"c" * 43, b"34.a.bb." + b"c" * 43 + b"\n", b"34..bb." + b"c" * 43,
     b"34." + b"a" * 33 + b".bb." + b"c" * 43,
     b"34.a." + b"b" * LONGEST_SEALED + b"." + b"c" * 43, b"34.\xc3\xa4.bb." + b"c" * 43],
)  # fmt: skip
def test_what_is_no_sealed_token_is_malformed(raw: bytes) -> None:
    with pytest.raises(MalformedTokenError):
        parse_presented(raw)


def key(name: str, size: int = 32, byte: int = 1) -> str:
    return f"{name}:{base64.b64encode(bytes([byte]) * size).decode()}"


def test_a_file_of_keys() -> None:
    text = f"# the newest first\n\n{key('2026-07')}\r\n  {key('2026-01', 48, 250)}\n"
    assert dict(parse_keys(text).keys) == {"2026-07": b"\1" * 32, "2026-01": bytes([250]) * 48}
    assert parse_keys(text).first == "2026-07"
    urlsafe = key("a", 48, 250).replace("+", "-").replace("/", "_")
    assert parse_keys(urlsafe).keys["a"] == bytes([250]) * 48


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "there is no key"),
        ("# nothing", "there is no key"),
        ("abc", "line 1: it has no colon"),
        (f"{key('a')}\nb c:{'A' * 44}", "line 2: an id has"),
        (f":{'A' * 44}", "line 1: an id has"),
        (key("a" * 33), "line 1: an id has"),
        ("a:***", "line 1: the key a is no base64"),
        (key("a", 31), "line 1: the key a has 31 bytes, and 32 are the least"),
        (f"{key('a')}\n{key('a', 32, 2)}", "line 2: a key with the id a stands above"),
        (f"{key('a')}\n{key('b')}", "line 2: the key b has another one's bytes"),
        ("\n".join(key(f"k{n}", 32, n) for n in range(1, 18)), "17 keys"),
    ],
)
def test_what_is_wrong_with_keys_is_said_without_showing_them(text: str, said: str) -> None:
    with pytest.raises(SealKeysError) as raised:
        parse_keys(text)
    assert said in str(raised.value)
    assert "AAAA" not in str(raised.value)
    assert "AQEB" not in str(raised.value)
