"""A report of 100,000 operations: its size and the memory that it takes do not grow with the history."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.histories import large

pytestmark = pytest.mark.long("large histories")
OPERATIONS = 100_000
MEGABYTE = 1 << 20
WRITES = """
import sys
from fencepost.testing.checker import Verdict
from fencepost.testing.torture.report import write_report
print(write_report(sys.argv[1], Verdict(True, (), 0, 0, 0, 0, 0), sys.argv[2]))
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""
# VmHWM, in kB, is of the program by itself: ru_maxrss begins with what the process that started it had.


@pytest.mark.parametrize("resources", [1, 25_000])
def test_many_operations_are_a_small_page(tmp_path: Path, resources: int) -> None:
    history = large(tmp_path / "h.jsonl", OPERATIONS, resources=resources)
    written = subprocess.run(
        [sys.executable, "-c", WRITES, history, tmp_path / "report.html"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert written[0] == "Valid: no violation in 100,000 operations"
    assert int(written[-1]) * 1024 < 80 * MEGABYTE
    assert (tmp_path / "report.html").stat().st_size < 5 * MEGABYTE
    page = (tmp_path / "report.html").read_text("utf-8")
    assert (" of 100,000 operations are drawn" if resources == 1 else "10 of 24,510 resources") in page
