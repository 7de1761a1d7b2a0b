"""The checker: what is no history, the words of violations, and answers that were lost and repeated."""

import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner, Result
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from tests.support.histories import REGISTER, Story, has_an_order, right, wrong

from fencepost.cli.main import main
from fencepost.testing.checker import NothingToCheckError, Verdict, check, register
from fencepost.testing.checker.store import HistoryCall
from fencepost.testing.history import (
    NOT_READ,
    BadHistoryError,
    End,
    Event,
    History,
    Invoke,
    NotRead,
    Op,
    Outcome,
    Reason,
    Recorder,
    Rule,
    read,
)

HEADER: dict[str, Any] = {"history": "fencepost/1"}
WRITE: dict[str, Any] = {"time": 10, "event": "invoke", "id": 1, "process": "w1", "op": "write", "token": 33}
WRITE |= {"resource": "orders/7", "value": "a"}
DONE: dict[str, Any] = {"time": 20, "event": "ok", "id": 1}
FAULT: list[dict[str, Any]] = [
    {"time": 5, "event": "fault", "id": 8, "kind": "paused", "target": "w1"},
    {"time": 6, "event": "healed", "id": 8},
]
READ: dict[str, Any] = {"time": 30, "event": "invoke", "id": 2, "process": "w1", "op": "read", "resource": "orders/7"}


def fencepost_check(path: Path, *options: str) -> Result:
    return CliRunner().invoke(main, ["check", str(path), *options])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.jsonl"


def save(path: Path, *lines: dict[str, Any] | str) -> None:
    spelled = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("".join(f"{line}\n" for line in spelled), "utf-8")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"time": 40, "event": "ok", "id":', "this is not JSON"),
        ("[1]", "this is JSON, but no object"),
        ({"time": 40}, '"event" is None'),
        ({**READ, "time": 40, "id": 5, "op": "add"}, "an operation add needs a value"),
        ({"time": True, "event": "note", "text": "x"}, "'time' cannot be True"),
        ({**READ, "time": 40, "tokn": 5}, "an event of kind 'invoke' has no 'tokn'"),
        ({**READ, "time": 40, "token": 0}, "'token' cannot be 0: it must be a whole number above 0"),
        ({**READ, "time": 29}, "the clock goes backwards, from 30 to 29"),
        (
            READ | {"time": 40},
            "operation 2 begins a second time before it ended: ids must be unique. It began in line 6",
        ),
        (DONE | {"time": 40}, "operation 1 ends, and did not begin before"),
        ({"time": 40, "event": "ok", "id": 2}, "a read that is ok needs the value"),
        ({"time": 40, "event": "refused", "id": 2}, "a refusal needs a reason"),
        ({**READ, "time": 40, "id": 5, "token": 7}, "an operation read has no 'token': only write, delete, claim, acq"),
        ({"time": 40, "event": "ok", "id": 2, "value": "a", "expires": 50}, "the answer to a read has no 'expires'"),
        (
            {"time": 40, "event": "refused", "id": 2, "reason": "stale"},
            "operation 2 is refused as stale, which compares",
        ),
        ({"time": 40, "event": "healed", "id": 9}, "fault 9 is healed, and did not begin before"),
        ({**FAULT[0], "time": 40}, "fault 8 begins a second time: ids must be unique. It began in line 2"),
        ({"time": 40, "event": "invoke", "id": 5, "op": "read"}, "an event of kind 'invoke' needs process, resource"),
        ({"time": 40, "event": "unknown", "id": 2, "value": "a"}, "an event of kind 'unknown' has no 'value'"),
    ],
)
def test_a_line_that_is_no_event_is_named(path: Path, line: dict[str, Any] | str, message: str) -> None:
    save(path, HEADER, *FAULT, WRITE, DONE, READ, line)
    found = fencepost_check(path, "--porcupine", str(path.with_name("porcupine")))
    assert found.exit_code == 2, found.output
    assert f"{path}, line 7: {message}" in found.output
    assert [each.name for each in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ((WRITE,), "line 1: this is no history of a format that is known here"),
        (
            (HEADER, WRITE, DONE, {**READ, "id": 1}, {"time": 40, "event": "ok", "id": 1, "value": "a"}),
            "line 4: the id 1 belongs to two operations, and ids must be unique. The other one began in line 2",
        ),
        ((HEADER, WRITE, DONE, {**READ, "op": "write", "value": "b"}), "orders/7 is written with tokens and without"),
        ((HEADER, WRITE, {**DONE, "replayed": True}), "operation 1 is replayed, and the operation has no key"),
        ((HEADER, {**READ, "id": 1, "op": "read_set"}, {**DONE, "time": 40}), "a read_set that is ok needs the values"),
        ((), "line 1: the file is empty"),
    ],
)
def test_lines_that_are_no_history_together_are_named(path: Path, lines: tuple[Any, ...], message: str) -> None:
    save(path, *lines)
    found = fencepost_check(path)
    assert (found.exit_code, message in found.output) == (2, True), found.output


