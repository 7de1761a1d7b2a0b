"""What a message comes to, step by step: kept first, then a dead letter, and what a repetition finds (with mocks)."""

from dataclasses import replace

import orjson
import pytest
from tests.support.consuming import Applying, MockLedger, MockQueue, message

from fencepost.server.consuming.applying import (
    Before,
    Decided,
    Later,
    MarkReached,
    QueueNow,
    Result,
    kept,
    of_problem,
    reason_of,
)
from fencepost.server.consuming.deciding import MOST_FAULTS, Decider, Settled
from fencepost.server.fence.problem_types import SPENT_TOKEN, STALE_TOKEN
from fencepost.server.fence.problems import Problem, bad_request
from fencepost.server.gateway.gathered import DROPPED, IN_HAND, LETTER_HEADER, RETRIED_AS, STATE_HEADER, state_of
from fencepost.server.postgres.errors import UnavailableError
from fencepost.server.postgres.keyed import Recorded
from fencepost.server.queues.log import DeadLetter, LogUnavailableError, Message, Position, Received
from fencepost.server.queues.message import hash_of

NONCE = "0123456789abcdef"
ID = f"kafka:q.1.7.{NONCE}"
STANDING = QueueNow(3, 2)
FAILED = of_problem("failed", bad_request("there is no column x"))
APPLIED = kept(Recorded(200, (), b"{}"), "applied")


def received(given: Message | None = None, offset: int = 7) -> Received:
    return Received(Position(1, offset), given or message("t/a", write_nonce=NONCE.encode()), 1.0)


class MockedDecider:
    """A decider whose messages come to one result."""

    def __init__(self, result: Result, *, stop_resources: bool = False, kept_for: float = 86_400.0) -> None:
        self.log, self.ledger = MockQueue(), MockLedger(known_generation=STANDING.generation)
        self.applying = Applying(lambda _received, _standing: result)
        self.decider = Decider(
            *("kafka:q", self.applying, self.ledger, self.log.dead),
            now=lambda: 5.0,
            kept_for=kept_for,
            stop_resources=stop_resources,
        )

    @property
    def letters(self) -> dict[str, str]:
        return {letter.id: letter.reason for letter in self.log.dead.letters.values()}


REFUSED = of_problem("refused", Problem(SPENT_TOKEN, "spent"))
AGAIN = MarkReached(Problem(SPENT_TOKEN, "spent"))
APPLIED_BEFORE = Settled("applied", before=True)
NO_LETTERS: dict[str, tuple[Result, Recorded | None, int, Settled]] = {
    "its record is in the transaction of its effect": (Decided("applied"), None, 0, Settled("applied")),
    "it was refused": (REFUSED, None, 0, Settled("refused")),
    "it was applied before, and meets an error now": (FAILED, APPLIED, 0, APPLIED_BEFORE),
    "it comes again, and the row has its mark": (AGAIN, APPLIED, 0, APPLIED_BEFORE),
    "it comes again, and its record is found": (Before(APPLIED), APPLIED, 0, APPLIED_BEFORE),
    "its row has taken it, and its record is forgotten": (AGAIN, None, 0, APPLIED_BEFORE),
    "the log has committed it, and its record is forgotten": (
        MarkReached(Problem(STALE_TOKEN, "stale")), None, 8, APPLIED_BEFORE,
    ),
}  # fmt: skip


@pytest.mark.parametrize("why", NO_LETTERS)
async def test_what_is_no_dead_letter(why: str) -> None:
    result, record, below, settled = NO_LETTERS[why]
    mocked = MockedDecider(result)
    mocked.ledger.below = below
    if record is not None:
        mocked.ledger.kept[ID] = record
    assert await mocked.decider.decide(received(), STANDING) == settled
    assert mocked.letters == {}
    assert {each: state_of(kept) for each, kept in mocked.ledger.kept.items()} == (
        {ID: "refused"} if result is REFUSED else {} if record is None else {ID: "applied"}
    )


