"""What else must hold of a history: a lock has one holder, an effect happens once, a set loses nothing."""

import bisect
import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, Literal, NamedTuple

from fencepost.testing.checker.store import NEVER, HistoryCall, Model, Store, Violation, Words, in_time
from fencepost.testing.history import NOT_READ

# Locks: whether the tokens of grants rise (the fenced mutex), and whether two held a lock at once (the plain one).
#
# The fenced mutex is the model of Jepsen's tests of lock services with fencing tokens: a grant's token is above those
# of all grants before it. It says nothing about when a holder believes that it holds the lock, because no lease can
# promise that. Two grants contradict it if and only if they have the same token, or the one with the lower token was
# asked for after the one with the higher token had been answered: then no moments within their times can be in the
# order of tokens. (Pairs are enough. In a longer circle of "lower token" and "ended before it began" take the
# operation that began last: the one before it in the circle ended before that, and has a higher token.)
#
# A holder may draw more tokens under its grant (an acquire that names the grant's token). They belong to it: no token
# of another grant is between them.
#
# The plain mutex compares what holders believe: from the answer to an acquire until the release is asked for, the
# lease expires by the holder's own clock (`expires`), or the holder is killed. It is checked where grants have no
# tokens, and where it is asked for.


class LockHold(NamedTuple):
    """How long a holder believed that it had a lock."""

    since: int
    until: int
    call: HistoryCall
    release: HistoryCall | None


class Tokens:
    """The tokens of one lock: of its grants, and the highest that was drawn under each of them later.

    An acquire that names a token drew one more under the grant that has it. The lock passes on between all tokens of
    one grant and all of the next, whenever they were asked for and answered.
    """

    def __init__(self) -> None:
        self._grants: list[int] = []
        self._drawn: dict[int, int] = {}

    def noted(self, grants: Iterable[HistoryCall]) -> Iterator[HistoryCall]:
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


def mutex_violations(store: Store, words: Words) -> Iterator[Violation]:
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


def falling(grants: Iterable[HistoryCall]) -> tuple[HistoryCall, HistoryCall] | None:
    """Find two grants of one lock of which the later one has the lower token.

    The grants are in the order of their begins.
    """
    ends: list[tuple[int, int, HistoryCall]] = []
    highest: HistoryCall | None = None
    for grant in grants:
        while ends and ends[0][0] < grant.invoke.time:
            ended = heapq.heappop(ends)[2]
            if highest is None or granted(ended) > granted(highest):
                highest = ended
        if highest is not None and granted(grant) < granted(highest):
            return highest, grant
        heapq.heappush(ends, (grant.ended, grant.id, grant))
    return None


def granted(call: HistoryCall) -> int:
    """Give the token of a grant; 0 for none."""
    return 0 if call.end is None or call.end.event != "ok" or call.end.token is None else call.end.token


def overlapping(calls: Iterable[HistoryCall], died: Callable[[str, int], int]) -> tuple[LockHold, LockHold] | None:
    """Find two holders of one lock that believed to hold it at once; the calls are in the order of their begins.

    `died` gives when a process was killed, at or after a time; NEVER when it was not.
    """
    latest: LockHold | None = None
    for hold in sorted(_holds(calls, died), key=lambda hold: hold.since):
        if latest is not None and hold.since < latest.until:
            return latest, hold
        if latest is None or hold.until > latest.until:
            latest = hold
    return None


def _holds(calls: Iterable[HistoryCall], died: Callable[[str, int], int]) -> Iterator[LockHold]:
    held: dict[str, list[HistoryCall]] = {}
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


def _hold(grant: HistoryCall, release: HistoryCall | None, died: Callable[[str, int], int]) -> LockHold:
    until = NEVER if release is None else release.invoke.time
    if grant.end is not None and grant.end.expires is not None:
        until = min(until, grant.end.expires)
    return LockHold(grant.ended, min(until, died(grant.invoke.process, grant.ended)), grant, release)


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


def _violation(model: Model, words: Words, sentence: str, calls: list[HistoryCall]) -> Violation:
    return Violation(model, calls[0].invoke.resource, words.listed(sentence, calls), in_time(calls))


# Idempotency-Keys: operations with one key have one effect, and the answers of all are that of the one.
#
# An answer that is not marked as repeated stands for an effect of its own; two of them with one key are two effects.
# An answer that is marked as repeated was read from the record of the operation that had the effect: of another one
# with its key that may have happened before it, or of this one itself, when the connection to the database broke after
# its commit and the gateway looked it up. It shows what that one's answer shows. It also proves that this operation
# happened, even when its own answer was lost: the register is checked with that knowledge (`Effects`).
#
# When several operations with one key may be the one, at most one of them had an effect. Where they are the same in
# all, the one that began first stands for them: it can have happened at any time at which another one can. Where a
# repetition had another token (its holder had acquired the lock again), each token stays possible: `register.py` gives
# a moment to one of them at most.


