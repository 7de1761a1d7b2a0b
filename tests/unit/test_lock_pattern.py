"""Patterns of lock names, in Python and as SQL's LIKE has them."""

import pytest

from fencepost.fencing.caller import Caller
from fencepost.fencing.lock_pattern import likes, matches

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
