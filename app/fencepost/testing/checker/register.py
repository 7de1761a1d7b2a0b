"""The register model: each resource by the method that fits it, and what is wrong with it in the fewest operations."""

import heapq
import itertools
from collections.abc import Callable, Collection, Container, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from fencepost.testing.checker.store import (
    EFFECTS,
    NEVER,
    Contradiction,
    HistoryCall,
    Store,
    UndecidedError,
    Violation,
    Words,
    in_time,
    sentence_of,
)
from fencepost.testing.history import NOT_READ, BadHistoryError

# The register without tokens: the control. Whether one order of its writes and reads explains every answer.
#
# By Gibbons and Korach (Testing shared memories, 1997), for registers whose writes all have different values. A
# cluster is a write with the reads that saw its value. Between the earliest end in a cluster and its latest begin its
# value was certainly there: if the earliest end comes first, this is a forward zone. Else all of its operations have a
# moment in common, somewhere between its latest begin and its earliest end: a backward zone. The history is valid if
# and only if every read began before its end could have seen its write, no two forward zones overlap, and no backward
# zone lies within a forward one. That needs sorting and one pass, however many writes are under way at once.
#
# A read that saw no row is taken to be of the time before the first write. Where rows are deleted it could be of any
# delete; it is not judged then.


@dataclass(slots=True)
class ValueCluster:
    """A write and the reads that saw it; without a write: the time before the first one."""

    write: HistoryCall | None = None
    first_ended: HistoryCall | None = None
    last_begun: HistoryCall | None = None
    low: int = NEVER
    """The earliest end."""
    high: int = -1
    """The latest begin."""

    def add(self, call: HistoryCall) -> None:
        if call.ended < self.low:
            self.low, self.first_ended = call.ended, call
        if call.invoke.time > self.high:
            self.high, self.last_begun = call.invoke.time, call

    @property
    def calls(self) -> list[HistoryCall]:
        """Give those calls that make the zone, and the write."""
        found = {id(call): call for call in (self.write, self.first_ended, self.last_begun) if call is not None}
        return list(found.values())


@dataclass(slots=True)
class Accesses:
    """The calls of one resource, by what they are."""

    written: dict[str, HistoryCall] = field(default_factory=dict)
    refused: dict[str, HistoryCall] = field(default_factory=dict)
    reads: list[tuple[HistoryCall, str | None]] = field(default_factory=list)
    deletes: list[HistoryCall] = field(default_factory=list)

    def add(self, call: HistoryCall) -> None:
        """Take one. Raises BadHistoryError when a value is written a second time."""
        value = call.invoke.value
        if call.invoke.op == "read":
            self.reads += [(call, saw) for saw in _saw(call)]
        elif call.invoke.op == "delete":
            self.deletes += [] if call.refused else [call]
        elif value is not None and call.refused:
            self.refused[value] = call
        elif value is not None:
            if value in self.written:
                raise _same_value(call)
            self.written[value] = call


def contradiction(calls: Iterable[HistoryCall]) -> list[HistoryCall]:
    """Give calls that no order explains; none when all are explained. The calls are of one resource, without tokens.

    Raises BadHistoryError when two writes have the same value.
    """
    found = Accesses()
    for call in calls:
        found.add(call)
    clusters = {value: _cluster(call) for value, call in found.written.items()}
    before = ValueCluster(low=-1)
    for read, saw in found.reads:
        if saw is None:
            if not found.deletes:
                before.add(read)
        elif saw not in clusters:
            return [read, *([found.refused[saw]] if saw in found.refused else [])]
        elif read.ended < found.written[saw].invoke.time:
            return [read, found.written[saw]]
        else:
            clusters[saw].add(read)
    deletes = (_cluster(call) for call in found.deletes if call.certain)
    return _overlap([each for each in (before, *clusters.values(), *deletes) if each.low != NEVER])


def _saw(call: HistoryCall) -> list[str | None]:
    """Give what a read saw; nothing when its answer is not known."""
    end = call.end
    return [end.value] if end is not None and end.event == "ok" and end.value is not NOT_READ else []


def _cluster(call: HistoryCall) -> ValueCluster:
    cluster = ValueCluster(write=call)
    cluster.add(call)
    return cluster


