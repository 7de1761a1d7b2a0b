"""Parts of requests and answers: preferences, bodies, hashes of payloads, names of callers, headers."""

import pytest
from starlette.types import Message, Scope

from fencepost.server.gateway.outcomes import Done
from fencepost.server.gateway.write import NO_PREFERENCES, Preferences
from fencepost.server.http.answers import RawResponse, fence_headers, to_recorded
from fencepost.server.http.bodies import read_json
from fencepost.server.http.edge import caller_of
from fencepost.server.http.headers import (
    PREFERENCES,
    Route,
    by_name,
    payload_hash,
    read_preferences,
    refuse_profile,
    wants_one,
)
from fencepost.server.http.problems import RequestError
from fencepost.server.quota import UNKNOWN


def read(prefer: str, route: Route = "patch-rows") -> Preferences:
    return read_preferences(prefer.encode("latin-1"), route)


def refused(prefer: str, route: Route = "patch-rows") -> str:
    with pytest.raises(RequestError) as error:
        read(prefer, route)
    assert error.value.problem.http_status == 400
    return error.value.problem.detail


def test_without_the_header_nothing_is_preferred() -> None:
    assert read_preferences(None, "patch-rows") is NO_PREFERENCES
    assert read(" , ,") == NO_PREFERENCES


@pytest.mark.parametrize(
    "prefer",
    [
        "Return=Minimal, COUNT = exact",
        ' return="minimal" ,count="exact";',
        "return=minimal, count=exact, return=minimal",
    ],
)
def test_one_meaning_has_many_spellings(prefer: str) -> None:
    preferences = read(prefer)
    assert (preferences.answer, preferences.count) == ("minimal", True)
    assert set(preferences.applied.split(b", ")) == {b"return=minimal", b"count=exact"}


def test_several_headers_are_one_list() -> None:
    headers = by_name([(b"prefer", b"return=minimal"), (b"host", b"a"), (b"prefer", b"max-affected=3")])
    preferences = read_preferences(headers[b"prefer"], "patch-rows")
    assert (preferences.answer, preferences.most) == ("minimal", 3)


@pytest.mark.parametrize(
    ("prefer", "named"),
    [
        ("max-afected=1", "max-afected=1"),
        ("return=everything", "return takes minimal, representation, headers-only"),
        ("max-affected=0", "max-affected=0"),
        ("max-affected=\N{SUPERSCRIPT TWO}", "whole number"),
        ("return=minimal, return=representation", "contradict"),
        ("max-affected=1, max-affected=2", "contradict"),
        ("return=minimal; count=exact", "parameter after a semicolon"),
        ('return="minimal', "not closed"),
        ("tx=rollback", "tx=rollback"),
        ("=minimal", "is written name=value"),
        ("timezone=utc", "timezone=utc"),
    ],
)
def test_what_is_not_done_is_refused_by_name(prefer: str, named: str) -> None:
    assert named in refused(prefer)


def test_a_refusal_lists_every_preference_that_is_honoured() -> None:
    names = {each.name for each in PREFERENCES}
    listed = refused("max-afected=1").partition("Known are ")[2].removesuffix(".")
    assert set(listed.replace(" and ", ", ").split(", ")) == names


async def read_body(raw: bytes) -> object:
    async def receive() -> Message:
        return {"type": "http.request", "body": raw}

    return (await read_json({b"content-type": b"application/json"}, receive, 1_000_000))[1]


@pytest.mark.parametrize(
    ("headers", "status", "named"),
    [
        ([], 415, "no Content-Type"),
        ([(b"content-type", b"application/merge-patch+json")], 415, "an object of columns and values"),
        ([(b"content-type", b"application/json"), (b"content-type", b"text/plain")], 400, "Content-Type: two headers"),
        ([(b"accept-profile", b"")], 400, "Accept-Profile: names no schema"),
        ([(b"accept-profile", b"caf%")], 400, "must be followed by two hexadecimal digits"),
        ([(b"content-profile", b"shop")], 400, "a resource names its schema itself"),
        ([(b"accept", b"application/json;q=0")], 406, "answers are application/json"),
    ],
)
async def test_headers_that_cannot_be_used_are_refused_by_name(
    headers: list[tuple[bytes, bytes]], status: int, named: str
) -> None:
    async def receive() -> Message:
        return {"type": "http.request", "body": b"{}"}

    async def read() -> None:
        found = by_name(headers)
        refuse_profile(found)
        wants_one(found)
        await read_json(found, receive, 1_000_000)

    with pytest.raises(RequestError) as error:
        await read()
    assert error.value.problem.http_status == status
    assert named in error.value.problem.detail


@pytest.mark.parametrize(
    "raw",
    [
        rb'{"a": 1, "a": 1}', rb'{"a": 1, "b": ":", "a": {}}', rb'[{"b": 1}, {"a": 1, "a": 2}]',
        rb'{"a": 1e999, "a": 1}', rb'{"a": 1, "\u0061": 2, "b": "\u003a"}', rb'{"\u003A": 1, "a": 1, "a": 1}',
    ],
)  # fmt: skip
async def test_a_member_that_is_there_twice_is_refused(raw: bytes) -> None:
    with pytest.raises(RequestError, match="body: 'a' is given twice"):
        await read_body(raw)


@pytest.mark.parametrize("raw", [rb'{"j": {"a": 1, "a": 2}}', rb'[{"a": ":"}, {"a": "\u003a"}]', rb'{"a": ":::"}'])
async def test_a_member_of_a_value_may_be(raw: bytes) -> None:
    assert await read_body(raw)


async def test_a_value_may_be_deep() -> None:
    assert await read_body(b'{"a": ' + b"[" * 500 + b"]" * 500 + b"}")
    for depth in (20_000, 100_000):  # Python from 3.12 on takes some 10,000
        with pytest.raises(RequestError, match=r"nested too deeply|depth limit exceeded"):
            await read_body(b'{"a": ' + b"[" * depth + b"]" * depth + b"}")


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


def scope(address: str | None) -> Scope:
    return {"type": "http", "client": None if address is None else (address, 4711)}


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2::a", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::b", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::a", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("a:socket", "a:socket"),
        (None, UNKNOWN),
    ],
)
def test_an_ipv6_client_is_named_by_its_network(address: str | None, name: str) -> None:
    assert caller_of(scope(address)) == name


@pytest.mark.parametrize(
    ("scope", "header"),
    [("account/42", b"account/42"), ("konto/a%2Fb", b"konto/a%2Fb"), ("kontö/a b", b"kont%C3%B6/a%20b")],
)
def test_a_scope_is_sent_as_it_is_but_for_what_a_header_cannot_carry(scope: str, header: bytes) -> None:
    assert (b"x-fence-scope", header) in fence_headers(Done([], 7, scope=scope))


def test_what_is_recorded_is_what_is_given() -> None:
    record = to_recorded(RawResponse(200, [(b"x", b"y")], b"body"))
    assert (record.status, record.headers, record.body) == (200, (("x", "y"),), b"body")