def test_a_pipe_is_no_history(path: Path) -> None:
    """Its events would be gone when they are read a second time."""
    os.mkfifo(path)
    pipe = os.open(path, os.O_RDWR)  # so that nothing that reads it has to wait
    os.write(pipe, b'{"history": "fencepost/1"}\n')
    with pytest.raises(BadHistoryError, match="no regular file"):
        read(path)
    os.close(pipe)


def test_a_history_that_was_cut_off_is_checked_without_its_last_line_when_asked(path: Path) -> None:
    save(path, HEADER, WRITE, DONE, READ)
    with path.open("a") as file:
        file.write('{"time": 40, "event": "ok", "i')
    found = fencepost_check(path)
    assert found.exit_code == 2
    assert f"{path}, line 5: the file ends in the middle of this line" in found.output
    assert "--cut-off-last-line" in found.output
    shorter = fencepost_check(path, "--cut-off-last-line")
    assert shorter.exit_code == 0
    assert "2 operations on 1 resources, 1 accepted, 0 refused, 1 unknown" in shorter.output


def test_a_violation_ends_with_1_and_its_words(path: Path) -> None:
    save(path, HEADER, WRITE, DONE, READ, {"time": 40, "event": "ok", "id": 2, "value": None})
    found = fencepost_check(path)
    assert found.exit_code == 1
    assert "[register] w1 read no row in orders/7" in found.output
    assert "VIOLATED: 2 operations on 1 resources" in found.output
    assert fencepost_check(path, "--model", "once", "--model", "register").exit_code == 1


@pytest.mark.parametrize(
    ("lines", "models"),
    [
        ([], []),
        ([WRITE, {"time": 20, "event": "unknown", "id": 1}], []),
        ([WRITE, DONE], ["mutex"]),
        ([WRITE, DONE], ["plain_mutex", "once", "set"]),
    ],
)
def test_a_history_without_checks_is_not_valid(path: Path, lines: list[dict[str, Any]], models: list[str]) -> None:
    save(path, HEADER, *lines)
    found = fencepost_check(path, *(word for model in models for word in ("--model", model)))
    assert found.exit_code == 2
    assert f"nothing to check: the history has {len(lines[:1])} operations" in found.output
    assert "valid:" not in found.output
    assert all(f"{model}: " in found.output for model in models)


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


def test_of_many_lost_elements_one_is_shown(story: Story) -> None:
    for number in range(12):
        story.call("w1", "add", "set", number, number + 1, value=f"{number:02}")
    story.call("w3", "read_set", "set", 20, 21, end_values=())
    (lost,) = story.check().violations
    assert "misses 12 that were certainly in the set before: '00' and 11 more." in lost.words
    assert len([event for event in lost.events if isinstance(event, Invoke)]) == 2


def test_an_element_that_only_a_reading_has_shown_is_lost_with_that_reading(story: Story) -> None:
    story.call("w1", "add", "set", 0, 1, value="a", end_event="unknown")
    story.call("w2", "read_set", "set", 2, 3, end_values=("a",))
    story.call("w3", "read_set", "set", 4, 5, end_values=("a",))
    story.call("w3", "read_set", "set", 6, 7, end_values=())
    (lost,) = story.check().violations
    assert [event.process for event in lost.events if isinstance(event, Invoke)] == ["w1", "w2", "w3"]


def test_an_element_whose_add_was_answered_when_it_was_repeated_is_lost(story: Story) -> None:
    story.call("w1", "add", "set", 0, 1, value="a", key="k", end_event="unknown")
    story.call("w1", "add", "set", 2, 3, value="a", key="k", end_replayed=True)
    story.call("w3", "read_set", "set", 4, 5, end_values=())
    assert "misses 1" in words(story.check())


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


def test_a_repeated_answer_cannot_belong_to_a_later_operation(story: Story) -> None:
    story.call("w1", "write", "orders/7", 0, 1, token=5, value="a", key="k", end_replayed=True)
    story.call("w1", "write", "orders/7", 2, 3, token=5, value="a", key="k")
    assert "the operation that was done with this key began later" in words(story.check())


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