@dataclass(frozen=True, slots=True)
class Twice:
    """What is wrong with the operations of one key."""

    problem: str
    calls: list[HistoryCall]


@dataclass(frozen=True, slots=True)
class Effects:
    """Which operations of one key change something, by their positions."""

    none: list[int]
    """These do not: they only show what another one did."""
    happened: tuple[int, int] | None = None
    """This one happened, at the latest when that other one was answered."""
    one_of: tuple[int, ...] = ()
    """At most one of these did; if one that certainly happened is among them, one did."""
    perhaps: tuple[int, ...] = ()
    """These were answered with what was stored, and need not be the one that had the effect."""


def settle(store: Store) -> None:
    """Note in the store which operations with a key changed something, and by when they happened."""
    nothing: list[int] = []
    happened: list[tuple[int, int, int]] = []
    perhaps: list[int] = []
    groups: list[tuple[list[int], int]] = []
    for _, rows in store.by_key():
        found = effects([call for _, call in rows])
        if found.one_of:
            groups.append(([rows[at][0] for at in found.one_of], max(rows[at][1].token for at in found.one_of)))
        nothing += [rows[at][0] for at in found.none]
        perhaps += [rows[at][0] for at in found.perhaps]
        if found.happened is not None:
            (rowid, _), (proof, again) = rows[found.happened[0]], rows[found.happened[1]]
            happened.append((rowid, again.ended, proof))
    for rowid in nothing:
        store.settle(rowid)
    for rowid, time, proof in happened:
        store.settle(rowid, happened_by=time, proof=proof)
    for rowid in perhaps:
        store.settle(rowid, happened_by=NEVER)
    for rowids, highest in groups:
        store.group(rowids, highest)


def repeated_effects(store: Store, words: Words) -> Iterator[Violation]:
    """Give what is wrong with the operations of each key."""
    for key, rows in store.by_key():
        if (wrong := contradiction(key, [call for _, call in rows])) is not None:
            resource = wrong.calls[0].invoke.resource
            yield Violation("once", resource, words.listed(f"{wrong.problem}.", wrong.calls), in_time(wrong.calls))


def contradiction(key: str, calls: list[HistoryCall]) -> Twice | None:
    """Find what is wrong with the operations of one key, which are in the order of their begins."""
    done = [call for call in calls if _ok(call) and not _replayed(call)]
    if len(done) > 1:
        return Twice(f"Two operations with the Idempotency-Key {key!r} were both done", done[:2])
    repeated = [call for call in calls if _ok(call) and _replayed(call)]
    if done and repeated and done[0].invoke.time > min(again.ended for again in repeated):
        return Twice(
            f"An answer was repeated for the Idempotency-Key {key!r}, and the operation that was done with this key"
            " began later",
            [min(repeated, key=lambda again: again.ended), done[0]],
        )
    original = (done or repeated or calls)[0]
    for again in repeated:
        if not _same_request(original, again):
            return Twice(
                f"The Idempotency-Key {key!r} was answered with what another request had been answered",
                [original, again],
            )
        if not _same_answer(original, again):
            return Twice(f"The repeated answer for the Idempotency-Key {key!r} is another one", [original, again])
    return None


def effects(calls: list[HistoryCall]) -> Effects:
    """Give which operations of one key changed something. `contradiction` checks that at most one did."""
    none = [at for at, call in enumerate(calls) if _replayed(call)]
    unknown = [at for at, call in enumerate(calls) if _unanswered(call)]
    repeated = min((at for at in none if _ok(calls[at])), key=lambda at: calls[at].ended, default=None)
    done = next((at for at, call in enumerate(calls) if _ok(call) and not _replayed(call)), None)
    if done is not None:
        sooner = repeated is not None and calls[done].invoke.time <= calls[repeated].ended < calls[done].ended
        return Effects(none + unknown, (done, repeated) if sooner and repeated is not None else None)
    if repeated is None:
        first = {(*_request(calls[at]), calls[at].token): at for at in reversed(unknown)}
        possible = sorted(first.values())
        others = [at for at in unknown if at not in possible]
        return Effects(none + others, one_of=tuple(possible) if len(possible) > 1 else ())
    return _original(calls, repeated, [*none, *unknown])


