"""What a run over the queues reports, and that docs/queues.md has the same."""

from benchmarks import queue_report
from benchmarks.cells import CELLS
from benchmarks.queue_report import RATIOS, WORKERS, drain_name, usual_name
from benchmarks.queue_services import KAFKA, POSTGRES
from benchmarks.usual_consumer import COMMITS


def test_every_ratio_is_of_cells_that_are_measured() -> None:
    drains = {drain_name(queue, workers) for queue in (POSTGRES, KAFKA) for workers in WORKERS}
    measured = {cell.name for cell in CELLS} | drains | {usual_name(commit) for commit in COMMITS}
    assert {name for ratio in RATIOS for name in (ratio.of, ratio.by)} <= measured


def test_the_page_shows_the_figures_that_are_kept() -> None:
    page = queue_report.PAGE.read_text("utf-8")
    assert queue_report.inserted(page, queue_report.kept()) == page, "python -m benchmarks.queue_report"
