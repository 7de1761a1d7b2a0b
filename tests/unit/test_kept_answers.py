"""Which answers are kept under Idempotency-Keys, and for how long they count."""

from tests.support.manual_clock import ManualClock

from fencepost.server.gateway.outcomes import _MOST_CALLERS, MOST_KEPT, SMALL_KEPT, KeptAnswers


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
