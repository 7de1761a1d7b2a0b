"""A violation is described in words that name who did what, when, and under which token."""

import pytest
from tests.support.story import Story

from fencepost.testing import assert_exactly_once, assert_fenced, assert_mutual_exclusion
from fencepost.testing.checker import Verdict
from fencepost.testing.history import Recorder


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


def test_writes_at_the_same_time_may_come_in_the_order_of_their_tokens(story: Story) -> None:
    story.call("w5", "write", "orders/7", 1.05, 1.2, token=34, value="new")
    story.call("w3", "write", "orders/7", 1.1, 1.15, token=33, value="old")
    assert story.check().valid


def test_a_token_that_was_accepted_twice(story: Story) -> None:
    story.call("w3", "write", "orders/7", 0, 1, token=33, value="a")
    story.call("w3", "claim", "orders/7", 2, 3, token=33)
    assert "orders/7 accepted token 33 twice" in words(story.check())


def test_under_epoch_a_token_is_accepted_as_often_as_its_holder_needs(story: Story) -> None:
    story.call("w3", "write", "orders/7", 0, 1, token=33, value="a", rule="epoch")
    story.call("w3", "delete", "orders/7", 2, 3, token=33, rule="epoch")
    assert story.check().valid


def test_a_read_of_what_was_overwritten(story: Story) -> None:
    story.call("w3", "write", "orders/7", 0, 1, token=33, value="a")
    story.call("w5", "write", "orders/7", 2, 3, token=34, value="b")
    story.call("w1", "read", "orders/7", 4, 5, end_value="a")
    description = words(story.check())
    assert description.startswith("w1 read 'a' in orders/7 at a time when this was not what orders/7 held.")
    assert len(description.splitlines()) == 4


def test_a_deleted_row_that_came_back(story: Story) -> None:
    story.call("w3", "write", "orders/7", 0, 1, token=33, value="a")
    story.call("w5", "delete", "orders/7", 2, 3, token=35)
    story.call("w3", "write", "orders/7", 4, 5, token=34, value="b")
    assert "w5's delete under token 35" in words(story.check())


def test_a_write_that_was_refused_and_happened_all_the_same(story: Story) -> None:
    story.call("w3", "write", "orders/7", 0, 1, token=33, value="a")
    story.call("w5", "write", "orders/7", 2, 3, token=32, value="b", end_event="refused", end_reason="stale")
    story.call("w1", "read", "orders/7", 4, 5, end_value="b")
    assert "that was refused, and had an effect all the same" in words(story.check())


def test_a_value_that_was_not_written(story: Story) -> None:
    story.call("w1", "read", "orders/7", 4, 5, end_value="b")
    assert "w1 read 'b' in orders/7, which no operation wrote." in words(story.check())


def test_a_row_that_was_lost(story: Story) -> None:
    story.call("w3", "write", "orders/7", 0, 1, token=33, value="a")
    story.call("w1", "read", "orders/7", 4, 5, end_value=None)
    assert "w1 read no row in orders/7" in words(story.check())


def test_a_refusal_without_a_reason(story: Story) -> None:
    story.call("w3", "write", "orders/7", 0, 1, token=33, value="a")
    story.call("w5", "write", "orders/7", 2, 3, token=34, value="b", end_event="refused", end_reason="stale")
    description = words(story.check())
    assert "w5's write of orders/7 under token 34 was refused as stale, although" in description


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


def test_a_refusal_for_any_reason_may_name_the_mark_that_was_there(story: Story) -> None:
    story.call("w3", "write", "orders/7", 0, 1, token=33, value="a")
    story.call(
        "w5", "write", "orders/7", 2, 3, token=34, value="b", end_event="refused", end_reason="other", end_mark=33
    )
    assert story.check().valid


def test_an_unknown_write_may_have_happened_or_not_but_not_both(story: Story) -> None:
    story.call("w3", "write", "orders/7", 0, 1, token=33, value="a")
    story.call("w5", "write", "orders/7", 2, None, token=34, value="b")
    story.call("w1", "read", "orders/7", 4, 5, end_value="a")
    story.call("w1", "read", "orders/7", 6, 7, end_value="b")
    assert story.check().valid
    story.call("w1", "read", "orders/7", 8, 9, end_value="a")
    assert "no answer, and so it may have happened" in words(story.check())


def test_a_claim_shows_what_it_fenced(story: Story) -> None:
    story.call("w3", "write", "orders/7", 0, 1, token=33, value="a")
    story.call("w5", "claim", "orders/7", 2, 3, token=34, end_value=None)
    assert not story.check().valid


def test_a_lost_update_shows_in_a_set_and_names_the_elements(story: Story) -> None:
    story.call("w1", "add", "set", 0, 1, value="1")
    story.call("w2", "add", "set", 0, 1, value="2")
    story.call("w2", "add", "set", 0, 1, value="3", end_event="refused", end_reason="stale")
    story.call("w3", "read_set", "set", 2, 3, end_values=("2", "3"))
    lost, strange = story.check().violations
    assert "misses 1 that were certainly in the set before: '1'." in lost.words
    assert "shows 1 that no accepted add can have put there: '3'." in strange.words


def test_an_element_that_was_away_for_a_while(story: Story) -> None:
    story.call("w1", "add", "set", 0, 1, value="1")
    story.call("w3", "read_set", "set", 2, 3, end_values=())
    story.call("w3", "read_set", "set", 4, 5, end_values=("1",))
    assert "a later reading shows it again" in words(story.check())


