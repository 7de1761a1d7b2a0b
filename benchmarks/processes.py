"""Child processes: started in a session of their own, ended by their handle, gone when we are."""

import functools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from fencepost.server.ops.parent_death import die_with_parent

REPOSITORY: Final = Path(__file__).parents[1]
_READY_WITHIN: Final = 60.0  # seconds
_ENDED_WITHIN: Final = 40.0  # seconds
_POLL: Final = 0.02  # seconds


class BenchmarkError(Exception):
    """The benchmark cannot go on. The message gives the reason."""


def run(
    command: Sequence[str | Path],
    *,
    within: float,
    given: str = "",
    logs: bool = False,
    variables: Mapping[str, str] | None = None,
) -> str:
    """Run a program to its end and return its stdout.

    BenchmarkError when it fails, takes longer than `within` s, or writes to stderr, unless it `logs` there.
    """
    try:
        done: subprocess.CompletedProcess[str] = subprocess.run(  # noqa: S603 - a program of ours, no shell
            command,
            input=given,
            capture_output=True,
            text=True,
            check=True,
            timeout=within,
            env=_environment(variables or {}),
            **_as_child(),
        )
    except subprocess.CalledProcessError as error:
        raise BenchmarkError(f"{command[0]} failed: {error.stderr[-2000:]}") from error
    except subprocess.TimeoutExpired as error:
        raise BenchmarkError(f"{command[0]} did not end within {within:.0f} s") from error
    if done.stderr and not logs:
        raise BenchmarkError(f"{command[0]} complained: {done.stderr[-2000:]}")
    return done.stdout


@contextmanager
def running(command: Sequence[str], log: Path, ready: str, **variables: str) -> Iterator[re.Match[str]]:
    """Run a server while the block runs, which begins once `ready` matches its output; gives the match.

    Its output goes to the file `log`.
    """
    with log.open("w") as output:
        process = subprocess.Popen(  # noqa: S603 - a program of ours, no shell
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=_environment(variables),
            **_as_child(),
        )
    try:
        yield _await_ready(process, log, ready)
    finally:
        _end(process)


@contextmanager
def gateway(
    database: str, directory: Path, workers: int = 1, program: str = "fencepost", **variables: str
) -> Iterator[int]:
    """Run `fencepost serve` while the block runs; gives its port."""
    command = [sys.executable, "-m", program, "serve", "--port", "0", "--workers", str(workers)]
    variables |= {"FENCEPOST_DATABASE_URL": database, "TMPDIR": str(directory)}
    with running(command, directory / "server.log", r"serves http://127.0.0.1:(?P<port>\d+)", **variables) as found:
        yield int(found["port"])


def _await_ready(process: subprocess.Popen[bytes], log: Path, ready: str) -> re.Match[str]:
    deadline = time.monotonic() + _READY_WITHIN
    while (found := re.search(ready, log.read_text())) is None:
        if process.poll() is not None or time.monotonic() > deadline:
            raise BenchmarkError(f"the server did not start: {log.read_text()[-2000:]}")
        time.sleep(_POLL)
    return found


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_ENDED_WITHIN)
    except BaseException:  # also a second Ctrl-C: the group is the child's own, with its workers
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise


def _as_child() -> dict[str, Any]:
    before_exec = functools.partial(die_with_parent, os.getpid(), signal.SIGTERM)
    return {"preexec_fn": before_exec, "start_new_session": True, "cwd": REPOSITORY}


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Our environment without settings that would change what is measured."""
    return {n: v for n, v in os.environ.items() if not n.startswith(("FENCEPOST_", "PG"))} | dict(variables)
