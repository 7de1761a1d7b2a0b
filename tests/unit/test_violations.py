"""What an oracle found is a Violation, and is found again in whatever it was raised with."""

import pytest
from tests.support.violations import Violation, assert_none, judging, violations_in


def test_the_seed_is_the_first_line_and_what_is_wrong_comes_before_the_rest() -> None:
    assert_none([], "seed")
    with pytest.raises(Violation) as raised:
        assert_none(["k0 is lost"], "FENCEPOST_STORM_SEED=7", "answers")
    assert str(raised.value).splitlines() == ["FENCEPOST_STORM_SEED=7", "k0 is lost", "answers"]


def test_a_violation_is_found_in_a_group_and_in_what_an_exception_was_raised_from() -> None:
    violation = Violation("two hold x")
    later = TimeoutError()
    later.__cause__ = ExceptionGroup("tasks", [ValueError(), ExceptionGroup("inner", [violation])])
    assert violations_in(later) == [violation]
    assert violations_in(AssertionError("a mere one")) == violations_in(None) == []


def test_what_a_scenario_asserts_is_a_violation_and_says_what_was_asserted() -> None:
    with pytest.raises(Violation, match="raise_what_is_told: ") as raised, judging():
        raise_what_is_told()
    assert "the second holder" in str(raised.value)


def raise_what_is_told() -> None:
    raise AssertionError("the second holder")


@pytest.mark.parametrize(("error", "within"), [(TimeoutError(), 9.0), (AssertionError(), -1.0)])
def test_a_wait_that_came_to_its_end_and_what_comes_too_late_are_none(error: Exception, within: float) -> None:
    with pytest.raises(type(error)) as raised, judging(within):
        raise error
    assert raised.value is error
