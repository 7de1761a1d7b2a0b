"""The checker finds what trying every order finds, and says it with the fewest operations."""

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from tests.support.histories import REGISTER, has_an_order, right, wrong

from fencepost.testing.checker import NothingToCheckError, Verdict, check, register
from fencepost.testing.checker.store import HistoryCall
from fencepost.testing.history import NOT_READ, End, Event, History, Invoke, NotRead, Op, Outcome, Reason, Rule

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
            assert_minimal(without_refused_writes(violation.events), planted)
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


def assert_minimal(shown: tuple[Event, ...], everything: list[Event]) -> None:
    """No operation can be left out: what remains can be explained, by itself or with another one of the history.

    The write whose value a read saw, or whose token is a mark that is shown, stays with what names it.
    """
    assert not has_an_order(shown)
    ends = [event for event in shown if isinstance(event, End)]
    named = {end.value for end in ends} | {mark for end in ends for mark in (end.token, end.mark)} - {None}
    for invoke in (event for event in shown if isinstance(event, Invoke)):
        rest = [event for event in shown if getattr(event, "id", None) != invoke.id]
        needed = has_an_order(rest) or any(has_an_order(with_one(rest, each, everything)) for each in range(20))
        assert needed or invoke.value in named or invoke.token in named, shown


def with_one(some: list[Event], identity: int, everything: list[Event]) -> list[Event]:
    return [event for event in everything if event in some or getattr(event, "id", None) == identity]
