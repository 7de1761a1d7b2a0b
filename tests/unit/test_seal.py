"""Seals: what they prove, and what a file of keys may have."""

import base64
import hashlib
import hmac
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.server.fence.seal import (
    LONGEST_SEALED,
    Binding,
    SealedToken,
    SealKeys,
    SealKeysError,
    parse_keys,
    parse_presented,
)
from fencepost.server.fence.token import MalformedTokenError, Token

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
