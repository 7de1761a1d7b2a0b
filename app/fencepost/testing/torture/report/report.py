"""Puts a report together, and writes it to its place in one step."""

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fencepost.testing.checker import Verdict, Violation
from fencepost.testing.history import History, read
from fencepost.testing.torture.report.choice import MOST_VIOLATED, Choice, choose, operation_ids
from fencepost.testing.torture.report.excerpt import Excerpt
from fencepost.testing.torture.report.facts import Facts, counted, words
from fencepost.testing.torture.report.heat import MOST_FAULTS as MOST_DRAWN_FAULTS
from fencepost.testing.torture.report.heat import draw_overview
from fencepost.testing.torture.report.layout import lay_out
from fencepost.testing.torture.report.look import look
from fencepost.testing.torture.report.markup import visible
from fencepost.testing.torture.report.page import Contents, Panel, letters, render
from fencepost.testing.torture.report.survey import MOST_FAULTS, Survey, survey
from fencepost.testing.torture.report.timeline import Shown, draw

MOST_OF_ONE = 3
"""Violations of one resource that its timeline shows."""


@dataclass(slots=True)
class _Drawn:
    """Which violations are drawn, by resource, with their letters; and which are not."""

    by_subject: dict[str, list[tuple[str, Violation]]] = field(default_factory=dict)
    others: list[Violation] = field(default_factory=list)


def write_report(
    history_path: str | Path, verdict: Verdict, destination: str | Path, *, cut_off_last_line: bool = False
) -> str:
    """Write the report of a history as one HTML file, and give its short form for a terminal.

    The file appears whole or not at all; one that was there is replaced. `cut_off_last_line` as for `read`. Raises
    BadHistoryError when the history is none, OSError when the destination cannot be written.
    """
    history = read(history_path, cut_off_last_line=cut_off_last_line)
    facts = Facts(history.header, survey(history, frozenset(v.resource for v in verdict.violations)), verdict)
    put(Path(destination), render(_contents(history, facts)))
    return words(facts)


def put(destination: Path, text: str) -> None:
    """Write a file under another name beside its place, and rename it."""
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=destination.parent, prefix=f".{destination.name}.", suffix=".new", delete=False
    ) as file:
        try:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), 0o644)
            Path(file.name).replace(destination)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def _contents(history: History, facts: Facts) -> Contents:
    seen = facts.survey
    violations = facts.verdict.violations
    drawn = _drawn(violations, seen)
    choice = choose(seen, [violation for shown in drawn.by_subject.values() for _, violation in shown])
    excerpts, overview = look(history, seen, choice)
    origin = seen.span[0]
    panels = [
        _panel(f"t{number}", excerpt, seen, drawn.by_subject.get(excerpt.drawn.subject, []), origin)
        for number, excerpt in enumerate(excerpts)
        if excerpt.operations
    ]
    moments: dict[str, list[int]] = {}
    for violation in violations:
        moments.setdefault(seen.subject(violation.resource), []).extend(event.time for event in violation.events[-1:])
    links = {panel.resource: f"about-{panel.identity}" for panel in panels}
    return Contents(
        facts,
        draw_overview(overview, seen.faults, moments, links),
        _overview_remarks(seen),
        panels,
        choice.violated,
        _sample_words(seen, choice),
        drawn.others,
        origin,
    )


def _drawn(violations: Sequence[Violation], seen: Survey) -> _Drawn:
    drawn = _Drawn()
    number = 0
    for violation in violations:
        name = seen.subject(violation.resource)
        room = name in drawn.by_subject or len(drawn.by_subject) < MOST_VIOLATED
        if not room or len(drawn.by_subject.get(name, ())) >= MOST_OF_ONE or not operation_ids(violation):
            drawn.others.append(violation)
            continue
        drawn.by_subject.setdefault(name, []).append((letters(number), violation))
        number += 1
    return drawn


def _panel(
    identity: str, excerpt: Excerpt, seen: Survey, violations: Sequence[tuple[str, Violation]], origin: int
) -> Panel:
    by_id = {operation.id: operation for operation in excerpt.operations}
    badges: dict[int, tuple[str, ...]] = {}
    listed, shown = [], []
    for letter, violation in violations:
        ids = [i for i in operation_ids(violation) if i in by_id]
        for number, each in enumerate(ids, start=1):
            badges[each] = (*badges.get(each, ()), f"{letter}{number}")
        listed.append((letter, violation, [by_id[i] for i in ids]))
        shown.append(Shown(letter, violation.words, tuple(ids)))
    layout = lay_out(excerpt, seen.faults, badges)
    resource = excerpt.drawn.subject
    drawing = draw(layout, f"Timeline of {visible(resource)}", shown, origin, identity)
    return Panel(
        identity, resource, listed, _remarks(excerpt, seen, layout.faults_elsewhere, violated=bool(violations)), drawing
    )


def _remarks(excerpt: Excerpt, seen: Survey, faults_elsewhere: int, *, violated: bool) -> list[str]:
    remarks = []
    if excerpt.not_drawn:
        total = counted(seen.tallies[excerpt.drawn.subject].operations, "operation")
        where = "around the violation" if violated else "around the first refusal or missing answer"
        where = where if excerpt.drawn.anchors else "at the beginning"
        remarks.append(f"{len(excerpt.operations):,} of {total} are drawn, those {where}; the others are left out.")
    if faults_elsewhere:
        remarks.append(
            f"{counted(faults_elsewhere, 'fault')} of this time not drawn: about other processes, or too many at once."
        )
    return remarks


def _overview_remarks(seen: Survey) -> list[str]:
    remarks = []
    if seen.others.operations:
        remarks.append(
            f"{counted(seen.others.operations, 'operation')} on resources beyond the first {len(seen.tallies):,}"
            " are counted together."
        )
    faults = seen.faults_by_kind.total()
    if faults > MOST_DRAWN_FAULTS:
        remarks.append(f"The first {MOST_DRAWN_FAULTS:,} of {faults:,} faults are drawn here.")
    if faults > MOST_FAULTS:
        remarks.append(f"Timelines show the first {MOST_FAULTS:,} of {faults:,} faults.")
    return remarks


def _sample_words(seen: Survey, choice: Choice) -> str:
    if choice.complete:
        return "Every resource of the history has a timeline here."
    others = len(choice.drawn) - choice.violated
    return (
        f"{others} of {len(seen.tallies) - choice.violated:,} resources without a drawn violation: those with"
        " the most refused and unknown operations. The others are in the overview only."
    )