def _original(calls: list[HistoryCall], repeated: int, others: list[int]) -> Effects:
    """Give which of these may be what was answered again first, and maybe only there: the first of each token."""
    again = calls[repeated]
    first = {
        calls[at].token: at
        for at in sorted(others, reverse=True)
        if not calls[at].refused and calls[at].invoke.time <= again.ended and _same_request(calls[at], again)
    }
    possible = sorted(first.values())
    return Effects(
        [at for at in others if at not in possible],
        None if possible[0] == repeated else (possible[0], repeated),
        tuple(possible) if len(possible) > 1 else (),
        tuple(at for at in possible[1:] if _replayed(calls[at])),
    )


def _ok(call: HistoryCall) -> bool:
    return call.end is not None and call.end.event == "ok"


def _unanswered(call: HistoryCall) -> bool:
    return call.end is None or call.end.event == "unknown"


def _replayed(call: HistoryCall) -> bool:
    return call.end is not None and call.end.replayed


def _same_request(one: HistoryCall, other: HistoryCall) -> bool:
    return _request(one) == _request(other)


def _request(call: HistoryCall) -> tuple[str, str, str | None]:
    return call.invoke.op, call.invoke.resource, call.invoke.value


def _same_answer(one: HistoryCall, other: HistoryCall) -> bool:
    if one.end is None or other.end is None:
        return True
    same_value = NOT_READ in {one.end.value, other.end.value} or one.end.value == other.end.value
    return same_value and (None in {one.end.token, other.end.token} or one.end.token == other.end.token)


# Sets: what was added is in every reading that began after the answer, and nothing else is in any.
#
# A set only grows. An element is certainly in it from the earliest of these on: the answer to its add, and the end of
# a reading that shows it. A reading that began after that and does not show it has lost it, and so has one that shows
# an element whose add began after that; when a later reading shows it again, it was missing for a while only. An
# element that no add can have put there (none named it, all were refused, or the add began after the reading had
# ended) came from nowhere. Of two readings one shows all that the other does: it is the later one. An add may be
# answered as unknown and its element be there or not: both are right. An element that is there twice was added twice.

Problem = Literal["lost", "strange", "twice", "apart"]

_PREPARE: Final = """
CREATE INDEX of_read_set ON calls (id) WHERE op = 'read_set';
CREATE INDEX of_reading ON seen (reading, value);
CREATE INDEX of_element ON seen (resource, value);
CREATE TABLE elements AS
    SELECT a.resource, a.value,
           min(CASE WHEN a.outcome != 'refused' THEN a.began END) AS first_asked,
           min(min(CASE WHEN a.outcome = 'ok' THEN a.ended ELSE 9223372036854775807 END),
               coalesce((SELECT min(r.ended) FROM seen s JOIN calls r ON r.id = s.reading AND r.op = 'read_set'
                         WHERE s.resource = a.resource AND s.value = a.value), 9223372036854775807)) AS there_since
    FROM calls a WHERE a.op = 'add' GROUP BY a.resource, a.value;
CREATE INDEX of_set ON elements (resource, value);
"""
"""When each element was first asked for, and from when on it was certainly there."""

_LOST: Final = """
SELECT e.value FROM elements e
WHERE e.resource = :resource AND e.there_since < :began
  AND NOT EXISTS (SELECT 1 FROM seen s WHERE s.reading = :reading AND s.value = e.value)
ORDER BY e.there_since
"""
_NEWEST: Final = """
SELECT e.value, e.first_asked FROM seen s JOIN elements e ON e.resource = s.resource AND e.value = s.value
WHERE s.reading = ? ORDER BY e.first_asked DESC LIMIT 1
"""
"""Of the elements that a reading shows, the one whose add began last: the reading's moment is after that."""
_STRANGE: Final = """
SELECT s.value FROM seen s LEFT JOIN elements e ON e.resource = s.resource AND e.value = s.value
WHERE s.reading = :reading AND (e.first_asked IS NULL OR e.first_asked > :ended) ORDER BY s.value
"""
_TWICE: Final = "SELECT value FROM seen WHERE reading = :reading GROUP BY value HAVING count(*) > 1 ORDER BY value"
_QUERIES: Final[dict[Problem, str]] = {"lost": _LOST, "strange": _STRANGE, "twice": _TWICE}


@dataclass(frozen=True, slots=True)
class Wrong:
    """What is wrong with one reading of a set."""

    problem: Problem
    values: list[str]
    """One element; of readings that are apart, one of each. Of several that are lost, or strange, one shows it."""
    total: int
    reading: HistoryCall
    later: HistoryCall | None = None
    """A later reading that shows what this one misses; of readings that are apart, the other one."""
    newer: str | None = None
    """An element that it shows, although its add began after those that it misses were there."""
    earlier: HistoryCall | None = None
    """What shows that a lost element was there: the reading that showed it first, when no answer to its add did."""


