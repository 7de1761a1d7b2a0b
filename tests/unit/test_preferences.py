"""Prefer as RFC 7240 spells it: several headers, commas, any case, quoted values; what is not done is refused."""

import pytest

from fencepost.http.problems.response import RequestError
from fencepost.http.requests.headers import by_name
from fencepost.http.requests.preferences import HONOURED, NONE, Preferences, read_preferences


def read(prefer: str, route: str = "many") -> Preferences:
    return read_preferences(prefer.encode("latin-1"), route)  # type: ignore[arg-type]


def refused(prefer: str, route: str = "many") -> str:
    with pytest.raises(RequestError) as error:
        read(prefer, route)
    assert error.value.problem.http_status == 400
    return error.value.problem.detail


def test_without_the_header_nothing_is_preferred() -> None:
    assert read_preferences(None, "many") is NONE
    assert read(" , ,") == NONE


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
    preferences = read_preferences(headers[b"prefer"], "many")
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
        ("timezone=utc", "timezone=utc"),
    ],
)
def test_what_is_not_done_is_refused_by_name(prefer: str, named: str) -> None:
    assert named in refused(prefer)


def test_a_refusal_lists_every_preference_that_is_honoured() -> None:
    names = {each.partition("=")[0] for each in HONOURED}
    listed = refused("max-afected=1").partition("Known are ")[2].removesuffix(".")
    assert set(listed.replace(" and ", ", ").split(", ")) == names
