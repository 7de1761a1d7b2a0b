"""Run the tests, and those that failed once more, alone: `make test`, `make test-all` and `make check` call it.

    python -m tools.run_tests -n 3 --dist worksteal --all

The arguments are pytest's. Tests marked `realtime` run after the others, without workers: one after another. What
failed in one of these runs, also because a worker died, runs again then, one after another too. What is red and what is
green: tests/support/second_look.py. A run without workers that one of its tests ends is red, without a list.
"""

import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click
import pytest
from tests.support.second_look import MOST, Failures

_ALONE: Final = ("-n0", "--last-failed", "--last-failed-no-failures=none", f"--maxfail={MOST}")
_COMPLETE: Final = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)


def main(arguments: Sequence[str]) -> int:
    """Run them. Returns pytest's exit code: of the last run that had tests."""
    # Ctrl-C reaches pytest, too, which ends its servers. Only then this process goes on.
    signal.signal(signal.SIGINT, lambda *_: None)
    with tempfile.TemporaryDirectory() as directory:
        # A cache of its own: pytest's may know failures of other tests, from runs before.
        cache, file = f"--override-ini=cache_dir={directory}/cache", Path(directory, "failures.json")
        code = _complete(file, *arguments, cache, "--realtime=without")
        if code not in _COMPLETE:
            return code
        failures = Failures.read(file)
        if failures.later and (code != pytest.ExitCode.TESTS_FAILED or failures.worth_a_second_look):
            click.echo(f"\nOne after another, by the clock: {len(failures.later)} tests.")
            before = Path(directory, "before.json")
            failures.write(before)
            later = _complete(file, *arguments, cache, f"--before={before}", "--realtime=only", "-n0")
            if later not in _COMPLETE:
                return later
            failures = failures.and_of(Failures.read(file))
            code = code if code == pytest.ExitCode.TESTS_FAILED else later
        if code != pytest.ExitCode.TESTS_FAILED or not failures.worth_a_second_look:
            return code
        first = Path(directory, "first.json")
        failures.write(first)
        click.echo(f"\nA second look, one after another, at the {len(failures.messages)} tests that failed:")
        return _complete(file, *arguments, cache, f"--first={first}", *_ALONE)


def _complete(file: Path, *arguments: str) -> int:
    """Run pytest. A test that ends the process, with whatever exit code, ends the run without its list of failures."""
    file.unlink(missing_ok=True)
    code = _pytest(*arguments, f"--failures={file}")
    if file.exists():
        return code
    click.echo("\nThe run ended before pytest could write down what failed.")
    return pytest.ExitCode.INTERNAL_ERROR if code in _COMPLETE else code


def _pytest(*arguments: str) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], check=False).returncode  # noqa: S603 - no shell


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