def test_empty_lines_at_the_end_of_a_history_are_no_events(path: Path) -> None:
    save(path, HEADER, WRITE, DONE, "", " ")
    assert fencepost_check(path).exit_code == 0
    save(path, HEADER, WRITE, "", DONE)
    assert f"{path}, line 3: this line is empty, and events follow" in fencepost_check(path).output


# The checker finds what trying every order finds, and says it with the fewest operations.

OPS: tuple[Op, ...] = ("write", "write", "delete", "claim", "read", "read")

REASONS: tuple[Reason, ...] = ("stale", "spent", "missing")


def verdict(events: list[Event]) -> Verdict:
    try:
        return check(History({}, lambda: events), ["register"])
    except NothingToCheckError:
        assert has_an_order(events)
        assume(condition=False)
        raise


@st.composite
def histories(draw: st.DrawFn, *, fenced: bool = True) -> list[Event]:
    """A few operations with arbitrary times and answers: right ones and wrong ones."""
    count = draw(st.integers(2, 6))
    moments = iter(draw(st.permutations(range(2 * count))))
    rule: Rule = draw(st.sampled_from(["strict", "epoch"]))
    tokens = st.integers(1, 4) if rule == "epoch" else st.integers(1, 7)
    events: list[Event] = []
    for number in range(count):
        start, stop = sorted((next(moments), next(moments)))
        op = draw(st.sampled_from(OPS if fenced else ("write", "read", "read")))
        token = draw(tokens) if fenced and op != "read" else None
        value = f"v{number}" if op == "write" else None
        asked: Rule = "strict" if op == "read" else rule
        events.append(Invoke(start, number, f"w{number}", op, "orders/7", token, value, asked))
        if (end := draw(ends(stop, number, op, count, fenced=fenced))) is not None:
            events.append(end)
    return sorted(events, key=lambda event: event.time)


@st.composite
def ends(draw: st.DrawFn, stop: int, number: int, op: Op, count: int, *, fenced: bool) -> End | None:
    outcomes: list[Outcome | None] = ["ok", "ok", "ok", "unknown", None]
    if fenced and op != "read":
        outcomes.append("refused")
    outcome = draw(st.sampled_from(outcomes))
    if outcome is None:
        return None
    values = st.sampled_from([None, *(f"v{each}" for each in range(count))])
    value: str | NotRead | None = NOT_READ
    token = mark = None
    reason: Reason | None = None
    if outcome == "ok" and (op == "read" or (op == "claim" and draw(st.booleans()))):
        value = draw(values)
        token = draw(st.sampled_from([None, None, 1, 2, 3])) if fenced and op == "read" else None
    if outcome == "refused":
        reason = draw(st.sampled_from(REASONS))
        mark = draw(st.sampled_from([None, None, 2, 5]))
    return End(stop, number, outcome, value, token, reason=reason, mark=mark)


def refused_by_a_later_one() -> list[Event]:
    """The claim of w4 cannot have read v0. Up to the first end that shows it, the refusal of w1 has no reason: w0
    writes later.
    """

    def asked(time: int, number: int, op: Op, token: int) -> Event:
        value = f"v{number}" if op == "write" else None
        return Invoke(time, number, f"w{number}", op, "orders/7", token, value, "strict")

    return [
        *(asked(0, 1, "write", 2), asked(1, 2, "write", 2), asked(2, 4, "claim", 1), End(3, 2, "ok")),
        *(asked(4, 0, "write", 3), End(5, 0, "ok"), End(6, 1, "refused", reason="stale"), End(9, 4, "ok", "v0")),
    ]


@settings(max_examples=400, deadline=None)
@given(histories() | histories(fenced=False))
@example(refused_by_a_later_one())
def test_it_agrees_with_trying_every_order(events: list[Event]) -> None:
    found = verdict(events)
    assert found.valid == has_an_order(events)
    for violation in found.violations:
        assert not has_an_order(without_refused_writes(violation.events))


