"""The oracle of the storms of queues sees what they look for."""

import pytest
from tests.robustness.queues.oracle import Effect, Submission, judge

SUBMITTED = (
    Submission("w", "k0", "a", "acknowledged", offset=4),
    Submission("w", "k0", "b", "acknowledged", offset=6),
    Submission("w", "k0", "c", "refused"),
    Submission("w", "k0", "d", "unknown"),
)
DONE = (Effect("k0", "a", 5), Effect("k0", "b", 7))


def test_each_once_and_in_order_is_right() -> None:
    assert judge(SUBMITTED, DONE) == []
    assert judge(SUBMITTED, [*DONE, Effect("k0", "d", 8)]) == []


def test_an_effect_may_have_the_token_of_the_other_place_of_a_message_that_was_appended_twice() -> None:
    twice = [Effect("k0", "a", 3), DONE[1]]
    assert judge(SUBMITTED, twice, {"a": {2, 4}, "b": {6}}) == []
    for places in ({"a": {4}}, {"a": {2}}, {}):
        assert judge(SUBMITTED, twice, places) == ["a is at offset 4, and was done under token 3"]


@pytest.mark.parametrize(
    ("effects", "because"),
    [
        (DONE[:1], "b of k0 was acknowledged (offset 6): 0 effects under []"),
        ([*DONE, Effect("k0", "b", 8)], "b of k0 was acknowledged (offset 6): 2 effects under [7, 8]"),
        ([*DONE, Effect("k0", "c", 8)], "c of k0 was refused (offset None): 1 effects under [8]"),
        ([*DONE, Effect("k0", "x", 8)], "x had an effect, and was never submitted"),
        ([Effect("k0", "a", 7), Effect("k0", "b", 7)], "b changed k0 under token 7, after 7"),
        ([Effect("k0", "a", 5), Effect("k0", "b", None)], "b changed k0 under token None, after 5"),
        ([Effect("k0", "a", 5), Effect("k0", "b", 8)], "b is at offset 6, and was done under token 8"),
        ([Effect("k0", "b", 7), Effect("k0", "a", 9)], "w submitted to k0 ['a', 'b'], and what was done there is"),
        ([DONE[0], Effect("k1", "b", 7)], "b was submitted for k0, and changed k1"),
    ],
)
def test_what_is_wrong_is_reported(effects: list[Effect], because: str) -> None:
    assert any(each.startswith(because) for each in judge(SUBMITTED, effects)), judge(SUBMITTED, effects)
