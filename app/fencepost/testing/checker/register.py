"""The register model: each resource by the method that fits it, and what is wrong with it in the fewest operations."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

from fencepost.testing.checker.calls import EFFECTS, Call, in_time
from fencepost.testing.checker.contradiction import Contradiction, sentence_of
from fencepost.testing.checker.frontier import first_impossible
from fencepost.testing.checker.shortest import shortest
from fencepost.testing.checker.store import Store
from fencepost.testing.checker.verdict import Violation
from fencepost.testing.checker.words import Words
from fencepost.testing.checker.zones import contradiction
from fencepost.testing.history import NOT_READ, BadHistoryError

OPS: Final = (*sorted(EFFECTS), "read")
_ALL: Final = -1
_WINDOWS: Final = (50, 1000, 20_000, _ALL)
"""How many of the last operations are searched for the fewest that are impossible."""


def violations(store: Store, words: Words) -> Iterator[Violation]:
    """Give what is wrong with each resource. Raises BadHistoryError, UndecidedError."""
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
            least = _least(store, found, judge)
            yield Contradiction(resource, least + _refused(store, least), judge(least) or found, fenced)


def _refused(store: Store, calls: list[Call]) -> list[Call]:
    """Give the refused writes of values that were read all the same: no part of the contradiction, but of its story."""
    written = {call.invoke.value for call in calls}
    saw = {call.end.value for call in calls if call.end is not None and isinstance(call.end.value, str)}
    resource = calls[0].invoke.resource
    return [call for value in sorted(saw - written) for call in store.writers(resource, value) if call.refused]


def zones(calls: Iterable[Call]) -> Call | None:
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


def _least(store: Store, found: Call, judge: Callable[[Iterable[Call]], Call | None]) -> list[Call]:
    resource = found.invoke.resource

    def impossible(calls: Iterable[Call]) -> bool:
        return judge(calls) is not None

    helpful = partial(_helpful, store, resource)
    for window in _WINDOWS:
        calls = _calls(store, resource, window, found)
        if impossible(calls) and (least := shortest(calls, helpful, impossible)) is not None:
            return least
    raise AssertionError(f"{resource}: impossible in the order of begins, and possible in the order of rows")


def _helpful(store: Store, resource: str, calls: list[Call]) -> Iterator[Call]:
    """Give all calls of a resource that could explain these: any other one could only contradict them."""
    refusals = [call.token for call in calls if call.refused]
    for end in (call.end for call in calls if call.end is not None):
        yield from store.named(resource, end.value, {end.token, end.mark} - {None})
    if any(call.end is not None and call.end.value is None for call in calls):
        yield from store.deletes(resource)
    if refusals:
        yield from store.above(resource, min(refusals))


def _calls(store: Store, resource: str, last: int, found: Call) -> list[Call]:
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