@pytest.mark.parametrize("rule", ["strict", "epoch"])
@pytest.mark.parametrize("fenced", [True, False])
def test_it_agrees_on_histories_of_a_register(rule: Rule, fenced: bool) -> None:
    outcomes = {True: 0, False: 0}
    for seed in range(300):
        events = right(seed, rule=rule, fenced=fenced, ops=REGISTER if fenced else ("write", "read", "read"))
        assert verdict(events).valid, events
        planted = wrong(seed, events)
        found = verdict(planted)
        assert found.valid == has_an_order(planted), planted
        outcomes[found.valid] += 1
        for violation in found.violations:
            # No operation can be left out: what remains can be explained, by itself or with another one of the history.
            # The write whose value a read saw, or whose token is a mark that is shown, stays with what names it.
            shown = without_refused_writes(violation.events)
            assert not has_an_order(shown)
            ends = [event for event in shown if isinstance(event, End)]
            named = {end.value for end in ends} | {mark for end in ends for mark in (end.token, end.mark)} - {None}
            for invoke in (event for event in shown if isinstance(event, Invoke)):
                rest = [event for event in shown if getattr(event, "id", None) != invoke.id]
                needed = has_an_order(rest) or any(has_an_order(with_one(rest, each, planted)) for each in range(20))
                assert needed or invoke.value in named or invoke.token in named, shown
    assert min(outcomes.values()) > 20, outcomes


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Count the states that are looked at: the next number says how many there were."""
    steps = itertools.count()
    look = vars(register)["_look"]

    def counted(state: register.State, observers: dict[int, HistoryCall]) -> register.State:
        next(steps)
        found: register.State = look(state, observers)
        return found

    monkeypatch.setattr(register, "_look", counted)
    return steps


def test_a_state_is_searched_once_however_many_states_lead_to_it(steps: Iterator[int]) -> None:
    writes = range(8)
    events: list[Event] = [Invoke(1, each, f"w{each}", "write", "orders/7", 5, f"v{each}", "epoch") for each in writes]
    events += [End(2 + each, each, "ok") for each in writes]
    assert verdict(events).valid
    n = len(writes)
    pairs = n + n * (n - 1) * 2 ** (n - 2)  # a set of writes with the last one of them, and a write that is not in it
    assert next(steps) <= pairs


def unknown(*ops: Op) -> list[Event]:
    """Make operations without an answer, under the tokens 1, 2, and so on."""
    return [
        Invoke(at, at, f"w{at}", op, "orders/7", at, f"v{at}" if op == "write" else None)
        for at, op in enumerate(ops, 1)
    ]


def reading(at: int, value: str, mark: int) -> list[Event]:
    return [Invoke(at, at, "reader", "read", "orders/7"), End(at + 1, at, "ok", value, mark)]


@pytest.mark.parametrize("mark", [2, 50])
def test_an_unknown_write_that_another_one_replaces_is_not_searched_further(steps: Iterator[int], mark: int) -> None:
    writes: list[Op] = ["write"] * 100
    events = unknown(*writes)
    assert verdict([*events, *reading(200, f"v{mark}", mark)]).valid
    assert next(steps) <= 2 * len(events)


def test_an_unknown_write_may_show_behind_unknown_claims() -> None:
    events = unknown("write", "write", "claim", "claim", "write")
    for value, mark in (("v1", 1), ("v1", 3), ("v1", 4), ("v2", 3), ("v2", 4), ("v5", 5)):
        assert verdict([*events, *reading(10, value, mark)]).valid, (value, mark)
    assert not verdict([*events, *reading(10, "v1", 2)]).valid
    assert verdict([*events, *reading(10, "v1", 3), *reading(20, "v1", 4), *reading(30, "v5", 5)]).valid
    assert not verdict([*events, *reading(10, "v1", 3), *reading(20, "v2", 4)]).valid
    claim: list[Event] = [Invoke(6, 6, "w6", "claim", "orders/7", 6), End(7, 6, "ok")]
    assert verdict([*events, *claim, *reading(10, "v2", 6)]).valid


def test_an_unknown_write_that_a_read_under_way_saw_was_before_the_next_one() -> None:
    begin, end = reading(10, "v1", 1)
    second: list[Event] = [Invoke(10, 20, "other", "read", "orders/7"), End(10, 20, "ok", "v2", 2)]
    assert verdict([*unknown("write", "write"), begin, *second, end]).valid


def without_refused_writes(events: tuple[Event, ...]) -> tuple[Event, ...]:
    """Leave out refused writes whose values were read all the same: they are shown, and contradict nothing."""
    saw = {event.value for event in events if isinstance(event, End)} - {None}  # of writes: a delete has no value
    shown = {event.id for event in events if isinstance(event, Invoke) and event.value in saw}
    refused = {event.id for event in events if isinstance(event, End) and event.event == "refused"} & shown
    return tuple(event for event in events if getattr(event, "id", None) not in refused)


def with_one(some: list[Event], identity: int, everything: list[Event]) -> list[Event]:
    return [event for event in everything if event in some or getattr(event, "id", None) == identity]


# What the checker makes of answers that were lost and repeated, and of tokens that are drawn under a grant.

KEY: Final = "k"


def write(time: int, number: int, token: int, value: str = "a", key: str | None = KEY) -> Invoke:
    return Invoke(time, number, f"w{number}", "write", "orders/7", token, value, key=key)


def read_row(time: int, number: int, value: str | None, mark: int | None = None) -> list[Event]:
    return [Invoke(time, number, "r", "read", "orders/7"), End(time + 1, number, "ok", value, mark)]


def ended(time: int, number: int, outcome: Outcome = "unknown", *, replayed: bool = False) -> End:
    return End(time, number, outcome, replayed=replayed)


LOST_TWICE: Final[list[Event]] = [write(1, 1, 5), ended(2, 1), write(3, 2, 7), ended(4, 2)]
"""A write, and its repetition under the token of another grant: the answers of both were lost."""


def valid(*events: Event) -> bool:
    return check(History({}, lambda: events)).valid


@pytest.mark.parametrize("mark", [5, 7])
def test_a_repetition_under_another_token_may_have_been_the_one_that_was_done(mark: int) -> None:
    assert valid(*LOST_TWICE, *read_row(5, 3, "a", mark))


def test_both_together_are_one_effect_too_many() -> None:
    assert not valid(*LOST_TWICE, *read_row(5, 3, "a", 5), *read_row(7, 4, "a", 7))


def test_one_of_them_was_done_when_the_answer_is_repeated() -> None:
    replay: list[Event] = [write(5, 3, 9), ended(6, 3, "ok", replayed=True)]
    assert valid(*LOST_TWICE, *replay, *read_row(7, 4, "a", 7))
    assert valid(*LOST_TWICE, *replay, *read_row(7, 4, "a", 5))
    assert not valid(*LOST_TWICE, *replay, *read_row(7, 4, None))
    assert not valid(*LOST_TWICE, *replay, *read_row(7, 4, "a", 5), *read_row(9, 5, "a", 7))


def test_a_repeated_answer_dates_the_original_whose_answer_came_later() -> None:
    events = [
        write(1, 1, 5),
        write(2, 2, 5),
        ended(3, 2, "ok", replayed=True),
        *read_row(4, 3, None),
        ended(9, 1, "ok"),
    ]
    assert not valid(*events)


def test_a_repeated_answer_may_be_the_effect_of_its_own_operation_or_of_the_lost_one() -> None:
    """The first was lost, the second's answer was looked up: it was done under one of the two tokens."""
    either: list[Event] = [write(1, 1, 5), ended(2, 1), write(3, 2, 7), ended(5, 2, "ok", replayed=True)]
    for mark in (5, 7):
        assert valid(*either, *read_row(6, 3, "a", mark))
    assert not valid(*either, *read_row(6, 3, "a", 5), *read_row(8, 4, "a", 7))
    assert not valid(*either, *read_row(6, 3, None))


