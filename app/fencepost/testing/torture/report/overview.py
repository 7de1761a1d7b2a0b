"""The picture of the whole history: a row a resource (or some hundreds of them), a column a share of the time."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from fencepost.testing.history import Outcome
from fencepost.testing.torture.report.choice import Choice, natural
from fencepost.testing.torture.report.survey import Survey

COLUMNS: Final = 240
MOST_ROWS: Final = 40
"""Rows of resources without violations."""
OUTCOMES: Final[tuple[Outcome, ...]] = ("ok", "refused", "unknown")


@dataclass(slots=True)
class OverviewRow:
    """One or more resources: its counts by outcome and column."""

    label: str
    resources: int
    violated: bool
    cells: dict[Outcome, list[int]] = field(default_factory=lambda: {outcome: [0] * COLUMNS for outcome in OUTCOMES})


class Overview:
    """Counts operations into rows and columns."""

    def __init__(self, survey: Survey, choice: Choice) -> None:
        self.span = survey.span
        violated = [drawn.subject for drawn in choice.drawn[: choice.violated]]
        rest = sorted(set(survey.tallies).difference(violated), key=natural)
        blocks = [[name] for name in rest] if len(rest) <= MOST_ROWS else _blocks(rest)
        self.rows = [OverviewRow(name, 1, violated=True) for name in violated]
        self.rows += [OverviewRow(_label(block), len(block), violated=False) for block in blocks]
        self._row_of = {name: row for row, name in enumerate(violated)}
        self._row_of |= {name: len(violated) + i for i, block in enumerate(blocks) for name in block}
        if survey.others.operations:
            self.rows.append(OverviewRow("further resources, counted together", 0, violated=False))

    def column(self, time: int) -> int:
        """Give the number of the column of a moment."""
        start, end = self.span
        return min((time - start) * COLUMNS // (end - start), COLUMNS - 1)

    def count(self, subject: str, outcome: Outcome, time: int) -> None:
        """Count one operation on a resource that came to `outcome` at `time`."""
        row = self._row_of.get(subject, len(self.rows) - 1)
        self.rows[row].cells[outcome][self.column(time)] += 1

    def busiest(self, outcome: Outcome) -> int:
        """Give the largest count of a cell; at least 1."""
        return max((max(row.cells[outcome]) for row in self.rows), default=1) or 1


def _blocks(names: Sequence[str]) -> list[Sequence[str]]:
    size = -(-len(names) // MOST_ROWS)
    return [names[i : i + size] for i in range(0, len(names), size)]


def _label(block: Sequence[str]) -> str:
    return block[0] if len(block) == 1 else f"{block[0]} … {block[-1]} ({len(block):,})"