async def test_what_was_applied_under_a_key_of_the_client_gets_a_record_of_its_own() -> None:
    mocked = MockedDecider(Decided("applied", APPLIED))
    assert await mocked.decider.decide(received(), STANDING) == Settled("applied")
    assert mocked.ledger.kept == {ID: APPLIED}


async def test_a_message_without_a_nonce_is_named_by_its_hash_in_each_generation() -> None:
    mocked = MockedDecider(FAILED)
    plain = received(message("t/a"))
    await mocked.decider.decide(plain, STANDING)
    await mocked.decider.decide(plain, replace(STANDING, generation=STANDING.generation + 1))
    assert list(mocked.ledger.kept) == [f"kafka:q.1.7.{hash_of('kafka:q', plain)}"]


async def test_what_failed_is_kept_and_then_put_to_the_dead_letters() -> None:
    mocked = MockedDecider(FAILED)
    mocked.log.dead.failing = LogUnavailableError("away")
    assert await mocked.decider.decide(received(), STANDING) == Later("away")
    assert state_of(mocked.ledger.kept[ID]) == "failed", "kept first"
    mocked.log.dead.failing = None
    settled = await mocked.decider.decide(received(), STANDING)
    assert settled == Settled("failed", before=True, reason="FP016: there is no column x")
    letter = mocked.log.dead.letters[ID]
    assert (letter.reason, letter.position, letter.at) == ("FP016: there is no column x", Position(1, 7), 5.0)
    assert letter.message == received().message


async def test_a_message_that_failed_before_is_put_again() -> None:
    mocked = MockedDecider(MarkReached(Problem(SPENT_TOKEN, "spent")))
    assert FAILED.answer is not None
    mocked.ledger.kept[ID] = FAILED.answer
    settled = await mocked.decider.decide(received(), STANDING)
    assert isinstance(settled, Settled)
    assert (settled.state, settled.before) == ("failed", True)
    assert mocked.letters == {ID: "FP016: there is no column x"}


CLOSED = Recorded(
    400, (("content-type", "application/problem+json"), (STATE_HEADER, "failed"), (LETTER_HEADER, DROPPED)), b"{}"
)


async def test_a_letter_that_was_dropped_is_not_put_again() -> None:
    mocked = MockedDecider(MarkReached(Problem(SPENT_TOKEN, "spent")), stop_resources=True)
    mocked.ledger.kept[ID] = CLOSED
    assert await mocked.decider.decide(received(), STANDING) == Settled("failed", before=True)
    assert (mocked.letters, mocked.ledger.stopped) == ({}, {})


