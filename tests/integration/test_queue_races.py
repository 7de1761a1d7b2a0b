"""Queues in the database (R12): the interleavings, and a mutant of each safety line."""

import pytest
from tests.scenarios import queue_records as records
from tests.scenarios import queues as scenarios
from tests.scenarios.queues import QueueScenario
from tests.support.interleave import Connect
from tests.support.violations import judging

APPEND = "fencepost.queue_append(integer[], bytea[], text[], bytea[], integer[], bytea[])"
CHECK = "fencepost.queue_check(text, text, bigint[], bigint[], bigint, bigint[], bigint[])"
COMMITTED = "fencepost.queue_committed(text, bigint, bigint[])"
DONE = "fencepost.queue_done(integer[], bigint[])"
FORGETTABLE = "fencepost.queue_forgettable(text)"
FAULT = "fencepost.queue_fault(text, text, bigint[], bigint[], bigint[], bigint[])"
LOOKED = "fencepost.queue_looked(text, bigint, text, double precision, bigint[], bigint[])"
IS_COMMITTED = "fencepost.queue_is_committed(text, bigint, integer, bigint)"
OWN = "fencepost.queue_own(text, integer, integer[])"
PRUNE = "fencepost.prune_idempotency(double precision, integer)"
QUARANTINE = "fencepost.queue_quarantine(text, text, bigint)"
REGISTER = "fencepost.queue_register(text, text)"
TAKE = "fencepost.queue_take(text, integer[], integer[], bigint[], integer, bigint)"


@pytest.mark.parametrize("scenario", [*scenarios.SCENARIOS, *records.SCENARIOS], ids=lambda scenario: scenario.__name__)
async def test_queues(scenario: QueueScenario, connect: Connect) -> None:
    with judging():
        await scenario(connect)


