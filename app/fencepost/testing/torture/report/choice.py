"""What of a history is drawn: a page has to stay small whatever the history's size."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fencepost.testing.checker import Violation
from fencepost.testing.history import End, Invoke
from fencepost.testing.torture.report.survey import ResourceTally, Survey

MOST_TIMELINES: Final = 30
MOST_VIOLATED: Final = 20
"""Of these, so many at most because of violations."""
SAMPLE: Final = 10
"""So many others, when there are more than fit."""
MOST_OPERATIONS: Final = 3_000
"""Over all timelines: an operation is about 700 bytes of the page."""
FEWEST_EACH: Final = 60
MOST_EACH: Final = 600
MOST_ANCHORS: Final = 40
"""Operations of violations that one timeline marks."""
_DIGITS: Final = re.compile(r"(\d+)")


@dataclass(frozen=True, slots=True)
class Drawn:
    """A resource that gets a timeline."""

    subject: str
    anchors: frozenset[int]
    """Ids of operations that are shown in any case, with those around them."""
    around: int | None
    """How many operations before and after each anchor; None: all there are."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The timelines, in their order, and how the sample was chosen."""

    drawn: tuple[Drawn, ...]
    violated: int
    """How many of them, from the first, have violations."""
    complete: bool
    """Whether every resource has a timeline."""


def choose(survey: Survey, violations: Sequence[Violation]) -> Choice:
    """Choose the resources with violations first, then those with the most refused and unknown operations."""
    anchors: dict[str, list[int]] = {}
    for violation in violations:
        ids = anchors.setdefault(survey.subject(violation.resource), [])
        ids.extend(operation_ids(violation))
    violated = list(anchors)[:MOST_VIOLATED]
    others = [name for name in survey.tallies if name not in anchors]
    fits = len(violated) + len(others) <= MOST_TIMELINES
    if not fits:
        others = sorted(others, key=lambda name: _interest(survey.tallies[name], name))[:SAMPLE]
    chosen = [*violated, *sorted(others, key=natural)]
    most = min(max(MOST_OPERATIONS // max(len(chosen), 1), FEWEST_EACH), MOST_EACH)
    return Choice(
        tuple(_drawn(name, anchors.get(name, []), survey.tallies[name], most) for name in chosen),
        len(violated),
        fits and len(violated) == len(anchors) and not survey.others.operations,
    )


def operation_ids(violation: Violation) -> list[int]:
    """Give the ids of the operations that a violation is made of, in their order."""
    return list(dict.fromkeys(event.id for event in violation.events if isinstance(event, Invoke | End)))


def natural(name: str) -> tuple[tuple[int, int | str], ...]:
    """Sort by this, and `orders/9` comes before `orders/10`."""
    return tuple((0, int(part)) if part.isdecimal() else (1, part) for part in _DIGITS.split(name) if part)


def _interest(tally: ResourceTally, name: str) -> tuple[int, int, tuple[tuple[int, int | str], ...]]:
    return (-(tally.refused + tally.unknown), -tally.operations, natural(name))


def _drawn(name: str, ids: list[int], tally: ResourceTally, most: int) -> Drawn:
    if tally.operations <= most:
        return Drawn(name, frozenset(ids), None)
    if not ids and tally.first_trouble is not None:
        ids = [tally.first_trouble]
    anchors = frozenset(ids[:MOST_ANCHORS])
    return Drawn(name, anchors, max(most // (2 * max(len(anchors), 1)), 2))
