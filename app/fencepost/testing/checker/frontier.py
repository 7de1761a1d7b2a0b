"""The fenced register: whether one order of a resource's operations explains every answer.

What is asked. A resource is a mark and a value. At first the mark is 0 and there is no row. A write, a delete or a
claim with token t is accepted if the mark is below t (strict), or not above it (epoch); then the mark is t. A write
sets the value, a delete removes it, a claim leaves it. A read changes nothing, and its answer is the value, and the
mark if it shows one. A refusal as stale needs a mark above its token, a refusal as spent one that equals it, and a
refusal that names a mark needs this one. The history is valid if each operation can be given a moment between its
invoke and its end so that all answers are those of this resource, where an operation with an unknown end may also have
no moment. This is linearizability (Herlihy, Wing 1990).

How it is decided: by the algorithm that Lowe calls just-in-time linearization (Testing for linearizability, 2017),
the one of Wing and Gong (1993) with states remembered, over the operations in the order of their invokes and ends.
After each of these it holds every state that the resource can be in: mark, value, and which of the operations under
way have had their moment already. An operation is given its moment only when its end comes, because later is never
worse, with those before it that it needs. If no state is left the history is invalid, and this end shows it.

Why that is not exponential here, as it is for registers in general (Gibbons, Korach 1997):
- Tokens give the order. Of the accepted operations under way the one with the lowest token must come next, or it can
  never come. There is nothing to choose, but under epoch among operations with one token.
- A read or a refusal changes nothing. As soon as a state gives its answer it has had its moment, which is never worse
  than waiting.
- An unknown operation whose token the mark has passed can have no effect any more, and is forgotten.
- An unknown write or delete after which no answer is explained, and which the next one replaces, may as well not have
  happened. So after it only claims are tried, which leave the row as it is; and after such a claim nothing.
- Of two states with the same mark and row, the one in which fewer unknown operations have had their moment, and at
  least as many answers are explained, is never worse. The other one is left out (`_Best`).
What has ended is in no state. So the memory is that of the operations under way, and of the unknown ones that can
still have an effect.
"""

import heapq
import itertools
from collections.abc import Collection, Container, Iterable
from typing import Final, NamedTuple

from fencepost.testing.checker.calls import EFFECTS, Call
from fencepost.testing.checker.errors import UndecidedError
from fencepost.testing.history import NOT_READ

MOST_STATES: Final = 50_000


class State(NamedTuple):
    """What the resource may be, and which operations under way have had their moment."""

    mark: int
    value: str | None
    effects: frozenset[int]
    seen: frozenset[int]


_EMPTY: Final[frozenset[int]] = frozenset()


def first_impossible(calls: Iterable[Call]) -> Call | None:
    """Give the call whose answer no order explains; None when all are explained.

    The calls are of one resource, in the order of their begins. Raises UndecidedError when there are too many states.
    """
    frontier = _Frontier()
    ends: list[tuple[int, int, Call]] = []
    for call in calls:
        while ends and ends[0][0] < call.invoke.time:
            if not frontier.end(ended := heapq.heappop(ends)[2]):
                return ended
        if not frontier.begin(call):
            return call
        if call.certain:
            heapq.heappush(ends, (call.ended, call.id, call))
    while ends:
        if not frontier.end(ended := heapq.heappop(ends)[2]):
            return ended
    return None


