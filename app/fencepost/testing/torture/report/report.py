"""A report: its words, its page, and the file that it becomes."""

import os
import shlex
import tempfile
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, Final

from fencepost.testing.checker import Verdict, Violation
from fencepost.testing.history import History, read
from fencepost.testing.torture.report.data import (
    MOST_FAULTS,
    MOST_VIOLATED,
    OUTCOMES,
    Choice,
    DrawnOperation,
    Excerpt,
    Survey,
    choose,
    operation_ids,
    survey,
)
from fencepost.testing.torture.report.drawing import MOST_FAULTS as MOST_DRAWN_FAULTS
from fencepost.testing.torture.report.drawing import (
    Markup,
    ShownTimelines,
    answer,
    draw,
    draw_overview,
    duration,
    element,
    join,
    label,
    lay_out,
    look,
    seconds,
    visible,
    void,
)

COMMAND: Final = "command"
"""The key of the header that has the command which repeats the run, as one text."""
MISSED: Final = "faults that never came"
"""The key of the header that has the kinds of faults which a run was to have, and had not when it was over."""
ENDED: Final = "ended"
"""The key of the header that says why the run ended when it did."""
_OWN: Final = frozenset({"history", COMMAND, "seed", "workload", "source", "started", MISSED, ENDED})
MOST_FURTHER: Final = 30
_MOST_WORDS: Final = 5
_MOST_MISSED: Final = 400
"""Characters."""


@dataclass(frozen=True, slots=True)
class Facts:
    """A run: what the header says, what was counted, and what the checker found."""

    header: Mapping[str, Any]
    survey: Survey
    verdict: Verdict

    @property
    def headline(self) -> str:
        operations = counted(self.survey.operations, "operation")
        if self.verdict.valid:
            return f"Valid: no violation in {operations}"
        return f"Not valid: {counted(len(self.verdict.violations), 'violation')} in {operations}"

    @property
    def summary(self) -> list[str]:
        """The run in some lines: what ran, what its operations came to, which faults there were, why it ended."""
        survey, outcomes = self.survey, self.survey.by_outcome
        ran = [f"{key} {visible(self.header[key])}" for key in ("workload", "source", "seed") if key in self.header]
        ran += [duration(survey.span[1] - survey.span[0]), self._resources]
        lines = [
            ", ".join(ran),
            f"{outcomes['ok']:,} accepted, {outcomes['refused']:,} refused, {outcomes['unknown']:,} unknown",
        ]
        if survey.faults_by_kind:
            faults = ", ".join(f"{visible(kind)} {count:,}" for kind, count in survey.faults_by_kind.most_common())
            lines.append(f"Faults: {faults}")
        if ENDED in self.header:
            lines.append(f"Ended {visible(self.header[ENDED])}")
        if MISSED in self.header:
            lines.append(f"Faults that never came before its end: {visible(self.header[MISSED], _MOST_MISSED)}")
        return lines

    @property
    def _resources(self) -> str:
        resources = counted(len(self.survey.tallies), "resource")
        return f"more than {resources}" if self.survey.others.operations else resources

    @property
    def run(self) -> list[tuple[str, str]]:
        start, end = self.survey.span
        rows = [
            (key, visible(self.header.get(key, "not recorded"))) for key in ("workload", "source", "seed", "started")
        ]
        rows.append(("duration", duration(end - start)))
        rows.append(("resources", self._resources.removesuffix("s").removesuffix(" resource")))
        further = [(key, value) for key, value in self.header.items() if key not in _OWN]
        rows += [(visible(key, 40), visible(value)) for key, value in further[:MOST_FURTHER]]
        if len(further) > MOST_FURTHER:
            rows.append(("further", f"{len(further) - MOST_FURTHER} more keys of the header are not shown"))
        return rows

    @property
    def command(self) -> str | None:
        """The command that repeats the run; None when the header has too little for one."""
        given = self.header.get(COMMAND)
        if isinstance(given, str) and given:
            return given
        if "seed" not in self.header:
            return None
        options = [
            f"--{key} {shlex.quote(visible(self.header[key]))}"
            for key in ("seed", "workload", "source")
            if key in self.header
        ]
        return f"fencepost torture {' '.join(options)}"


