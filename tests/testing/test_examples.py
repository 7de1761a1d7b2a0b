"""examples/orders: its test finds the bug each time, and passes with the fix."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.testing.test_plugin import run_pytest

ORDERS = Path(__file__).parents[2] / "examples" / "orders"
TIMES = 2
AGAIN = f"""

def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    metafunc.fixturenames.append("again")
    metafunc.parametrize("again", range({TIMES}))
"""


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    """Copy the example, with each test several times."""
    copy = tmp_path / "orders"
    shutil.copytree(ORDERS, copy, ignore=shutil.ignore_patterns("__pycache__"))
    with (copy / "conftest.py").open("a") as conftest:
        conftest.write(AGAIN)
    return copy


@pytest.mark.long("planted bugs")
def test_the_bug_is_found_each_time(orders: Path) -> None:
    output = run_pytest(orders)
    assert len(re.findall(r"^E .*assert \['paid'\] == \['cancelled'\]$", output, re.MULTILINE)) == TIMES, output
    assert re.search(rf"^{TIMES} failed in ", output, re.MULTILINE), output


@pytest.mark.long("projects that use the plugin")
def test_with_the_fix_the_same_test_passes_each_time(orders: Path) -> None:
    subprocess.run(["git", "apply", "-p0", "fix.diff"], cwd=orders, check=True)
    output = run_pytest(orders)
    assert re.search(rf"^{TIMES} passed in ", output, re.MULTILINE), output
