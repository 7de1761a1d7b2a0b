"""What the checker makes of answers that were lost and repeated, and of tokens that are drawn under a grant."""

from typing import Final

import pytest

from fencepost.testing.checker import check
from fencepost.testing.history import End, Event, History, Invoke, Outcome, Recorder

KEY: Final = "k"


def write(time: int, number: int, token: int, value: str = "a", key: str | None = KEY) -> Invoke:
    return Invoke(time, number, f"w{number}", "write", "orders/7", token, value, key=key)


def read(time: int, number: int, value: str | None, mark: int | None = None) -> list[Event]:
    return [Invoke(time, number, "r", "read", "orders/7"), End(time + 1, number, "ok", value, mark)]


def ended(time: int, number: int, outcome: Outcome = "unknown", *, replayed: bool = False) -> End:
    return End(time, number, outcome, replayed=replayed)


LOST_TWICE: Final[list[Event]] = [write(1, 1, 5), ended(2, 1), write(3, 2, 7), ended(4, 2)]
"""A write, and its repetition under the token of another grant: the answers of both were lost."""


def valid(*events: Event) -> bool:
    return check(History({}, lambda: events)).valid


@pytest.mark.parametrize("mark", [5, 7])
def test_a_repetition_under_another_token_may_have_been_the_one_that_was_done(mark: int) -> None:
    assert valid(*LOST_TWICE, *read(5, 3, "a", mark))


def test_both_together_are_one_effect_too_many() -> None:
    assert not valid(*LOST_TWICE, *read(5, 3, "a", 5), *read(7, 4, "a", 7))


def test_one_of_them_was_done_when_the_answer_is_repeated() -> None:
    replay: list[Event] = [write(5, 3, 9), ended(6, 3, "ok", replayed=True)]
    assert valid(*LOST_TWICE, *replay, *read(7, 4, "a", 7))
    assert valid(*LOST_TWICE, *replay, *read(7, 4, "a", 5))
    assert not valid(*LOST_TWICE, *replay, *read(7, 4, None))
    assert not valid(*LOST_TWICE, *replay, *read(7, 4, "a", 5), *read(9, 5, "a", 7))


def test_a_repeated_answer_dates_the_original_whose_answer_came_later() -> None:
    events = [write(1, 1, 5), write(2, 2, 5), ended(3, 2, "ok", replayed=True), *read(4, 3, None), ended(9, 1, "ok")]
    assert not valid(*events)


def test_a_repeated_answer_may_be_the_effect_of_its_own_operation_or_of_the_lost_one() -> None:
    """The first was lost, the second's answer was looked up: it was done under one of the two tokens."""
    either: list[Event] = [write(1, 1, 5), ended(2, 1), write(3, 2, 7), ended(5, 2, "ok", replayed=True)]
    for mark in (5, 7):
        assert valid(*either, *read(6, 3, "a", mark))
    assert not valid(*either, *read(6, 3, "a", 5), *read(8, 4, "a", 7))
    assert not valid(*either, *read(6, 3, None))


def test_of_two_repeated_answers_the_sooner_one_shows_by_when_it_was_done() -> None:
    """The first operation is done and looked up; the second finds the record and is answered before it."""
    both: list[Event] = [write(1, 1, 5), write(2, 2, 7), ended(3, 2, "ok", replayed=True)]
    slower = ended(9, 1, "ok", replayed=True)
    assert valid(*both, *read(4, 3, "a", 5), slower)
    assert valid(*both, *read(4, 3, "a", 7), slower)
    assert not valid(*both, *read(4, 3, None), slower)
    third: list[Event] = [write(10, 5, 9), ended(11, 5, "ok", replayed=True)]
    assert valid(*both, *read(4, 3, "a", 5), slower, *third, *read(12, 6, "a", 5))
    assert not valid(*both, *read(4, 3, "a", 5), slower, *third, *read(12, 6, "a", 9))


def test_many_lost_answers_under_one_epoch_token_leave_few_states() -> None:
    """An operation that was not needed is never worse than one that was used up."""
    events: list[Event] = []
    for n in range(0, 240, 4):
        lost, done = (
            Invoke(n * 10 + at, n + at, "w", "write", "orders/7", 7, f"v{n + at}", "epoch") for at in range(2)
        )
        events += [lost, done, ended(n * 10 + 2, n + 1, "ok"), *read(n * 10 + 3, n + 2, done.value)]
    assert valid(*events)
    assert not valid(*events, *read(9_999, 999, "v1"))


def test_unknown_writes_and_reads_of_all_of_them_at_once() -> None:
    numbers = range(20)
    writes: list[Event] = [write(1, n, n + 1, f"v{n}", None) for n in numbers]
    asked: list[Event] = [Invoke(1, 100 + n, "r", "read", "orders/7") for n in numbers]
    answers: list[Event] = [End(2, 100 + n, "ok", f"v{n}") for n in numbers]
    assert valid(*writes, *asked, *answers)


def grant(recorder: Recorder, token: int, *, under: int | None = None) -> None:
    recorder.invoke(process="w", op="acquire", resource="lock/a", token=under).ok(token=token)


def history(*grants: tuple[int, int | None]) -> History:
    recorder = Recorder()
    calls = [
        (recorder.invoke(process="w", op="acquire", resource="lock/a", token=under), token) for token, under in grants
    ]
    for call, token in calls:  # all at the same time: only their tokens order them
        call.ok(token=token)
    return recorder.history


def test_tokens_of_one_grant_after_the_other_are_right() -> None:
    assert check(history((5, None), (6, 5), (9, 5), (10, None), (11, 10))).valid


def test_a_token_that_was_drawn_after_the_next_grant_is_found() -> None:
    verdict = check(history((5, None), (9, 5), (7, None)))
    assert [violation.model for violation in verdict.violations] == ["mutex"]
    assert "token 9 was drawn under that grant; but token 7" in verdict.violations[0].words
    assert len(verdict.violations[0].events) == 6


def test_a_mint_after_which_an_older_token_is_granted_is_found() -> None:
    recorder = Recorder()
    grant(recorder, 5)
    grant(recorder, 9, under=5)
    grant(recorder, 7)
    assert not check(recorder.history).valid