class _Frontier:
    """All states that are possible now."""

    def __init__(self) -> None:
        self._states = {State(0, None, _EMPTY, _EMPTY)}
        self._effects: dict[int, Call] = {}
        """Under way, and certainly done in the end."""
        self._observers: dict[int, Call] = {}
        """Reads and refusals under way."""
        self._maybe: dict[int, Call] = {}
        """Unknown, and some state still allows them."""
        self._low = 0
        """The lowest mark of all states; it never falls."""

    def begin(self, call: Call) -> bool:
        """Take an invoke; return whether any state is left."""
        if not _is_effect(call):
            if call.certain and _observes(call):
                self._observers[call.id] = call
                self._states = {_look(state, {call.id: call}) for state in self._states}
            return True
        if not call.certain or call.highest is not None:
            if _matters(self._low, call):
                self._maybe[call.id] = call
            if call.certain:  # one operation with its key has happened: seen when one has had its moment
                self._observers[call.id] = call
            return True
        self._effects[call.id] = call
        self._states = {state for state in self._states if _allows(state.mark, call)}
        return bool(self._states)

    def end(self, call: Call) -> bool:
        """Take an end; return whether any state is left."""
        if call.id not in self._effects and call.id not in self._observers:
            return True
        done = {state for state in self._states if _has_moment(state, call)}
        done |= self._reach(self._states - done, call)
        self._effects.pop(call.id, None)
        self._observers.pop(call.id, None)
        best = _Best(self._effects)
        forgotten = sorted((self._forget(state, call.id) for state in done), key=_effort)
        self._states = {state for state in forgotten if best.adds(state)}
        if len(self._states) > MOST_STATES:
            raise UndecidedError(call.invoke.resource, MOST_STATES)
        low = min((state.mark for state in self._states), default=self._low)
        if low > self._low:
            self._low = low
            self._maybe = {key: each for key, each in self._maybe.items() if _matters(low, each)}
        return bool(self._states)

    def _reach(self, starts: Collection[State], call: Call) -> set[State]:
        """Give the states that come when operations under way have their moments, up to that of this call.

        One search begins at all states: what one of them has led to is not searched again for the next. A state is idle
        when an unknown write has led to it that has explained nothing: only claims are tried from there.
        """
        reached: set[State] = set()
        best = _Best(self._effects)
        numbers = itertools.count()
        claims = [each for each in self._maybe.values() if each.invoke.op == "claim"]
        claims_follow = bool(claims) or any(each.invoke.op == "claim" for each in self._effects.values())
        ahead = [(_effort(start), next(numbers), start, False) for start in starts]
        heapq.heapify(ahead)
        while ahead:
            _, _, state, idle = heapq.heappop(ahead)
            for each in self._next(state, claims) if idle else self._next(state, self._maybe.values()):
                if idle and each.invoke.op != "claim":
                    continue
                after = self._apply(state, each)
                if not best.adds(after):
                    continue
                if _has_moment(after, call):
                    reached.add(after)
                elif each.id in self._effects or after.seen != state.seen:
                    heapq.heappush(ahead, (_effort(after), next(numbers), after, False))
                elif each.invoke.op != "claim" and claims_follow:
                    heapq.heappush(ahead, (_effort(after), next(numbers), after, True))
            if best.size > MOST_STATES:
                raise UndecidedError(call.invoke.resource, MOST_STATES)
        return reached

    def _next(self, state: State, maybe: Iterable[Call]) -> list[Call]:
        """Give the operations that can have their moment now and leave a moment for all that certainly had one.

        `maybe`: the unknown ones to choose from.
        """
        waiting = [call for key, call in self._effects.items() if key not in state.effects]
        lowest = min((call.token for call in waiting), default=None)
        found = [call for call in waiting if call.token == lowest]
        groups = {self._maybe[key].invoke.key for key in state.effects if _grouped(self._maybe.get(key))}
        found += [
            call
            for call in maybe
            if call.id not in state.effects
            and (lowest is None or call.token <= lowest)
            and not (groups and _grouped(call) and call.invoke.key in groups)
        ]
        return [call for call in found if _allows(state.mark, call) and _shows(state, call)]

    def _apply(self, state: State, call: Call) -> State:
        value = state.value
        if call.invoke.op != "claim":
            value = call.invoke.value if call.invoke.op == "write" else None
        kept = {key for key in state.effects if self._counts(call.token, key)}
        seen = state.seen
        if _grouped(call):
            seen |= {key for key, other in self._observers.items() if _grouped(other) and _same_request(call, other)}
        return _look(State(call.token, value, frozenset(kept | {call.id}), seen), self._observers)

    def _forget(self, state: State, key: int) -> State:
        # Of several operations with one key, the one that had the effect keeps the others from having it again.
        kept = {
            each for each in state.effects if (each != key or key in self._maybe) and self._counts(state.mark, each)
        }
        return State(state.mark, state.value, frozenset(kept), state.seen - {key})

    def _counts(self, mark: int, key: int) -> bool:
        """Whether it matters that an operation has had its moment: it could have one otherwise."""
        return key in self._effects or (key in self._maybe and _matters(mark, self._maybe[key]))


class _Best:
    """States that were met, without those that are never better than another one of them.

    A state is never better than one with the same mark, row and certain operations in which no other unknown operation
    has had its moment (so it is still there to be used), and in which at least the same answers are explained.
    """

    def __init__(self, certain: Container[int]) -> None:
        self._certain = certain
        self._met: dict[tuple[int, str | None, frozenset[int]], list[tuple[frozenset[int], frozenset[int]]]] = {}
        self.size = 0

    def adds(self, state: State) -> bool:
        """Take a state; return whether it may be better than all before it."""
        certain = frozenset(key for key in state.effects if key in self._certain)
        used = state.effects - certain
        others = self._met.setdefault((state.mark, state.value, certain), [])
        if any(fewer <= used and seen >= state.seen for fewer, seen in others):
            return False
        others.append((used, state.seen))
        self.size += 1
        return True


def _has_moment(state: State, call: Call) -> bool:
    return call.id in state.effects or call.id in state.seen


def _effort(state: State) -> tuple[int, int, int]:
    """Sort states so that few come after one that is better."""
    return len(state.effects), state.mark, -len(state.seen)


def _grouped(call: Call | None) -> bool:
    """Whether at most one of several unknown operations with the key of this one has an effect."""
    return call is not None and call.highest is not None


def _same_request(one: Call, other: Call) -> bool:
    a, b = one.invoke, other.invoke
    return (a.key, a.op, a.value) == (b.key, b.op, b.value)


def _matters(mark: int, call: Call) -> bool:
    """Whether this unknown operation, or another one with its key, can still have an effect."""
    return _allows(mark, call) or (call.highest is not None and mark <= call.highest)


def _is_effect(call: Call) -> bool:
    return call.invoke.op in EFFECTS and not call.refused


def _observes(call: Call) -> bool:
    end = call.end
    if end is None:
        return False
    if end.event == "ok":
        return call.invoke.op == "read"
    return end.reason in {"stale", "spent"} or end.mark is not None


def _allows(mark: int, call: Call) -> bool:
    """Whether a resource with this mark accepts the call."""
    return mark <= call.token if call.invoke.rule == "epoch" else mark < call.token


def _shows(state: State, call: Call) -> bool:
    """Whether a claim that shows the row shows this one."""
    return call.invoke.op != "claim" or call.end is None or call.end.value in {NOT_READ, state.value}


def _explains(state: State, call: Call) -> bool:
    """Whether this state gives the answer of a read or a refusal."""
    end = call.end
    if end is None or end.event == "unknown":
        return False
    if end.event == "ok":
        return end.value == state.value and end.token in {None, state.mark}
    if end.mark not in {None, state.mark}:
        return False
    if end.reason == "stale":
        return state.mark > call.token
    return end.reason != "spent" or state.mark == call.token


def _look(state: State, observers: dict[int, Call]) -> State:
    """Give their moment to all reads and refusals that this state explains."""
    found = {key for key, call in observers.items() if key not in state.seen and _explains(state, call)}
    return state._replace(seen=state.seen | found) if found else state