def counted(count: int, noun: str) -> str:
    """Write a number with its noun: `1 operation`, `2,000 operations`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def words(facts: Facts) -> str:
    """Give the report's short form: some lines of plain text, for a terminal."""
    lines = [facts.headline, *(f"  {line}" for line in facts.summary)]
    for violation in facts.verdict.violations[:_MOST_WORDS]:
        lines += ["", f"{violation.model}, {visible(violation.resource)}:"]
        lines += [f"  {visible(line, 1000)}" for line in violation.words.splitlines()]
    if (more := len(facts.verdict.violations) - _MOST_WORDS) > 0:
        lines += ["", f"{counted(more, 'more violation')}: see the report."]
    if not facts.verdict.valid and facts.command is not None:
        lines += ["", f"Again: {visible(facts.command, 1000)}"]
    return "\n".join(lines)


_STATIC: Final = files("fencepost.testing.torture.report") / "static"
_OUTCOME_NAMES: Final = {"ok": "accepted", "refused": "refused", "unknown": "unknown"}
MOST_WORDS_ONLY: Final = 200
"""Violations that are given in words but not drawn."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A timeline with what stands above it."""

    identity: str
    resource: str
    violations: Sequence[tuple[str, Violation, Sequence[DrawnOperation]]]
    """Letter, violation, and its operations in their order."""
    remarks: Sequence[str]
    drawing: Markup


@dataclass(frozen=True, slots=True)
class Contents:
    """All that a page shows."""

    facts: Facts
    overview: Markup
    overview_remarks: Sequence[str]
    panels: Sequence[Panel]
    violated: int
    """How many panels, from the first, have violations."""
    sample: str
    """How the other panels were chosen."""
    not_drawn: Sequence[Violation]
    origin: int


def render(contents: Contents) -> str:
    """Write the report as one HTML page that loads nothing: style, script and drawings are in it."""
    style, script = (_STATIC / "report.css").read_text(), (_STATIC / "report.js").read_text()
    sources = f"script-src '{_hash(script)}'; style-src '{_hash(style)}'"
    policy = f"default-src 'none'; {sources}; base-uri 'none'; form-action 'none'"
    return Template((_STATIC / "report.html").read_text()).substitute(
        policy=void("meta", http_equiv="Content-Security-Policy", content=policy),
        title=element("title", f"{contents.facts.headline} · fencepost torture"),
        style=style,
        script=script,
        verdict=_verdict(contents.facts),
        summary=_summary(contents.facts),
        run=_run(contents.facts),
        found=_found(contents),
        overview=join(
            [contents.overview, *(element("p", remark, class_="soft") for remark in contents.overview_remarks)]
        ),
        sample=_sample(contents),
        notes=_notes(contents),
    )


