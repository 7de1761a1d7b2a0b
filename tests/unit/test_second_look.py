"""A run of planted tests by tools/run_tests.py: which failures are looked at twice, and which colour comes of it."""

import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = 'pytest_plugins = ["tests.support.selection", "tests.support.second_look"]'
INI = "[pytest]\naddopts = -p xdist.plugin\n"
PLANTED = """
import os
from pathlib import Path
import pytest
from tests.support.violations import Violation

def first_time(name):
    path = Path(__file__).with_name(f"{name}.seen")
    seen = path.exists()
    path.touch()
    return not seen

@pytest.mark.parametrize("n", range(HEALING))
def test_heals(n):
    assert not first_time(n), f"the machine was busy, {n}"
"""
NOT_HEALING = """
def test_does_not_heal():
    assert 1 == 2
"""
CRASHING = """
def test_crashes():
    if first_time("crash"):
        os._exit(3)
"""
BY_THE_CLOCK = """
@pytest.mark.realtime
def test_by_the_clock():
    assert "PYTEST_XDIST_WORKER" not in os.environ, "one at a time"
    assert Path(__file__).with_name("0.seen").exists(), "after the others"
    assert not first_time("clock"), "the clock"
"""
ENDING = """
@pytest.mark.realtime
def test_ends_all():
    os._exit(CODE)
"""
VIOLATED = """
def test_storm():
    if first_time("storm"):
        raise ExceptionGroup("of tasks", [Violation("FENCEPOST_STORM_SEED=17: two holders at once")])
"""
NEVER_TWICE = """
def test_runs_once():
    if not first_time("once"):
        pytest.skip("not again")
    assert False
"""
OF_WORKERS_ONLY = """
import os
import pytest
assert "PYTEST_XDIST_WORKER" in os.environ
@pytest.mark.long("storms")
def test_other(): pass
"""
SKIPPED = """
def test_needs_a_server():
    pytest.skip("its server is not installed")
"""


def run(directory: Path, healing: int, planted: str = "", no_skips: str = "", *more: str) -> tuple[int, str]:
    (directory / "pytest.ini").write_text(INI)
    (directory / "conftest.py").write_text(CONFTEST)
    (directory / "test_planted.py").write_text(PLANTED.replace("HEALING", str(healing)) + planted)
    command = [sys.executable, "-m", "tools.run_tests", "-n2", f"--rootdir={directory}", f"-c{directory}/pytest.ini"]
    environment = {"PATH": "", "PYTHONPATH": ".", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "FENCEPOST_NO_SKIPS": no_skips}
    done = subprocess.run(
        [*command, *more, str(directory)], capture_output=True, text=True, check=False, env=environment
    )
    return done.returncode, done.stdout + done.stderr


def test_ten_may_pass_only_alone_also_of_a_worker_that_crashed_and_one_by_the_clock(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text(OF_WORKERS_ONLY)
    code, output = run(tmp_path, 8, CRASHING + BY_THE_CLOCK)
    assert code == 0, f"the run by the clock reads no file that has none of its tests {output}"
    by_the_clock = output.partition("by the clock: 1 tests")[2].partition("A second look")[0]
    assert "left to `make test-all`: 1 tests" in by_the_clock, "the last of both runs names what was left in any file"
    listed = output.rpartition("passed only alone: 10 ")[2]
    assert listed.count("AssertionError: the machine was busy, ") == 8, "each with its first message"
    assert "crashed while running 'test_planted.py::test_crashes'" in listed
    assert "AssertionError: the clock" in listed
    assert "10 passed" in listed.strip().splitlines()[-1], "the closing line is pytest's own"


@pytest.mark.parametrize(
    ("healing", "planted", "end"),
    [(11, "", "11 passed"), (1, NOT_HEALING, "1 failed, 1 passed"), (1, NEVER_TWICE, "1 passed, 1 skipped")],
)
def test_eleven_that_heal_and_one_that_does_not_are_red(tmp_path: Path, healing: int, planted: str, end: str) -> None:
    code, output = run(tmp_path, healing, planted, "", "-n0")
    assert code == 1, output
    assert f"passed only alone: {healing} " in output
    assert end in output.splitlines()[-1]


@pytest.mark.parametrize(
    ("planted", "no_skips", "listed", "workers"),
    [
        (VIOLATED, "", "VIOLATION test_planted.py::test_storm: FENCEPOST_STORM_SEED=17: two holders at once", "-n2"),
        (SKIPPED, "1", "its server is not installed", "-n0"),
    ],
)
def test_what_an_oracle_found_and_a_forbidden_skip_get_no_second_look(
    tmp_path: Path, planted: str, no_skips: str, listed: str, workers: str
) -> None:
    code, output = run(tmp_path, 1, planted, no_skips, workers)
    assert code == 1, output
    assert listed in output
    assert "passed only alone" not in output


@pytest.mark.parametrize("code", [0, 1])
def test_a_run_that_a_test_ends_is_red_whatever_its_exit_code(tmp_path: Path, code: int) -> None:
    ended, output = run(tmp_path, 0, ENDING.replace("CODE", str(code)))
    assert (ended, "ended before pytest could write down what failed" in output) == (3, True), output


def test_a_run_that_was_stopped_stays_red(tmp_path: Path) -> None:
    code, output = run(tmp_path, 2, "", "", "-n0", "-x")
    assert code == 1, output
    assert "passed only alone" not in output


def test_a_run_with_a_file_that_its_workers_could_not_import_stays_red(tmp_path: Path) -> None:
    """The others ran all the same. Alone, the file can be imported, and its tests are not those that failed before."""
    (tmp_path / "test_other.py").write_text(
        "import os\nassert 'PYTEST_XDIST_WORKER' not in os.environ\ndef test_never_runs(): pass\n"
    )
    code, output = run(tmp_path, 1)
    assert code == 1, output
    assert "passed only alone" not in output