def test_of_two_repeated_answers_the_sooner_one_shows_by_when_it_was_done() -> None:
    """The first operation is done and looked up; the second finds the record and is answered before it."""
    both: list[Event] = [write(1, 1, 5), write(2, 2, 7), ended(3, 2, "ok", replayed=True)]
    slower = ended(9, 1, "ok", replayed=True)
    assert valid(*both, *read_row(4, 3, "a", 5), slower)
    assert valid(*both, *read_row(4, 3, "a", 7), slower)
    assert not valid(*both, *read_row(4, 3, None), slower)
    third: list[Event] = [write(10, 5, 9), ended(11, 5, "ok", replayed=True)]
    assert valid(*both, *read_row(4, 3, "a", 5), slower, *third, *read_row(12, 6, "a", 5))
    assert not valid(*both, *read_row(4, 3, "a", 5), slower, *third, *read_row(12, 6, "a", 9))


def test_many_lost_answers_under_one_epoch_token_leave_few_states() -> None:
    """An operation that was not needed is never worse than one that was used up."""
    events: list[Event] = []
    for n in range(0, 240, 4):
        lost, done = (
            Invoke(n * 10 + at, n + at, "w", "write", "orders/7", 7, f"v{n + at}", "epoch") for at in range(2)
        )
        events += [lost, done, ended(n * 10 + 2, n + 1, "ok"), *read_row(n * 10 + 3, n + 2, done.value)]
    assert valid(*events)
    assert not valid(*events, *read_row(9_999, 999, "v1"))


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
