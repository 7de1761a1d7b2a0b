"""Resource names: one grammar for paths, bodies and marks."""

from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.fencing.resource import MalformedResourceError, Resource, decode_key, decode_segment, parse_resource

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


@pytest.mark.parametrize("name", ["", "orders", "/x", "/", "orders/%", "%/x", "or\ud800ders/x", "orders/\ud800"])
def test_malformed_names(name: str) -> None:
    with pytest.raises(MalformedResourceError):
        parse_resource(name)


def test_commas_separate_and_encoded_commas_do_not() -> None:
    assert decode_key(b"a,b%2Cc,") == ("a", "b,c", "")
    assert parse_resource("t/a/b") == Resource("t", ("a/b",)), "only the first slash separates"
    assert decode_segment(b"a+b") == "a+b"