def _hash(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"


def _verdict(facts: Facts) -> Markup:
    sign = "✓" if facts.verdict.valid else "✗"
    state = "valid" if facts.verdict.valid else "invalid"
    return element("h1", element("span", sign, class_="sign", aria_hidden="true"), facts.headline, class_=state)


def _summary(facts: Facts) -> Markup:
    lines = [element("p", line) for line in facts.summary]
    if facts.command is not None:
        lines.append(element("pre", element("code", visible(facts.command, 1000))))
    return join(lines)


def _run(facts: Facts) -> Markup:
    run = _table(None, (), facts.run)
    kinds = sorted({op for op, _ in facts.survey.by_op})
    by_op = [(op, *(f"{facts.survey.by_op[op, outcome]:,}" for outcome in OUTCOMES)) for op in kinds]
    by_op.append(("all", *(f"{facts.survey.by_outcome[outcome]:,}" for outcome in OUTCOMES)))
    operations = _table("Operations", ("", *_OUTCOME_NAMES.values()), by_op)
    reasons = _table("Refused as", (), [(visible(r), f"{n:,}") for r, n in facts.survey.reasons.most_common()])
    kinds_of_faults = facts.survey.faults_by_kind.most_common()
    faults = _table("Faults", (), [(visible(kind), f"{count:,}") for kind, count in kinds_of_faults] or [("none", "")])
    counts = join([operations, element("div", reasons if facts.survey.reasons else "", faults)])
    return element("div", run, counts, class_="facts")


def _table(caption: str | None, head: Sequence[str], rows: Iterable[Sequence[str]]) -> Markup:
    parts = [] if caption is None else [element("caption", caption)]
    if head:
        cells = (element("th", cell, scope="col") if cell else element("td") for cell in head)
        parts.append(element("thead", element("tr", *cells)))
    body = [
        element("tr", element("th", row[0], scope="row"), *(element("td", cell) for cell in row[1:])) for row in rows
    ]
    return element("table", *parts, element("tbody", *body))


def _found(contents: Contents) -> Markup:
    panels = contents.panels[: contents.violated]
    if not panels and not contents.not_drawn:
        return Markup()
    parts = [element("h2", "Violations", id="violations"), *(_panel(panel, contents.origin) for panel in panels)]
    if contents.not_drawn:
        shown = contents.not_drawn[:MOST_WORDS_ONLY]
        items = [element("li", f"{v.model}, {visible(v.resource)}: {visible(v.words, 600)}") for v in shown]
        parts.append(element("h3", f"{counted(len(contents.not_drawn), 'more violation')}, without a timeline"))
        if (more := len(contents.not_drawn) - len(shown)) > 0:
            items.append(element("li", f"and {more:,} more, which are not listed"))
        parts.append(element("ul", *items))
    return element("section", *parts, aria_labelledby="violations")


def _panel(panel: Panel, origin: int) -> Markup:
    cards = [_card(letter, violation, operations, origin) for letter, violation, operations in panel.violations]
    remarks = [element("p", remark, class_="soft") for remark in panel.remarks]
    buttons = [
        element(
            "button",
            text,
            type="button",
            data_do=do,
            data_for=panel.identity,
            aria_label=f"{words}, {visible(panel.resource)}",
        )
        for text, do, words in (
            ("+", "in", "Zoom in"),
            ("\N{MINUS SIGN}", "out", "Zoom out"),
            ("←", "left", "Earlier"),
            ("→", "right", "Later"),
            ("all", "all", "Show all"),
        )
    ]
    heading = element("h3", visible(panel.resource))
    bar = element("div", heading, element("div", *buttons, class_="buttons", role="group"), class_="bar")
    return element("article", bar, *cards, panel.drawing, *remarks, id=f"about-{panel.identity}")


def _card(letter: str, violation: Violation, operations: Sequence[DrawnOperation], origin: int) -> Markup:
    rows = [
        element(
            "tr",
            element("th", f"{letter}{number}", scope="row"),
            *(element("td", cell) for cell in _cells(operation, origin)),
        )
        for number, operation in enumerate(operations, start=1)
    ]
    names = ("", "process", "operation", "token", "began at", "and came to")
    head = element(
        "thead", element("tr", *(element("th", name, scope="col") if name else element("td") for name in names))
    )
    first, *others = [visible(line, 1000) for line in violation.words.splitlines() if line.strip()] or [""]
    # The checker's words go on with a line for each operation. That is the table.
    others = [] if len(others) == len(operations) else others
    words = [element("p", first), *(element("p", line, class_="soft") for line in others)]
    title = element("h4", f"Violation {letter}", element("span", violation.model, class_="model"))
    table = element(
        "div",
        element("table", head, element("tbody", *rows)),
        class_="scroll",
        tabindex="0",
        role="group",
        aria_label=f"Operations of violation {letter}",
    )
    return element("div", title, *words, table, class_="card")


def _cells(operation: DrawnOperation, origin: int) -> tuple[str, ...]:
    token = "" if operation.token is None else str(operation.token)
    return visible(operation.process), label(operation), token, seconds(operation.invoked - origin), answer(operation)


def _sample(contents: Contents) -> Markup:
    panels = contents.panels[contents.violated :]
    if not panels:
        return Markup()
    parts = [element("h2", "Timelines", id="timelines"), element("p", contents.sample, class_="soft")]
    parts += [_panel(panel, contents.origin) for panel in panels]
    return element("section", *parts, aria_labelledby="timelines")


def _notes(contents: Contents) -> Markup:
    survey = contents.facts.survey
    if not survey.notes:
        return Markup()
    items = [
        element("li", f"{seconds(note.time - contents.origin)}: {visible(note.text, 400)}") for note in survey.notes
    ]
    if survey.notes_left_out:
        items.append(element("li", f"and {survey.notes_left_out:,} more, which are not listed"))
    return element("section", element("h2", "Notes", id="notes"), element("ul", *items), aria_labelledby="notes")


def letters(number: int) -> str:
    """Name the violations A, B, … Z, AA, AB, … from 0."""
    name = ""
    number += 1
    while number:
        number, digit = divmod(number - 1, 26)
        name = chr(ord("A") + digit) + name
    return name


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
        _make_panel(f"t{number}", excerpt, seen, drawn.by_subject.get(excerpt.drawn.subject, []), origin)
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


def _make_panel(
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
        shown.append(ShownTimelines(letter, violation.words, tuple(ids)))
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