MUTANTS: list[tuple[str, str, str, str, QueueScenario]] = [
    ("a loss of an earlier generation quarantines", QUARANTINE,
        "b.generation <= coalesce(p_generation, b.generation)", "true",
        scenarios.a_loss_that_was_found_before_the_raise_quarantines_no_more),
    ("an append does not lock its key", APPEND, "pg_advisory_xact_lock(k.lock)", "k.lock",
        scenarios.an_append_waits_for_an_earlier_one_of_its_key),
    ("done deletes all up to an offset", DONE, "q.partition = t.partition AND q.position = t.position",
        "q.partition = t.partition AND q.position <= t.position", scenarios.done_leaves_what_was_committed_meanwhile),
    ("a partition is read from what was taken last", TAKE, "WHERE x.partition = o.partition\n",
        "WHERE x.partition = o.partition AND x.position > coalesce((SELECT max(m) FROM unnest(p_taken) m), -1)\n",
        scenarios.a_lower_offset_is_taken_after_a_higher_one),
    ("a member takes what is another's", TAKE, " AND o.member = p_member AND o.until > clock_timestamp()", "",
        scenarios.an_owner_that_was_paused_takes_nothing_of_its_successors),
    ("a member takes after its time", TAKE, " AND o.until > clock_timestamp()", "",
        scenarios.an_owner_that_was_paused_takes_nothing_of_its_successors),
    ("a partition of a live member is free", OWN, "x.until < clock_timestamp() OR", "true OR",
        scenarios.an_owner_that_was_paused_takes_nothing_of_its_successors),
    ("a member gives up what it is busy with", OWN, " AND x.partition <> ALL (p_busy)", "",
        scenarios.members_share_and_keep_what_they_are_busy_with),
    ("members wait for each other", OWN, "LIMIT greatest(share - has, 0) FOR UPDATE SKIP LOCKED",
        "LIMIT greatest(share - has, 0) FOR UPDATE", scenarios.members_that_come_at_once_do_not_wait_for_each_other),
    ("a late answer is a fault", CHECK,
        "IF p_before IS NULL OR cardinality(p_before) = 0 THEN verdict := 'again';",
        "IF p_before IS NULL OR cardinality(p_before) = 0 THEN verdict := 'quarantined';",
        scenarios.a_late_answer_is_no_fault),
    ("who comes second to a first look takes it for a fault", CHECK,
        "p_before IS NULL OR cardinality(p_before) = 0", "p_before IS NULL", scenarios.two_first_looks_are_no_fault),
    ("a late answer is compared with what was recorded since", CHECK,
        "p_incarnation, p_before, p_ends, p_before_epochs, p_epochs",
        "p_incarnation, q.ends, p_ends, q.leader_epochs, p_epochs", scenarios.a_late_answer_is_no_fault),
    ("the first look of a generation may be from before it", CHECK,
        "IF p_generation IS NULL THEN verdict := 'again'; RETURN; END IF;", "",
        scenarios.tokens_up_to_the_ends_are_issued),
    ("ends may fall", FAULT, "WHERE u.is_now < u.was ORDER BY u.o LIMIT 1;", "WHERE false ORDER BY u.o LIMIT 1;",
        scenarios.a_log_that_lost_messages_quarantines),
    ("leader epochs may go back", FAULT, "WHERE u.is_now < u.was ORDER BY u.o LIMIT 1;",
        "WHERE false ORDER BY u.o LIMIT 1;", scenarios.a_leader_epoch_that_went_back_quarantines),
    ("any log of the name will do", FAULT, "IF p_was <> p_incarnation THEN", "IF false THEN",
        scenarios.a_log_that_was_made_again_quarantines),
    ("partitions may be added", FAULT, "IF cardinality(p_recorded) <> cardinality(p_ends) THEN", "IF false THEN",
        scenarios.a_log_that_got_other_partitions_quarantines),
    ("what was taken before a generation was raised is written", CHECK,
        "IF generation <> p_generation THEN verdict := 'raised'; RETURN; END IF;", "",
        scenarios.a_check_waits_for_a_raise_under_way),
    ("a check does not lock the source", CHECK,
        "IF locked = 1 THEN PERFORM FROM fencepost.sources s WHERE s.name = p_source FOR NO KEY UPDATE; END IF;", "",
        scenarios.a_check_waits_for_a_raise_under_way),
    ("the database's own log outlives its failover", REGISTER,
        "CASE p_kind WHEN 'postgres' THEN 'database' ELSE 'lock' END", "'lock'",
        scenarios.a_raised_generation_of_the_database_is_one_of_its_own_log),
    ("records of messages are forgotten like all others", PRUNE,
        "i.caller <> 'queue' OR fencepost.queue_forgettable(i.key)", "true",
        records.records_go_when_they_are_committed_and_not_before),
    ("a record is forgotten before it is known what is committed", FORGETTABLE, "p.committed IS NULL OR ", "",
        records.after_a_raise_what_is_committed_is_asked_anew),
    ("the first message that is not committed counts as committed", FORGETTABLE, "BETWEEN p.committed AND",
        "BETWEEN p.committed + 1 AND", records.records_go_when_they_are_committed_and_not_before),
    ("what was committed is of any generation", COMMITTED, "IS DISTINCT FROM p_generation THEN RETURN",
        "IS NULL THEN RETURN", records.after_a_raise_what_is_committed_is_asked_anew),
    ("what is said during a raise is of the new generation", COMMITTED,
        "PERFORM FROM fencepost.sources s WHERE s.name = p_source FOR SHARE;", "",
        records.what_is_said_during_a_raise_is_of_the_generation_before),
    ("a raise leaves what was committed", "fencepost.queue_forget(text)", ", committed = NULL", "",
        records.after_a_raise_what_is_committed_is_asked_anew),
    ("a caller's record is forgotten while a copy waits", PRUNE,
        "NOT i.headers && ARRAY['fencepost-caller', 'fencepost-claimed']", "true",
        records.a_callers_record_goes_when_no_copy_of_its_time_waits),
    ("a moment counts before all that came is decided", LOOKED, "(u.below BETWEEN u.wanted AND u.upto) IS NOT TRUE",
        "u.below IS NULL", records.a_callers_record_goes_when_no_copy_of_its_time_waits),
    ("a position of another log counts", LOOKED, "u.below BETWEEN u.wanted AND u.upto", "u.below >= u.wanted",
        records.a_callers_record_goes_when_no_copy_of_its_time_waits),
    ("a look at another log counts", LOOKED, " AND q.incarnation = p_incarnation", "",
        records.a_callers_record_goes_when_no_copy_of_its_time_waits),
    ("a record goes at once", LOOKED, "forget_to = q.applied_to", "forget_to = q.looked_at",
        records.a_callers_record_goes_when_no_copy_of_its_time_waits),
    ("looks come at once", LOOKED, " - interval '1 minute'", " + interval '1 minute'",
        records.a_callers_record_goes_when_no_copy_of_its_time_waits),
    ("looks wait until a clock that was set back is there again", LOOKED,
        "q.looked_at > to_timestamp(p_at) + interval '10 minutes'", "false",
        records.a_clock_that_is_set_back_holds_no_records_back),
    ("clocks are one", "fencepost.queue_no_copy_waits(text, timestamptz)", " + interval '10 minutes'", "",
        records.a_callers_record_goes_when_no_copy_of_its_time_waits),
    ("the first message that is not committed is one that is", IS_COMMITTED, "p.committed > p_offset",
        "p.committed >= p_offset", records.records_go_when_they_are_committed_and_not_before),
]  # fmt: skip


@pytest.mark.long("mutants of the product")
@pytest.mark.parametrize(("function", "old", "new", "scenario"), [m[1:] for m in MUTANTS], ids=[m[0] for m in MUTANTS])
async def test_each_line_is_there_for_a_reason(
    function: str, old: str, new: str, scenario: QueueScenario, connect: Connect
) -> None:
    owner = await connect()
    definition = await owner.fetchval("SELECT pg_get_functiondef($1::text::regprocedure)", function)
    assert old in definition, f"{function} has no {old!r}: {definition}"
    await owner.execute(definition.replace(old, new))
    with pytest.raises(AssertionError):
        await scenario(connect)