def _overlap(clusters: list[ValueCluster]) -> list[HistoryCall]:
    forward = sorted((each for each in clusters if each.low < each.high), key=lambda each: each.low)
    for earlier, later in itertools.pairwise(forward):
        if later.low < earlier.high:
            return [*earlier.calls, *later.calls]
    backward = sorted((each for each in clusters if each.low >= each.high), key=lambda each: each.high)
    at = 0
    for inner in backward:
        while at < len(forward) and forward[at].high <= inner.high:
            at += 1
        if at < len(forward) and forward[at].low < inner.high and inner.low < forward[at].high:
            return [*forward[at].calls, *inner.calls]
    return []


def _same_value(call: HistoryCall) -> BadHistoryError:
    return BadHistoryError(
        f"operation {call.id} writes {call.invoke.value!r} to {call.invoke.resource}, as another one does. Without"
        " tokens each write of a resource needs a value of its own, or it cannot be known which one a read saw"
    )


# The fewest operations of a resource that no order explains.
#
# Operations are left out as long as what remains is still impossible: in halves first, then in smaller parts, one by
# one in the end (delta debugging: Zeller, Hildebrandt 2002). What is left is minimal: without any one of its
# operations the rest can be explained.
#
# Leaving out is not always harmless. Without the write whose value a read saw, that read is impossible for another
# reason than in the whole history. So a write goes only together with the reads that name its value or its token. And
# each operation that was left out is put back by itself in the end: if that explains what remains, it belongs to the
# answer, and the search begins again with it.

Impossible = Callable[[list[HistoryCall]], bool]


def shortest(
    calls: list[HistoryCall], others: Callable[[list[HistoryCall]], Iterable[HistoryCall]], impossible: Impossible
) -> list[HistoryCall] | None:
    """Give the fewest of these calls that are impossible together, in the order of their begins.

    `calls` are impossible; `others` gives all calls that could explain some of them. None: with the others they are
    possible, and were impossible only because those were missing.
    """
    kept: set[int] = set()
    while True:
        least = _least(calls, kept, impossible)
        explains = _explanation(least, others(least), impossible)
        if explains is None:
            break
        kept.add(explains.id)
        calls = _in_order({call.id: call for call in (*calls, explains)}.values())
        if not impossible(calls):
            return None
    for call in [call for call in least if call.id in kept]:  # it may have been needed for something that is left out
        rest = _without(least, {call.id})
        if impossible(rest) and _explanation(rest, others(rest), impossible) is None:
            least = rest
    return least


def _explanation(calls: list[HistoryCall], others: Iterable[HistoryCall], impossible: Impossible) -> HistoryCall | None:
    """Give another call with which these are possible."""
    have = {call.id for call in calls}
    return next((call for call in others if call.id not in have and not impossible(_in_order([*calls, call]))), None)


def _without(calls: list[HistoryCall], out: set[int]) -> list[HistoryCall]:
    """Leave calls out, with the reads that name their values or tokens."""
    gone = [call.invoke for call in calls if call.id in out and not call.refused]
    values = {invoke.value for invoke in gone} - {None}
    tokens = {invoke.token for invoke in gone} - {None}
    return [call for call in calls if call.id not in out and not _names(call, values, tokens)]


def _names(call: HistoryCall, values: set[str | None], tokens: set[int | None]) -> bool:
    end = call.end
    return end is not None and (end.value in values or end.token in tokens or end.mark in tokens)


