"""Run the tests, and those that failed once more, alone: `make test`, `make test-all` and `make check` call it.

    python -m tools.run_tests -n 3 --dist worksteal --all

The arguments are pytest's. Tests marked `realtime` run after the others, without workers: one after another. What
failed in one of these runs, also because a worker died, runs again then (`pytest --last-failed -n0`). What is red and
what is green: tests/support/second_look.py. A run without workers that one of its tests ends is red, without a list.
"""

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click
import pytest
from tests.support.second_look import MOST, RUN

_ALONE: Final = ("-n0", "--last-failed", "--last-failed-no-failures=none", f"--maxfail={MOST}")
_COMPLETE: Final = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)


def main(arguments: Sequence[str]) -> int:
    """Run them. Returns pytest's exit code: of the last run that had tests."""
    # Ctrl-C reaches pytest, too, which ends its servers. Only then this process goes on.
    signal.signal(signal.SIGINT, lambda *_: None)
    # A cache of its own: pytest's may know failures of other tests, from runs before.
    with tempfile.TemporaryDirectory() as cache:
        code, noted = _run(cache, *arguments, "--part=others")
        if noted["later"] and (code in _COMPLETE) and (code != pytest.ExitCode.TESTS_FAILED or _may_pass_alone(noted)):
            click.echo(f"\nOne after another, by the clock: {len(noted['later'])} tests.")
            later, noted = _run(cache, *arguments, "--part=realtime", "-n0")
            code = code if code == pytest.ExitCode.TESTS_FAILED and later in _COMPLETE else later
        if code != pytest.ExitCode.TESTS_FAILED or not _may_pass_alone(noted):
            return code
        click.echo(f"\nA second look, one after another, at the {len(noted['failed'])} tests that failed:")
        return _run(cache, *arguments, "--part=failed", *_ALONE)[0]


def _may_pass_alone(noted: dict[str, Any]) -> bool:
    """Whether all that is wrong are tests that may pass alone, and so few that it is worth the time."""
    return 0 < len(noted["failed"]) <= 5 * MOST and not noted["final"]


def _run(cache: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run pytest; give its exit code, and what it noted: nothing, where a test ended the process, with any code."""
    command = [sys.executable, "-m", "pytest", *arguments, f"--override-ini=cache_dir={cache}"]
    file = Path(cache, "v", RUN)
    before = file.stat().st_mtime_ns if file.exists() else None
    code = subprocess.run(command, check=False).returncode  # noqa: S603 - no shell
    if file.exists() and file.stat().st_mtime_ns != before:
        return code, json.loads(file.read_text("utf-8"))
    click.echo("\nThe run ended before pytest could write down what failed.")
    nothing = {"failed": {}, "final": True, "later": [], "left": []}
    return (pytest.ExitCode.INTERNAL_ERROR if code in _COMPLETE else code), nothing


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