def test_tokens_of_a_lock_that_fall(story: Story) -> None:
    story.call("w1", "acquire", "lock/a", 0, 1, end_token=5)
    story.call("w2", "acquire", "lock/a", 2, 3, end_token=4)
    assert words(story.check()).startswith("lock/a was granted to w2 with token 4 after it had been granted to w1")


def test_a_token_that_was_granted_twice(story: Story) -> None:
    story.call("w1", "acquire", "lock/a", 0, 3, end_token=5)
    story.call("w2", "acquire", "lock/a", 1, 2, end_token=5)
    assert words(story.check()).startswith("lock/a was granted twice with token 5.")


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


def test_a_repeated_answer_is_none_of_a_later_operation(story: Story) -> None:
    story.call("w1", "write", "orders/7", 0, 1, token=5, value="a", key="k", end_replayed=True)
    story.call("w1", "write", "orders/7", 2, 3, token=5, value="a", key="k")
    assert "the operation that was done with this key began later" in words(story.check())


def test_repeated_answers_are_those_of_one_request(story: Story) -> None:
    story.call("w1", "write", "orders/7", 0, 1, token=5, value="a", key="k", end_event="unknown", end_why="cut")
    story.call("w1", "write", "orders/7", 2, 3, token=5, value="a", key="k", end_replayed=True)
    assert story.check().valid
    story.call("w1", "write", "orders/7", 4, 5, token=5, value="b", key="k", end_replayed=True)
    assert "answered with what another request had been answered" in words(story.check())


def test_a_repeated_answer_shows_that_the_lost_one_happened(story: Story) -> None:
    story.call("w1", "write", "orders/7", 0, 1, token=5, value="a", key="k", end_event="unknown", end_why="cut")
    story.call("w1", "write", "orders/7", 2, 3, token=5, value="a", key="k", end_replayed=True)
    story.call("w2", "read", "orders/7", 4, 5, end_value="a")
    assert story.check().valid
    story.call("w2", "read", "orders/7", 6, 7, end_value=None)
    assert "outcome unknown at 1.000 s (cut)" in words(story.check())


def test_a_key_that_answers_another_request(story: Story) -> None:
    story.call("w1", "write", "orders/7", 0, 1, token=5, value="a", key="k")
    story.call("w1", "write", "orders/7", 2, 3, token=6, value="b", key="k", end_replayed=True)
    assert "answered with what another request had been answered" in words(story.check())


def test_a_key_that_gives_another_answer(story: Story) -> None:
    story.call("w1", "claim", "orders/7", 0, 1, token=5, key="k", end_value=None)
    story.call("w1", "claim", "orders/7", 2, 3, token=5, key="k", end_value="a", end_replayed=True)
    assert "is another one" in words(story.check())


def test_assertions_raise_the_words() -> None:
    recorder = Recorder()
    for token in (34, 33):
        write = recorder.invoke(process="w1", op="write", resource="orders/7", token=token, value=str(token), key="k")
        write.ok()
        recorder.invoke(process="w1", op="acquire", resource="lock/a").ok(token=token)
    with pytest.raises(AssertionError, match="A stale write was accepted"):
        assert_fenced(recorder.history)
    with pytest.raises(AssertionError, match="both done"):
        assert_exactly_once(recorder.history)
    with pytest.raises(AssertionError, match="granted to w1 with token 33 after"):
        assert_mutual_exclusion(recorder.history)


def test_of_several_unknown_operations_any_may_have_explained_a_refusal(story: Story) -> None:
    story.call("w1", "write", "orders/7", 0, 1, token=1, value="a")
    story.call("w2", "write", "orders/7", 2, None, token=2, value="b")
    story.call("w3", "claim", "orders/7", 2, None, token=5)
    story.call("w1", "claim", "orders/7", 3, 4, token=1, end_event="refused", end_reason="stale")
    story.call("w1", "read", "orders/7", 5, 6, end_value="b", end_token=5)
    assert story.check().valid


def test_of_two_unknown_operations_with_one_key_only_one_can_have_happened(story: Story) -> None:
    for since in (0, 1):
        story.call("w1", "write", "orders/7", since, None, token=5, value="a", key="k", rule="epoch")
    story.call("w2", "read", "orders/7", 2, 3, end_value="a")
    story.call("w1", "write", "orders/7", 4, 5, token=5, value="b", rule="epoch")
    story.call("w2", "read", "orders/7", 6, 7, end_value="b")
    assert story.check().valid
    story.call("w2", "read", "orders/7", 8, 9, end_value="a")
    assert not story.check().valid


def test_what_would_explain_the_rest_is_not_left_out(story: Story) -> None:
    story.call("w1", "write", "orders/7", 0, 5, token=3, value="b")
    story.call("w2", "delete", "orders/7", 1, 3, token=2)
    story.call("w3", "write", "orders/7", 2, 2.5, token=1, value="a")
    story.call("w4", "read", "orders/7", 6, 7, end_value=None)
    description = words(story.check())
    assert "w1 wrote 'b'" in description
    assert "w3 wrote 'a'" not in description  # the delete came after it


def test_an_element_that_is_there_twice(story: Story) -> None:
    story.call("w1", "add", "set", 0, 1, value="1")
    story.call("w3", "read_set", "set", 2, 3, end_values=("1", "1"))
    assert "shows 1 twice: '1'" in words(story.check())


def test_two_readings_of_which_neither_can_be_the_earlier_one(story: Story) -> None:
    for value in ("1", "2"):
        story.call(f"w{value}", "add", "set", 0, 4, value=value)
        story.call(f"r{value}", "read_set", "set", 1, 3, end_values=(value,))
    assert "neither can be the earlier one" in words(story.check())
