"""Run the tests, and those that failed once more, alone: `make test`, `make test-all` and `make check` call it.

    python -m tools.run_tests -n 3 --dist worksteal --all

The arguments are pytest's. What failed in the first run, also because a worker died, runs again without workers, one
test after another. What is red and what is green then: tests/support/second_look.py.
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


def main(arguments: Sequence[str]) -> int:
    """Run them. Returns pytest's exit code: of the second run, where there is one."""
    # Ctrl-C reaches pytest, too, which ends its servers. Only then this process goes on.
    signal.signal(signal.SIGINT, lambda *_: None)
    with tempfile.TemporaryDirectory() as directory:
        # A cache of its own: pytest's may know failures of other tests, from runs before.
        cache, first = f"--override-ini=cache_dir={directory}/cache", Path(directory, "first.json")
        code = _pytest(*arguments, cache, f"--failures={first}")
        if code != pytest.ExitCode.TESTS_FAILED or not (failures := Failures.read(first)).worth_a_second_look:
            return code
        click.echo(f"\nA second look, one after another, at the {len(failures.messages)} tests that failed:")
        return _pytest(*arguments, cache, f"--first={first}", *_ALONE)


def _pytest(*arguments: str) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], check=False).returncode  # noqa: S603 - no shell


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
