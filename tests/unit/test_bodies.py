"""Bodies of requests and their preferences: what is read, kept and refused."""

import json
from dataclasses import replace
from typing import Any, cast
from unittest.mock import Mock

import pytest
from starlette.types import Message, Scope
from tests.support.manual_clock import ManualClock
from tests.unit.catalog_tables import column, table

from fencepost.server.fence.caller import UNKNOWN
from fencepost.server.fence.problem_types import STALE_TOKEN
from fencepost.server.fence.problems import Problem, bad_request
from fencepost.server.fence.token import Token
from fencepost.server.gateway.idempotency import Replayed, read_record, recorded, recorded_problem
from fencepost.server.gateway.outcomes import _MOST_CALLERS, MOST_KEPT, SMALL_KEPT, Done, KeptAnswers
from fencepost.server.gateway.plan import refuse_expansion
from fencepost.server.gateway.write import NO_PREFERENCES, UNREAD, Body, Listed, Matching, OneRow, Preferences, Write
from fencepost.server.http import bodies
from fencepost.server.http.answers import answer, fence_headers
from fencepost.server.http.bodies import BodiesInHand, read_json, read_object
from fencepost.server.http.data import payload_hash
from fencepost.server.http.edge import caller_of
from fencepost.server.http.headers import PREFERENCES, Route, by_name, read_preferences, refuse_profile, wants_one
from fencepost.server.http.problems import RequestError, problem_response
from fencepost.server.postgres.keyed import Recorded

# What a body is kept as, how much of bodies a process has, and how large their numbers may become.

JSON = {b"content-type": b"application/json"}
MB = 1 << 20


async def read(value: object, columns: tuple[str, ...] | None = None) -> Body:
    return await read_object(JSON, json.dumps(value).encode(), MB, columns)


async def test_of_a_body_that_waits_only_what_may_be_a_key_is_kept_as_objects() -> None:
    body = await read({"id": "a", "n": 7, "doc": [[[]]] * 9, "of": {"x": 1}, "long": "x" * 3001, "none": None})
    unread = dict.fromkeys(("doc", "of", "long"), UNREAD)
    assert body.values == {"id": "a", "n": 7, "none": None} | unread
    assert (body.gives("id", "a"), body.gives("long", "x" * 3001)) == (True, False)
    assert json.loads(body.text)["doc"] == [[[]]] * 9
    many = {f"c{n}": n for n in range(1601)}
    with pytest.raises(RequestError) as refused:
        await read(many)
    assert "1601 members" in (refused.value.problem.detail or "")
    assert (await read(many, ("c1", "other"))).values == {"c1": 1}


async def test_large_bodies_have_room_in_a_process_and_three_quarters_of_it_a_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bodies, "MOST_BODIES", 8)
    in_hand = BodiesInHand(MB)

    def announced(size: int) -> Any:
        return in_hand.counting("a", {b"content-length": b"%d" % size}, cast("Any", None))

    async with announced(5 * MB):  # counts as MB: more of it is not read
        assert in_hand.takes_lines("a", 5 * MB)
        assert not in_hand.takes_lines("a", 1), "that is three quarters of 8"
        with pytest.raises(RequestError) as refused:
            async with announced(1):
                pass
        assert "6291456 of a already" in refused.value.problem.detail
        assert in_hand.takes_lines("b", 2 * MB)
        assert not in_hand.takes_lines("b", 1), "that is all"
    in_hand.give_back("a", 5 * MB)
    in_hand.give_back("b", 2 * MB)
    assert in_hand.bytes == 0


async def test_a_body_of_no_announced_length_counts_once_it_is_large() -> None:
    in_hand = BodiesInHand(MB)
    parts = [b"x" * bodies.SMALL, b"x", b"x"]

    async def receive() -> Message:
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    taken = []
    async with in_hand.counting("a", {b"transfer-encoding": b"chunked"}, receive) as counted:
        while parts:
            await counted()
            taken.append(in_hand.bytes)
    assert (taken, in_hand.bytes) == ([0, MB, MB], 0)


