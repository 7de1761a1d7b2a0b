"""What the benchmarks report, and that pages of docs/ have the figures of their last runs."""

import json
import subprocess
import sys
from subprocess import PIPE

import pytest
from benchmarks import queue_report, source_report
from benchmarks.cells import CELLS
from benchmarks.cpu import Cpu
from benchmarks.layers import report
from benchmarks.layers.oracle import Effects, judge
from benchmarks.queue_report import RATIOS, WORKERS, drain_name, usual_name
from benchmarks.queue_services import KAFKA, POSTGRES
from benchmarks.source_clients import BUILTIN
from benchmarks.source_services import KINDS
from benchmarks.usual_consumer import COMMITS

from fencepost.server.locks.source import KINDS as REGISTERED
from fencepost.server.locks.source import kind_of


def test_every_ratio_is_of_cells_that_are_measured() -> None:
    drains = {drain_name(queue, workers) for queue in (POSTGRES, KAFKA) for workers in WORKERS}
    measured = {cell.name for cell in CELLS} | drains | {usual_name(commit) for commit in COMMITS}
    assert {name for ratio in RATIOS for name in (ratio.of, ratio.by)} <= measured


def test_the_page_shows_the_figures_that_are_kept() -> None:
    page = queue_report.PAGE.read_text("utf-8")
    assert queue_report.inserted(page, queue_report.kept()) == page, "python -m benchmarks.queue_report"


_BURN = """
import sys, time
print(flush=True)
sys.stdin.readline()
begin = time.process_time()
while time.process_time() < begin + 0.2: pass
print(flush=True)
sys.stdin.readline()
"""


def test_what_a_process_of_ours_has_of_a_core_is_counted() -> None:
    with subprocess.Popen([sys.executable, "-c", _BURN], stdin=PIPE, stdout=PIPE, text=True, bufsize=1) as child:
        if child.stdin is None or child.stdout is None:
            raise AssertionError("they are pipes")
        child.stdout.readline()
        cpu = Cpu()
        child.stdin.write("\n")
        child.stdout.readline()
        spent = cpu.per_write(1000)
        child.stdin.close()
    assert spent["fencepost_us"] > 150  # 0.2 s by a thousand, less two of the kernel's ticks


def test_every_registered_source_is_measured() -> None:
    measured = {kind.name.replace("_", "-") for kind in KINDS}
    registered = {kind_of(f"{scheme}://x") for scheme in REGISTERED}
    assert measured == registered | {BUILTIN}, "benchmarks/source_services.py: KINDS has each source"


def test_the_page_of_sources_shows_the_figures_that_are_kept() -> None:
    kept = json.loads(source_report.KEPT.read_text())
    page = source_report.PAGE.read_text("utf-8")
    assert source_report.inserted(page, source_report.markdown(kept)) == page, "python -m benchmarks.source_report"


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