@pytest.mark.parametrize(("letter", "stays"), [(DROPPED, False), (f"{RETRIED_AS}kafka:q.1.9", False), (IN_HAND, True)])
async def test_a_letter_that_was_dropped_while_it_was_put_again_is_removed(
    letter: str, stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two consumers had the message: the letter of the first was dropped before the second one put it."""
    mocked = MockedDecider(FAILED, stop_resources=True)
    put = mocked.log.dead.put

    async def dropped_before(given: DeadLetter) -> None:
        mocked.ledger.kept[ID] = replace(CLOSED, headers=(*CLOSED.headers[:-1], (LETTER_HEADER, letter)))
        await put(given)

    monkeypatch.setattr(mocked.log.dead, "put", dropped_before)
    await mocked.decider.decide(received(), STANDING)
    assert (ID in mocked.letters, "t/a" in mocked.ledger.stopped, "t/a" in mocked.decider.stopped) == (stays,) * 3


@pytest.mark.parametrize(("age", "looked_up"), [(49.0, False), (50.0, True)])
async def test_an_old_message_is_looked_up_before_it_is_applied(age: float, looked_up: bool) -> None:
    mocked = MockedDecider(Decided("applied"), kept_for=100.0)
    mocked.ledger.kept[ID] = APPLIED
    settled = await mocked.decider.decide(replace(received(), at=5.0 - age), STANDING)
    assert settled == Settled("applied", before=looked_up)
    assert mocked.applying.begun == ([] if looked_up else [7])


async def test_a_position_that_was_overtaken_without_a_record_is_a_dead_letter() -> None:
    mocked = MockedDecider(MarkReached(Problem(STALE_TOKEN, "stale.")))
    settled = await mocked.decider.decide(received(), STANDING)
    assert isinstance(settled, Settled)
    assert settled.state == "failed"
    assert mocked.letters[ID] == (
        "FP001: A newer write of the resource was applied, and there is no record of this one. stale."
    )


async def test_a_position_of_a_generation_that_is_over_is_no_dead_letter() -> None:
    mocked = MockedDecider(MarkReached(Problem(SPENT_TOKEN, "spent")))
    mocked.ledger.known_generation += 1
    later = await mocked.decider.decide(received(), STANDING)
    assert isinstance(later, Later)
    assert later.everything
    assert mocked.letters == {}


async def test_a_database_that_is_away_is_everybodys() -> None:
    mocked = MockedDecider(FAILED)
    mocked.ledger.failing = UnavailableError("away")
    assert await mocked.decider.decide(received(), STANDING) == Later("away", everything=True)


async def test_a_dead_letter_stops_its_resource_where_that_is_wanted() -> None:
    mocked = MockedDecider(FAILED, stop_resources=True)
    await mocked.decider.decide(received(), STANDING)
    assert mocked.ledger.stopped == {"t/a": ID}
    later = received(message("t/a"), offset=9)
    settled = await mocked.decider.decide(later, STANDING)
    assert isinstance(settled, Settled)
    reason = f"FP030: t/a is stopped, since an earlier write of it is a dead letter: {ID}."
    assert mocked.letters[f"kafka:q.1.9.{hash_of('kafka:q', later)}"] == reason
    assert mocked.ledger.stopped == {"t/a": ID}, "the first one stays"
    assert mocked.applying.begun == [7]
    await mocked.decider.decide(received(message("t/b"), offset=11), STANDING)
    assert mocked.applying.begun == [7, 11], "other resources go on"


async def test_the_message_that_stopped_its_resource_does_not_wait_for_itself() -> None:
    mocked = MockedDecider(FAILED)
    mocked.decider.stopped = {"t/a": ID}
    await mocked.decider.decide(received(), STANDING)
    assert mocked.applying.begun == [7]


async def test_a_message_that_the_gateway_fails_on_again_and_again_is_a_dead_letter() -> None:
    mocked = MockedDecider(Decided("applied"))
    settled = await mocked.decider.decide(received(), STANDING, MOST_FAULTS)
    assert isinstance(settled, Settled)
    assert settled.state == "failed"
    assert mocked.applying.begun == []
    assert "FP023" in mocked.letters[ID]


def test_a_kept_problem_has_its_state_and_its_reason() -> None:
    assert FAILED.answer is not None
    assert (FAILED.answer.status, state_of(FAILED.answer)) == (400, "failed")
    assert orjson.loads(FAILED.answer.body)["detail"] == "there is no column x"
    assert reason_of(Recorded(500, (), b"oops")) == "status 500"
    assert reason_of(Recorded(500, (), b"[]")) == "status 500"


@pytest.mark.parametrize("key", [b"\x00\x00\x00\x01", b"\xff", b"orders", b"", b"orders/a\x00"])
async def test_a_key_that_names_no_resource_stops_none(key: bytes) -> None:
    mocked = MockedDecider(FAILED, stop_resources=True)
    settled = await mocked.decider.decide(received(Message(key, b"{}")), STANDING)
    assert isinstance(settled, Settled)
    assert mocked.ledger.stopped == {}


async def test_a_resource_is_stopped_before_its_letter_can_be_dropped() -> None:
    mocked = MockedDecider(FAILED, stop_resources=True)
    mocked.log.dead.failing = LogUnavailableError("away")
    assert isinstance(await mocked.decider.decide(received(), STANDING), Later)
    assert mocked.ledger.stopped == {"t/a": ID}