DOCS = table("docs", *(column(n, n) for n in ("jsonb", "json", "text", "numeric", "_numeric", "_text")))
DOCS = replace(DOCS, expanding=frozenset(each.name for each in DOCS.columns.values() if each.expands))
LARGE = "1e100000," * 99
REFUSED = {
    "jsonb": [f"[{LARGE}1]", f'{{"a": [{{"b": [{LARGE}1]}}]}}', "[" + "1e-999999," * 70 + "1]", f"[{LARGE.upper()}1]"],
    "_numeric": [
        *(f"[{LARGE}1]", f'"{{{LARGE}1}}"', f'"{{{LARGE.replace("100000", "+1_0_0_000")}1}}"'),
        *(f'"{{{LARGE.replace("e", e)}1}}"' for e in ("\\u0065", "\\\\e", '\\"E\\"')),
    ],
}


@pytest.mark.parametrize("rows", [1, 3])
def test_numbers_are_not_stored_that_would_fill_answers_when_they_are_written_out(rows: int) -> None:
    def asked(name: str, value: str, largest: int = 8 * MB) -> Any:
        raw = f'{{"{name}": {value}, "n": 1}}'
        raw = raw if rows == 1 else f"[{', '.join([raw] * rows)}]"
        return refuse_expansion(DOCS, Body(raw.encode(), (name, "n"), {}), largest * rows)

    for name, values in REFUSED.items():
        for value in values:
            problem = asked(name, value)
            assert problem is not None, (name, value[:40])
            assert f"the numbers of {name} have" in problem.detail
            assert asked(name, value, 100 * MB) is None
    taken = {
        "jsonb": [f'"{LARGE}"', "[" + "1e131073," * 99 + "1]", "[" + "1.5e30," * 9999 + "1]", "[" * 2000 + "]" * 2000],
        "text": [f'"{LARGE}"', f"[{LARGE}1]"],
        "json": [f"[{LARGE}1]"],
        "_text": [f'"{{{LARGE}}}"'],
        "numeric": ["1e131071" + " " * 999],
    }
    for name, values in taken.items():
        for value in values:
            assert asked(name, value) is None, (name, value[:40])


# Parts of requests and answers: preferences, bodies, hashes of payloads, names of callers, headers.


def preferred(prefer: str, route: Route = "patch-rows") -> Preferences:
    return read_preferences(prefer.encode("latin-1"), route)


def refused(prefer: str, route: Route = "patch-rows") -> str:
    with pytest.raises(RequestError) as error:
        preferred(prefer, route)
    assert error.value.problem.http_status == 400
    return error.value.problem.detail


def test_without_the_header_nothing_is_preferred() -> None:
    assert read_preferences(None, "patch-rows") is NO_PREFERENCES
    assert preferred(" , ,") == NO_PREFERENCES


@pytest.mark.parametrize(
    "prefer",
    [
        "Return=Minimal, COUNT = exact",
        ' return="minimal" ,count="exact";',
        "return=minimal, count=exact, return=minimal",
    ],
)
def test_one_meaning_has_many_spellings(prefer: str) -> None:
    preferences = preferred(prefer)
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


@pytest.mark.parametrize("depth", [500, 1_000, 1_020])
async def test_how_deep_a_value_may_be_does_not_depend_on_what_is_around_it(depth: int) -> None:
    """Python and orjson have bounds of their own: one body is refused if the other is."""

    async def is_taken(raw: bytes) -> bool:
        try:
            return bool(await read_body(raw))
        except RequestError:
            return False

    deep = b'{"a": ' + b"[" * depth + b"]" * depth + b"}"
    assert await is_taken(deep) == await is_taken(deep[:-1] + b', "b": ":"}')


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


ROWS = ['{"id": 1,  "n": 1.50}', '{"id": 2, "n": null}']
"""As PostgreSQL writes them: JSON that is read, and written anew, is another text."""


