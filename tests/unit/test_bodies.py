"""What a body is kept as, how much of bodies a process has, and how large their numbers may become."""

import json
from dataclasses import replace
from typing import Any

import pytest
from starlette.types import Message
from tests.unit.catalog_tables import column, table

from fencepost.server.gateway.write import UNREAD, Body, refuse_expansion
from fencepost.server.http import bodies
from fencepost.server.http.bodies import BodiesInHand, read_object
from fencepost.server.http.headers import body_of
from fencepost.server.http.problems import RequestError

JSON = {b"content-type": b"application/json"}
MB = 1 << 20


async def read(value: object, columns: tuple[str, ...] | None = None) -> Body:
    return await read_object(JSON, body_of(json.dumps(value).encode()), MB, columns)


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
        return in_hand.counting("a", {b"content-length": b"%d" % size}, body_of(b""))

    with in_hand.room("a") as room, in_hand.room("b") as other:
        async with announced(5 * MB):  # counts as MB: more of it is not read
            assert room(5 * MB)
            assert not room(1), "that is three quarters of 8"
            with pytest.raises(RequestError) as refused:
                async with announced(1):
                    pass
            assert "6291456 of a already" in refused.value.problem.detail
            assert other(2 * MB)
            assert not other(1), "that is all"
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
TAKEN = {
    "jsonb": [f'"{LARGE}"', "[" + "1e131073," * 99 + "1]", "[" + "1.5e30," * 9999 + "1]", "[" * 2000 + "]" * 2000],
    "text": [f'"{LARGE}"', f"[{LARGE}1]"],
    "json": [f"[{LARGE}1]"],
    "_text": [f'"{{{LARGE}}}"'],
    "numeric": ["1e131071" + " " * 999],
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
    for name, values in TAKEN.items():
        for value in values:
            assert asked(name, value) is None, (name, value[:40])
