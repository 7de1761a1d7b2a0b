"""A race, stepped; and the mutant that shows that the race is worth stepping. The example of CONTRIBUTING.md."""

from tests.support.racing import Race, assert_seen, mutate, outcome

RAISE_MARK = "fencepost.raise_mark(text, bigint, text, boolean)"


async def test_a_stale_insert_waits_for_the_newer_delete_and_is_refused(race: Race) -> None:
    await race.insert(race.a, "k", 32)
    holder = await race.begin(race.a)
    await race.delete(race.a, "k", 34)  # not committed: it has the row's lock, and the mark's
    insert = await race.waits(race.b, outcome(race.insert(race.b, "k", 33)))  # fails unless it waits
    await holder.commit()
    assert await insert == "FP409"
    assert await race.row("k") is None


async def test_without_the_comparison_it_would_not_be(race: Race) -> None:
    await mutate(race, RAISE_MARK, "WHERE fencepost.verdict(", "WHERE true OR fencepost.verdict(")
    await assert_seen(test_a_stale_insert_waits_for_the_newer_delete_and_is_refused, race)
