"""A violation is described in words that name who did what, when, and under which token."""

import pytest
from tests.support.story import Story

from fencepost.testing.checker import Verdict


@pytest.fixture
def story() -> Story:
    return Story()


def words(verdict: Verdict) -> str:
    assert not verdict.valid
    (violation,) = verdict.violations
    return violation.words


def test_a_stale_write_that_was_accepted(story: Story) -> None:
    story.call("w3", "write", "orders/7", 0, 0.5, token=32, value="first")
    story.call("w5", "write", "orders/7", 1.05, 1.1, token=34, value="new")
    story.call("w3", "write", "orders/7", 1.15, 1.204, token=33, value="old")
    assert words(story.check()) == (
        "A stale write was accepted: w3 wrote 'old' to orders/7 under token 33 at 1.150 s, and that was accepted at"
        " 1.204 s, after w5's write under token 34 had been accepted at 1.100 s.\n"
        "  w5 wrote 'new' to orders/7 under token 34: asked at 1.050 s, accepted at 1.100 s\n"
        "  w3 wrote 'old' to orders/7 under token 33: asked at 1.150 s, accepted at 1.204 s"
    )


def test_a_refusal_with_a_mark_that_was_never_there(story: Story) -> None:
    story.call("w3", "write", "orders/7", 0, 1, token=33, value="a")
    story.call(
        "w5", "write", "orders/7", 2, 3, token=34, value="b", end_event="refused", end_reason="missing", end_mark=40
    )
    story.call("w6", "claim", "orders/7", 4, 5, token=40)
    found = words(story.check())
    assert found.startswith(
        "w5's write of orders/7 under token 34 was refused as missing, the mark being 40, although orders/7 can"
        " not have had a mark that allows this answer while it was under way.\n"
    )
    assert "w6 claimed orders/7" in found


def test_a_lost_update_shows_in_a_set_and_names_the_elements(story: Story) -> None:
    story.call("w1", "add", "set", 0, 1, value="1")
    story.call("w2", "add", "set", 0, 1, value="2")
    story.call("w2", "add", "set", 0, 1, value="3", end_event="refused", end_reason="stale")
    story.call("w3", "read_set", "set", 2, 3, end_values=("2", "3"))
    lost, strange = story.check().violations
    assert "misses 1 that were certainly in the set before: '1'." in lost.words
    assert "shows 1 that no accepted add can have put there: '3'." in strange.words


def test_tokens_of_a_lock_that_fall(story: Story) -> None:
    story.call("w1", "acquire", "lock/a", 0, 1, end_token=5)
    story.call("w2", "acquire", "lock/a", 2, 3, end_token=4)
    assert words(story.check()).startswith("lock/a was granted to w2 with token 4 after it had been granted to w1")


def test_two_holders_at_once_matter_only_without_tokens(story: Story) -> None:
    story.call("w1", "acquire", "lock/a", 0, 1, end_token=5)
    story.call("w2", "acquire", "lock/a", 2, 3, end_token=6)
    story.call("w1", "release", "lock/a", 4, 5)
    assert story.check().valid
    assert "while it was held by w1, which believed so until 4.000 s" in words(story.check("plain_mutex"))
    bare = Story()
    bare.call("w1", "acquire", "lock/a", 0, 1)
    bare.call("w2", "acquire", "lock/a", 2, 3)
    assert not bare.check().valid


@pytest.mark.parametrize("how", ["released", "expired", "killed"])
def test_who_has_stopped_to_believe_holds_no_lock(story: Story, how: str) -> None:
    expires = 15 * 10**8 if how == "expired" else None
    story.call("w1", "acquire", "lock/a", 0, 1, end_expires=expires)
    if how == "released":
        story.call("w1", "release", "lock/a", 1.5, 1.6)
    if how == "killed":
        story.killed("w1", 1.5)
    story.call("w2", "acquire", "lock/a", 2, 3)
    assert story.check("plain_mutex").valid


def test_a_key_with_two_effects(story: Story) -> None:
    story.call("w1", "write", "orders/7", 0, 1, token=5, value="a", key="k", rule="epoch")
    story.call("w1", "write", "orders/7", 2, 3, token=5, value="a", key="k", rule="epoch")
    (once,) = story.check("once").violations
    assert once.words.startswith("Two operations with the Idempotency-Key 'k' were both done.")


def test_a_repeated_answer_may_be_the_operations_own(story: Story) -> None:
    """The gateway has looked it up, because its connection broke after the commit."""
    story.call("w1", "write", "orders/7", 0, 1, token=5, value="a", key="k", end_replayed=True)
    story.call("w2", "read", "orders/7", 2, 3, end_value="a")
    assert story.check().valid
    story.call("w2", "read", "orders/7", 4, 5, end_value=None)
    assert {each.model for each in story.check().violations} == {"register"}


def test_a_repeated_answer_shows_that_the_lost_one_happened(story: Story) -> None:
    story.call("w1", "write", "orders/7", 0, 1, token=5, value="a", key="k", end_event="unknown", end_why="cut")
    story.call("w1", "write", "orders/7", 2, 3, token=5, value="a", key="k", end_replayed=True)
    story.call("w2", "read", "orders/7", 4, 5, end_value="a")
    assert story.check().valid
    story.call("w2", "read", "orders/7", 6, 7, end_value=None)
    assert "outcome unknown at 1.000 s (cut)" in words(story.check())


def test_of_two_unknown_operations_with_one_key_only_one_can_have_happened(story: Story) -> None:
    for since in (0, 1):
        story.call("w1", "write", "orders/7", since, None, token=5, value="a", key="k", rule="epoch")
    story.call("w2", "read", "orders/7", 2, 3, end_value="a")
    story.call("w1", "write", "orders/7", 4, 5, token=5, value="b", rule="epoch")
    story.call("w2", "read", "orders/7", 6, 7, end_value="b")
    assert story.check().valid
    story.call("w2", "read", "orders/7", 8, 9, end_value="a")
    assert not story.check().valid
