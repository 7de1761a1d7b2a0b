"""Signals to a process and all below it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fencepost.testing import paused
from fencepost.testing.servers.processes import (
    PATIENCE,
    KnownProcess,
    alive,
    continue_all,
    descendants,
    kill_tree,
    pid_of,
    stop_tree,
    wait_until,
)

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


def test_a_process_that_two_blocks_pause_goes_on_after_the_last(family: tuple[subprocess.Popen[str], int]) -> None:
    parent, child = family
    first, second, of_the_child = paused(parent), paused(parent), paused(child)
    for block in (first, of_the_child, second):
        block.__enter__()
    for block in (first, second):  # in the order in which threads may end them
        block.__exit__(None, None, None)
    assert states(child) == {"T"}
    assert "T" not in states(parent.pid)
    of_the_child.__exit__(None, None, None)
    assert "T" not in states(child)


PAUSES = """
import os, signal, sys, threading
from fencepost.testing import paused
def pause():
    with paused(int(sys.argv[1])):
        print("paused", flush=True)
        threading.Event().wait()
if sys.argv[2] == "handles":
    signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
if sys.argv[2] == "thread":
    threading.Thread(target=pause, daemon=True).start()
    threading.Event().wait()
pause()
"""


@pytest.mark.parametrize(
    ("number", "where", "status"),
    [
        (signal.SIGTERM, "main", -signal.SIGTERM),
        (signal.SIGHUP, "thread", -signal.SIGHUP),
        (signal.SIGTERM, "handles", 7),
    ],
)
def test_a_signal_that_ends_the_harness_continues_what_it_has_stopped(
    family: tuple[subprocess.Popen[str], int], number: signal.Signals, where: str, status: int
) -> None:
    parent, child = family
    command = [sys.executable, "-c", PAUSES, str(parent.pid), where]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as harness:
        assert harness.stdout is not None
        assert harness.stdout.readline() == b"paused\n"
        harness.send_signal(number)
        assert harness.wait(PATIENCE) == status
    assert "T" not in states(parent.pid) | states(child)


def test_all_below_a_process_are_killed(family: tuple[subprocess.Popen[str], int]) -> None:
    parent, child = family
    kill_tree(parent.pid)
    assert not alive(parent.pid)
    assert not alive(child)


def test_a_pid_that_was_given_to_another_process_gets_no_signal(family: tuple[subprocess.Popen[str], int]) -> None:
    parent, _ = family
    KnownProcess(parent.pid, started=1).signal(signal.SIGKILL)
    assert alive(parent.pid)


def test_the_harness_does_not_stop_itself() -> None:
    for pid in (os.getpid(), os.getppid(), 1):
        with pytest.raises(ValueError, match="one above it"):
            pid_of(pid)
