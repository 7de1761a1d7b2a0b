"""Locks: whether the tokens of grants rise (the fenced mutex), and whether two held a lock at once (the plain one).

The fenced mutex is the model of Jepsen's tests of lock services with fencing tokens: a grant's token is above those of
all grants before it. It says nothing about when a holder believes that it holds the lock, because no lease can promise
that. Two grants contradict it if and only if they have the same token, or the one with the lower token was asked for
after the one with the higher token had been answered: then no moments within their times can be in the order of tokens.
(Pairs are enough. In a longer circle of "lower token" and "ended before it began" take the operation that began last:
the one before it in the circle ended before that, and has a higher token.)

A holder may draw more tokens under its grant (an acquire that names the grant's token). They belong to it: no token of
another grant is between them.

The plain mutex compares what holders believe: from the answer to an acquire until the release is asked for, the lease
expires by the holder's own clock (`expires`), or the holder is killed. It is checked where grants have no tokens, and
where it is asked for.
"""

import bisect
import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from fencepost.testing.checker.calls import NEVER, Call, in_time
from fencepost.testing.checker.store import Store
from fencepost.testing.checker.verdict import Model, Violation
from fencepost.testing.checker.words import Words


class Hold(NamedTuple):
    """How long a holder believed that it had a lock."""

    since: int
    until: int
    call: Call
    release: Call | None


class Tokens:
    """The tokens of one lock: of its grants, and the highest that was drawn under each of them later.

    An acquire that names a token drew one more under the grant that has it. The lock passes on between all tokens of
    one grant and all of the next, whenever they were asked for and answered.
    """

    def __init__(self) -> None:
        self._grants: list[int] = []
        self._drawn: dict[int, int] = {}

    def noted(self, grants: Iterable[Call]) -> Iterator[Call]:
        """Note the tokens of these, while another reads them."""
        for call in grants:
            if call.token:
                self._drawn[call.token] = max(self._drawn.get(call.token, 0), granted(call))
            else:
                self._grants.append(granted(call))
            yield call

    def interleaved(self) -> tuple[int, int, int] | None:
        """Find a grant, a token that was drawn under it, and a grant between the two."""
        self._grants.sort()
        for own, last in self._drawn.items():
            after = bisect.bisect_right(self._grants, own)
            if after < len(self._grants) and self._grants[after] < last:
                return own, last, self._grants[after]
        return None


def violations(store: Store, words: Words) -> Iterator[Violation]:
    """Give what is wrong with the tokens of each lock; where grants have none, what holders believed."""
    doubles = dict(store.doubled_grants())
    for resource, calls in store.resources("acquire"):
        grants, tokens = filter(granted, calls), Tokens()
        first = next(grants, None)
        if first is None:
            yield from _believed(store, words, resource)
        elif resource in doubles:
            pair = store.grants(resource, doubles[resource])[:2]
            yield _violation("mutex", words, f"{resource} was granted twice with token {doubles[resource]}.", pair)
        elif (found := falling(tokens.noted(itertools.chain([first], grants)))) is not None:
            higher, lower = found
            sentence = (
                f"{resource} was granted to {lower.invoke.process} with token {granted(lower)} after it had been"
                f" granted to {higher.invoke.process} with token {granted(higher)}."
            )
            yield _violation("mutex", words, sentence, [higher, lower])
        elif (between := tokens.interleaved()) is not None:
            own, last, other = between
            sentence = (
                f"{resource} was granted with token {own}, and token {last} was drawn under that grant; but token"
                f" {other}, which is between them, is of another grant."
            )
            shown = [call for token in between for call in store.grants(resource, token)[:1]]
            yield _violation("mutex", words, sentence, shown)


def plain_violations(store: Store, words: Words) -> Iterator[Violation]:
    """Give each lock that two holders believed to hold at once."""
    for resource, _ in store.resources("acquire"):
        yield from _believed(store, words, resource, "plain_mutex")


def falling(grants: Iterable[Call]) -> tuple[Call, Call] | None:
    """Find two grants of one lock of which the later one has the lower token.

    The grants are in the order of their begins.
    """
    ends: list[tuple[int, int, Call]] = []
    highest: Call | None = None
    for grant in grants:
        while ends and ends[0][0] < grant.invoke.time:
            ended = heapq.heappop(ends)[2]
            if highest is None or granted(ended) > granted(highest):
                highest = ended
        if highest is not None and granted(grant) < granted(highest):
            return highest, grant
        heapq.heappush(ends, (grant.ended, grant.id, grant))
    return None


def granted(call: Call) -> int:
    """Give the token of a grant; 0 for none."""
    return 0 if call.end is None or call.end.event != "ok" or call.end.token is None else call.end.token


def overlapping(calls: Iterable[Call], died: Callable[[str, int], int]) -> tuple[Hold, Hold] | None:
    """Find two holders of one lock that believed to hold it at once; the calls are in the order of their begins.

    `died` gives when a process was killed, at or after a time; NEVER when it was not.
    """
    latest: Hold | None = None
    for hold in sorted(_holds(calls, died), key=lambda hold: hold.since):
        if latest is not None and hold.since < latest.until:
            return latest, hold
        if latest is None or hold.until > latest.until:
            latest = hold
    return None


def _holds(calls: Iterable[Call], died: Callable[[str, int], int]) -> Iterator[Hold]:
    held: dict[str, list[Call]] = {}
    for call in calls:
        if call.invoke.op == "acquire" and call.end is not None and call.end.event == "ok":
            held.setdefault(call.invoke.process, []).append(call)
        elif call.invoke.op == "release":
            mine = held.get(call.invoke.process, [])
            found = next((each for each in mine if call.invoke.token in {None, granted(each)}), None)
            if found is not None:
                mine.remove(found)
                yield _hold(found, call, died)
    for grant in (grant for grants in held.values() for grant in grants):
        yield _hold(grant, None, died)


def _hold(grant: Call, release: Call | None, died: Callable[[str, int], int]) -> Hold:
    until = NEVER if release is None else release.invoke.time
    if grant.end is not None and grant.end.expires is not None:
        until = min(until, grant.end.expires)
    return Hold(grant.ended, min(until, died(grant.invoke.process, grant.ended)), grant, release)


def _believed(store: Store, words: Words, resource: str, model: Model = "mutex") -> Iterator[Violation]:
    calls = store.of_resource(resource, ("acquire", "release"))
    if (found := overlapping(calls, store.death)) is not None:
        one, other = found
        until = "" if one.until == NEVER else f", which believed so until {words.time(one.until)}"
        sentence = (
            f"{resource} was granted to {other.call.invoke.process} at {words.time(other.since)}, while it was held by"
            f" {one.call.invoke.process}{until}."
        )
        shown = [call for hold in found for call in (hold.call, hold.release) if call is not None]
        yield _violation(model, words, sentence, shown)


def _violation(model: Model, words: Words, sentence: str, calls: list[Call]) -> Violation:
    return Violation(model, calls[0].invoke.resource, words.listed(sentence, calls), in_time(calls))
