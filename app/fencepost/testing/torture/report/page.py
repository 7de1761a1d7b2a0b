"""The report as one HTML page that loads nothing: style, script and drawings are in it."""

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from string import Template
from typing import Final

from fencepost.testing.checker import Violation
from fencepost.testing.torture.report.facts import Facts, counted
from fencepost.testing.torture.report.markup import Markup, element, join, visible, void
from fencepost.testing.torture.report.operation import Operation
from fencepost.testing.torture.report.overview import OUTCOMES
from fencepost.testing.torture.report.wording import answer, label, seconds

_STATIC: Final = files("fencepost.testing.torture.report") / "static"
_OUTCOME_NAMES: Final = {"ok": "accepted", "refused": "refused", "unknown": "unknown"}
MOST_WORDS_ONLY: Final = 200
"""Violations that are given in words but not drawn."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A timeline with what stands above it."""

    identity: str
    resource: str
    violations: Sequence[tuple[str, Violation, Sequence[Operation]]]
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
    """Write the page."""
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


def _card(letter: str, violation: Violation, operations: Sequence[Operation], origin: int) -> Markup:
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


def _cells(operation: Operation, origin: int) -> tuple[str, ...]:
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


def anchors(panels: Iterable[Panel]) -> Mapping[str, str]:
    """Give the ids of the panels by what they are about."""
    return {panel.resource: f"about-{panel.identity}" for panel in panels}
