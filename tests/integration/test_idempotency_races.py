"""R16 in bad orders, and with each safety line of its SQL taken out once."""

from collections.abc import Awaitable, Callable

import pytest
from tests.scenarios import idempotency as scenarios
from tests.scenarios.idempotency import audited_race
from tests.support.interleave import Connect
from tests.support.postgres import Unmade
from tests.support.racing import Race
from tests.support.violations import judging

from fencepost.server.fence.token import Rule
from fencepost.server.gateway import rounds

Scenario = Callable[[Race], Awaitable[None]]

BEGIN = "fencepost.idem_begin(text, text, bytea)"
RECORD = "fencepost.idem_record(text, text, bytea, integer, text[], bytea)"
PRUNE = "fencepost.prune_idempotency(double precision, integer)"

MUTANTS: dict[str, tuple[str, str, str, Scenario]] = {
    "the key's lock is not tried": (BEGIN, "IF NOT pg_try_advisory_xact_lock",
        "IF false AND NOT pg_try_advisory_xact_lock", scenarios.two_racers_with_one_key_land_once),
    "the lock outlives a refusal": (BEGIN, "pg_try_advisory_xact_lock", "pg_try_advisory_lock",
        scenarios.a_refusal_gives_its_key_back),
    "the first look-up is missing": (BEGIN, "IF NOT FOUND THEN\n    IF NOT pg_try", "IF true THEN\n    IF NOT pg_try",
        scenarios.a_write_that_landed_is_replayed_after_its_lock_changed_hands),
    "any payload will do": (BEGIN, "IF r.payload_hash <> p_hash", "IF false", scenarios.a_key_is_for_one_payload),
    "nothing is recorded": (RECORD, "VALUES (p_caller, p_key, p_hash, p_status, p_headers, p_answer)",
        "SELECT p_caller, p_key, p_hash, p_status, p_headers, p_answer WHERE false",
        scenarios.a_write_that_landed_is_replayed_after_the_lock_changed_hands),
    "new records are forgotten": (PRUNE, "WHERE i.created_at < clock_timestamp() - p_keep_s * interval '1 s'",
        "WHERE true", scenarios.only_old_records_are_forgotten),
}  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "scenario"),
    [("strict", scenarios.a_write_that_landed_is_replayed_after_the_lock_changed_hands)]
    + [("epoch", each) for each in scenarios.ALL],
    ids=lambda each: getattr(each, "__name__", each),
)
async def test_a_scenario(connect: Connect, unmade: Unmade, scenario: Scenario, rule: Rule) -> None:
    race = await audited_race(connect, unmade, rule)
    with judging():
        await scenario(race)


@pytest.mark.parametrize("name", MUTANTS)
async def test_a_mutant_is_seen(connect: Connect, unmade: Unmade, name: str) -> None:
    function, old, new, scenario = MUTANTS[name]
    race = await audited_race(connect, unmade, "epoch")
    definition = await race.observer.fetchval("SELECT pg_get_functiondef($1::text::regprocedure)", function)
    assert old in definition
    await race.observer.execute(definition.replace(old, new, 1))
    with pytest.raises((AssertionError, TimeoutError)):
        await scenario(race)


async def test_a_record_that_is_met_at_the_end_counts_whatever_its_error_is_called(
    connect: Connect, unmade: Unmade, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: if 23505 on the records' key were not known for what it is, it would be reported as a conflict."""
    race = await audited_race(connect, unmade, "epoch")
    monkeypatch.setattr(rounds, "RECORD", ("another", "key", "23505"))
    with pytest.raises(AssertionError):
        await scenarios.a_lock_that_was_got_around_ends_in_a_replay(race)


@pytest.mark.parametrize("second_look_up", [True, False])
async def test_the_second_look_up_needs_no_error_to_see_a_record(
    connect: Connect, unmade: Unmade, monkeypatch: pytest.MonkeyPatch, second_look_up: bool
) -> None:
    """Two lines of defence: without that of the primary key, the second look-up alone has to see it, and does."""
    monkeypatch.setattr(rounds, "RECORD", ("another", "key", "23505"))
    race = await audited_race(connect, unmade, "epoch")
    scenario = scenarios.a_record_that_commits_between_look_up_and_lock_is_seen
    if second_look_up:
        await scenario(race)
        return
    definition = await race.observer.fetchval("SELECT pg_get_functiondef($1::text::regprocedure)", BEGIN)
    look_up = f"    {scenarios.LOOK_UP_AGAIN}\n    IF NOT FOUND"
    assert look_up in definition
    await race.observer.execute(definition.replace(look_up, "    IF true"))
    with pytest.raises(AssertionError):
        await scenario(race)