@pytest.mark.parametrize(
    ("verb", "target", "done"),
    [
        ("patch", OneRow(("1",)), Done(ROWS[:1], 7)),
        ("put", OneRow(("1",)), Done(ROWS[:1], 7, created=True)),
        ("delete", OneRow(("1",)), Done(ROWS[:1], 7, scope="konto/a%2Fb")),
        ("post", Listed(1), Done(ROWS[:1], 7, created=True, resource="orders/1")),
        ("post", Listed(2), Done(ROWS, created=True, resources=("orders/1", "orders/2"))),
        ("post", Listed(0), Done([], created=True)),
        ("patch", Matching(()), Done(ROWS)),
        ("delete", Matching(()), Done([])),
    ],
)
@pytest.mark.parametrize("exactly_one", [False, True])
@pytest.mark.parametrize(
    "preferences",
    [
        NO_PREFERENCES,
        Preferences("minimal", applied=b"return=minimal"),
        Preferences("representation", count=True, applied=b"return=representation, count=exact"),
        Preferences("headers-only", most=5, applied=b"max-affected=5, return=headers-only"),
        Preferences(count=True, applied=b"count=planned"),
    ],
)
def test_a_repetition_is_answered_as_the_first_request_was(
    verb: Any, target: Any, done: Done, preferences: Preferences, exactly_one: bool
) -> None:
    """But for the mark, and whatever the repetition itself prefers."""
    write = Write(verb, "orders", target, None, preferences=preferences, exactly_one=exactly_one)
    first = answer(write, done)
    rows = ",".join(done.rows) if write.shown else None
    gateway: Any = Mock()  # whose kept answers have room
    kept = read_record(recorded(gateway, write, done, rows, preferences))
    assert isinstance(kept, Replayed)
    again = answer(replace(write, preferences=Preferences("representation"), exactly_one=False), kept)
    assert (again.status_code, again.body) == (first.status_code, first.body)
    headers = [each for each in again.raw_headers if each != (b"idempotent-replayed", b"true")]
    assert len(headers) == len(again.raw_headers) - 1
    assert headers == [each for each in first.raw_headers if each[0] != b"x-fence-mark"]


def test_a_problem_is_shown_as_it_was_met() -> None:
    problem = Problem(
        STALE_TOKEN, "Token 3 is stale.", hint="Wait.", details="…", code="57014", status=409, resource="orders/1",
        presented_token=Token(3), current_token=2**62, retry_after=4, extra={"queue": "q", "of": [1, {"a": None}]},
    )  # fmt: skip
    for each in (
        problem,
        replace(problem, shows_mark=False),
        bad_request("x" * 10_000),
        replace(problem, resource="é" * 10_000),
    ):
        record = recorded_problem(each)
        assert record.outcome.isascii(), "a database in LATIN1 takes it too"
        assert len(record.outcome) < 30_000, "names are cut before they are kept"
        assert (str(2**62) in record.outcome) == (each.shows_mark and each.current_token is not None)
        kept = read_record(record)
        assert isinstance(kept, Problem)
        first, again = problem_response(each), problem_response(kept)
        assert (first.status_code, first.body, first.raw_headers) == (again.status_code, again.body, again.raw_headers)


def test_a_record_of_a_newer_version_is_read_as_far_as_this_one_knows_it() -> None:
    done = read_record(Recorded('{"verb": "patch", "counted": 1, "newer": 5}', "{}"))
    assert isinstance(done, Replayed)
    assert (done.count, answer(Write("patch", "t", OneRow(("1",)), None), done).status_code) == (1, 200)
    problem = read_record(Recorded('{"type": "newer", "detail": "As it was.", "status": 418, "newer": 5}', None))
    assert isinstance(problem, Problem)
    assert (problem.http_status, problem.detail) == (418, "As it was.")


# Which answers are kept under Idempotency-Keys, and for how long they count.


async def test_a_caller_has_a_quarter_all_have_the_whole_and_it_comes_back_evenly() -> None:
    clock = ManualClock()
    kept = KeptAnswers(16 * MOST_KEPT, 160.0, clock)

    def taken(caller: str) -> int:
        return sum(kept.takes(caller, MOST_KEPT) for _ in range(20))

    assert [kept.takes("a", size) for size in (SMALL_KEPT, MOST_KEPT + 1)] == [True, False]
    assert [taken(caller) for caller in "abcde"] == [4, 4, 4, 4, 0]
    assert kept.takes("e", SMALL_KEPT)
    await clock.advance(40.0)
    assert [taken(caller) for caller in "abcde"] == [1, 1, 1, 1, 0]


def test_many_callers_take_no_more_than_all_may() -> None:
    kept = KeptAnswers(2 * _MOST_CALLERS * MOST_KEPT, 100.0, ManualClock())
    assert sum(kept.takes(f"caller {number}", MOST_KEPT) for number in range(3 * _MOST_CALLERS)) == 2 * _MOST_CALLERS
