"""What a run over the queues reports, and that docs/queues.md has the same."""

from typing import Any

import pytest
from benchmarks import queue_report
from benchmarks.cells import CELLS, patch_name
from benchmarks.processes import BenchmarkError
from benchmarks.queue_measures import rates
from benchmarks.queue_report import RATIOS, WORKERS, drain_name, latency_name, usual_name
from benchmarks.queue_services import KAFKA, POSTGRES, TABLES, messages
from benchmarks.usual_consumer import COMMITS

from fencepost.queues.message import read_message

ABOUT = {
    "machine": {"cores": 2, "cpu": "a CPU", "fdatasync_us": 130.0, "revision": "abc"},
    "postgresql": {"server_version": "18.4"},
    "kafka": "Kafka",
    "rounds": 2,
    "backlog": 1000,
    "writes_per_second_for_latency": 100,
}


def made(**busy: float) -> dict[str, Any]:
    quiet = {"busy_before": busy.get("busy", 0.0)}
    drained = {"slowest_partition_rate": 1.0, "fastest_partition_rate": 2.0, **quiet}
    names = ("accepted_p50_ms", "accepted_p99_ms", "applied_p50_ms", "applied_p99_ms")
    return queue_report.report(
        ABOUT,
        {
            patch_name(64, 1): [{"rate": 100.0, **quiet}, {"rate": 1000.0, **quiet}],
            drain_name(KAFKA, 1): [{"rate": 300.0, **drained}, {"rate": 2000.0, **drained}],
            usual_name("each"): [{"rate": 50.0, **quiet}, {"rate": 400.0, **quiet}],
            latency_name(KAFKA): [dict.fromkeys(names, 4.0) | quiet] * 2,
        },
    )


def test_ratios_are_of_the_same_round_and_say_what_is_wanted() -> None:
    assert made()["ratios"] == {
        "kafka:writes, 1 w. by patch, 64 conn., 1 w.": {"median": 2.5, "lowest": 2.0, "highest": 3.0, "wanted": 1.0},
        "kafka:writes, 1 w. by usual consumer, offset: each": {
            "median": 5.5,
            "lowest": 5.0,
            "highest": 6.0,
            "wanted": 5.0,
        },
    }


def test_every_ratio_is_of_cells_that_are_measured() -> None:
    drains = {drain_name(queue, workers) for queue in (POSTGRES, KAFKA) for workers in WORKERS}
    measured = {cell.name for cell in CELLS} | drains | {usual_name(commit) for commit in COMMITS}
    assert {name for ratio in RATIOS for name in (ratio.of, ratio.by)} <= measured


def test_the_tables_show_rates_ratios_and_latencies() -> None:
    lines = queue_report.markdown(made()).splitlines()
    assert "| kafka:writes, 1 w. | 1,150 | 1 to 2 |" in lines
    assert "| kafka:writes, 1 w. by patch, 64 conn., 1 w. | 2.50 | 2.00 to 3.00 | ≥ 1 |" in lines
    assert "| kafka:writes | 4.0 / 4.0 | 4.0 / 4.0 |" in lines


@pytest.mark.parametrize(("busy", "verdict"), [(0.1, "quiet"), (0.11, "not quiet")])
def test_a_run_beside_others_reports_it(busy: float, verdict: str) -> None:
    assert queue_report.noise(made(busy=busy)).partition(": ")[2].startswith(verdict)


def test_draining_is_timed_in_the_middle_of_the_backlog() -> None:
    """The first fifth, slow here, and the end of the last partition do not count."""
    slow, quick = (
        [(0, float(number)) for number in range(20)],
        [(number % 2, 20 + number / 100) for number in range(75)],
    )
    late = [(0, 1000.0 + number) for number in range(5)]
    found = rates([*slow, *quick, *late])
    assert found["rate"] == pytest.approx(75 / 0.74)
    assert found["fastest_partition_rate"] == pytest.approx(37 / 0.72)
    assert found["slowest_partition_rate"] == pytest.approx(63 / 1004)


def test_a_backlog_that_is_gone_at_once_is_refused() -> None:
    with pytest.raises(BenchmarkError, match="too small"):
        rates([(0, 1.0)] * 100)


def test_messages_are_writes_of_rows_in_turn() -> None:
    made = [read_message(each) for each in messages(TABLES[KAFKA], 1000)]
    assert len({each.resource for each in made}) == len({each.nonce for each in made}) == 1000
    assert {each.named.table for each in made} == {TABLES[KAFKA]}


def test_a_page_keeps_what_is_around_the_tables() -> None:
    page = f"before\n{queue_report.BEGIN}old\n{queue_report.END}after\n"
    new = queue_report.inserted(page, "new\n")
    assert new == page.replace("old", "new")
    with pytest.raises(ValueError, match="no <!--"):
        queue_report.inserted("no marks\n", "new\n")


def test_the_page_shows_the_figures_that_are_kept() -> None:
    page = queue_report.PAGE.read_text("utf-8")
    assert queue_report.inserted(page, queue_report.kept()) == page, "python -m benchmarks.queue_report"
