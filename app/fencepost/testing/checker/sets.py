"""Sets: what was added is in every reading that began after the answer, and nothing else is in any.

A set only grows. An element is certainly in it from the earliest of these on: the answer to its add, and the end of a
reading that shows it. A reading that began after that and does not show it has lost it, and so has one that shows an
element whose add began after that; when a later reading shows it
again, it was missing for a while only. An element that no add can have put there (none named it, all were refused, or
the add began after the reading had ended) came from nowhere. Of two readings one shows all that the other does: it is
the later one. An add may be answered as unknown and its element be there
or not: both are right. An element that is there twice was added twice.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, Literal

from fencepost.testing.checker.calls import Call, in_time
from fencepost.testing.checker.store import Store
from fencepost.testing.checker.verdict import Violation
from fencepost.testing.checker.words import Words

Problem = Literal["lost", "strange", "twice", "apart"]

_PREPARE: Final = """
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
    reading: Call
    later: Call | None = None
    """A later reading that shows what this one misses; of readings that are apart, the other one."""
    newer: str | None = None
    """An element that it shows, although its add began after those that it misses were there."""
    earlier: Call | None = None
    """What shows that a lost element was there: the reading that showed it first, when no answer to its add did."""


def violations(store: Store, words: Words) -> Iterator[Violation]:
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


def _of_set(store: Store, resource: str, readings: list[Call]) -> Iterator[Wrong]:
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


def _with_its_story(store: Store, readings: list[Call], lost: Wrong, newest: str | None, began: int) -> Wrong:
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


def _apart(store: Store, readings: list[Call]) -> Iterator[Wrong]:
    """Find two readings of which each shows what the other does not: neither can be the earlier one."""
    counted = "SELECT count(*) FROM seen WHERE reading = ?"
    sizes = {reading.id: store.db.execute(counted, (reading.id,)).fetchone()[0] for reading in readings}
    for smaller, larger in pairwise(sorted(readings, key=lambda reading: int(sizes[reading.id]))):
        query = (
            "SELECT value FROM seen WHERE reading = ? EXCEPT SELECT value FROM seen WHERE reading = ? ORDER BY value"
        )
        only, other = ([str(row[0]) for row in store.db.execute(query, ids)] for ids in _both(smaller, larger))
        if only and other:
            yield Wrong("apart", [only[0], other[0]], len(only) + len(other), smaller, larger)
            return


def _both(one: Call, other: Call) -> tuple[tuple[int, int], tuple[int, int]]:
    return (one.id, other.id), (other.id, one.id)


def _shows(store: Store, reading: Call, value: str) -> bool:
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
