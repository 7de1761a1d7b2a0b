"""benchmarks/layers: what its oracle counts, and that docs/combining.md has the figures of its last run."""

import json

import pytest
from benchmarks.layers import report
from benchmarks.layers.oracle import Effects, judge

ROWS = json.loads(report.FIGURES.read_text("utf-8"))["rows"]


@pytest.mark.parametrize(
    ("effects", "found"),
    [
        ([("a", 1), ("a", 2), ("b", 1), ("b", 2)], Effects(4, 0, 0, 0)),
        ([("a", 2), ("a", 1), ("b", 2)], Effects(3, 0, 1, 1)),
        ([("a", 1), ("a", 2), ("a", 1), ("b", 2)], Effects(4, 1, 1, 1)),
        ([("a", 2)], Effects(1, 0, 0, 1)),
    ],
)
def test_the_oracle_counts_what_is_there_twice_late_or_missing(effects: list[tuple[str, int]], found: Effects) -> None:
    assert judge(effects, 2, 2) == found


def test_the_table_of_the_page_is_that_of_the_figures() -> None:
    page = report.PAGE.read_text("utf-8")
    written = page.partition(report.BEGIN)[2].partition(report.END)[0].strip()
    assert written == report.table({"rows": ROWS})
