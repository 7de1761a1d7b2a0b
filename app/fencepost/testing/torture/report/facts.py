"""What stands at the top of a report, and what a terminal shows: the verdict, and how to repeat the run."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from fencepost.testing.checker import Verdict
from fencepost.testing.torture.report.markup import visible
from fencepost.testing.torture.report.survey import Survey
from fencepost.testing.torture.report.wording import duration

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
        """The verdict in one line."""
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