def _least(calls: list[HistoryCall], kept: set[int], impossible: Impossible) -> list[HistoryCall]:
    parts = 2
    while True:
        free = [call for call in calls if call.id not in kept]
        size = max(1, len(free) // parts)
        for at in range(0, len(free), size):
            rest = _without(calls, {call.id for call in free[at : at + size]})
            if impossible(rest):
                calls = rest
                parts = max(2, parts - 1)
                break
        else:
            if size == 1:
                return calls
            parts *= 2


def _in_order(calls: Iterable[HistoryCall]) -> list[HistoryCall]:
    return sorted(calls, key=lambda call: (call.invoke.time, call.id))


# The fenced register: whether one order of a resource's operations explains every answer.
#
# What is asked. A resource is a mark and a value. At first the mark is 0 and there is no row. A write, a delete or a
# claim with token t is accepted if the mark is below t (strict), or not above it (epoch); then the mark is t. A write
# sets the value, a delete removes it, a claim leaves it. A read changes nothing, and its answer is the value, and the
# mark if it shows one. A refusal as stale needs a mark above its token, a refusal as spent one that equals it, and a
# refusal that names a mark needs this one. The history is valid if each operation can be given a moment between its
# invoke and its end so that all answers are those of this resource, where an operation with an unknown end may also
# have no moment. This is linearizability (Herlihy, Wing 1990).
#
# How it is decided: by the algorithm that Lowe calls just-in-time linearization (Testing for linearizability, 2017),
# the one of Wing and Gong (1993) with states remembered, over the operations in the order of their invokes and ends.
# After each of these it holds every state that the resource can be in: mark, value, and which of the operations under
# way have had their moment already. An operation is given its moment only when its end comes, because later is never
# worse, with those before it that it needs. If no state is left the history is invalid, and this end shows it.
#
# Why that is not exponential here, as it is for registers in general (Gibbons, Korach 1997):
# - Tokens give the order. Of the accepted operations under way the one with the lowest token must come next, or it can
#   never come. There is nothing to choose, but under epoch among operations with one token.
# - A read or a refusal changes nothing. As soon as a state gives its answer it has had its moment, which is never worse
#   than waiting.
# - An unknown operation whose token the mark has passed can have no effect any more, and is forgotten.
# - An unknown write or delete after which no answer is explained, and which the next one replaces, may as well not have
#   happened. So after it only claims are tried, which leave the row as it is; and after such a claim nothing.
# - Of two states with the same mark and row, the one in which fewer unknown operations have had their moment, and at
#   least as many answers are explained, is never worse. The other one is left out (`_Best`).
# What has ended is in no state. So the memory is that of the operations under way, and of the unknown ones that can
# still have an effect.

MOST_STATES: Final = 50_000


class State(NamedTuple):
    """What the resource may be, and which operations under way have had their moment."""

    mark: int
    value: str | None
    effects: frozenset[int]
    seen: frozenset[int]


_EMPTY: Final[frozenset[int]] = frozenset()


def first_impossible(calls: Iterable[HistoryCall]) -> HistoryCall | None:
    """Give the call whose answer no order explains; None when all are explained.

    The calls are of one resource, in the order of their begins. Raises UndecidedError when there are too many states.
    """
    frontier = _Frontier()
    ends: list[tuple[int, int, HistoryCall]] = []
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
        self._effects: dict[int, HistoryCall] = {}
        """Under way, and certainly done in the end."""
        self._observers: dict[int, HistoryCall] = {}
        """Reads and refusals under way."""
        self._maybe: dict[int, HistoryCall] = {}
        """Unknown, and some state still allows them."""
        self._low = 0
        """The lowest mark of all states; it never falls."""

    def begin(self, call: HistoryCall) -> bool:
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

    def end(self, call: HistoryCall) -> bool:
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

    def _reach(self, starts: Collection[State], call: HistoryCall) -> set[State]:
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

    def _next(self, state: State, maybe: Iterable[HistoryCall]) -> list[HistoryCall]:
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

    def _apply(self, state: State, call: HistoryCall) -> State:
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


def _has_moment(state: State, call: HistoryCall) -> bool:
    return call.id in state.effects or call.id in state.seen


def _effort(state: State) -> tuple[int, int, int]:
    """Sort states so that few come after one that is better."""
    return len(state.effects), state.mark, -len(state.seen)


def _grouped(call: HistoryCall | None) -> bool:
    """Whether at most one of several unknown operations with the key of this one has an effect."""
    return call is not None and call.highest is not None


def _same_request(one: HistoryCall, other: HistoryCall) -> bool:
    a, b = one.invoke, other.invoke
    return (a.key, a.op, a.value) == (b.key, b.op, b.value)


def _matters(mark: int, call: HistoryCall) -> bool:
    """Whether this unknown operation, or another one with its key, can still have an effect."""
    return _allows(mark, call) or (call.highest is not None and mark <= call.highest)


def _is_effect(call: HistoryCall) -> bool:
    return call.invoke.op in EFFECTS and not call.refused


def _observes(call: HistoryCall) -> bool:
    end = call.end
    if end is None:
        return False
    if end.event == "ok":
        return call.invoke.op == "read"
    return end.reason in {"stale", "spent"} or end.mark is not None


def _allows(mark: int, call: HistoryCall) -> bool:
    return mark <= call.token if call.invoke.rule == "epoch" else mark < call.token


def _shows(state: State, call: HistoryCall) -> bool:
    """Whether a claim that shows the row shows this one."""
    return call.invoke.op != "claim" or call.end is None or call.end.value in {NOT_READ, state.value}


def _explains(state: State, call: HistoryCall) -> bool:
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


def _look(state: State, observers: dict[int, HistoryCall]) -> State:
    """Give their moment to all reads and refusals that this state explains."""
    found = {key for key, call in observers.items() if key not in state.seen and _explains(state, call)}
    return state._replace(seen=state.seen | found) if found else state


OPS: Final = (*sorted(EFFECTS), "read")
_ALL: Final = -1
_WINDOWS: Final = (50, 1000, 20_000, _ALL)
"""How many of the last operations are searched for the fewest that are impossible."""


def violations(store: Store, words: Words) -> Iterator[Violation]:
    """Give what is wrong with each resource, by the method that fits it. Raises BadHistoryError, UndecidedError."""
    for found in contradictions(store):
        sentence = sentence_of(found, words)
        yield Violation("register", found.resource, words.listed(sentence, found.calls), in_time(found.calls))


def contradictions(store: Store) -> Iterator[Contradiction]:
    """Give each resource whose answers no order explains. Raises BadHistoryError, UndecidedError."""
    without = _without_tokens(store)
    for resource, calls in store.resources(*OPS):
        fenced = resource not in without
        judge = first_impossible if fenced else zones
        if (found := judge(calls)) is not None:
            least = _fewest_impossible(store, found, judge)
            yield Contradiction(resource, least + _refused(store, least), judge(least) or found, fenced)


def _refused(store: Store, calls: list[HistoryCall]) -> list[HistoryCall]:
    """Give the refused writes of values that were read all the same: no part of the contradiction, but of its story."""
    written = {call.invoke.value for call in calls}
    saw = {call.end.value for call in calls if call.end is not None and isinstance(call.end.value, str)}
    resource = calls[0].invoke.resource
    return [call for value in sorted(saw - written) for call in store.writers(resource, value) if call.refused]


def zones(calls: Iterable[HistoryCall]) -> HistoryCall | None:
    """Give the last call of those that no order explains, for a resource without tokens."""
    return max(contradiction(calls), key=lambda call: call.invoke.time, default=None)


def _without_tokens(store: Store) -> set[str]:
    """Give the resources that are written without tokens. Raises BadHistoryError for one that is written both ways."""
    found = store.db.execute(
        "SELECT resource, max(token IS NOT NULL) FROM calls"
        " WHERE op IN ('write', 'delete', 'claim') AND outcome != 'refused' GROUP BY resource HAVING max(token IS NULL)"
    )
    without: set[str] = set()
    for resource, both in found:
        if both:
            raise BadHistoryError(
                f"{resource} is written with tokens and without: a write without a token does not raise the mark, and"
                " the register of this checker has either fenced writes or none. Record the token of each write"
            )
        without.add(resource)
    return without


def _fewest_impossible(
    store: Store, found: HistoryCall, judge: Callable[[Iterable[HistoryCall]], HistoryCall | None]
) -> list[HistoryCall]:
    resource = found.invoke.resource

    def impossible(calls: Iterable[HistoryCall]) -> bool:
        return judge(calls) is not None

    helpful = partial(_helpful, store, resource)
    for window in _WINDOWS:
        calls = _calls(store, resource, window, found)
        if impossible(calls) and (least := shortest(calls, helpful, impossible)) is not None:
            return least
    raise AssertionError(f"{resource}: impossible in the order of begins, and possible in the order of rows")


def _helpful(store: Store, resource: str, calls: list[HistoryCall]) -> Iterator[HistoryCall]:
    """Give all calls of a resource that could explain these: any other one could only contradict them."""
    refusals = [call.token for call in calls if call.refused]
    for end in (call.end for call in calls if call.end is not None):
        yield from store.named(resource, end.value, {end.token, end.mark} - {None})
    if any(call.end is not None and call.end.value is None for call in calls):
        yield from store.deletes(resource)
    if refusals:
        yield from store.above(resource, min(refusals))


def _calls(store: Store, resource: str, last: int, found: HistoryCall) -> list[HistoryCall]:
    """Give the last register operations of a resource up to the end of this one, and what its answer names.

    Reads and refusals that name what is not among them are left out: they would be impossible without it.
    """
    calls = {call.id: call for call in store.of_resource(resource, OPS, until=found.ended, last=last)}
    calls[found.id] = found
    if found.end is not None:
        named = store.named(resource, found.end.value, {found.end.token, found.end.mark})
        calls |= {call.id: call for call in named}
    values = {call.invoke.value for call in calls.values()} | {None, NOT_READ}
    marks = {call.invoke.token for call in calls.values()} | {None, 0}
    known = [
        call
        for call in calls.values()
        if last == _ALL
        or call is found
        or call.end is None
        or (call.end.value in values and {call.end.token, call.end.mark} <= marks)
    ]
    return sorted(known, key=lambda call: (call.invoke.time, call.id))