def set_violations(store: Store, words: Words) -> Iterator[Violation]:
    """Give what is wrong with each set."""
    for wrong in contradictions(store):
        calls = [wrong.reading]
        for value in (*wrong.values, *([] if wrong.newer is None else [wrong.newer])):
            calls += store.writers(wrong.reading.invoke.resource, value)
        calls += [each for each in (wrong.earlier, wrong.later) if each is not None]
        text = words.listed(_sentence(wrong), calls)
        yield Violation("set", wrong.reading.invoke.resource, text, in_time(calls))


def contradictions(store: Store) -> Iterator[Wrong]:
    """Find what is wrong with each set: of the first reading that is wrong, for each kind of problem."""
    if store.db.execute("SELECT 1 FROM calls WHERE op IN ('add', 'read_set') LIMIT 1").fetchone() is None:
        return
    store.db.executescript(_PREPARE)
    for resource, calls in store.resources("read_set"):
        readings = [call for call in calls if call.certain and not call.refused]
        yield from _of_set(store, resource, readings)


def _of_set(store: Store, resource: str, readings: list[HistoryCall]) -> Iterator[Wrong]:
    met: set[Problem] = set()
    for reading in reversed(readings):  # what is missing in the end counts more than what is missing for a while
        newest, asked = store.db.execute(_NEWEST, (reading.id,)).fetchone() or (None, 0)
        began = max(reading.invoke.time, asked or 0)
        names = {"resource": resource, "reading": reading.id, "began": began, "ended": reading.ended}
        for problem, query in _QUERIES.items():
            if problem not in met and (values := [str(row[0]) for row in store.db.execute(query, names)]):
                met.add(problem)
                wrong = Wrong(problem, values[:1], len(values), reading)
                yield _with_its_story(store, readings, wrong, newest, began) if problem == "lost" else wrong
    yield from _apart(store, readings)


def _with_its_story(store: Store, readings: list[HistoryCall], lost: Wrong, newest: str | None, began: int) -> Wrong:
    """Add what else shows that an element is lost: it was there before `began`."""
    reading, (value,) = lost.reading, lost.values
    adds = store.writers(reading.invoke.resource, value)
    answered = any(add.certain and not add.refused and add.ended < began for add in adds)
    showing = [each for each in readings if _shows(store, each, value)]
    return replace(
        lost,
        later=next((each for each in showing if each.invoke.time > reading.ended), None),
        newer=newest if began > reading.invoke.time else None,
        earlier=None if answered else min(showing, key=lambda each: each.ended, default=None),
    )


def _apart(store: Store, readings: list[HistoryCall]) -> Iterator[Wrong]:
    """Find two readings of which each shows what the other does not: neither can be the earlier one."""
    counted = "SELECT count(*) FROM seen WHERE reading = ?"
    sizes = {reading.id: store.db.execute(counted, (reading.id,)).fetchone()[0] for reading in readings}
    for smaller, larger in pairwise(sorted(readings, key=lambda reading: int(sizes[reading.id]))):
        query = (
            "SELECT value FROM seen WHERE reading = ? EXCEPT SELECT value FROM seen WHERE reading = ? ORDER BY value"
        )
        both = (smaller.id, larger.id), (larger.id, smaller.id)
        only, other = ([str(row[0]) for row in store.db.execute(query, ids)] for ids in both)
        if only and other:
            yield Wrong("apart", [only[0], other[0]], len(only) + len(other), smaller, larger)
            return


def _shows(store: Store, reading: HistoryCall, value: str) -> bool:
    query = "SELECT 1 FROM seen WHERE reading = ? AND value = ?"
    return store.db.execute(query, (reading.id, value)).fetchone() is not None


def _sentence(wrong: Wrong) -> str:
    named = ", ".join(map(repr, wrong.values))
    more = f" and {wrong.total - len(wrong.values)} more" if wrong.total > len(wrong.values) else ""
    who = f"{wrong.reading.invoke.process}'s reading of {wrong.reading.invoke.resource}"
    match wrong.problem:
        case "lost":
            again = "" if wrong.later is None else "; a later reading shows it again"
            newer = "" if wrong.newer is None else f", and shows {wrong.newer!r}, which was added after them"
            return f"{who} misses {wrong.total} that were certainly in the set before: {named}{more}{newer}{again}."
        case "strange":
            return f"{who} shows {wrong.total} that no accepted add can have put there: {named}{more}."
        case "apart":
            return (
                f"{who} shows {wrong.values[0]!r} and not {wrong.values[1]!r}, and another one the reverse: neither can"
                " be the earlier one."
            )
        case _:
            return f"{who} shows {wrong.total} twice: {named}{more}."
