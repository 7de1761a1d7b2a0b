"""What of a partition is committed: up to the first message that is not done, and nothing of an earlier turn."""

from fencepost.queues.kafka.ledger import Finished, MemberLedger


def taken(ledger: MemberLedger, *offsets: int) -> int:
    """Take messages of partition 0, with leader epoch 7."""
    turns = {ledger.taken(0, offset, 7) for offset in offsets}
    (turn,) = turns
    assert turn is not None
    return turn


def test_only_what_has_nothing_undone_before_it_is_finished() -> None:
    ledger = MemberLedger()
    ledger.gained([0])
    turn = taken(ledger, 3, 4, 6, 9)
    ledger.done(0, 4, turn)
    ledger.done(0, 6, turn)
    assert ledger.finished() == []
    ledger.done(0, 3, turn)
    assert ledger.finished() == [Finished(0, 7, 7)]
    assert ledger.finished() == [], "told once"
    ledger.done(0, 9, turn)
    assert ledger.finished() == [Finished(0, 10, 7)]


def test_what_was_taken_in_an_earlier_turn_is_not_done_in_this_one() -> None:
    ledger = MemberLedger()
    ledger.gained([0])
    before = taken(ledger, 0, 1)
    assert ledger.lost([0, 1]) == {0}
    ledger.done(0, 0, before)
    ledger.gained([0])
    now = taken(ledger, 0)
    ledger.done(0, 0, before)
    assert ledger.finished() == []
    assert not ledger.current(0, before)
    assert ledger.current(0, now)


def test_partitions_are_finished_each_for_itself() -> None:
    ledger = MemberLedger()
    ledger.gained([0, 1])
    for partition in (0, 1):
        ledger.done(partition, 5, ledger.taken(partition, 5, 1))
    assert ledger.finished([1, 2]) == [Finished(1, 6, 1)]
    assert ledger.finished() == [Finished(0, 6, 1)]


def test_a_message_of_a_partition_that_was_lost_is_not_noted() -> None:
    ledger = MemberLedger()
    assert ledger.taken(0, 1, 1) is None
    assert ledger.next(0) is None
    assert ledger.partitions == frozenset()
