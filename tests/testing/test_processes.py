"""Signals to a process and all below it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fencepost.testing.servers.processes import Known, alive, continue_all, descendants, kill_tree, pid_of, stop_tree
from fencepost.testing.servers.waiting import wait_until

FAMILY = """
import subprocess, sys, threading
child = "import threading; threading.Event().wait()"
# A session of its own, as PostgreSQL's backends have; forked by a thread that is not the first.
start = lambda: print(subprocess.Popen([sys.executable, "-c", child], start_new_session=True).pid, flush=True)
forker = threading.Thread(target=lambda: (start(), threading.Event().wait()))
forker.start()
"""


@pytest.fixture
def family() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run a process with a child in another session. Gives both."""
    parent = subprocess.Popen([sys.executable, "-c", FAMILY], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    yield parent, child
    if alive(child):
        os.kill(child, 9)
    parent.kill()
    parent.communicate()


def states(pid: int) -> set[str]:
    return {(task / "stat").read_text().rpartition(")")[2].split()[0] for task in Path(f"/proc/{pid}/task").iterdir()}


def test_all_below_a_process_stop_and_go_on(family: tuple[subprocess.Popen[str], int]) -> None:
    parent, child = family
    assert descendants(parent.pid) == [child]
    stopped = stop_tree(parent.pid)
    assert states(parent.pid) == {"T"}
    assert states(child) == {"T"}
    continue_all(stopped)
    wait_until(lambda: "T" not in states(parent.pid) | states(child))


def test_all_below_a_process_are_killed(family: tuple[subprocess.Popen[str], int]) -> None:
    parent, child = family
    kill_tree(parent.pid)
    assert not alive(parent.pid)
    assert not alive(child)


def test_a_pid_that_was_given_to_another_process_gets_no_signal(family: tuple[subprocess.Popen[str], int]) -> None:
    parent, _ = family
    Known(parent.pid, started=1).signal(signal.SIGKILL)
    assert alive(parent.pid)


def test_the_harness_does_not_stop_itself() -> None:
    for pid in (os.getpid(), os.getppid(), 1):
        with pytest.raises(ValueError, match="one above it"):
            pid_of(pid)
