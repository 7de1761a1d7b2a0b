"""Tokens that are drawn under a grant belong to it: no token of another grant is between them."""

from fencepost.testing.checker import check
from fencepost.testing.history import History, Recorder


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
