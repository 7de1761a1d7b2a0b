"""The oracle of the register model: tries every order of the operations. For histories of a handful of operations.

It shares nothing with the checker but the events: it is written from the sentences of docs/checker.md.
"""

from collections.abc import Iterable
from itertools import combinations

from fencepost.testing.history import NOT_READ, End, Event, Invoke

Pair = tuple[Invoke, End | None]


def has_an_order(events: Iterable[Event]) -> bool:
    """Whether some order of the operations of one resource explains all answers."""
    invokes = {event.id: event for event in events if isinstance(event, Invoke)}
    ends = {event.id: event for event in events if isinstance(event, End)}
    pairs: list[Pair] = [(invoke, ends.get(invoke.id)) for invoke in invokes.values()]
    sure = [pair for pair in pairs if not unknown(pair)]
    maybe = [pair for pair in pairs if unknown(pair) and pair[0].op != "read"]
    return any(
        ordered(0, None, [*sure, *chosen]) for size in range(len(maybe) + 1) for chosen in combinations(maybe, size)
    )


def unknown(pair: Pair) -> bool:
    return pair[1] is None or pair[1].event == "unknown"


def ordered(mark: int, value: str | None, left: list[Pair]) -> bool:
    if not left:
        return True
    for pair in left:
        others = [each for each in left if each is not pair]
        if any(before(each, pair) for each in others):
            continue
        after = step(mark, value, pair)
        if after is not None and ordered(*after, others):
            return True
    return False


def before(one: Pair, other: Pair) -> bool:
    return one[1] is not None and one[1].event != "unknown" and one[1].time < other[0].time


def step(mark: int, value: str | None, pair: Pair) -> tuple[int, str | None] | None:
    """Give mark and value after this operation; None when it cannot have been answered like this."""
    invoke, end = pair
    token = invoke.token or 0
    if end is not None and end.event == "refused":
        right = {"stale": mark > token, "spent": mark == token}.get(end.reason or "", True)
        named = end.mark in {None, mark}
        return (mark, value) if right and named else None
    if invoke.op == "read":
        assert end is not None
        return (mark, value) if end.value == value and end.token in {None, mark} else None
    if invoke.token is not None and not (mark < token or (invoke.rule == "epoch" and mark == token)):
        return None
    after = max(mark, token)
    if invoke.op == "claim":
        seen = NOT_READ if end is None else end.value
        return (after, value) if seen in {NOT_READ, value} else None
    return after, invoke.value if invoke.op == "write" else None
